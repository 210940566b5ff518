package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Driver is what a Shard runs. Its methods are called on the shard's goroutine.
type Driver interface {
	// Replay reads the log from start to end. serve takes over what was read and
	// tells how many names there are; it is called unless err is set.
	Replay(ctx context.Context) (serve func(now time.Time) (names int), err error)
	// End comes last, whether or not anything was taken over. Alarms are to be
	// stopped; those who wait are told by the shard.
	End()
}

// ShardOptions are those of all shards of one topic. All are required.
type ShardOptions struct {
	Clock  clock.Clock
	Logger *slog.Logger
	// Append writes one batch in the given leader epoch and calls done once the
	// batch is acknowledged or refused. It must not wait for the acknowledgement
	// itself; done may run on any goroutine and even before Append returns. The
	// batch is the log's from then on. An error says that nothing was written,
	// except for ErrUnsettled.
	Append func(partition, leaderEpoch int32, batch []byte, done func(error))
	// BeforeAppend is called before each batch: a fault point's place.
	BeforeAppend func()
	// MaxWriteBytes bounds one batch of several writes.
	MaxWriteBytes int
	// MaxQueued bounds the requests that wait for a shard's goroutine.
	MaxQueued int
	// Alive tells whether the cluster still counts on this broker: one that was cut
	// off may have been replaced and not know it. Nil: always.
	Alive func() bool

	// Loads are the seconds that replays took, Refusals the batches that the log
	// did not take.
	Loads    *metrics.PrometheusHistogram
	Refusals *metrics.Counter
}

// Ticket stands for one caller who waits for an answer. The shard hands them out,
// machines keep and answer them; 0 is nobody.
type Ticket uint64

// Shard drives the machines of one partition during one leader epoch. One
// goroutine (run) owns everything outside mu: it takes tasks, which step the
// machines, and puts what they write into as few batches as it can: while one
// batch is on its way to disk, the next collects.
type Shard struct {
	Partition int32
	Epoch     int32 // the leader epoch of the partition
	Logger    *slog.Logger

	o      ShardOptions
	driver Driver

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
	// loaded is closed when requests are taken.
	loaded chan struct{}

	ctx    context.Context // ends with stop
	cancel context.CancelFunc

	waiting map[Ticket]func(result any)
	tickets Ticket // last given out

	batch batch

	// replace puts a new shard in the place of this one. Set by Shards before run.
	replace func()
}

// NewShard makes a shard of a partition; Shards runs it.
func NewShard(o ShardOptions, partition, epoch int32, d Driver) *Shard {
	s := &Shard{
		Partition: partition, Epoch: epoch, o: o, driver: d,
		Logger: o.Logger.With("partition", partition, "leader_epoch", epoch),
		wake:   make(chan struct{}, 1), done: make(chan struct{}), loaded: make(chan struct{}),
		waiting: map[Ticket]func(any){},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.loading = true
	return s
}

// Base is the shard itself, for those who have it embedded.
func (s *Shard) Base() *Shard { return s }

// Context ends when the shard does.
func (s *Shard) Context() context.Context { return s.ctx }

// Done is closed when the shard has ended.
func (s *Shard) Done() <-chan struct{} { return s.done }

// stop makes run return; it does not wait for that.
func (s *Shard) stop() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.tasks = nil
	s.mu.Unlock()
	s.cancel()
}

// Post queues a task of our own. What comes while the shard loads is done after
// that. A refusal means that the shard has ended.
func (s *Shard) Post(task func(now time.Time)) error { return s.post(false, task) }

// restart ends the shard, with everything that waits, and begins another one in
// the same epoch, which loads what the log says.
func (s *Shard) restart() {
	s.Logger.Warn("coordinator's partition is loaded again")
	s.replace()
}

func (s *Shard) alive() bool { return s.o.Alive == nil || s.o.Alive() }

// post queues a task. Requests are refused while the shard loads or is full.
func (s *Shard) post(request bool, task func(now time.Time)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed, request && !s.alive():
		return ErrNotCoordinator
	case request && s.mu.loading:
		return ErrLoading
	case request && s.mu.requests >= s.o.MaxQueued:
		return fmt.Errorf("%w: %d requests are waiting", ErrNotAvailable, s.mu.requests)
	case request && s.batch.unsettled.Load() > maxUnsettledBytes:
		return fmt.Errorf("%w: the log has not acknowledged %d bytes so far", ErrNotAvailable, s.batch.unsettled.Load())
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

// Requests are those that wait for the shard's goroutine.
func (s *Shard) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.requests
}

// Waiting are the callers who wait for an answer; only for tasks.
func (s *Shard) Waiting() int { return len(s.waiting) }

// LoadPatience is how long a request waits for its partition to be loaded, which is
// some tens of milliseconds where a broker takes over from one that stops. Sooner said
// is worse: librdkafka hands COORDINATOR_LOAD_IN_PROGRESS of a commit to the
// application.
const LoadPatience = time.Second

// awaitLoaded tells whether the shard is loaded within LoadPatience.
func (s *Shard) awaitLoaded(ctx context.Context) bool {
	t := s.o.Clock.NewTimer(LoadPatience)
	defer t.Stop()
	select {
	case <-s.loaded:
		return true
	case <-t.C():
	case <-s.done:
	case <-ctx.Done():
	}
	return false
}

// Ask posts a request and waits for its answer, for limit at most if that is not
// 0; and before that for the shard to be loaded, for LoadPatience. fn runs on the shard's goroutine and sees to it that the ticket is answered
// with a T. Who waits no more has not taken back what was asked: a write that is
// late takes effect when the log has it.
func Ask[T any](ctx context.Context, s *Shard, limit time.Duration, fn func(now time.Time, to Ticket)) (T, error) {
	answer := make(chan T, 1)
	task := func(now time.Time) {
		s.tickets++
		s.waiting[s.tickets] = func(result any) {
			t, _ := result.(T) // a nil error is no T, and a zero one is right
			answer <- t
		}
		fn(now, s.tickets)
	}
	err := s.post(true, task)
	if errors.Is(err, ErrLoading) && s.awaitLoaded(ctx) {
		err = s.post(true, task)
	}
	var none T
	if err != nil {
		return none, err
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := s.o.Clock.NewTimer(limit)
		defer timer.Stop()
		late = timer.C()
	}
	select {
	case t := <-answer:
		if !s.alive() {
			return none, ErrNotCoordinator
		}
		return t, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-late:
		return none, fmt.Errorf("%w: no answer for %s, because the log has not acknowledged it", ErrNotAvailable, limit)
	case <-s.done:
		return none, ErrNotCoordinator
	}
}

// Answer gives a ticket its answer, once.
func (s *Shard) Answer(to Ticket, result any) {
	if deliver := s.waiting[to]; deliver != nil {
		delete(s.waiting, to)
		deliver(result)
	}
}

func (s *Shard) run() {
	defer close(s.done)
	defer s.driver.End()
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

func (s *Shard) drain() {
	s.mu.Lock()
	tasks := s.mu.tasks
	s.mu.tasks, s.mu.requests = nil, 0
	s.mu.Unlock()
	now := s.o.Clock.Now()
	for _, task := range tasks {
		if s.ctx.Err() != nil {
			return // a task before has ended the shard
		}
		task(now)
	}
	if s.ctx.Err() == nil {
		s.Flush(now)
	}
}

// LoadRetry is the wait before a failed load is tried again: short, because everybody stands
// still meanwhile, yet not a spin.
const LoadRetry = time.Second

// load replays the partition, again and again until it succeeds or the shard
// ends; then the shard takes requests.
func (s *Shard) load() bool {
	for {
		began := s.o.Clock.Now()
		serve, err := s.driver.Replay(s.ctx)
		if err == nil {
			now := s.o.Clock.Now()
			names := serve(now)
			s.Flush(now)
			s.mu.Lock()
			s.mu.loading = false
			s.mu.Unlock()
			close(s.loaded)
			took := s.o.Clock.Now().Sub(began)
			s.o.Loads.Update(took.Seconds())
			level := slog.LevelInfo
			if names == 0 {
				level = slog.LevelDebug // 50 of these when the topic is made
			}
			s.Logger.Log(s.ctx, level, "coordinator's partition loaded", "names", names, "seconds", took.Seconds())
			return true
		}
		if s.ctx.Err() != nil {
			return false
		}
		s.Logger.Warn("coordinator's partition cannot be loaded yet", "err", err)
		again := s.o.Clock.NewTimer(LoadRetry)
		select {
		case <-again.C():
		case <-s.ctx.Done():
			again.Stop()
			return false
		}
	}
}
