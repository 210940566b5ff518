package txn

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// shard drives the transactional ids of one partition of __transaction_state
// during one leader epoch. Its goroutine owns everything here but oldestOpen.
type shard struct {
	*coordinator.Shard
	c *Coordinator
	o *Options

	ids    *coordinator.Slots[*machine]
	alarms []clock.Timer

	// oldestOpen is when the first of the transactions that are open began, in
	// Unix nanoseconds; 0: none is. Written by lookAtOldest, read by a gauge.
	oldestOpen atomic.Int64
}

// slot is one transactional id in its shard, with its alarm.
type slot = coordinator.Slot[*machine]

func newShard(c *Coordinator, partition, epoch int32) *shard {
	s := &shard{c: c, o: &c.o}
	s.Shard = coordinator.NewShard(coordinator.ShardOptions{
		Clock: s.o.Clock, Logger: s.o.Logger.With("topic", TopicName), Append: s.o.Append,
		BeforeAppend:  func() { invariants.Fault("txn.beforeAppend") },
		MaxWriteBytes: s.o.MaxWriteBytes, MaxQueued: s.o.MaxQueued, Alive: s.o.Alive,
		Loads: c.loads, Refusals: c.refusals,
	}, partition, epoch, s)
	s.ids = coordinator.NewSlots(s.Shard, func(sl *slot, now time.Time) { s.step(sl, now, tick{}) })
	return s
}

// ask posts a request and waits for its answer, no longer than a write may take.
func ask[T any](ctx context.Context, s *shard, fn func(now time.Time, to ticket)) (T, error) {
	return coordinator.Ask[T](ctx, s.Shard, s.o.WriteTimeout, fn)
}

// End is coordinator.Driver.End.
func (s *shard) End() {
	for _, t := range s.alarms {
		t.Stop()
	}
	s.ids.Stop()
	for m := range s.ids.All() {
		s.c.census.counted(m.logValues(), nil)
		s.c.owners.leave(m.owner)
	}
	s.c.count.Add(-int64(s.ids.Len()))
}

// id finds a transactional id.
func (s *shard) id(id string) (*slot, error) {
	if sl := s.ids.Get(id); sl != nil {
		return sl, nil
	}
	return nil, ErrNotFound
}

// claim finds a transactional id, or makes one, for a principal.
func (s *shard) claim(id, principal string) (*slot, error) {
	if sl := s.ids.Get(id); sl != nil {
		if sl.M.owner == "" {
			_ = s.c.owners.take(principal, false)
			sl.M.owner = principal
		}
		return sl, nil
	}
	if n := s.c.count.Load(); n >= int64(s.o.MaxIDs) {
		return nil, fmt.Errorf("%w: %d", ErrTooManyIDs, n)
	}
	if err := s.c.owners.take(principal, true); err != nil {
		return nil, err
	}
	s.c.count.Add(1)
	m := newMachine(id, s.o, s.Epoch)
	m.owner = principal
	return s.ids.Add(id, m), nil
}

// step feeds one input to one id and does what comes of it.
func (s *shard) step(sl *slot, now time.Time, in any) {
	var fx effects
	was := sl.M.logValues()
	if err := sl.M.step(now, in, &fx); err != nil {
		s.Logger.Error("transaction state is broken", "transactional_id", sl.M.id, "err", err)
	}
	s.c.census.counted(was, sl.M.logValues())
	for _, r := range fx.replies {
		s.Answer(r.to, r.result)
	}
	for _, w := range fx.writes {
		s.enqueue(sl, w, now)
	}
	if fx.mark != nil {
		s.c.markers.submit(func() { s.writeMarkers(sl, *fx.mark) })
	}
	if sl.M.forgettable() {
		s.forget(sl)
		return
	}
	s.ids.Arm(sl, sl.M.wake, now)
}

// writeMarkers runs on a goroutine of the marker writers.
func (s *shard) writeMarkers(sl *slot, m mark) {
	if s.Context().Err() != nil {
		return
	}
	invariants.Fault("txn.beforeMarkers")
	errs := s.o.WriteMarkers(s.Context(), m.marker, m.partitions)
	_ = s.Post(func(now time.Time) { // refused: the shard has ended
		s.step(sl, now, marked{m.partitions, errs})
	})
}

func (s *shard) forget(sl *slot) {
	if s.ids.Drop(sl) {
		s.c.count.Add(-1)
		s.c.owners.leave(sl.M.owner)
	}
}

// enqueue hands a write to the log; the id hears of its end.
func (s *shard) enqueue(sl *slot, w write, now time.Time) {
	s.Enqueue(coordinator.Write{
		Size: w.size(), Records: []record.Record{{Key: w.key, Value: w.value}},
		Done: func(now time.Time, err error) {
			if err == nil {
				s.c.note(&w.done)
			}
			s.step(sl, now, stored{w.done, err})
		},
	}, now)
}

// every steps all ids each interval, in order of their names.
func (s *shard) every(interval time.Duration, in any) {
	var alarm clock.Timer // only read by tasks, which run after every has returned
	alarm = s.o.Clock.AfterFunc(interval, func() {
		_ = s.Post(func(now time.Time) { // refused: the shard has ended
			s.lookAtOldest()
			for sl := range s.ids.Sorted() {
				s.step(sl, now, in)
			}
			alarm.Reset(interval)
		})
	})
	s.alarms = append(s.alarms, alarm)
}
