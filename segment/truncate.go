package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Truncate drops everything at and above end. A batch that holds end goes
// wholly, and then the log ends at its base offset, so that it can be fetched
// again as the source has it. Epochs, producer state, aborted transactions, the
// durable end and the high watermark follow. When it returns the cut is durable.
// Nothing happens if the log is not longer. An end at or below the log start
// empties the log there.
//
// The order, each step before the next:
//
//  1. read: find the cut, and rebuild the producer state below it;
//  2. publish: from here nobody reads, flushes or counts what goes;
//  3. note the lower marks, synced: a crash must not take the cut for damage;
//  4. remove whole segments, the newest first, each durably: every crash leaves
//     the beginning of the log;
//  5. cut the file in which the cut lies; the log goes on in a new file, so that no
//     position ever gets other bytes;
//  6. clean the index.
//
// A crash before the last of it leaves a log that is longer than asked for,
// whole in itself: the caller, who got no answer, cuts again.
func (l *Log) Truncate(end int64) error {
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if end < 0 {
		return fmt.Errorf("truncate %s: %w: %d", l.id, ErrOutOfRange, end)
	}
	switch {
	case end >= l.mu.end:
		return nil
	case end <= l.mu.start:
		return l.restart(end)
	}
	c, err := l.planCut(end)
	if err != nil {
		return fmt.Errorf("truncate %s to %d: %w", l.id, end, err)
	}
	if err := l.cut(c); err != nil {
		return l.fail(fmt.Errorf("truncate to %d: %w", end, err))
	}
	return nil
}

// cutPlan is where a log is cut and what it knows afterwards.
type cutPlan struct {
	keep      int      // segments that stay, the one that is cut included
	seg       *segment // the one that is cut
	pos       int64    // its new size
	end       int64    // the new log end
	walked    walked   // what seg will hold
	producers *producer.Table
}

func (l *Log) planCut(end int64) (cutPlan, error) {
	i := findSegment(l.mu.segments, end)
	seg := l.mu.segments[i]
	c := cutPlan{keep: i + 1, seg: seg, end: end}
	h, err := l.store.files.acquire(seg)
	if err != nil {
		return c, err
	}
	defer h.release()
	c.walked, err = walk(h, seg.base, seg.size, walkOptions{interval: l.store.o.IndexInterval, end: end, noCRC: true})
	if err != nil {
		return c, l.damage(seg, c.walked.size, c.walked.end, err)
	}
	c.pos = c.walked.size
	if b := c.walked.cutBatch; b >= 0 && b < end {
		c.end = b
	}
	c.producers, err = l.producersAt(c.end)
	return c, err
}

// cut carries a plan out; steps 2 to 6 of Truncate.
func (l *Log) cut(c cutPlan) error {
	next := &segment{log: l, base: c.end, end: c.end, times: unknownTimes}
	// An empty remainder with the same name as the next file: the next takes its
	// place at once, in a new file.
	replaced := c.pos == 0 && c.seg.base == c.end
	kept := l.mu.segments[:c.keep]
	if replaced {
		kept = kept[:c.keep-1]
	}
	gone := l.mu.segments[len(kept):] // begins with c.seg if that is replaced

	l.mu.Lock()
	l.countCutLocked(c.end)
	l.mu.segments = append(append([]*segment(nil), kept...), next)
	if !replaced {
		c.seg.size, c.seg.end, c.seg.times = c.pos, max(c.walked.end, c.seg.base), c.walked.times
		c.seg.synced = min(c.seg.synced, c.pos)
		c.seg.trimmed = true
	}
	l.mu.size = 0
	for _, s := range l.mu.segments {
		l.mu.size += s.size
	}
	l.mu.end = c.end
	l.mu.start = min(l.mu.start, c.end)
	l.mu.epochs.TruncateEnd(c.end)
	l.mu.producers = c.producers
	l.mu.tail = l.mu.tail[:0]
	l.indexed = 0
	l.mu.names++
	l.lowerLocked(c.end)
	l.mu.Unlock()
	l.forgetHints()

	invariants.Fault("segment.truncatePublished")
	if err := l.putMark(true, -1); err != nil {
		return err
	}
	invariants.Fault("segment.truncateMarked")
	if err := l.removeSegments(gone, replaced); err != nil {
		return err
	}
	if replaced {
		if err := l.replaceEmpty(c.seg, next); err != nil {
			return err
		}
	} else {
		if err := l.cutFile(c.seg, c.pos); err != nil {
			return err
		}
		if err := l.createNext(next); err != nil {
			return err
		}
	}
	invariants.Fault("segment.truncateCut")
	l.store.index.write(func(b *pebble.Batch) {
		for _, s := range gone {
			l.store.index.dropSegment(b, l.id, s.base)
		}
		_ = b.DeleteRange(l.id.key(kindProducer, c.end+1), after(l.id.key(kindProducer)), nil)
		l.store.index.dropSegment(b, l.id, c.seg.base)
	})
	if !replaced {
		l.close(c.seg, c.walked.entries, c.end)
	}
	return nil
}

// countCutLocked begins a new generation. What the index remembers of an older
// one counts only up to the lowest cut since: the index may forget our deletes
// in a crash, and offsets above the cut get other bytes.
func (l *Log) countCutLocked(end int64) {
	l.cuts.Add(1)
	l.mu.generation++
	l.mu.floor = min(l.mu.floor, end)
}

// lowerLocked lowers the durable end and the high watermark to end.
func (l *Log) lowerLocked(end int64) {
	l.publishLocked()
	l.durable.Store(min(l.durable.Load(), end))
	l.hw.Store(min(l.hw.Load(), end))
}

// removeSegments removes files, the newest first. Each removal is durable
// before the next, so that a crash leaves the beginning of the log and no hole.
// The oldest is left for the caller where its name is used again.
func (l *Log) removeSegments(gone []*segment, keepOldest bool) error {
	for i := len(gone) - 1; i >= 0; i-- {
		if keepOldest && i == 0 {
			break
		}
		if err := l.removeSegment(gone[i]); err != nil {
			return err
		}
		if err := l.store.disk.syncDir(l.dir); err != nil {
			return err
		}
		invariants.Fault("segment.truncateRemoved")
	}
	return nil
}

// removeSegment removes one file; views that hold it read on.
func (l *Log) removeSegment(s *segment) error {
	l.store.files.drop(s, true)
	return l.store.disk.Remove(s.path())
}

// cutFile shortens a segment's file, durably.
func (l *Log) cutFile(s *segment, size int64) error {
	if err := l.store.disk.cut(s.path(), size); err != nil {
		return err
	}
	if !l.store.disk.real {
		l.store.files.drop(s, false) // the name has a new file now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// The cut synced the file, data and all.
	s.synced = size
	s.dirty.Store(false)
	return nil
}

// createNext makes the file of a segment that is published already.
func (l *Log) createNext(next *segment) error {
	if err := l.createFile(next); err != nil {
		return err
	}
	return l.store.disk.syncDir(l.dir)
}

// replaceEmpty puts an empty file in the place of one whose bytes all go.
func (l *Log) replaceEmpty(old, next *segment) error {
	l.store.files.drop(old, true)
	return l.store.disk.replace(next.path(), eof{})
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// TruncateFully drops everything and begins an empty log at start. As Truncate,
// but the marks say what is going on until it is done, because removing all
// files has no order in which each crash would leave a log that means something:
// recovery goes through with it.
func (l *Log) TruncateFully(start int64) error {
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if start < 0 {
		return fmt.Errorf("truncate %s: %w: %d", l.id, ErrOutOfRange, start)
	}
	return l.restart(start)
}

func (l *Log) restart(start int64) error {
	next := &segment{log: l, base: start, end: start, times: unknownTimes}
	gone := l.mu.segments
	l.mu.Lock()
	l.countCutLocked(start)
	l.mu.segments = []*segment{next}
	l.mu.start, l.mu.end, l.mu.size = start, start, 0
	l.mu.epochs.Clear()
	l.mu.producers = producer.New()
	l.mu.tail = l.mu.tail[:0]
	l.indexed = 0
	l.mu.names++
	l.publishLocked()
	l.durable.Store(start)
	l.hw.Store(start)
	l.mu.Unlock()
	l.forgetHints()
	if err := l.restartFiles(gone, next); err != nil {
		return l.fail(fmt.Errorf("restart at %d: %w", start, err))
	}
	return nil
}

func (l *Log) restartFiles(gone []*segment, next *segment) error {
	if err := l.putMark(true, next.base); err != nil {
		return err
	}
	invariants.Fault("segment.restartMarked")
	for _, s := range gone {
		if err := l.removeSegment(s); err != nil {
			return err
		}
		invariants.Fault("segment.restartRemoved")
	}
	if err := l.createNext(next); err != nil {
		return err
	}
	invariants.Fault("segment.restartCreated")
	if err := l.putMark(true, -1); err != nil {
		return err
	}
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.DeleteRange(l.id.prefix(), after(l.id.prefix()), nil)
	})
	return nil
}

func (l *Log) forgetHints() {
	l.hints.Lock()
	defer l.hints.Unlock()
	l.hints.ring = [8]hint{}
}

// producersAt is the producer state of everything below end: from the newest
// snapshot at or below it, and the batches since.
func (l *Log) producersAt(end int64) (*producer.Table, error) {
	if l.mu.producers.Untouched() {
		return producer.New(), nil // nobody ever wrote with an id: nothing to rebuild
	}
	t, from := producer.New(), int64(-1)
	for i := len(l.mu.segments) - 1; i >= 0; i-- {
		s := l.mu.segments[i]
		if s.base > end {
			continue
		}
		if got, ok := l.snapshotAt(s.base); ok {
			t, from = got, s.base
			break
		}
	}
	for _, s := range l.mu.segments {
		if s.end <= from || s.base >= end || s.size == 0 {
			continue
		}
		h, err := l.store.files.acquire(s)
		if err != nil {
			return nil, err
		}
		w, err := walk(h, s.base, s.size, walkOptions{interval: math.MaxInt64, end: end, noCRC: true, each: t.Apply})
		h.release()
		if err != nil {
			return nil, l.damage(s, w.size, w.end, err)
		}
	}
	t.TruncateStart(l.mu.start)
	return t, nil
}

func (l *Log) snapshotAt(offset int64) (*producer.Table, bool) {
	b, ok := l.cached(l.store.index.get(l.id.key(kindProducer, offset)), offset)
	if !ok {
		return nil, false
	}
	t, err := producer.Decode(b)
	return t, err == nil
}

// walked is what a walk over a segment found.
type walked struct {
	size     int64 // bytes of the whole batches in front of where it stopped
	end      int64 // end of the last of them, the base without one
	times    times
	epochs   epoch.Cache
	entries  []entry
	cutBatch int64 // base offset of the batch that holds walkOptions.end, else -1
}

type walkOptions struct {
	end        int64              // stop in front of the first batch that reaches above it; 0 = none
	interval   int64              // distance of the index entries to make
	noCRC      bool               // look at headers only
	verifyFrom int64              // check the CRC of batches that end above this
	each       func(record.Batch) // called with whole control batches, and headers of others
}

// walk goes over the batches of a segment from its first byte. An error is the
// first batch that is none, or a disk that cannot be read; the result then
// holds what lies before it.
func walk(f io.ReaderAt, base, size int64, o walkOptions) (w walked, err error) {
	w = walked{end: base, times: unknownTimes, cutBatch: -1}
	s := newScanner(f, 0, size)
	defer s.close()
	var buf []byte
	indexed := int64(0)
	for {
		b, pos, n, err := s.next()
		if errors.Is(err, io.EOF) {
			return w, nil
		}
		if err == nil {
			err = checkOrder(b, w.end)
		}
		if err != nil {
			return w, err
		}
		if o.end > 0 && b.NextOffset() > o.end {
			w.cutBatch = b.BaseOffset()
			return w, nil
		}
		verify := !o.noCRC && b.NextOffset() > o.verifyFrom
		if verify || o.each != nil && b.IsControl() {
			// The header moves with the body, into a buffer that the scanner leaves alone.
			if b, buf, err = s.body(buf, pos, n); err != nil {
				return w, err
			}
			if verify {
				if err := b.VerifyCRC(); err != nil {
					return w, err
				}
			}
		}
		if pos-indexed >= o.interval {
			w.entries = append(w.entries, entry{offset: b.BaseOffset(), pos: pos, time: w.times.max})
			indexed = pos
		}
		w.times.add(pos == 0, b.MaxTimestamp(), b.LastOffset())
		w.epochs.Assign(b.PartitionLeaderEpoch(), b.BaseOffset())
		if o.each != nil {
			o.each(b)
		}
		w.size, w.end = pos+int64(n), b.NextOffset()
	}
}

// stamp puts the generation in front of what goes into the index.
func (l *Log) stamp(value []byte) []byte {
	return append(binary.AppendVarint(nil, l.mu.generation), value...)
}

// cached takes the generation off a value from the index, and says whether the
// value may be believed for what it says about offsets below end.
func (l *Log) cached(value []byte, end int64) ([]byte, bool) {
	generation, n := binary.Varint(value)
	if n <= 0 {
		return nil, false
	}
	return value[n:], generation == l.mu.generation || generation < l.mu.generation && end <= l.mu.floor
}
