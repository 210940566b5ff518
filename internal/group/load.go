package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

func newReplay() *replay {
	return &replay{groups: map[string]*replayed{}, open: map[int64]map[string]struct{}{}}
}

// Replay is coordinator.Driver.Replay.
func (s *shard) Replay(ctx context.Context) (func(now time.Time) int, error) {
	image, err := s.replay(ctx)
	return func(now time.Time) int { return s.serve(now, image.groups) }, err
}

// replayed is what the log says of one group.
type replayed struct {
	members *kmsg.GroupMetadataValue // nil: no record, or a tombstone
	offsets map[TopicPartition]committed
	txns    map[int64]map[TopicPartition]committed // of transactions without a marker so far
	order   int64                                  // of its last record
	// consumer is nil while there is no record of a consumer group.
	consumer *replayedConsumer
}

// replay is what was read of the log so far.
type replay struct {
	groups map[string]*replayed
	// open tells, by producer id, which groups may have offsets in its open
	// transaction.
	open map[int64]map[string]struct{}
}

// replay reads the log from start to end; of each key the last record counts.
func (s *shard) replay(ctx context.Context) (*replay, error) {
	image := newReplay()
	err := s.o.Load(ctx, s.Partition, s.Epoch, func(b record.Batch) error {
		if b.IsControl() {
			if kind, _, err := b.Control(); err == nil && kind.IsMarker() {
				image.endTxn(b.ProducerID(), kind == record.Commit)
			}
			return nil
		}
		producerID := int64(-1)
		if b.IsTransactional() {
			producerID = b.ProducerID()
		}
		err := b.Records(func(r record.Record) error {
			d, err := decode(r.Key, r.Value)
			switch {
			case errors.Is(err, errForeignRecord):
				return nil
			case err != nil:
				// Clients can produce to this topic. One bad record must not
				// keep all other groups from being served.
				s.Logger.Warn("record of __consumer_offsets not understood, skipped",
					"offset", b.BaseOffset()+int64(r.OffsetDelta), "err", err)
				return nil
			}
			image.apply(&d, producerID, b.BaseOffset()+int64(r.OffsetDelta))
			return nil
		})
		if err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		return nil
	})
	return image, err
}

// apply takes over one record. producerID is that of a transaction, or -1.
func (r *replay) apply(d *decoded, producerID, at int64) {
	g := r.groups[d.group]
	if g == nil {
		g = &replayed{offsets: map[TopicPartition]committed{}, txns: map[int64]map[TopicPartition]committed{}}
		r.groups[d.group] = g
	}
	g.order = at
	switch {
	case d.consumer != nil:
		if g.consumer == nil {
			g.consumer = newReplayedConsumer()
		}
		if g.consumer.apply(d.consumer); g.consumer.empty() {
			g.consumer = nil
		}
	case d.isGroup:
		g.members = d.members
	case d.offset == nil:
		delete(g.offsets, d.tp)
		for _, txn := range g.txns {
			delete(txn, d.tp)
		}
	case producerID >= 0:
		d.offset.order = at
		if g.txns[producerID] == nil {
			g.txns[producerID] = map[TopicPartition]committed{}
		}
		g.txns[producerID][d.tp] = *d.offset
		if r.open[producerID] == nil {
			r.open[producerID] = map[string]struct{}{}
		}
		r.open[producerID][d.group] = struct{}{}
	default:
		d.offset.order = at
		g.offsets[d.tp] = *d.offset
	}
	r.drop(d.group, g)
}

// endTxn takes over the end of a producer's transaction.
func (r *replay) endTxn(producerID int64, commit bool) {
	for id := range r.open[producerID] {
		g := r.groups[id]
		if g == nil {
			continue
		}
		for tp, c := range g.txns[producerID] {
			if invariants.Planted("txnOffsetsNotReplayed") {
				break
			}
			if old, ok := g.offsets[tp]; commit && (!ok || old.order < c.order) {
				g.offsets[tp] = c
			}
		}
		delete(g.txns, producerID)
		r.drop(id, g)
	}
	delete(r.open, producerID)
}

// drop forgets a group of which nothing is left.
func (r *replay) drop(id string, g *replayed) {
	for producerID, txn := range g.txns {
		if len(txn) == 0 {
			delete(g.txns, producerID)
		}
	}
	if g.members == nil && len(g.offsets) == 0 && len(g.txns) == 0 && g.consumer == nil {
		delete(r.groups, id)
	}
}

// adopt makes the group what the log says.
func (m *machine) adopt(now time.Time, g *replayed) {
	m.offsets, m.order = g.offsets, g.order
	for producerID, txn := range g.txns {
		for tp, c := range txn {
			m.undecided[tp]++
			m.holdBack(producerID, tp, c)
		}
	}
	m.restoreFrom(now, g)
}

// serve makes machines of what was replayed.
func (s *shard) serve(now time.Time, image map[string]*replayed) int {
	for id, g := range image {
		m := newMachine(id, s.o, now)
		m.topics = s.c.topics()
		m.adopt(now, g)
		for producerID := range g.txns {
			s.inTxn(producerID, id)
		}
		sl := s.groups.Add(id, m)
		s.c.memberBytes.Add(int64(m.bytes))
		s.groups.Arm(sl, m.wake, now)
	}
	s.c.count.Add(int64(s.groups.Len()))
	s.sweeper = s.o.Clock.AfterFunc(s.o.OffsetsRetentionCheck, func() {
		_ = s.Post(s.sweep) // refused: the shard has ended
	})
	return s.groups.Len()
}
