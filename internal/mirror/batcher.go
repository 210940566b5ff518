package mirror

import (
	"context"
	"sync"
)

// batcher turns many small calls into few large ones: what arrives while one
// call runs goes together into the next. A failover of ten thousand partitions
// costs a few dozen metadata transactions that way, not ten thousand, and a
// single partition waits for nothing.
//
// One goroutine runs while there is work, none while there is not.
type batcher[T, R any] struct {
	ctx   context.Context // ends with the owner
	sched *scheduler
	max   int // items per call
	call  func(ctx context.Context, items []T) []R

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

// wait returns when no call runs. Nothing may be submitted any more.
func (b *batcher[T, R]) wait() { b.sched.wait(&b.done) }
