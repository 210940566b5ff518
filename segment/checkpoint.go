package segment

import "github.com/cockroachdb/pebble/v2"

// checkpointBytes is how much an active segment grows before a checkpoint of it is
// worth its place in the index.
const checkpointBytes = 64 << 10

// checkpointShare bounds what checkpoints cost a log with many producers: it grows by that
// many times its producer snapshot between two of them.
const checkpointShare = 8

// checkpointed is what the last checkpoint of the active segment said.
type checkpointed struct {
	size, end int64
	snapshot  int // bytes
}

// checkpoint is the summary of a segment that is still growing, and the producer state
// at its end: with it, recovery after a kill reads on from there instead of from
// the segment's first byte. It is taken before a flush and kept after it,
// because only what is durable may be believed.
type checkpoint struct {
	log      *Log
	seg      *segment
	cuts     uint64
	said     checkpointed
	entries  []entry
	summary  []byte
	snapshot []byte
}

// takeCheckpoint takes down what is known of the active segment. ok is false if it
// grew too little since the last time, or is being changed: the flusher, on which
// the acknowledgements of all logs wait, must not wait for a truncation.
func (l *Log) takeCheckpoint() (c checkpoint, ok bool) {
	if !l.wr.TryLock() {
		return c, false
	}
	defer l.wr.Unlock()
	seg := l.active()
	if l.history.Load() != nil || seg.size-l.checkpointed.size < max(checkpointBytes, checkpointShare*int64(l.checkpointed.snapshot)) || l.isClosed() {
		return c, false
	}
	m := summary{size: seg.size, end: seg.end, times: seg.times, epochs: l.mu.written.Entries()}
	c = checkpoint{log: l, seg: seg, cuts: l.cuts.Load(), summary: l.stamp(m.encode()), snapshot: l.stamp(l.mu.producers.Encode(nil))}
	c.said = checkpointed{size: seg.size, end: seg.end, snapshot: len(c.snapshot)}
	for i, e := range l.mu.tail {
		if e.pos > l.stored {
			c.entries = append(c.entries, l.mu.tail[i:]...)
			break
		}
	}
	return c, true
}

// keep puts the checkpoint into the index, if it is about durable bytes that are still
// those of the active segment. Otherwise the next one will do.
func (c *checkpoint) keep() {
	l, x := c.log, c.log.store.index
	if !l.wr.TryLock() {
		return
	}
	defer l.wr.Unlock()
	if l.active() != c.seg || l.cuts.Load() != c.cuts || l.durable.Load() < c.said.end || l.isClosed() {
		return
	}
	// Entries first: the index forgets from the newest on, so whoever finds the
	// checkpoint finds them too.
	x.putEntries(l.id, c.seg.base, c.entries)
	if k := len(c.entries); k > 0 {
		l.stored = max(l.stored, c.entries[k-1].pos)
	}
	x.write(func(b *pebble.Batch) {
		_ = b.Set(l.id.key(kindSummary, c.seg.base), c.summary, nil)
		_ = b.Set(l.id.key(kindProducer, c.said.end), c.snapshot, nil)
		l.dropCheckpoint(b, c.seg, c.said.end)
	})
	l.checkpointed = c.said
	l.store.flusher.indexGrew.Store(true)
}

// dropCheckpoint forgets the producer snapshot of the last checkpoint of seg, which the one
// at end replaces.
func (l *Log) dropCheckpoint(b *pebble.Batch, seg *segment, end int64) {
	if old := l.checkpointed.end; old > seg.base && old != end {
		_ = b.Delete(l.id.key(kindProducer, old), nil)
	}
}
