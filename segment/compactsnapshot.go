package segment

import (
	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// oldestSnapshot is what a round has to do to the producer snapshot at the beginning of the
// log. That one alone knows what the batches before it, which retention took, said of
// producers, so it cannot go with the others (forgetProducers). But what is open in it
// may be ended by a marker or a reset that the round removes, and must not be open
// for good where that is not met any more.
//
// It follows the control batches of a round, which come in log order from the
// beginning on: of each producer the first marker ends what is open in the
// snapshot. If it stays, the snapshot does as it is.
type oldestSnapshot struct {
	base  int64          // of the first segment
	open  map[int64]bool // producers with a transaction open there that nothing ended yet
	ended []int64        // those whose end goes

	// The first reset: it was met, and it goes.
	reset, dropped bool
}

// oldestFrom begins a round over a log that begins at base.
func (l *Log) oldestFrom(base int64) oldestSnapshot {
	l.wr.Lock() // which generations to believe
	defer l.wr.Unlock()
	p := oldestSnapshot{base: base, open: map[int64]bool{}}
	if t, ok := l.snapshotAt(base); ok {
		for _, x := range t.Open() {
			p.open[x.ProducerID] = true
		}
	}
	return p
}

// met follows a control batch of the kind, and whether it stays.
func (p *oldestSnapshot) met(b record.Batch, kind record.ControlType, stays bool) {
	switch {
	case kind == record.MirrorPIDReset:
		p.dropped = p.dropped || !p.reset && !stays
		p.reset = true
		clear(p.open)
	case kind.IsMarker() && p.open[b.ProducerID()]:
		delete(p.open, b.ProducerID())
		if !stays {
			p.ended = append(p.ended, b.ProducerID())
		}
	}
}

// apply does it to a snapshot, and says whether that changed it.
func (p *oldestSnapshot) apply(t *producer.Table) (changed bool) {
	for _, id := range p.ended {
		changed = t.EndOpen(id) || changed
	}
	if p.dropped {
		changed = t.Drop() || changed
	}
	return changed
}

// forgetProducers drops the producer snapshots of what lies below the end of a
// marker or producer reset that goes, but for that at the beginning of the log, in
// which it notes that they went. The files have nothing left that the others were needed
// for, but one of them may still need what goes: a recovery that began with it would not
// meet the marker any more, and have the transaction open, or the producers, for
// good. As with forgetAborted, the swap makes it durable.
//
// Should the swap not come, the marker is met after all, and finds its transaction
// ended: of that one there are no batches, so nobody reads anything else.
//
// Where retention moved the beginning meanwhile, it was told nothing of what the
// round met: the round is over.
func (r *round) forgetProducers(end int64) error {
	l := r.l
	l.wr.Lock()
	defer l.wr.Unlock()
	if l.mu.generation != r.generation || l.mu.segments[0].base != r.oldest.base {
		return errOvertaken
	}
	key := l.id.key(kindProducer, r.oldest.base)
	t, known := l.snapshotAt(r.oldest.base)
	known = known && !invariants.Planted("producersGoWithMarkers")
	var again []byte
	if known && r.oldest.apply(t) {
		again = l.stamp(t.Encode(nil))
		// Durably before the swap, and before the index: it is believed before that.
		if l.hasProducersFile(r.oldest.base) {
			if err := l.putProducersFile(r.oldest.base, again); err != nil {
				l.store.failSync(err)
				return asFull(err)
			}
		}
	}
	l.store.index.write(func(b *pebble.Batch) {
		if known {
			_ = b.DeleteRange(l.id.key(kindProducer, 0), key, nil)
			_ = b.DeleteRange(l.id.key(kindProducer, r.oldest.base+1), l.id.key(kindProducer, end), nil)
		} else {
			_ = b.DeleteRange(l.id.key(kindProducer, 0), l.id.key(kindProducer, end), nil)
		}
		if again != nil {
			_ = b.Set(key, again, nil)
		}
	})
	return nil
}
