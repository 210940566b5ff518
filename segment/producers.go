package segment

import (
	"math"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

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
	t.TruncateStart(l.mu.segments[0].base)
	return t, nil
}

// snapshotAt is the producer state at an offset where a segment begins, or where a
// checkpoint was, as the file of the first segment or the index has it. For holders of wr.
func (l *Log) snapshotAt(offset int64) (*producer.Table, bool) {
	if b, ok := l.cached(l.readProducers(offset), offset); ok {
		if t, err := producer.Decode(b); err == nil {
			return t, true
		}
	}
	b, ok := l.cached(l.store.index.get(l.id.key(kindProducer, offset)), offset)
	if !ok {
		return producer.New(), invariants.Planted("missingSnapshotReadAsEmpty")
	}
	t, err := producer.Decode(b)
	return t, err == nil
}

// keepProducers sees to it that a file says, durably and so that it is believed, what
// the batches below the segment that begins at first say of producers: the segments before
// it are about to go, and nothing but the index, a cache, would know it.
//
// Believed now is believed later: a truncation that leaves first where it is keeps
// what the newest generation said at its base (beginGenerationLocked).
//
// For holders of wr, when the history is known.
func (l *Log) keepProducers(first int64) error {
	if l.mu.producers.Untouched() || invariants.Planted("producersGoWithSegments") {
		return nil
	}
	t, ok := l.snapshotAt(first)
	if !ok {
		var err error
		if t, err = l.producersAt(first); err != nil {
			return err
		}
	}
	// Aborted transactions stay in it: until the mark is written the log start is where it was.
	err := l.writeProducers(first, t)
	if err == nil {
		err = l.syncNewDir() // the log may be so young that its directory is not durable
	}
	l.store.failSync(err)
	return asFull(err)
}

// keepProducers is that of a recovery, for segments below the log start whose deletion
// had not come so far, or which came to lie there as the log went on behind a start at
// its end. Where one of them is missing already, nothing is known of what was before.
func (r *recovery) keepProducers() error {
	l := r.l
	if len(r.below) == 0 || invariants.Planted("producersGoWithSegments") {
		return nil
	}
	base := r.segments[0].base
	if t, ok := l.snapshotAt(base); ok {
		return r.writeProducers(base, t)
	}
	t, from := producer.New(), 0
	for i := len(r.below) - 1; i >= 0; i-- {
		if got, ok := l.snapshotAt(r.below[i].base); ok {
			t, from = got, i
			break
		}
	}
	for i, s := range r.below[from:] {
		next := base
		if k := from + i + 1; k < len(r.below) {
			next = r.below[k].base
		}
		end, err := l.applyFile(s, t)
		if err != nil && !isBadBatch(err) {
			return err
		}
		if err != nil || end != next {
			t = producer.New()
		}
	}
	return r.writeProducers(base, t)
}

// writeProducers writes the file, unless it is there already: recovering twice changes
// nothing. A log that nobody wrote to with an id needs none.
func (r *recovery) writeProducers(base int64, t *producer.Table) error {
	if t.Untouched() {
		return nil
	}
	if _, ok := r.l.cached(r.l.readProducers(base), base); ok {
		return nil
	}
	return r.l.writeProducers(base, t)
}

// applyFile takes what a segment's file says of producers into t, and tells where it ends.
func (l *Log) applyFile(s *segment, t *producer.Table) (end int64, err error) {
	size, err := fileSize(l.store.disk, s.path())
	if err != nil {
		return 0, err
	}
	f, err := l.store.disk.open(s.path(), false)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w, err := walk(f, s.base, size, walkOptions{interval: math.MaxInt64, noCRC: true, each: t.Apply})
	return w.end, err
}
