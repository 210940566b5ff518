package pipeline

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Budget bounds the bytes that all workers together hold in buffers. Who finds
// it spent waits with the socket unread, so the source's TCP window closes.
type Budget struct {
	total int64
	sem   *semaphore.Weighted
}

// NewBudget makes a budget. It is never smaller than one piece, or nothing
// could move.
func NewBudget(bytes int64) *Budget {
	bytes = max(bytes, pieceBytes)
	return &Budget{total: bytes, sem: semaphore.NewWeighted(bytes)}
}

// acquire takes n bytes. More than the whole budget counts as the whole: one
// oversized batch at a time may pass.
func (b *Budget) acquire(ctx context.Context, n int64) (taken int64, err error) {
	if b == nil {
		return 0, nil
	}
	n = min(n, b.total)
	if b.sem.TryAcquire(n) {
		return n, nil
	}
	return n, b.sem.Acquire(ctx, n)
}

func (b *Budget) release(n int64) {
	if b != nil && n > 0 {
		b.sem.Release(n)
	}
}
