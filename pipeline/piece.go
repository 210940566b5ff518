package pipeline

import (
	"context"
	"fmt"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// pieceBytes is the unit of work: large enough that a read and a write cost
// little per byte (256 KiB is 10 % slower, 64 KiB 40 %), small enough to stay
// in the second-level cache between them.
const pieceBytes = 1 << 20

// DefaultMaxBatchBytes is the largest batch a mirror takes. Kafka's
// max.message.bytes is 1 MiB unless somebody raised it.
const DefaultMaxBatchBytes = 128 << 20

// pool keeps pieces between workers: a fresh slice of this size would be
// zeroed by the runtime each time.
var pool = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// piece is a worker's buffer. It holds nothing while no data flows.
type piece struct {
	budget *Budget
	limit  int // largest batch

	small *[pieceBytes]byte // from the pool
	large []byte            // instead of small while a large batch passes
	taken int64             // of the budget
	extra int64             // of the budget, for large
}

// bytes is the buffer, taken from the pool when first asked for.
func (b *piece) bytes(ctx context.Context) ([]byte, error) {
	if b.large != nil {
		return b.large, nil
	}
	if b.small == nil {
		n, err := b.budget.acquire(ctx, pieceBytes)
		if err != nil {
			return nil, err
		}
		b.taken = n
		b.small = pool.Get().(*[pieceBytes]byte)
	}
	return b.small[:], nil
}

// grow makes room for a batch of size bytes, of which the first have bytes
// are in the buffer, and returns the new buffer.
func (b *piece) grow(ctx context.Context, size, have int) ([]byte, error) {
	if size > b.limit {
		return nil, fmt.Errorf("batch of %d bytes, at most %d are taken", size, b.limit)
	}
	old, err := b.bytes(ctx)
	if err != nil {
		return nil, err
	}
	if size <= len(old) {
		return old, nil
	}
	// The small piece's share is given back first: two workers that each hold
	// one and wait for more would wait for ever.
	b.budget.release(b.taken + b.extra)
	b.taken, b.extra = 0, 0
	rounded := (size + pieceBytes - 1) / pieceBytes * pieceBytes
	n, err := b.budget.acquire(ctx, int64(rounded))
	if err != nil {
		return nil, err
	}
	b.extra = n
	b.large = make([]byte, rounded)
	copy(b.large, old[:have])
	return b.large, nil
}

// shrink goes back to the small piece after a large batch.
func (b *piece) shrink() {
	if b.large != nil {
		b.release()
	}
}

// release gives everything back. The poison shows a use after it as damage in
// tests (rule 13 of the reliability rules).
func (b *piece) release() {
	if b.small != nil {
		invariants.Poison(b.small[:])
		pool.Put(b.small)
		b.small = nil
	}
	b.large = nil
	b.budget.release(b.taken + b.extra)
	b.taken, b.extra = 0, 0
}
