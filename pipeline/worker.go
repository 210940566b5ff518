package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// WorkerOptions make a Worker.
type WorkerOptions struct {
	// Open makes the connection to the source broker. It must return when ctx
	// ends.
	Open func(ctx context.Context) (sdk.Session, error)

	MaxWait           time.Duration // fetch.wait.max.ms, default 1 s
	MinBytes          int32         // fetch.min.bytes, default 1
	MaxBytes          int32         // fetch.response.max.bytes, default 10 MiB
	PartitionMaxBytes int32         // fetch.max.bytes, default 1 MiB
	Backoff           time.Duration // fetch.backoff.ms, default 1 s

	// MaxBatchBytes is the largest batch taken; default DefaultMaxBatchBytes.
	MaxBatchBytes int

	// Settle runs after each whole response, with its number of record bytes, before
	// the next request is made. It may wait for the disk, which that request then
	// speaks of. Nil: the next request follows at once.
	Settle func(ctx context.Context, bytes int)

	Budget *Budget // shared bound of bytes in flight; nil: none

	Logger *slog.Logger // nil: discard
	Clock  clock.Clock  // nil: the system's
}

// EnsureDefaults fills what is not set.
func (o *WorkerOptions) EnsureDefaults() {
	if o.MaxWait <= 0 {
		o.MaxWait = time.Second
	}
	if o.MinBytes <= 0 {
		o.MinBytes = 1
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 10 << 20
	}
	if o.PartitionMaxBytes <= 0 {
		o.PartitionMaxBytes = 1 << 20
	}
	if o.Backoff <= 0 {
		o.Backoff = time.Second
	}
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = DefaultMaxBatchBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
}

// Worker owns one connection to a source broker and moves the bytes of its
// partitions on one goroutine.
type Worker struct {
	o      WorkerOptions
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // cap 1: the list of pipelines changed
	done   chan struct{} // closed when the goroutine has ended

	// mu guards what callers change. It is never held during I/O, an append
	// or an observer's call.
	mu struct {
		sync.Mutex
		pipelines map[*Pipeline]struct{}
		changed   bool
		closed    bool
		poked     bool
		parked    Interrupter // the session while a fetch is under way
	}

	hears atomic.Bool // see Hears

	// The rest belongs to the worker's goroutine.
	session  sdk.Session // nil: not connected
	proven   bool        // session has brought a whole response
	refusals int         // responses in a row that were refused as a whole

	parts   []*Pipeline // the list as of the last change
	next    int         // where the next request begins in parts
	req     sdk.FetchRequest
	asked   []*Pipeline // of req, in its order
	cursor  int         // where the next partition of the response is expected
	lastHit int         // index in asked of the last partition with records, -1
	bytes   int         // of records in the response

	piece piece
	now   time.Time // read once per response
}

// NewWorker starts the goroutine; nothing is dialled before the first Add.
func NewWorker(o WorkerOptions) *Worker {
	w := newWorker(o)
	go w.run()
	return w
}

// newWorker makes a worker without its goroutine.
func newWorker(o WorkerOptions) *Worker {
	o.EnsureDefaults()
	w := &Worker{o: o, wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.piece = piece{budget: o.Budget, limit: o.MaxBatchBytes}
	w.mu.pipelines = map[*Pipeline]struct{}{}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Add attaches p from the next fetch on: at once if the worker is idle, at the
// latest when the long poll under way ends. It does nothing after Close.
func (w *Worker) Add(p *Pipeline) {
	if w.add(p) {
		w.Poke()
	}
}

func (w *Worker) add(p *Pipeline) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return false
	}
	if !p.attach() {
		invariants.Check(false, "%s: pipeline added twice", p.o.Key)
		return false
	}
	w.mu.pipelines[p] = struct{}{}
	w.changedLocked()
	return true
}

// Interrupter is a session whose long poll can be ended early: the source answers
// at once, with what there is.
type Interrupter interface {
	// Interrupt may be called at any time. While no fetch is under way it is for the
	// next one.
	Interrupt()
}

// Poke has the next request made soon: a long poll under way is ended where the
// session can do that.
func (w *Worker) Poke() {
	w.mu.Lock()
	parked := w.mu.parked
	w.mu.poked = true
	w.mu.Unlock()
	if parked != nil {
		parked.Interrupt() // it writes: not under the lock
	}
}

// Remove detaches p; when it returns no append of p runs or will run. Ended is
// not called. It does nothing if p is not attached any more.
func (w *Worker) Remove(p *Pipeline) {
	p.detach()
	w.forget(p)
}

// SetEpochs changes the leader epochs of p from the next append on.
func (w *Worker) SetEpochs(p *Pipeline, leaderEpoch, sourceEpoch int32) {
	p.gate.Lock()
	defer p.gate.Unlock()
	p.gate.leaderEpoch, p.gate.sourceEpoch = leaderEpoch, sourceEpoch
}

// Close detaches all partitions, ends the connection and waits for the
// goroutine. Ended is not called.
func (w *Worker) Close() {
	w.mu.Lock()
	w.mu.closed = true
	for p := range w.mu.pipelines {
		p.detach()
	}
	clear(w.mu.pipelines)
	w.mu.changed = true
	w.mu.Unlock()
	w.cancel()
	<-w.done
}

func (w *Worker) forget(p *Pipeline) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.mu.pipelines[p]; ok {
		delete(w.mu.pipelines, p)
		w.changedLocked()
	}
}

func (w *Worker) changedLocked() {
	w.mu.changed = true
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run is the worker's goroutine.
func (w *Worker) run() {
	defer close(w.done)
	defer w.hangUp()
	defer w.piece.release()
	for w.ctx.Err() == nil {
		w.refresh()
		wait := w.prepare()
		if len(w.asked) == 0 {
			w.piece.release()
			w.idle(wait)
			continue
		}
		if !w.connect() {
			continue
		}
		w.finish(w.fetch())
	}
}

// refresh takes over the list of pipelines if it changed. The order of those
// that stay is kept, so that the rotation stays fair.
func (w *Worker) refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.poked = false // the request that is made now tells everything
	if !w.mu.changed {
		return
	}
	w.mu.changed = false
	kept := w.parts[:0]
	known := make(map[*Pipeline]struct{}, len(w.mu.pipelines))
	for _, p := range w.parts {
		if _, ok := w.mu.pipelines[p]; ok {
			kept = append(kept, p)
			known[p] = struct{}{}
		}
	}
	clear(w.parts[len(kept):])
	old := len(kept)
	for p := range w.mu.pipelines {
		if _, ok := known[p]; !ok {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept[old:], func(a, b *Pipeline) int { return compareKeys(&a.o.Key, &b.o.Key) })
	w.parts = kept
}

func compareKeys(a, b *sdk.PartitionKey) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), bytes.Compare(a.TopicID[:], b.TopicID[:]), cmp.Compare(a.Partition, b.Partition))
}

// idle waits until a pipeline is added, a backoff has passed or the worker is
// closed. wait 0 means that no backoff is running.
func (w *Worker) idle(wait time.Duration) {
	if wait <= 0 {
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
		return
	}
	timer := w.o.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-w.wake:
	case <-timer.C():
	case <-w.ctx.Done():
	}
}

// connect opens a session if there is none. When that fails, all partitions
// end as unreachable (W42 does not help them: they share the broker).
func (w *Worker) connect() bool {
	if w.session != nil {
		return true
	}
	s, err := w.o.Open(w.ctx)
	if err != nil {
		w.endAll(newEnd(Unreachable, err))
		return false
	}
	w.session, w.proven = s, false
	return true
}

// Hears tells whether the source broker has answered on the connection that there is. One
// that has broken is known at once, long before an answer is overdue.
func (w *Worker) Hears() bool { return w.hears.Load() }

func (w *Worker) hangUp() {
	w.hears.Store(false)
	if w.session != nil {
		w.session.Close()
		w.session = nil
	}
}

// fetch sends the request and handles the response; the handler is the worker.
func (w *Worker) fetch() error {
	s := w.session
	// A session blocks in a read that knows no context of ours.
	stop := context.AfterFunc(w.ctx, func() { s.Close() })
	defer stop()
	w.begin()
	if i, ok := s.(Interrupter); ok && !w.park(i) {
		w.req.MaxWait = 0
	}
	err := s.Fetch(w.ctx, &w.req, w)
	w.unpark()
	return err
}

// begin makes ready for a response.
func (w *Worker) begin() { w.cursor, w.lastHit, w.bytes, w.now = 0, -1, 0, time.Time{} }

// park notes that a fetch is about to be under way; false says that there is more
// to tell already, so that it should not wait.
func (w *Worker) park(s Interrupter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.parked = s
	return !w.mu.changed && !w.mu.poked
}

func (w *Worker) unpark() {
	w.mu.Lock()
	w.mu.parked = nil
	w.mu.Unlock()
}

// maxRefusals bounds how often a source may refuse whole responses.
const maxRefusals = 5

// finish decides about the connection after a fetch.
func (w *Worker) finish(err error) {
	if w.o.Budget != nil || w.lastHit < 0 {
		w.piece.release() // idle, or others wait for the memory
	}
	if err == nil {
		w.proven, w.refusals = true, 0
		w.hears.Store(true)
		w.confirm()
		w.rotate()
		if w.o.Settle != nil {
			w.o.Settle(w.ctx, w.bytes)
		}
		return
	}
	if w.ctx.Err() != nil {
		return
	}
	var refused *sdk.ResponseError
	if errors.As(err, &refused) {
		if w.refusals++; w.refusals < maxRefusals {
			until := w.o.Clock.Now().Add(w.o.Backoff)
			for _, p := range w.asked {
				p.retryAt = until
			}
			return
		}
		w.refusals = 0
		w.hangUp()
		end := newEnd(Fatal, err)
		end.Code = refused.Code
		w.endAll(end)
		return
	}
	w.hangUp()
	if w.proven {
		// Brokers close idle connections and restart: one new connection
		// before the partitions are given up.
		w.o.Logger.Debug("connection to the source broke, connecting again", "error", err)
		return
	}
	w.endAll(newEnd(Unreachable, err))
}

// endAll ends every partition of the worker.
func (w *Worker) endAll(e End) {
	w.refresh()
	for _, p := range w.parts {
		w.end(p, e)
	}
}

// end drops p and tells its observer, unless somebody removed it before.
func (w *Worker) end(p *Pipeline, e End) {
	if !p.detach() {
		return
	}
	w.forget(p)
	p.countError(e.Reason.String())
	p.o.Observer.Ended(p, e)
}

// backoff leaves p out of the requests for a while.
func (w *Worker) backoff(p *Pipeline) {
	p.retryAt = w.o.Clock.Now().Add(w.o.Backoff)
}
