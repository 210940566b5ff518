package txn

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// shard drives the transactional ids of one partition of __transaction_state
// during one leader epoch. One goroutine (run) owns everything outside mu: it
// takes tasks, steps the machines, and puts what they write into as few batches
// as it can: while one batch is on its way to disk, the next collects.
type shard struct {
	c         *Coordinator
	o         *Options
	partition int32
	epoch     int32
	logger    *slog.Logger

	// mu is held for the queue only, never while a task runs, so that the
	// flusher, the clock and the connections can post at any time.
	mu struct {
		sync.Mutex
		tasks    []func(now time.Time)
		requests int // tasks that came from clients; at most MaxQueued
		loading  bool
		closed   bool // no task is taken any more
	}
	wake chan struct{} // one token: there are tasks
	done chan struct{} // closed when run has returned

	ctx    context.Context // ends with stop
	cancel context.CancelFunc

	ids     map[string]*slot
	waiting map[ticket]func(result any)
	tickets ticket // last given out
	alarms  []clock.Timer

	// batch is what goes into the next append, sent what the log has not
	// acknowledged yet, oldest first. Acknowledgements take effect in that
	// order, whatever order they come in.
	batch      []queued
	batchBytes int
	sent       []*sentBatch

	// oldestOpen is when the first of the transactions that are open began, in
	// Unix nanoseconds; 0: none is. Written by lookAtOldest, read by a gauge.
	oldestOpen atomic.Int64
}

// slot is one transactional id in its shard, with its alarm.
type slot struct {
	m     *machine
	timer clock.Timer
	armed time.Time // when the timer fires; zero: not set
}

type queued struct {
	slot *slot
	write
}

type sentBatch struct {
	writes []queued
	ended  bool
	err    error
}

// Waiting before a failed load is tried again: short, because producers stand
// still meanwhile, yet not a spin.
const loadRetry = time.Second

func newShard(c *Coordinator, partition, epoch int32) *shard {
	s := &shard{
		c: c, o: &c.o, partition: partition, epoch: epoch,
		logger: c.o.Logger.With("transaction_partition", partition, "leader_epoch", epoch),
		wake:   make(chan struct{}, 1), done: make(chan struct{}),
		waiting: map[ticket]func(any){},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.loading = true
	return s
}

// stop makes run return; it does not wait for that.
func (s *shard) stop() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.tasks = nil
	s.mu.Unlock()
	s.cancel()
}

// post queues a task. Requests are refused while the shard loads or is full.
func (s *shard) post(request bool, task func(now time.Time)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return ErrNotCoordinator
	case request && s.mu.loading:
		return ErrLoading
	case request && s.mu.requests >= s.o.MaxQueued:
		return fmt.Errorf("%w: %d requests are waiting", ErrNotAvailable, s.mu.requests)
	case request:
		s.mu.requests++
	}
	s.mu.tasks = append(s.mu.tasks, task)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// ask posts a request and waits for its answer. fn runs on the shard's
// goroutine and sees to it that the ticket is answered with a T.
func ask[T any](ctx context.Context, s *shard, fn func(now time.Time, to ticket)) (T, error) {
	answer := make(chan T, 1)
	err := s.post(true, func(now time.Time) {
		s.tickets++
		s.waiting[s.tickets] = func(result any) {
			t, _ := result.(T) // a nil error is no T, and a zero one is right
			answer <- t
		}
		fn(now, s.tickets)
	})
	var none T
	if err != nil {
		return none, err
	}
	select {
	case t := <-answer:
		return t, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-s.done:
		return none, ErrNotCoordinator
	}
}

func (s *shard) answer(to ticket, result any) {
	if deliver := s.waiting[to]; deliver != nil {
		delete(s.waiting, to)
		deliver(result)
	}
}

func (s *shard) run() {
	defer close(s.done)
	defer s.end()
	if !s.load() {
		return
	}
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
			s.drain()
		}
	}
}

func (s *shard) drain() {
	s.mu.Lock()
	tasks := s.mu.tasks
	s.mu.tasks, s.mu.requests = nil, 0
	s.mu.Unlock()
	now := s.o.Clock.Now()
	for _, task := range tasks {
		task(now)
	}
	s.flush(now)
}

// end stops the alarms. Those who wait see done.
func (s *shard) end() {
	for _, t := range s.alarms {
		t.Stop()
	}
	for _, sl := range s.ids {
		if sl.timer != nil {
			sl.timer.Stop()
		}
		s.c.census.counted(sl.m.logValues(), nil)
	}
	s.c.count.Add(-int64(len(s.ids)))
}

// id finds a transactional id, or makes one.
func (s *shard) id(id string, create bool) (*slot, error) {
	if sl := s.ids[id]; sl != nil {
		return sl, nil
	}
	if !create {
		return nil, ErrNotFound
	}
	if n := s.c.count.Load(); n >= int64(s.o.MaxIDs) {
		return nil, fmt.Errorf("%w: %d", ErrTooManyIDs, n)
	}
	sl := &slot{m: newMachine(id, s.o, s.epoch)}
	s.ids[id] = sl
	s.c.count.Add(1)
	return sl, nil
}

// step feeds one input to one id and does what comes of it.
func (s *shard) step(sl *slot, now time.Time, in any) {
	var fx effects
	was := sl.m.logValues()
	if err := sl.m.step(now, in, &fx); err != nil {
		s.logger.Error("transaction state is broken", "transactional_id", sl.m.id, "err", err)
	}
	s.c.census.counted(was, sl.m.logValues())
	for _, r := range fx.replies {
		s.answer(r.to, r.result)
	}
	for _, w := range fx.writes {
		s.enqueue(sl, w, now)
	}
	if fx.mark != nil {
		s.c.markers.submit(func() { s.writeMarkers(sl, *fx.mark) })
	}
	if sl.m.forgettable() {
		s.forget(sl)
		return
	}
	s.rearm(sl, now)
}

// writeMarkers runs on a goroutine of the marker writers.
func (s *shard) writeMarkers(sl *slot, m mark) {
	if s.ctx.Err() != nil {
		return
	}
	invariants.Fault("txn.beforeMarkers")
	errs := s.o.WriteMarkers(s.ctx, m.marker, m.partitions)
	_ = s.post(false, func(now time.Time) { // refused: the shard has ended
		s.step(sl, now, marked{m.partitions, errs})
	})
}

func (s *shard) forget(sl *slot) {
	if s.ids[sl.m.id] != sl {
		return
	}
	if sl.timer != nil {
		sl.timer.Stop()
	}
	delete(s.ids, sl.m.id)
	s.c.count.Add(-1)
}

// rearm moves the alarm forward if the id needs it sooner. Too early an alarm is
// left alone: its tick finds the right time.
func (s *shard) rearm(sl *slot, now time.Time) {
	wake := sl.m.wake
	if wake.IsZero() || !sl.armed.IsZero() && !wake.Before(sl.armed) {
		return
	}
	sl.armed = wake
	if sl.timer != nil {
		sl.timer.Reset(wake.Sub(now))
		return
	}
	sl.timer = s.o.Clock.AfterFunc(wake.Sub(now), func() {
		_ = s.post(false, func(now time.Time) { // refused: the shard has ended
			if s.ids[sl.m.id] != sl {
				return
			}
			sl.armed = time.Time{}
			s.step(sl, now, tick{})
		})
	})
}

func (s *shard) enqueue(sl *slot, w write, now time.Time) {
	if len(s.batch) > 0 && s.batchBytes+w.size() > s.o.MaxWriteBytes {
		s.flush(now)
	}
	s.batch = append(s.batch, queued{sl, w})
	s.batchBytes += w.size()
}

// flush appends what has collected as one batch.
func (s *shard) flush(now time.Time) {
	if len(s.batch) == 0 {
		return
	}
	recs := make([]record.Record, len(s.batch))
	for i, q := range s.batch {
		recs[i] = record.Record{OffsetDelta: int32(i), Key: q.key, Value: q.value}
	}
	b := &sentBatch{writes: s.batch}
	s.sent = append(s.sent, b)
	s.batch, s.batchBytes = nil, 0
	invariants.Fault("txn.beforeAppend")
	s.o.Append(s.partition, s.epoch, record.Build(record.NoProducer(now.UnixMilli()), recs), func(err error) {
		_ = s.post(false, func(now time.Time) { // refused: the shard has ended
			b.ended, b.err = true, err
			s.settle(now)
		})
	})
}

// settle tells the ids what became of their writes, in order.
func (s *shard) settle(now time.Time) {
	for len(s.sent) > 0 && s.sent[0].ended {
		b := s.sent[0]
		s.sent[0] = nil
		s.sent = s.sent[1:]
		if b.err != nil {
			s.c.refusals.Inc()
			s.logger.Warn("transaction batch not stored", "writes", len(b.writes), "err", b.err)
		}
		for _, q := range b.writes {
			if b.err == nil {
				s.c.note(&q.done)
			}
			s.step(q.slot, now, stored{q.done, b.err})
		}
	}
}

// every steps all ids each interval, in order of their names.
func (s *shard) every(interval time.Duration, in any) {
	var alarm clock.Timer // only read by tasks, which run after every has returned
	alarm = s.o.Clock.AfterFunc(interval, func() {
		_ = s.post(false, func(now time.Time) { // refused: the shard has ended
			s.lookAtOldest()
			for _, id := range slices.Sorted(maps.Keys(s.ids)) {
				if sl := s.ids[id]; sl != nil {
					s.step(sl, now, in)
				}
			}
			alarm.Reset(interval)
		})
	})
	s.alarms = append(s.alarms, alarm)
}
