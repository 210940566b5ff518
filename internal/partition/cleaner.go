package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"
	"golang.org/x/time/rate"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/segment"
)

// CleanerOptions say how logs are compacted. Names in parentheses are Kafka's.
type CleanerOptions struct {
	Enabled bool // log.cleaner.enable

	// Threads is how many logs are compacted at the same time
	// (log.cleaner.threads). Default 1.
	Threads int

	// Memory is what all threads together spend on the keys that they compare
	// (log.cleaner.dedupe.buffer.size). Default 128 MiB.
	Memory int64

	// BytesPerSecond bounds what all threads together read and write
	// (log.cleaner.io.max.bytes.per.second). 0: no limit.
	BytesPerSecond float64

	// Backoff is the time between two looks at all logs (log.cleaner.backoff.ms).
	// Default 15 s.
	Backoff time.Duration
}

func (o *CleanerOptions) ensureDefaults() {
	if o.Threads <= 0 {
		o.Threads = 1
	}
	if o.Memory <= 0 {
		o.Memory = 128 << 20
	}
	if o.BytesPerSecond <= 0 {
		o.BytesPerSecond = math.MaxFloat64
	}
	o.Threads = min(o.Threads, maxCleanerThreads)
	if o.Backoff <= 0 {
		o.Backoff = 15 * time.Second
	}
}

// maxCleanerThreads bounds log.cleaner.threads: more do not make a disk faster.
const maxCleanerThreads = 64

func burstOf(bytesPerSecond float64) int {
	return int(min(max(bytesPerSecond, 1), math.MaxInt32))
}

// asideFor is how long a log stays set aside after its compaction failed. The
// cause may have been repaired meanwhile; a log that fails again is not told
// again for the same cause.
const asideFor = time.Hour

// cleaner decides which log is compacted next. One goroutine (run) looks at all
// compacted logs once per backoff, makes a list of those that are due, the most
// urgent first, and hands them to a pool of a few threads one by one. A log
// costs nothing while it waits.
//
// A log that cannot be compacted is set aside, for an hour or until its segment
// is repaired, and does not stop the others.
type cleaner struct {
	o      CleanerOptions
	clock  clock.Clock
	logger *slog.Logger
	list   func() []*Partition
	pool   *ants.Pool
	budget *rate.Limiter
	stats  cleanerStats

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned

	results chan cleaned
	change  chan CleanerOptions // capacity 1: the options to go on with

	// memory is what one round may spend on keys; of the threads too.
	memory atomic.Int64

	// Of the goroutine.
	queue    []due // from the last look, the most urgent last
	states   map[*Partition]*cleanState
	running  int
	fruitful bool // a round since the last look moved something
}

// cleanState is what the cleaner remembers of a log while there is something to
// compact in it.
type cleanState struct {
	running bool
	since   time.Time // of the last round, or of when there was something to compact
	aside   time.Time // set aside until then; zero: not
	told    string    // the cause that was logged
}

// due is one log that waits for its compaction.
type due struct {
	p       *Partition
	overdue bool
	ratio   float64
}

// cleaned is what one round did.
type cleaned struct {
	p     *Partition
	stats segment.CompactStats
	err   error
}

func newCleaner(o CleanerOptions, c clock.Clock, logger *slog.Logger, list func() []*Partition) (*cleaner, error) {
	o.ensureDefaults()
	cl := &cleaner{
		o: o, clock: c, logger: logger, list: list, done: make(chan struct{}),
		results: make(chan cleaned, maxCleanerThreads), // so that a worker never waits
		change:  make(chan CleanerOptions, 1), states: map[*Partition]*cleanState{},
	}
	cl.budget = rate.NewLimiter(rate.Limit(o.BytesPerSecond), burstOf(o.BytesPerSecond))
	cl.memory.Store(o.Memory / int64(o.Threads))
	var err error
	if cl.pool, err = ants.NewPool(o.Threads); err != nil {
		return nil, fmt.Errorf("cleaner: %w", err)
	}
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	cl.stats.register()
	go cl.run(c.NewTimer(o.Backoff))
	return cl, nil
}

// set hands other options to the goroutine; those that it has not seen yet are
// replaced.
func (c *cleaner) set(o CleanerOptions) {
	o.ensureDefaults()
	for {
		select {
		case c.change <- o:
			return
		default:
		}
		select {
		case <-c.change:
		default:
		}
	}
}

// adopt goes on with other options. Rounds that are under way keep their memory.
func (c *cleaner) adopt(o CleanerOptions) {
	c.o = o
	c.pool.Tune(o.Threads)
	c.budget.SetBurstAt(c.clock.Now(), burstOf(o.BytesPerSecond))
	c.budget.SetLimitAt(c.clock.Now(), rate.Limit(o.BytesPerSecond))
	c.memory.Store(o.Memory / int64(o.Threads))
}

// close ends the rounds that are under way, which leaves their logs as they are.
func (c *cleaner) close() {
	c.cancel()
	<-c.done
}

func (c *cleaner) run(timer clock.Timer) {
	defer close(c.done)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			for c.running > 0 {
				c.take(<-c.results)
			}
			// Every task has answered: only idle workers are left.
			_ = c.pool.ReleaseTimeout(time.Minute)
			return
		case <-timer.C():
			timer.Reset(c.o.Backoff)
			c.look()
			c.start()
		case o := <-c.change:
			c.adopt(o)
			timer.Reset(o.Backoff)
			c.start()
		case r := <-c.results:
			c.take(r)
			if len(c.queue) == 0 && c.running == 0 && c.fruitful {
				c.look() // a log may need another round, and others have become due
			}
			c.start()
		}
	}
}

// look makes the list of those that are due: those that wait longer than they
// may before the others, then the dirtiest first.
func (c *cleaner) look() {
	now := c.clock.Now()
	c.queue, c.fruitful = c.queue[:0], false
	var s cleanerTotals
	states := make(map[*Partition]*cleanState, len(c.states))
	for _, p := range c.list() {
		hw, ok := p.compactable()
		if !ok {
			continue
		}
		found := p.files.Cleanable(now, hw)
		state := c.states[p]
		if idle := found.DirtyBytes == 0 && !found.Due && found.Damaged == nil; idle && (state == nil || !state.running) {
			continue
		}
		if state == nil {
			state = &cleanState{since: now}
		}
		states[p] = state
		if found.Damaged != nil {
			c.tell(p, state, found.Damaged)
		}
		s.add(found, state, now)
		if found.Due && !state.running && !now.Before(state.aside) {
			c.queue = append(c.queue, due{p, found.Overdue, found.Ratio})
		}
	}
	for p, state := range c.states {
		if state.running {
			states[p] = state // its result is still to come
		}
	}
	c.states = states // without those that were deleted, or are not compacted any more
	c.stats.publish(s)
	slices.SortStableFunc(c.queue, func(a, b due) int {
		if a.overdue != b.overdue {
			if a.overdue {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.ratio, b.ratio)
	})
}

// start hands logs to the threads that are free.
func (c *cleaner) start() {
	for c.running < c.o.Threads && len(c.queue) > 0 && c.ctx.Err() == nil {
		p := c.queue[len(c.queue)-1].p
		c.queue = c.queue[:len(c.queue)-1]
		hw, ok := p.compactable()
		if !ok {
			continue
		}
		// At most until the worker that has just answered is back in the pool.
		if err := c.pool.Submit(func() { c.results <- c.compact(p, hw) }); err != nil {
			c.logger.Error("log cannot be handed to the cleaner's threads", "log", p.key.String(), "err", err)
			return
		}
		c.states[p].running = true
		c.running++
	}
}

// compact does one round on one log, on a thread of the pool.
func (c *cleaner) compact(p *Partition, highWatermark int64) (r cleaned) {
	r.p = p
	defer func() {
		if e := recover(); e != nil {
			r.err = fmt.Errorf("panic: %v\n%s", e, debug.Stack())
		}
	}()
	r.stats, r.err = p.files.Compact(c.ctx, c.clock.Now(), highWatermark, segment.CompactOptions{
		Memory: c.memory.Load(), Throttle: c.throttle,
	})
	return r
}

// throttle waits until n bytes fit into the budget of all threads.
func (c *cleaner) throttle(ctx context.Context, n int) error {
	for n > 0 {
		part := min(n, c.budget.Burst())
		now := c.clock.Now()
		wait := c.budget.ReserveN(now, part).DelayFrom(now)
		n -= part
		if wait <= 0 {
			continue
		}
		timer := c.clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// take notes what a round did.
func (c *cleaner) take(r cleaned) {
	c.running--
	state := c.states[r.p]
	state.running = false
	c.stats.add(r.stats)
	now := c.clock.Now()
	if r.err != nil {
		c.failed(r, state, now)
		return
	}
	*state = cleanState{since: now}
	if r.stats.Overtaken || r.stats.End <= r.stats.From {
		return // nothing moved: not before the next look
	}
	c.fruitful = true
	s := &r.stats
	c.logger.Info("log compacted", "log", r.p.key.String(), "from", s.From, "end", s.End,
		"bytes_before", s.SizeBefore, "bytes_after", s.SizeAfter, "records_before", s.RecordsRead, "records_after", s.RecordsKept,
		"unreadable_batches", s.Unreadable, "rounds_left", s.RoundsLeft, "seconds", s.Duration.Seconds())
}

// failed sets a log aside, unless the error says that this is nothing of the
// log's own, or over in a while.
func (c *cleaner) failed(r cleaned, state *cleanState, now time.Time) {
	switch {
	case c.ctx.Err() != nil, errors.Is(r.err, segment.ErrClosed), errors.Is(r.err, segment.ErrNotCompacted), errors.Is(r.err, segment.ErrCompacting):
		return
	case errors.Is(r.err, segment.ErrFull), errors.Is(r.err, segment.ErrRebuilding):
		return // it waits for the next look
	}
	state.aside = now.Add(asideFor)
	c.stats.failures.Inc()
	c.tell(r.p, state, r.err)
	if r.p.dir != nil {
		r.p.dir.checkFailed() // it may have been the disk
	}
}

// tell logs a cause once.
func (c *cleaner) tell(p *Partition, state *cleanState, err error) {
	var damage *segment.DamageError
	if errors.As(err, &damage) {
		err = damage // the same words for the round that met it and for the log that remembers
	}
	if state.told == err.Error() {
		return
	}
	state.told = err.Error()
	c.logger.Error("log cannot be compacted and is set aside", "log", p.key.String(), "dir", p.files.Dir(), "err", err)
}

// compactable says whether the partition's log is to be compacted at all, and up
// to which high watermark.
func (p *Partition) compactable() (highWatermark int64, ok bool) {
	v := p.view.Load()
	return v.highWatermark, p.files != nil && v.compacted && !v.gone && v.offline == nil
}
