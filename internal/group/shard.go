package group

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// shard drives the groups of one partition of __consumer_offsets during one
// leader epoch. Its goroutine owns everything here.
type shard struct {
	*coordinator.Shard
	c *Coordinator
	o *Options

	groups  *coordinator.Slots[*machine]
	sweeper clock.Timer

	// txns tells, by producer id, which groups have stored offsets in its open
	// transaction. A group that has dropped them since may be among them.
	txns map[int64]map[string]struct{}
}

// slot is one group in its shard, with its alarm.
type slot = coordinator.Slot[*machine]

func newShard(c *Coordinator, partition, epoch int32) *shard {
	s := &shard{c: c, o: &c.o, txns: map[int64]map[string]struct{}{}}
	s.Shard = coordinator.NewShard(coordinator.ShardOptions{
		Clock: s.o.Clock, Logger: s.o.Logger.With("topic", TopicName), Append: s.o.Append,
		BeforeAppend:  func() { invariants.Fault("group.beforeAppend") },
		MaxWriteBytes: s.o.MaxWriteBytes, MaxQueued: s.o.MaxQueued, Alive: s.o.Alive,
		Loads: c.loads, Refusals: c.refusals,
	}, partition, epoch, s)
	s.groups = coordinator.NewSlots(s.Shard, func(sl *slot, now time.Time) { s.step(sl, now, tick{}) })
	return s
}

// ask posts a request and waits for its answer, no longer than a write may take.
func ask[T any](ctx context.Context, s *shard, fn func(now time.Time, to ticket)) (T, error) {
	return coordinator.Ask[T](ctx, s.Shard, s.o.WriteTimeout, fn)
}

// End is coordinator.Driver.End.
func (s *shard) End() {
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	s.groups.Stop()
	s.c.count.Add(-int64(s.groups.Len()))
	for m := range s.groups.All() {
		s.c.memberBytes.Add(-int64(m.bytes))
	}
}

// group finds a group, or makes one.
func (s *shard) group(id string, create bool, now time.Time) (*slot, error) {
	if sl := s.groups.Get(id); sl != nil {
		return sl, nil
	}
	if !create {
		return nil, ErrNotFound
	}
	if s.groups.Len() >= s.o.MaxGroups {
		return nil, fmt.Errorf("%w: %d in partition %d", ErrTooManyGroups, s.o.MaxGroups, s.Partition)
	}
	s.c.count.Add(1)
	return s.groups.Add(id, newMachine(id, s.o, now)), nil
}

// step feeds one input to one group and does what comes of it.
func (s *shard) step(sl *slot, now time.Time, in any) {
	var fx effects
	generation, bytes := sl.M.generation, sl.M.bytes
	sl.M.topics = s.c.topics()
	if err := sl.M.step(now, in, &fx); err != nil {
		s.Logger.Error("group state is broken", "group", sl.M.id, "err", err)
	}
	s.c.memberBytes.Add(int64(sl.M.bytes - bytes))
	if sl.M.generation != generation {
		s.c.rebalances.Inc()
	}
	for _, r := range fx.replies {
		s.Answer(r.to, r.result)
	}
	var refused []write
	for _, w := range fx.writes {
		if w.size() > s.o.MaxWriteBytes {
			refused = append(refused, w)
			continue
		}
		s.enqueue(sl, w, now)
	}
	for _, w := range refused {
		err := fmt.Errorf("%w: %d > %d bytes", ErrTooLarge, w.size(), s.o.MaxWriteBytes)
		s.Logger.Warn("group write refused", "group", sl.M.id, "err", err)
		s.step(sl, now, stored{w.done, err})
	}
	if sl.M.forgettable() {
		s.forget(sl)
		return
	}
	s.groups.Arm(sl, sl.M.wake, now)
}

func (s *shard) forget(sl *slot) {
	if s.groups.Drop(sl) {
		s.c.count.Add(-1)
	}
}

// enqueue hands a write to the log; the group hears of its end.
func (s *shard) enqueue(sl *slot, w write, now time.Time) {
	out := coordinator.Write{Size: w.size(), Records: make([]record.Record, len(w.records))}
	for i, e := range w.records {
		out.Records[i] = record.Record{Key: e.key, Value: e.value}
	}
	out.Done = func(now time.Time, err error) {
		if w.txn != nil && err == nil {
			s.inTxn(w.txn.producerID, sl.M.id)
		}
		s.step(sl, now, stored{w.done, err})
	}
	if w.txn != nil { // a batch has one producer
		out.Append = func(recs []record.Record, now time.Time, done func(error)) {
			head := record.BuildHeader{
				BaseTimestamp: now.UnixMilli(), ProducerID: w.txn.producerID, ProducerEpoch: w.txn.epoch, Transactional: true,
			}
			s.o.AppendOffsets(s.Partition, s.Epoch, record.Build(head, recs), w.txn.verify.needed, w.txn.verify.by, done)
		}
	}
	s.Enqueue(out, now)
}

// appendMarker ends a transaction in the partition, behind what was accepted
// before.
func (s *shard) appendMarker(now time.Time, m partition.Marker, to ticket) {
	s.Send(now, func(done func(error)) {
		s.o.AppendMarker(s.Partition, s.Epoch, m, done)
	}, func(now time.Time, err error) {
		if err == nil {
			s.endTxn(now, &m)
		}
		s.Answer(to, err)
	})
}

// sweep looks for expired offsets in all groups, now and then.
func (s *shard) sweep(now time.Time) {
	s.each(now, sweep{})
	s.sweeper.Reset(s.o.OffsetsRetentionCheck)
}

// each steps all groups, in order of their names.
func (s *shard) each(now time.Time, in any) {
	for sl := range s.groups.Sorted() {
		s.step(sl, now, in)
	}
}
