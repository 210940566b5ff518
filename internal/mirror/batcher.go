package mirror

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// batcher turns many small calls into few large ones: what arrives while one
// call runs goes together into the next. A failover of ten thousand partitions
// costs a few dozen metadata transactions that way, not ten thousand, and a
// single partition waits for nothing.
//
// Where a crowd is on its way, as in a failover, the first of it waits a moment for the
// others: their call would wait for its, and so would whoever else asks the controller.
//
// One goroutine runs while there is work, none while there is not.
type batcher[T, R any] struct {
	ctx   context.Context // ends with the owner
	sched *scheduler
	max   int // items per call
	call  func(ctx context.Context, items []T) []R
	crowd func() int  // how many items may come soon; nil: nobody knows
	clock clock.Clock // with crowd

	mu struct {
		sync.Mutex
		// pending and running change together: whoever finds running false
		// starts the goroutine, and it ends only with pending empty.
		pending []batched[T, R]
		running bool
	}
	done sync.WaitGroup
}

type batched[T, R any] struct {
	item T
	done func(R)
}

func newBatcher[T, R any](ctx context.Context, s *scheduler, max int, call func(context.Context, []T) []R) *batcher[T, R] {
	return &batcher[T, R]{ctx: ctx, sched: s, max: max, call: call}
}

// submit adds an item; done is called on the batcher's goroutine and must not
// block.
func (b *batcher[T, R]) submit(item T, done func(R)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.pending = append(b.mu.pending, batched[T, R]{item, done})
	if !b.mu.running {
		b.mu.running = true
		b.done.Add(1)
		b.sched.run(b.run)
	}
}

// do adds an item and waits for its result.
func (b *batcher[T, R]) do(ctx context.Context, item T) (R, error) {
	result := make(chan R, 1)
	b.submit(item, func(r R) { result <- r })
	return await(ctx, b.sched, result)
}

func (b *batcher[T, R]) run() {
	defer b.done.Done()
	for {
		b.gather()
		b.mu.Lock()
		n := min(len(b.mu.pending), b.max)
		if n == 0 {
			b.mu.pending, b.mu.running = nil, false
			b.mu.Unlock()
			return
		}
		batch := b.mu.pending[:n:n]
		b.mu.pending = b.mu.pending[n:]
		b.mu.Unlock()

		items := make([]T, n)
		for i := range batch {
			items[i] = batch[i].item
		}
		results := b.call(b.ctx, items)
		for i := range batch {
			batch[i].done(results[i])
		}
	}
}

const (
	// gatherTime is the longest wait for a crowd, and gatherStep how often it is counted.
	gatherTime = 20 * time.Millisecond
	gatherStep = time.Millisecond
)

// gather waits while more items are about to come than are there. A simulation has its own
// order of things.
func (b *batcher[T, R]) gather() {
	if b.crowd == nil || b.sched != nil {
		return
	}
	step := b.clock.NewTimer(gatherStep)
	defer step.Stop()
	for range gatherTime / gatherStep {
		b.mu.Lock()
		n := len(b.mu.pending)
		b.mu.Unlock()
		if n == 0 || n >= min(b.crowd(), b.max) {
			return
		}
		select {
		case <-step.C():
			step.Reset(gatherStep)
		case <-b.ctx.Done():
			return
		}
	}
}

// wait returns when no call runs. Nothing may be submitted any more.
func (b *batcher[T, R]) wait() { b.sched.wait(&b.done) }
