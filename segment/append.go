package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// tailMax is how many index entries of the active segment stay in memory: 64
// MiB of log with one entry per 64 KiB, 24 KiB of memory per busy partition.
const tailMax = 1024

// Append writes whole batches, back to back. Their CRCs
// have been verified, their offsets and epochs are final; gaps between offsets
// are legal (compaction makes them). Base offsets must not be below the log end.
//
// When it returns, readers see the batches, epochs, producer state and index
// include them. They are not durable yet: see Flush. After an error nothing
// was appended. The bytes are not kept.
//
// Where the disk has no room for records the error is ErrFull.
func (l *Log) Append(batches []byte) (Appended, error) { return l.append(batches, false) }

// AppendReserved is Append for batches of our own, which are few and must be
// taken longer than those of clients: group offsets, the markers of a failover.
// They may use half of the reserve.
func (l *Log) AppendReserved(batches []byte) (Appended, error) { return l.append(batches, true) }

func (l *Log) append(batches []byte, own bool) (Appended, error) {
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usableLocked(); err != nil {
		return Appended{}, err
	}
	known := l.history.Load() == nil // else it reads these batches when it comes to them
	g := gathers.Get().(*gathered)
	defer gathers.Put(g)
	seg := l.active()
	if err := g.gather(l, seg, batches, known); err != nil {
		return Appended{}, err
	}
	if err := l.store.space.admit(int64(len(batches)), own); err != nil {
		return Appended{}, fmt.Errorf("append to %s at %d: %w", l.id, l.mu.end, err)
	}
	var err error
	if l.full(seg, g.Appended, int64(len(batches))) {
		if seg, err = l.roll(); err == nil {
			err = g.gather(l, seg, batches, known) // times and positions count from the segment's beginning
		}
	}
	if err == nil {
		err = l.write(seg, batches)
	}
	if err = l.store.space.wrote(err); err != nil {
		return Appended{}, err
	}
	invariants.Fault("segment.afterWrite")
	if l.store.o.FlushInterval > 0 {
		l.store.writeback.note(seg, seg.size)
	}
	l.include(seg, g, int64(len(batches)))
	if len(l.mu.tail) >= l.store.o.tail {
		l.trimTail(seg)
	}
	if !l.queued.Load() && !l.queued.Swap(true) {
		l.store.flusher.addDirty(l)
	}
	if l.store.files.crowded() {
		// So many logs are written to at once that the flusher cannot keep up with
		// closing their files, which stay open until they are synced. From here on
		// each append pays for itself, or the process would run out of descriptors.
		if l.sync() == nil { // else the store has failed, which the next append tells
			l.store.files.drop(seg, false)
		}
	}
	return g.Appended, nil
}

// full says that the active segment is closed before an append.
func (l *Log) full(seg *segment, a Appended, n int64) bool {
	c := &l.mu.config
	switch {
	case seg.size == 0:
		return false
	case a.End-1-seg.base > math.MaxInt32:
		// Kafka's index files hold offsets relative to the base in 32 bits; keep
		// the directory one that Kafka could open.
		return true
	case seg.size+n > c.SegmentBytes:
		return true
	case c.SegmentMs > 0 && seg.times.first != noTime && a.MaxTimestamp-seg.times.first > c.SegmentMs:
		return true
	}
	return false
}

// write puts the bytes behind what the segment holds.
func (l *Log) write(seg *segment, batches []byte) error {
	seg.setDirty() // before it is open, so that it is not closed under us
	h, err := l.store.files.acquire(seg)
	if err != nil {
		return fmt.Errorf("append to %s: %w", l.id, err)
	}
	defer h.release()
	invariants.Fault("segment.beforeWrite")
	watched := l.store.disk.stalls.begin(l.hint)
	err = l.store.pieces.write(h, batches, seg.size)
	watched.end()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("append to %s at %d: %w", l.id, l.mu.end, err)
	// A part may have been written. Bytes behind the end are harmless while we
	// live, but a later, shorter append could leave whole old batches behind it,
	// and a recovery would take them for ours.
	if errCut := h.Truncate(seg.size); errCut != nil {
		return l.fail(errors.Join(err, errCut))
	}
	return err
}

// include publishes what was written, n bytes. No allocation but for what is new:
// producers, epochs, the growth of the index tail.
func (l *Log) include(seg *segment, g *gathered, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.tail = append(l.mu.tail, g.entries...)
	l.indexed = g.indexed
	for _, e := range g.epochs {
		l.mu.epochs.Assign(e.Epoch, e.Start)
		l.mu.written.Assign(e.Epoch, e.Start)
	}
	l.mu.producers.ApplyAll(&g.producers)
	seg.setDirty() // a flush may have cleared it since write
	seg.times = g.times
	seg.size += n
	l.mu.size += n
	seg.end, l.mu.end = g.End, g.End
	l.mu.producers.Replicated(l.hw.Load())
	l.publishLocked()
}

// trimTail moves the older half of the tail to Pebble.
func (l *Log) trimTail(seg *segment) {
	n := len(l.mu.tail) / 2
	if l.history.Load() == nil { // else it makes all entries of the segment anew
		l.store.index.putEntries(l.id, seg.base, l.mu.tail[:n])
		l.stored = max(l.stored, l.mu.tail[n-1].pos)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.trimmed = true
	l.mu.tail = l.mu.tail[:copy(l.mu.tail, l.mu.tail[n:])]
}

// roll closes the active segment and begins the next one, named by the end of
// the last batch: a later segment that begins anywhere else shows recovery that
// bytes of this one were lost.
func (l *Log) roll() (*segment, error) {
	old, base := l.active(), l.mu.end
	if len(l.mu.segments) == 1 && old.base == l.mu.start {
		// Without its mark a new log would be taken to begin at any segment that a
		// power cut leaves. Later rolls find it there.
		if err := l.putMark(true, -1); err != nil {
			return nil, err
		}
	}
	seg, err := l.createSegment(base)
	if err != nil {
		return nil, fmt.Errorf("roll %s at %d: %w", l.id, base, err)
	}
	l.close(old, &l.mu.written, l.mu.tail, base)
	l.mu.Lock()
	defer l.mu.Unlock()
	old.trimmed = true
	l.beginLocked(seg)
	return seg, nil
}

// beginLocked makes seg the active segment.
func (l *Log) beginLocked(seg *segment) {
	l.mu.segments = append(l.mu.segments, seg)
	l.mu.tail = l.mu.tail[:0]
	l.mu.written.Clear()
	l.mu.names++
	l.indexed, l.stored, l.checkpointed = 0, 0, checkpointed{}
}

// createSegment makes an empty segment file. Its name becomes durable with the
// next flush, before any byte in it counts as durable.
func (l *Log) createSegment(base int64) (*segment, error) {
	seg := &segment{log: l, base: base, end: base, times: unknownTimes}
	return seg, l.createFile(seg)
}

func (l *Log) createFile(seg *segment) error {
	invariants.Fault("segment.beforeCreate")
	f, err := l.store.disk.open(seg.path(), true)
	if errors.Is(err, fs.ErrExist) {
		// Left behind by a roll or truncation that failed half-way: no segment of
		// ours has this base, so nothing in it counts.
		if err = l.store.disk.Remove(seg.path()); err == nil {
			f, err = l.store.disk.open(seg.path(), true)
		}
	}
	if err != nil {
		return err
	}
	h, err := l.store.files.adopt(seg, f)
	if err != nil {
		return err
	}
	h.release()
	return nil
}

// close tells the index what opening the log will want to know about a segment
// that gets no more bytes: its entries, its summary, and the producer state at
// the offset where the next segment begins.
//
// A log whose history is not known tells nothing: gathering it does.
func (l *Log) close(seg *segment, epochs *epoch.Cache, tail []entry, next int64) {
	if l.history.Load() != nil {
		return
	}
	l.store.index.putEntries(l.id, seg.base, tail)
	m := summary{size: seg.size, end: seg.end, times: seg.times, epochs: epochs.Entries()}
	snapshot := l.mu.producers.Encode(nil)
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.Set(l.id.key(kindSummary, seg.base), l.stamp(m.encode()), nil)
		_ = b.Set(l.id.key(kindProducer, next), l.stamp(snapshot), nil)
		l.dropCheckpoint(b, seg, next)
	})
	l.store.flusher.indexGrew.Store(true)
}
