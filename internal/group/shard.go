package group

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// shard drives the groups of one partition of __consumer_offsets during one
// leader epoch. One goroutine (run) owns everything outside mu: it takes tasks,
// steps the machines, and puts what they write into as few batches as it can:
// while one batch is on its way to disk, the next collects.
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

	groups  map[string]*slot
	waiting map[ticket]func(result any)
	tickets ticket // last given out
	sweeper clock.Timer

	// batch is what goes into the next append, sent what the log has not
	// acknowledged yet, oldest first. Acknowledgements take effect in that
	// order, whatever order they come in.
	batch      []queued
	batchBytes int
	sent       []*sentBatch

	// txns tells, by producer id, which groups have stored offsets in its open
	// transaction. A group that has dropped them since may be among them.
	txns map[int64]map[string]struct{}
}

// slot is one group in its shard, with its alarm.
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
	marker *partition.Marker // instead of writes: the end of a transaction
	to     ticket            // who waits for the marker
	ended  bool
	err    error
}

// Waiting before a failed load is tried again: short, because groups stand
// still meanwhile, yet not a spin.
const loadRetry = time.Second

func newShard(c *Coordinator, partition, epoch int32) *shard {
	s := &shard{
		c: c, o: &c.o, partition: partition, epoch: epoch,
		logger: c.o.Logger.With("offsets_partition", partition, "leader_epoch", epoch),
		wake:   make(chan struct{}, 1), done: make(chan struct{}),
		waiting: map[ticket]func(any){}, txns: map[int64]map[string]struct{}{},
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
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	for _, sl := range s.groups {
		if sl.timer != nil {
			sl.timer.Stop()
		}
	}
	s.c.count.Add(-int64(len(s.groups)))
	for _, sl := range s.groups {
		s.c.memberBytes.Add(-int64(sl.m.bytes))
	}
}

// group finds a group, or makes one.
func (s *shard) group(id string, create bool, now time.Time) (*slot, error) {
	if sl := s.groups[id]; sl != nil {
		return sl, nil
	}
	if !create {
		return nil, ErrNotFound
	}
	if len(s.groups) >= s.o.MaxGroups {
		return nil, fmt.Errorf("%w: %d in partition %d", ErrTooManyGroups, s.o.MaxGroups, s.partition)
	}
	sl := &slot{m: newMachine(id, s.o, now)}
	s.groups[id] = sl
	s.c.count.Add(1)
	return sl, nil
}

// step feeds one input to one group and does what comes of it.
func (s *shard) step(sl *slot, now time.Time, in any) {
	var fx effects
	generation, bytes := sl.m.generation, sl.m.bytes
	sl.m.topics = s.c.topics()
	if err := sl.m.step(now, in, &fx); err != nil {
		s.logger.Error("group state is broken", "group", sl.m.id, "err", err)
	}
	s.c.memberBytes.Add(int64(sl.m.bytes - bytes))
	if sl.m.generation != generation {
		s.c.rebalances.Inc()
	}
	for _, r := range fx.replies {
		s.answer(r.to, r.result)
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
		s.logger.Warn("group write refused", "group", sl.m.id, "err", err)
		s.step(sl, now, stored{w.done, err})
	}
	if sl.m.forgettable() {
		s.forget(sl)
		return
	}
	s.rearm(sl, now)
}

func (s *shard) forget(sl *slot) {
	if s.groups[sl.m.id] != sl {
		return
	}
	if sl.timer != nil {
		sl.timer.Stop()
	}
	delete(s.groups, sl.m.id)
	s.c.count.Add(-1)
}

// rearm moves the alarm forward if the group needs it sooner. Too early an
// alarm is left alone: its tick finds the right time.
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
			if s.groups[sl.m.id] != sl {
				return
			}
			sl.armed = time.Time{}
			s.step(sl, now, tick{})
		})
	})
}

func (s *shard) enqueue(sl *slot, w write, now time.Time) {
	if len(s.batch) > 0 && (w.txn != nil || s.batchBytes+w.size() > s.o.MaxWriteBytes) {
		s.flush(now)
	}
	s.batch = append(s.batch, queued{sl, w})
	s.batchBytes += w.size()
	if w.txn != nil { // a batch has one producer
		s.flush(now)
	}
}

// flush appends what has collected as one batch.
func (s *shard) flush(now time.Time) {
	if len(s.batch) == 0 {
		return
	}
	var recs []record.Record
	for _, q := range s.batch {
		for _, e := range q.records {
			recs = append(recs, record.Record{OffsetDelta: int32(len(recs)), Key: e.key, Value: e.value})
		}
	}
	txn := s.batch[0].txn
	b := &sentBatch{writes: s.batch}
	s.batch, s.batchBytes = nil, 0
	invariants.Fault("group.beforeAppend")
	if txn != nil {
		head := record.BuildHeader{
			BaseTimestamp: now.UnixMilli(), ProducerID: txn.producerID, ProducerEpoch: txn.epoch, Transactional: true,
		}
		s.send(b, func(done func(error)) {
			s.o.AppendOffsets(s.partition, s.epoch, record.Build(head, recs), txn.verify.needed, txn.verify.by, done)
		})
		return
	}
	s.send(b, func(done func(error)) {
		s.o.Append(s.partition, s.epoch, record.Build(record.NoProducer(now.UnixMilli()), recs), done)
	})
}

// send appends one batch; settle hears of it in its turn.
func (s *shard) send(b *sentBatch, write func(done func(error))) {
	s.sent = append(s.sent, b)
	write(func(err error) {
		_ = s.post(false, func(now time.Time) { // refused: the shard has ended
			b.ended, b.err = true, err
			s.settle(now)
		})
	})
}

// settle tells the groups what became of their writes, in order.
func (s *shard) settle(now time.Time) {
	for len(s.sent) > 0 && s.sent[0].ended {
		b := s.sent[0]
		s.sent[0] = nil
		s.sent = s.sent[1:]
		if b.err != nil {
			s.c.refusals.Inc()
			s.logger.Warn("group batch not stored", "writes", len(b.writes), "marker", b.marker != nil, "err", b.err)
		}
		for _, q := range b.writes {
			if q.txn != nil && b.err == nil {
				s.inTxn(q.txn.producerID, q.slot.m.id)
			}
			s.step(q.slot, now, stored{q.done, b.err})
		}
		if b.marker != nil {
			if b.err == nil {
				s.endTxn(now, b.marker)
			}
			s.answer(b.to, b.err)
		}
	}
}

// sweep looks for expired offsets in all groups, now and then.
func (s *shard) sweep(now time.Time) {
	s.each(now, sweep{})
	s.sweeper.Reset(s.o.OffsetsRetentionCheck)
}

// each steps all groups, in order of their names.
func (s *shard) each(now time.Time, in any) {
	for _, id := range s.groupIDs() {
		if sl := s.groups[id]; sl != nil {
			s.step(sl, now, in)
		}
	}
}

func (s *shard) groupIDs() []string {
	ids := make([]string, 0, len(s.groups))
	for id := range s.groups {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
