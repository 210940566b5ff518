package segment

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// scrubber reads every durable byte of every open log again and again, slowly,
// because a disk tells of its errors only when it is read, and copies of cold
// data should not have rotted before they are needed. It checks headers, CRCs,
// the order of offsets, leader epochs against what the log remembers, where
// each segment ends, the size of its file, and the checksum of what the batches'
// own CRCs leave out.
//
// It is one goroutine of the store. Beside its passes it looks at segments that
// a reader stumbled over (suspect), at once and at full speed, and lets go of
// what is too old in quarantine. It alone calls a log damaged that is in use,
// so each place is reported once.
//
// What it sees under a truncation, a compaction or a deletion is no damage: it
// believes what it found only if the segment is still one of the log's and
// nothing was cut since.
type scrubber struct {
	store  *Store
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1
	done   chan struct{}

	mu struct {
		sync.Mutex
		suspects map[*segment]struct{}
	}

	started, finished atomic.Int64 // Unix milliseconds of the pass under way, and of the end of the last full one
}

const (
	// kindScrub is how far the scrubber came in a log, in the pass that began at a
	// time; under the zero LogID, when the pass began and the last one ended.
	kindScrub = 's'

	// scrubPieces is how many reads a second the scrubber makes: few enough to be
	// long, many enough to leave the disk alone in between.
	scrubPieces = 8

	quarantineCheck = time.Hour

	// scrubDelay is how long after a start no pass begins or goes on: the store's
	// owner opens its logs then, and a pass would end without them.
	scrubDelay = time.Minute
)

var (
	scrubBytes  = obs.Counter("lockstep_log_scrub_bytes_total")
	scrubPasses = obs.Counter("lockstep_log_scrub_passes_total")

	scrubUnreadable = obs.Counter("lockstep_log_scrub_unreadable_total")
)

func newScrubber(s *Store) *scrubber {
	c := &scrubber{store: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.suspects = make(map[*segment]struct{})
	c.load()
	obs.Gauge("lockstep_log_scrub_last_pass_timestamp_seconds", func() float64 { return float64(c.finished.Load()) / 1000 }, "dir", s.o.Dir)
	return c
}

// ScrubbedTo is the end of what the scrubber has read and found good in its
// present pass; after a pass, the end of what was durable then.
func (l *Log) ScrubbedTo() int64 { return l.scrubbed.Load() }

// LastScrub is when the scrubber last finished with all logs; the zero time if it
// never did.
func (s *Store) LastScrub() time.Time {
	if ms := s.scrubber.finished.Load(); ms > 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// suspect asks for a segment to be looked at.
func (c *scrubber) suspect(seg *segment) {
	c.mu.Lock()
	c.mu.suspects[seg] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *scrubber) run() {
	defer close(c.done)
	o := &c.store.o
	prune := o.Clock.NewTimer(quarantineCheck)
	defer prune.Stop()
	var next clock.Timer
	var due <-chan time.Time // never, if switched off
	if o.ScrubBytesPerSecond > 0 {
		next = o.Clock.NewTimer(max(c.untilNext(), min(scrubDelay, o.ScrubInterval)))
		defer next.Stop()
		due = next.C()
	}
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
			c.lookAtSuspects()
		case <-prune.C():
			c.store.quarantine.prune()
			prune.Reset(quarantineCheck)
		case <-due:
			c.pass()
			next.Reset(c.untilNext())
		}
	}
}

func (c *scrubber) close() {
	c.cancel()
	<-c.done
	obs.Unregister("lockstep_log_scrub_last_pass_timestamp_seconds", "dir", c.store.o.Dir)
}

// untilNext is the time until a pass is due: at once if one was interrupted.
func (c *scrubber) untilNext() time.Duration {
	if c.finished.Load() < c.started.Load() {
		return 0
	}
	due := time.UnixMilli(c.started.Load()).Add(c.store.o.ScrubInterval)
	return max(due.Sub(c.store.o.Clock.Now()), 0)
}

// pass reads all logs once.
func (c *scrubber) pass() {
	if c.finished.Load() >= c.started.Load() {
		c.started.Store(c.store.o.Clock.Now().UnixMilli())
		c.save()
	}
	done := make(map[*Log]struct{})
	for before := -1; len(done) > before; { // until no log was opened meanwhile
		before = len(done)
		for _, l := range c.store.openLogs() {
			if _, ok := done[l]; ok {
				continue
			}
			if !c.scrub(l) {
				return
			}
			done[l] = struct{}{}
		}
	}
	if c.ctx.Err() != nil { // a store that closes shows no logs any more
		return
	}
	c.finished.Store(max(c.store.o.Clock.Now().UnixMilli(), c.started.Load()))
	c.save()
	scrubPasses.Inc()
	c.store.o.Logger.Info("all logs were read and checked", "dir", c.store.o.Dir, "since", time.UnixMilli(c.started.Load()))
}

// openLogs are the logs in use, in an order that stays, so that an interrupted
// pass goes on with the same one.
func (s *Store) openLogs() []*Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := make([]*Log, 0, len(s.mu.logs))
	for _, l := range s.mu.logs {
		select {
		case <-l.ready:
			logs = append(logs, l)
		default:
		}
	}
	slices.SortFunc(logs, func(a, b *Log) int {
		if c := strings.Compare(string(a.id.Topic[:]), string(b.id.Topic[:])); c != 0 {
			return c
		}
		return cmp.Compare(a.id.Partition, b.id.Partition)
	})
	return logs
}

// scrub reads one log from where the pass was interrupted. It says whether the
// pass goes on.
func (c *scrubber) scrub(l *Log) bool {
	from := c.resume(l)
	for c.ctx.Err() == nil {
		s, ok := l.scrubNext(from)
		if !ok {
			return true
		}
		d, err := c.check(l, s, true)
		switch {
		case c.ctx.Err() != nil:
			return false
		case !l.still(s): // cut, replaced or deleted meanwhile
			if l.isClosed() {
				return true
			}
			continue
		case d != nil:
			c.report(l, d, s)
			return true
		case err != nil:
			c.unreadable(l, s, err)
		}
		from = s.end
		c.advance(l, from)
	}
	return false
}

// scrubTarget is a segment as it was when the scrubber chose it.
type scrubTarget struct {
	seg    *segment
	size   int64 // durable bytes
	end    int64 // of the log's durable bytes in it
	closed bool  // it gets no more bytes
	whole  bool  // end is the end of the last batch
	known  known // what its batches' heads add up to, if whole
	cuts   uint64
}

func (l *Log) scrubbedLocked(seg *segment) scrubTarget {
	s := scrubTarget{
		seg: seg, size: seg.synced, end: seg.end, cuts: l.cuts.Load(),
		closed: seg != l.mu.segments[len(l.mu.segments)-1], whole: seg.synced == seg.size,
	}
	if s.whole {
		s.known = known{size: seg.size, heads: seg.times.heads}
	}
	return s
}

// scrubNext is the first segment that ends above from, as far as it is durable. It
// waits for a cut under way, which is published before the file is cut: a longer
// file would be taken for damage then, and no further cut would tell.
func (l *Log) scrubNext(from int64) (s scrubTarget, ok bool) {
	l.wr.Lock()
	defer l.wr.Unlock()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed || l.damaged.Load() != nil {
		return s, false
	}
	for _, seg := range l.mu.segments {
		if seg.end > from && seg.synced > 0 {
			return l.scrubbedLocked(seg), true
		}
	}
	return s, false
}

// still says that what was found in a segment is true of the log as it is.
func (l *Log) still(s scrubTarget) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return !l.mu.closed && l.cuts.Load() == s.cuts && slices.Contains(l.mu.segments, s.seg)
}

// check reads one segment. It tells damage from a disk that cannot be read:
// that may pass, or be cured elsewhere, and no byte has been seen to be wrong.
func (c *scrubber) check(l *Log, s scrubTarget, paced bool) (*DamageError, error) {
	path := s.seg.path()
	damage := func(at, offset int64, err error) (*DamageError, error) {
		return &DamageError{File: path, At: at, Offset: offset, Err: err}, nil
	}
	size, err := fileSize(l.store.disk, path)
	switch {
	case err != nil && errors.Is(err, fs.ErrNotExist):
		return damage(0, s.seg.base, err)
	case err != nil:
		return nil, err
	case size < s.size || s.closed && size != s.size:
		return damage(min(size, s.size), s.seg.base, fmt.Errorf("file has %d bytes, %d were written", size, s.size))
	}
	f, err := c.open(path, s.size, paced)
	if err != nil {
		return nil, err
	}
	defer f.close()
	var wrong error
	wrongAt := int64(-1)
	w, err := walk(f, s.seg.base, s.size, walkOptions{interval: math.MaxInt64, verifyFrom: -1, known: s.known, each: func(b record.Batch) {
		base := b.BaseOffset()
		e, ok := l.EpochAt(base)
		if wrong == nil && ok && base >= l.StartOffset() && e != b.PartitionLeaderEpoch() {
			wrong, wrongAt = fmt.Errorf("batch has leader epoch %d, the log remembers %d", b.PartitionLeaderEpoch(), e), base
		}
	}})
	switch {
	case err != nil && (isBadBatch(err) || errors.Is(err, io.ErrUnexpectedEOF)):
		return damage(w.size, w.end, err)
	case err != nil:
		return nil, fmt.Errorf("position %d, offset %d: %w", w.size, w.end, err)
	case wrong != nil:
		return damage(0, wrongAt, wrong)
	case s.whole && w.end != s.end:
		return damage(w.size, min(w.end, s.end), fmt.Errorf("batches end at offset %d, %d was written last", w.end, s.end))
	}
	return nil, nil
}

// report takes the log out of use and tells who has to know.
func (c *scrubber) report(l *Log, d *DamageError, s scrubTarget) {
	if l.condemn(d, noted{base: s.seg.base, known: s.known}) && c.store.o.OnDamage != nil {
		c.store.o.OnDamage(l.id, d)
	}
}

// unreadable tells of a segment that could not be checked; the next pass tries
// again.
func (c *scrubber) unreadable(l *Log, s scrubTarget, err error) {
	if c.ctx.Err() != nil {
		return
	}
	scrubUnreadable.Inc()
	c.store.o.Logger.Error("scrubber cannot read a segment, which stays in use; the rest of it is not checked in this pass", "log", l.id.String(), "file", s.seg.path(), "err", err)
}

func (c *scrubber) lookAtSuspects() {
	c.mu.Lock()
	suspects := c.mu.suspects
	c.mu.suspects = make(map[*segment]struct{})
	c.mu.Unlock()
	for seg := range suspects {
		l := seg.log
		l.wr.Lock() // as in scrubNext
		l.mu.RLock()
		s := l.scrubbedLocked(seg)
		l.mu.RUnlock()
		l.wr.Unlock()
		d, err := c.check(l, s, false)
		switch {
		case err != nil:
			c.unreadable(l, s, err)
		case d != nil && l.still(s):
			c.report(l, d, s)
		}
	}
}

// resume is where to go on in a log: at its start, unless this pass was there.
func (c *scrubber) resume(l *Log) int64 {
	value := c.store.index.get(l.id.key(kindScrub))
	l.mu.RLock()
	b, _ := l.cached(value, math.MaxInt64) // the offset is inside, so look before judging
	pass, offset := decodePair(b)
	_, ok := l.cached(value, offset)
	l.mu.RUnlock()
	if !ok || pass != c.started.Load() || offset > l.EndOffset() {
		l.scrubbed.Store(l.StartOffset())
		return -1
	}
	l.scrubbed.Store(offset)
	return offset
}

// advance notes how far a log was read.
func (c *scrubber) advance(l *Log, offset int64) {
	l.scrubbed.Store(min(offset, l.EndOffset()))
	l.mu.RLock()
	value := l.stamp(encodePair(c.started.Load(), offset))
	l.mu.RUnlock()
	c.store.index.write(func(b *pebble.Batch) { _ = b.Set(l.id.key(kindScrub), value, nil) })
}

func (c *scrubber) load() {
	started, finished := decodePair(c.store.index.get(LogID{}.key(kindScrub)))
	c.started.Store(started)
	c.finished.Store(finished)
}

func (c *scrubber) save() {
	value := encodePair(c.started.Load(), c.finished.Load())
	c.store.index.write(func(b *pebble.Batch) { _ = b.Set(LogID{}.key(kindScrub), value, nil) })
	c.store.flusher.indexGrew.Store(true)
}

func encodePair(a, b int64) []byte {
	return binary.AppendVarint(binary.AppendVarint(nil, a), b)
}

func decodePair(p []byte) (a, b int64) {
	a, n := binary.Varint(p)
	if n <= 0 {
		return 0, 0
	}
	b, m := binary.Varint(p[n:])
	if m <= 0 {
		return 0, 0
	}
	return a, b
}
