package segment

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Log is one partition's batches. Any goroutine may read; those that change it
// (Append, Truncate, SetStartOffset, Retain, …) are serialised by the log
// itself, in the order in which they come: who needs an order among appends
// keeps it outside, as a partition does.
//
// A Log has no goroutine of its own.
type Log struct {
	store *Store
	id    LogID
	dir   string

	// wr serialises everything that changes the log. Disk work is done under it,
	// so nothing that a reader needs is guarded by it.
	wr sync.Mutex

	// keptAt are the bases that have a file of producers (see producersSuffix): that of the
	// first segment, and leftovers. Guarded by wr.
	keptAt []int64

	// mu guards what readers see. It is held for looking and for publishing, never
	// over disk or index access. Lock order: wr, mu; markMu and the locks of
	// the store's parts (files, flusher, watermarks, index) are leaves.
	//
	// Invariant: segments is not empty, each begins where the one before it ends
	// (but in a log that came without marks), and the last is the active one;
	// segments[0].base <= start <= end = the end of the active segment.
	mu struct {
		sync.RWMutex
		segments  []*segment
		start     int64
		end       int64
		size      int64 // sum of the segments' sizes
		epochs    epoch.Cache
		written   epoch.Cache // of the batches of the active segment, wherever the log start is
		producers *producer.Table
		config    Config

		// tail holds the newest index entries of the active segment, oldest first;
		// those before it are in Pebble (segment.trimmed).
		tail []entry

		// generation rises with every truncation, floor is the lowest of them in
		// the life of the log. Together they tell which entries of the index are of
		// bytes that are still there. Both are in the marks.
		// life is the generation in which the log began: what the index remembers of
		// an earlier one is of another log with the same id.
		generation, floor, life int64

		cleaned cleaned // how far compaction has come

		// proof belongs to durable, and is written down with it.
		proof proof

		// names counts created and removed files since the directory was synced.
		names  uint64
		newDir bool // the directory itself is not known to be durable
		closed bool
		unread bool // damage kept it from being recovered: the marks are all that is known
	}

	// Copies of state above for readers in a hurry; written under mu.
	start, end atomic.Int64
	// durable is the end of what an fsync has confirmed. Raised by the flusher
	// under mu, lowered by truncation under mu.
	durable atomic.Int64
	hw      atomic.Int64

	// markMu keeps the order between reading the marks and writing them down, so
	// that a checkpoint cannot undo the lower marks of a truncation.
	markMu sync.Mutex

	// cuts counts truncations; written under mu. A flush or read that began before
	// one proves nothing about what came after it.
	cuts atomic.Uint64
	// forgets counts the times that compaction dropped aborted transactions;
	// written under mu. See ReadCommitted.
	forgets atomic.Uint64

	failed  atomic.Pointer[error]       // this log takes no more changes
	damaged atomic.Pointer[DamageError] // out of use until it is repaired; see damage.go

	repairMu sync.Mutex // one repair at a time; taken before wr
	noteMu   sync.Mutex // guards the note of damaged files; a leaf

	scrubbed atomic.Int64 // see ScrubbedTo

	syncing sync.Mutex  // one sync at a time: between wr and mu
	flushes flushes     // who waits for the flusher
	queued  atomic.Bool // in the flusher's list of logs with unsynced bytes
	marked  atomic.Bool // in the flusher's list of logs with unwritten marks

	hint uint32 // where appends look for a slot among the outstanding operations

	// Of the active segment, guarded by wr: the position of its last index entry,
	// up to where its entries are in Pebble, and what the last checkpoint said.
	indexed, stored int64
	checkpointed    checkpointed

	// history is what is still being gathered about the older part of the log; nil
	// when all is known. Taken away under wr and mu.
	history atomic.Pointer[history]

	lastRetain retainClock // guarded by wr

	compacting sync.Mutex // one compaction at a time; taken before wr

	hints struct {
		sync.Mutex
		ring [8]hint
		next int
	}

	ready chan struct{} // closed when OpenLog is done with it
}

// Appended is what one Append did.
type Appended struct {
	First, End           int64 // base offset of the first batch, end of the last
	MaxTimestamp         int64
	OffsetOfMaxTimestamp int64 // last offset of the first batch that has it
}

// ID names the log.
func (l *Log) ID() LogID { return l.id }

// Store is the log directory that the log is in.
func (l *Log) Store() *Store { return l.store }

// Dir is the directory with the log's segments.
func (l *Log) Dir() string { return l.dir }

// SetConfig takes effect with the next append or retention.
func (l *Log) SetConfig(c Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.config = c.withDefaults()
}

// StartOffset is the first offset that can be read.
func (l *Log) StartOffset() int64 { return l.start.Load() }

// EndOffset is the next offset to be given.
func (l *Log) EndOffset() int64 { return l.end.Load() }

// DurableEnd is the end of what an fsync has confirmed.
func (l *Log) DurableEnd() int64 { return l.durable.Load() }

// HighWatermark is the last one set, or found at opening; at most the log end.
func (l *Log) HighWatermark() int64 { return l.hw.Load() }

// SetHighWatermark notes the high watermark. It gets into the watermarks file
// with the next checkpoint.
func (l *Log) SetHighWatermark(hw int64) {
	hw = min(hw, l.end.Load())
	if l.hw.Swap(hw) != hw {
		l.noteMark()
	}
}

// Size is the size of all segments in bytes.
func (l *Log) Size() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.size
}

// SegmentInfo describes one segment file.
type SegmentInfo struct {
	Path      string
	Base, End int64
	Size      int64
}

// Segments lists the segments, oldest first.
func (l *Log) Segments() []SegmentInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make([]SegmentInfo, len(l.mu.segments))
	for i, s := range l.mu.segments {
		list[i] = SegmentInfo{Path: s.path(), Base: s.base, End: s.end, Size: s.size}
	}
	return list
}

// CheckProducer says whether a client may append b; see producer.Table.Check.
// While the history is being gathered, a batch with a producer id is answered
// with ErrRebuilding.
func (l *Log) CheckProducer(b record.Batch) (*producer.Dup, error) {
	if b.HasProducerID() {
		if err := l.Ready(); err != nil {
			return nil, err
		}
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.Check(b)
}

// EpochEnd answers OffsetForLeaderEpoch; see epoch.Cache.End. This and what
// follows up to Producers says nothing that means anything before Ready does.
func (l *Log) EpochEnd(e int32) (int32, int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.epochs.End(e, l.mu.end)
}

// LatestEpoch is the newest epoch in the log.
func (l *Log) LatestEpoch() (int32, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	e, ok := l.mu.epochs.Latest()
	if !ok {
		return epoch.Undefined, false
	}
	return e.Epoch, true
}

// EpochAt is the epoch in which offset was written.
func (l *Log) EpochAt(offset int64) (int32, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.epochs.At(offset)
}

// Epochs lists the epochs and their first offsets, oldest first.
func (l *Log) Epochs() []epoch.Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.epochs.Entries()
}

// LastStable is the last stable offset: read-committed consumers see what is
// below it. It never passes the high watermark, nor the first offset of a
// transaction that is open or whose marker is not below the high watermark.
// Before Ready it is the log start.
func (l *Log) LastStable(highWatermark int64) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.history.Load() != nil && !invariants.Planted("historyUnknownAsEmpty") {
		return l.mu.start
	}
	lso := min(highWatermark, l.mu.end)
	if first, ok := l.mu.producers.FirstUnstable(highWatermark); ok {
		// A transaction may have begun below the log start.
		lso = min(lso, max(first, l.mu.start))
	}
	return lso
}

// Aborted lists the aborted transactions whose marker is at or above both from and the log
// start, and whose first record is below to.
func (l *Log) Aborted(from, to int64) []producer.AbortedTxn {
	l.mu.RLock()
	defer l.mu.RUnlock()
	// The table knows more than the log holds: all of the first segment.
	return l.mu.producers.AbortedIn(max(from, l.mu.start), to)
}

// OpenTxns lists the transactions without a marker, oldest first.
func (l *Log) OpenTxns() []producer.OpenTxn {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.Open()
}

// Producers lists the producers known to the log.
func (l *Log) Producers() []producer.Producer {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.Producers()
}

// usable says whether the log takes changes.
func (l *Log) usable() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.usableLocked()
}

// usableLocked is usable for holders of wr or mu: a log is closed under both.
func (l *Log) usableLocked() error {
	if d := l.damaged.Load(); d != nil {
		return d
	}
	if err := l.failed.Load(); err != nil {
		return *err
	}
	if err := l.store.failure(); err != nil {
		return err
	}
	if l.mu.closed {
		return fmt.Errorf("%w: %s", ErrClosed, l.id)
	}
	return nil
}

// fail takes the log out of use: its files and what we believe of them differ.
func (l *Log) fail(err error) error {
	l.store.failSync(err)
	err = fmt.Errorf("%w: log %s: %w", ErrFailed, l.id, err)
	if l.failed.CompareAndSwap(nil, &err) {
		l.store.o.Logger.Error("log failed, it takes no more changes", "log", l.id.String(), "err", err)
	}
	return *l.failed.Load()
}

// active is the segment that appends go to; for holders of wr.
func (l *Log) active() *segment { return l.mu.segments[len(l.mu.segments)-1] }

// find is the index of the last segment that begins at or below offset; 0 if
// all begin above.
func findSegment(segments []*segment, offset int64) int {
	i := sort.Search(len(segments), func(i int) bool { return segments[i].base > offset })
	return max(i-1, 0)
}

// noteMark queues the log for the next checkpoint.
func (l *Log) noteMark() {
	if !l.marked.Swap(true) {
		l.store.flusher.addMark(l)
	}
}

// putMark writes the marks down as they are now.
func (l *Log) putMark(sync bool, reset int64) error {
	l.markMu.Lock()
	defer l.markMu.Unlock()
	return l.putMarkLocked(sync, func(m *mark) { m.reset = reset })
}

// putMarkLocked writes down what the marks are now, but for what alter says;
// markMu is held until that is so.
func (l *Log) putMarkLocked(sync bool, alter func(*mark)) error {
	l.mu.RLock()
	m := mark{
		start: l.mu.start, durable: min(l.durable.Load(), l.mu.end), hw: min(l.hw.Load(), l.mu.end),
		generation: l.mu.generation, floor: l.mu.floor, life: l.mu.life, reset: -1, proof: l.mu.proof,
	}
	skip := l.mu.closed || l.mu.unread
	l.mu.RUnlock()
	if skip {
		return nil
	}
	alter(&m)
	err := l.store.marks.put(sync, change{id: l.id, mark: m})
	l.store.failSync(err)
	return err
}

// proofLocked is the proof of the log as it is now.
func (l *Log) proofLocked() proof {
	for i := len(l.mu.segments) - 1; i >= 0; i-- {
		if s := l.mu.segments[i]; s.size > 0 {
			if s.times.heads == 0 {
				break // not gathered yet
			}
			return proof{base: s.base, known: known{size: s.size, heads: s.times.heads}}
		}
	}
	return proof{}
}

// publishLocked ends every change of what readers see: it checks the invariants
// of mu and copies what readers in a hurry look at.
func (l *Log) publishLocked() {
	a := l.mu.segments[len(l.mu.segments)-1]
	if l.mu.start > l.mu.end || a.end != l.mu.end || l.mu.segments[0].base > l.mu.start {
		_ = l.fail(invariants.Check(false, "log %s: [%d, %d) in segments from %d to %d", l.id, l.mu.start, l.mu.end, l.mu.segments[0].base, a.end))
	}
	if l.start.Load() != l.mu.start { // mostly not, and a store waits for those before it
		l.start.Store(l.mu.start)
	}
	l.end.Store(l.mu.end)
}
