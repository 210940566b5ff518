package segment

import (
	"context"
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

// Truncate drops every batch that reaches above end, and the log then ends where
// its last batch does: at end, or below it if end lies inside a batch (which goes
// wholly, as in Kafka, and can be fetched again as the source has it) or in a
// hole. Epochs, producer state, aborted transactions, the durable end and the
// high watermark follow. When it returns the cut is durable. Nothing happens if
// the log is not longer. If no batch stays, the log is empty at its start.
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
//
// It waits until the history of the log is known.
func (l *Log) Truncate(end int64) error {
	if err := l.Wait(context.Background()); err != nil {
		return fmt.Errorf("truncate %s: %w", l.id, err)
	}
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
	if len(c.kept) == 0 {
		return l.restart(c.end)
	}
	if err := l.cut(c); err != nil {
		return l.fail(fmt.Errorf("truncate to %d: %w", end, err))
	}
	return nil
}

// cutPlan is where a log is cut and what it knows afterwards.
type cutPlan struct {
	end       int64      // the new log end: the end of the last batch that stays
	kept      []*segment // what stays, the segment that is cut included
	gone      []*segment
	cut       *segment // the last of kept, nil if the cut lies between two segments
	walked    walked   // what cut will hold
	producers *producer.Table
}

func (l *Log) planCut(end int64) (c cutPlan, err error) {
	i := findSegment(l.mu.segments, end)
	seg := l.mu.segments[i]
	h, err := l.store.files.acquire(seg)
	if err != nil {
		return c, err
	}
	defer h.release()
	w, err := walk(h, seg.base, seg.size, walkOptions{interval: l.store.o.IndexInterval, end: end, noCRC: true})
	if err != nil {
		return c, l.damage(seg, w.size, w.end, err)
	}
	switch {
	case w.size > 0:
		c = cutPlan{end: w.end, kept: l.mu.segments[:i+1], gone: l.mu.segments[i+1:], cut: seg, walked: w}
	case i > 0:
		c = cutPlan{end: l.mu.segments[i-1].end, kept: l.mu.segments[:i], gone: l.mu.segments[i:]}
	default: // nothing stays
		c.end = l.mu.start
		if w.cutBatch >= 0 {
			c.end = min(c.end, w.cutBatch)
		}
		return c, nil
	}
	c.producers, err = l.producersAt(c.end)
	return c, err
}

// cut carries a plan out; steps 2 to 6 of Truncate.
func (l *Log) cut(c cutPlan) error {
	next := &segment{log: l, base: c.end, end: c.end, times: unknownTimes}
	l.mu.Lock()
	l.countCutLocked(c.end)
	l.mu.segments = append(append([]*segment(nil), c.kept...), next)
	if s := c.cut; s != nil {
		s.size, s.end, s.times, s.trimmed = c.walked.size, c.walked.end, c.walked.times, true
		s.synced = min(s.synced, s.size)
	}
	l.mu.size = 0
	for _, s := range l.mu.segments {
		l.mu.size += s.size
	}
	l.mu.end = c.end
	l.mu.start = min(l.mu.start, c.end) // it may have lain in a batch that goes, or in a hole
	if !invariants.Planted("epochsKeptAfterTruncation") {
		l.mu.epochs.TruncateEnd(c.end)
	}
	if !invariants.Planted("producerStateKeptAfterTruncation") {
		l.mu.producers = c.producers
	}
	l.mu.tail = l.mu.tail[:0]
	l.mu.written.Clear()
	l.indexed, l.stored, l.checkpointed = 0, 0, checkpointed{}
	l.mu.names++
	l.publishLocked()
	if c.end < l.durable.Load() {
		l.durable.Store(c.end)
		l.mu.proof = l.proofLocked()
	}
	if !invariants.Planted("highWatermarkKeptAfterTruncation") {
		l.hw.Store(min(l.hw.Load(), c.end))
	}
	l.mu.Unlock()
	l.forgetHints()

	invariants.Fault("segment.truncatePublished")
	if invariants.Planted("markNotLoweredBeforeCut") {
		l.noteMark()
	} else if err := l.putMark(!invariants.Planted("markNotSyncedBeforeRemove"), -1); err != nil {
		return err
	}
	invariants.Fault("segment.truncateMarked")
	if err := l.removeSegments(c.gone); err != nil {
		return err
	}
	if c.cut != nil {
		if err := l.cutFile(c.cut); err != nil {
			return err
		}
		invariants.Fault("segment.truncateCut")
	}
	if err := l.createNext(next); err != nil {
		return err
	}
	invariants.Fault("segment.truncateCreated")
	l.store.index.write(func(b *pebble.Batch) {
		for _, s := range c.gone {
			l.store.index.dropSegment(b, l.id, s.base)
		}
		l.store.index.drop(b, l.id.key(kindProducer, c.end+1), l.id.key(kindProducer))
		if c.cut != nil {
			l.store.index.dropSegment(b, l.id, c.cut.base)
		}
	})
	if c.cut != nil {
		l.close(c.cut, &c.walked.epochs, c.walked.entries, c.end)
	}
	return nil
}

// countCutLocked is told of every cut of a log in use.
func (l *Log) countCutLocked(end int64) {
	l.cuts.Add(1)
	l.beginGenerationLocked(end, l.mu.segments[0].base)
	l.mu.cleaned.pullBackLocked(end)
	l.scrubbed.Store(min(l.scrubbed.Load(), end))
}

// beginGenerationLocked begins a new generation. What the index remembers of an
// older one counts only up to the lowest cut since: the index may forget our
// deletes in a crash, and offsets above the cut get other bytes.
//
// But for a log that begins above that cut, only what the newest of the older
// generations said is of any use: up to this cut it counts, and nothing of those
// before. Among it are the producers of segments that are deleted, which nothing
// else knows.
func (l *Log) beginGenerationLocked(end, first int64) {
	if first > l.mu.floor {
		l.mu.life, l.mu.floor = l.mu.generation, end
	}
	l.mu.generation++
	l.mu.floor = min(l.mu.floor, end)
}

// removeSegments removes files, the newest first. Each removal is durable
// before the next, so that a crash leaves the beginning of the log and no hole.
func (l *Log) removeSegments(gone []*segment) error {
	for i := len(gone) - 1; i >= 0; i-- {
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

// cutFile shortens a segment's file to the segment's size, durably.
func (l *Log) cutFile(s *segment) error {
	if err := l.store.disk.cut(s.path(), s.size); err != nil {
		return err
	}
	if !l.store.disk.cutsInPlace() {
		l.store.files.drop(s, false) // the name has a new file now
	}
	// The file is durable now, but segment.synced says so only after a flush: a
	// flush stops looking at the first segment that is synced, and those before
	// this one may not be.
	return nil
}

// createNext makes the file of a segment that is published already.
func (l *Log) createNext(next *segment) error {
	if err := l.createFile(next); err != nil {
		return err
	}
	return l.store.disk.syncDir(l.dir)
}

// TruncateFully drops everything and begins an empty log at start. As Truncate,
// but the marks say what is going on until it is done, because removing all
// files has no order in which each crash would leave a log that means something:
// recovery goes through with it.
//
// It waits for a history that is being gathered, but needs none: a log in which
// one cannot be gathered begins anew.
func (l *Log) TruncateFully(start int64) error {
	_ = l.Wait(context.Background())
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
	l.mu.life = l.mu.generation // not even what the index knows at start is true of the new log
	l.mu.segments = []*segment{next}
	l.mu.start, l.mu.end, l.mu.size = start, start, 0
	l.mu.epochs.Clear()
	l.mu.producers = producer.New()
	l.history.Store(nil)
	l.mu.tail = l.mu.tail[:0]
	l.mu.written.Clear()
	l.indexed, l.stored, l.checkpointed = 0, 0, checkpointed{}
	l.mu.names++
	l.publishLocked()
	l.durable.Store(start)
	l.mu.proof = proof{}
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
	if err := l.dropProducers(-1); err != nil {
		return err
	}
	if err := l.createNext(next); err != nil {
		return err
	}
	invariants.Fault("segment.restartCreated")
	if err := l.syncNewDir(); err != nil {
		return err
	}
	if err := l.putMark(true, -1); err != nil {
		return err
	}
	invariants.Fault("segment.restartDone")
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.DeleteRange(l.id.prefix(), after(l.id.prefix()), nil)
	})
	return nil
}

// syncNewDir makes the log's own directory durable, which the first flush does
// otherwise, and the end of an earlier log's deletion with it: finished by a
// recovery, that would take the marks of this one along, and it would begin at 0.
func (l *Log) syncNewDir() error {
	l.mu.RLock()
	unsynced := l.mu.newDir
	l.mu.RUnlock()
	if !unsynced {
		return nil
	}
	if err := l.store.disk.syncDir(l.store.disk.PathDir(l.dir)); err != nil {
		return err
	}
	l.mu.Lock()
	l.mu.newDir = false
	l.mu.Unlock()
	return nil
}

func (l *Log) forgetHints() {
	l.hints.Lock()
	defer l.hints.Unlock()
	l.hints.ring = [8]hint{}
}

// walked is what a walk over a segment found.
type walked struct {
	size     int64 // bytes of the whole batches in front of where it stopped
	end      int64 // end of the last of them, the base without one
	times    times
	epochs   epoch.Cache
	entries  []entry
	cutBatch int64 // base offset of the batch that holds walkOptions.end, else -1

	indexed int64 // position of the last index entry
	epoch   int32 // of the last batch; none is below it
}

type walkOptions struct {
	end        int64              // stop in front of the first batch that reaches above it; 0 = none
	interval   int64              // distance of the index entries to make
	noCRC      bool               // look at headers only
	verifyFrom int64              // check the CRC of batches that end above this
	each       func(record.Batch) // called with whole control batches, and headers of others
	stop       func() bool        // asked now and then whether to give up

	// known, if its size is not 0, is what was known of the file's first bytes
	// when they were durable: they must be the same batches still.
	known known
}

// known are the first size bytes of a segment, and the checksum of their batches'
// heads.
type known struct {
	size  int64
	heads uint32
}

var errHeads = errors.New("offsets, epochs or checksums of the batches are not those that were written")

// check looks at the batch that ends at position end.
func (k known) check(end int64, before times, b record.Batch) error {
	if k.size == 0 || end < k.size || end-int64(b.Size()) >= k.size {
		return nil
	}
	if before.add(b); end > k.size || before.heads != k.heads {
		return errHeads
	}
	return nil
}

// walk goes over the batches of a segment from its first byte. An error is the
// first batch that is none, or a disk that cannot be read; the result then
// holds what lies before it.
func walk(f io.ReaderAt, base, size int64, o walkOptions) (w walked, err error) {
	w = newWalked(base)
	return w, w.on(f, size, o)
}

// newWalked is a walk over the segment with the given base that has not begun.
func newWalked(base int64) walked {
	return walked{end: base, times: unknownTimes, cutBatch: -1, epoch: math.MinInt32}
}

// stopEvery is how many batches a walk does between two questions whether it
// should stop: some milliseconds.
const stopEvery = 256

// errStopped is a walk that was told to stop.
var errStopped = errors.New("stopped")

// on goes on with a walk, from where it is.
func (w *walked) on(f io.ReaderAt, size int64, o walkOptions) error {
	s := newScanner(f, w.size, size)
	defer s.close()
	var buf []byte
	for i := 0; ; i++ {
		if o.stop != nil && i%stopEvery == stopEvery-1 && o.stop() {
			return errStopped
		}
		b, pos, n, err := s.next()
		if errors.Is(err, io.EOF) {
			if w.size < o.known.size {
				return errHeads
			}
			return nil
		}
		if err == nil {
			err = checkOrder(b, w.end)
		}
		if err == nil {
			err = checkEpoch(b, w.epoch)
		}
		if err != nil {
			return err
		}
		if o.end > 0 && b.NextOffset() > o.end {
			w.cutBatch = b.BaseOffset()
			return nil
		}
		verify := !o.noCRC && b.NextOffset() > o.verifyFrom
		if verify || o.each != nil && b.IsControl() {
			// The header moves with the body, into a buffer that the scanner leaves alone.
			if b, buf, err = s.body(buf, pos, n); err != nil {
				return err
			}
			if verify {
				if err := b.VerifyCRC(); err != nil {
					return err
				}
			}
		}
		if err := o.known.check(pos+int64(n), w.times, b); err != nil {
			return err
		}
		if pos-w.indexed >= o.interval {
			w.entries = append(w.entries, entry{offset: b.BaseOffset(), pos: pos, time: w.times.max})
			w.indexed = pos
		}
		w.times.add(b)
		w.epochs.Assign(b.PartitionLeaderEpoch(), b.BaseOffset())
		if o.each != nil {
			o.each(b)
		}
		w.size, w.end, w.epoch = pos+int64(n), b.NextOffset(), b.PartitionLeaderEpoch()
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
	return value[n:], generation == l.mu.generation || l.ofThisLife(generation) && end <= l.mu.floor
}

// ofThisLife says that what was written in a generation speaks of this log, as
// it was before a truncation.
func (l *Log) ofThisLife(generation int64) bool {
	return generation >= l.mu.life && generation < l.mu.generation
}
