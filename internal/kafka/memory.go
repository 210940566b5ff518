package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

const (
	// freeFrame is the buffer every connection may have without asking:
	// 10 000 connections hold 640 MiB at the very worst, and a few KiB each in
	// practice.
	freeFrame = 64 << 10

	// Buffers between these sizes are pooled by power of two. A producer's request
	// has a batch of up to 1 MiB (max.message.bytes) for each of several partitions.
	minPooled, maxPooled = 16, 24 // 64 KiB, 16 MiB

	// A decoded body may take decodeFactor times its bytes and decodeSlack
	// more, because short names take their struct's many times over and honest
	// requests have some thousand of them. The codec itself makes up to 32 times
	// a hostile body of it (measured), so wire.Measure looks first.
	decodeFactor = 4
	decodeSlack  = 1 << 20
	// decodeBudget is what all decoded bodies may hold; freeDecode needs none.
	decodeBudget = 64 << 20
	freeDecode   = 16 << 10
)

var (
	errNoMemory = errors.New("request memory exhausted (queued.max.request.bytes)")
	errSwells   = errors.New("request would take too much memory")
)

// memory is what all connections share for the bytes of requests.
type memory struct {
	total  int64
	frames *semaphore.Weighted
	decode *semaphore.Weighted
	pools  [maxPooled - minPooled + 1]sync.Pool // of *[]byte with cap 1<<(minPooled+i)
}

func newMemory(total int64) *memory {
	return &memory{total: total, frames: semaphore.NewWeighted(total), decode: semaphore.NewWeighted(decodeBudget)}
}

// frame is one connection's request buffer and what it holds of the budget.
type frame struct {
	buf   []byte
	small []byte // what buf was before it came from the pool, for the next small request
	held  int64
	// deadline is until when the frame under way waits for budget.
	deadline time.Time
	// proven is how large a frame the peer has sent whole; it shrinks with
	// every smaller one.
	proven int
}

// want is how much room a frame of size bytes gets that needs room for n. A frame
// of unknown peers grows with what has arrived of it, which copies a third of the
// bytes and touches memory twice; one that has sent such frames gets it at once.
func (f *frame) want(n, size int) int { return max(n, min(size, f.proven)) }

// filled notes that the peer has sent a whole frame.
func (f *frame) filled(size int) { f.proven = max(size, f.proven-f.proven/8) }

// grow moves b into a buffer with room for n, waiting for budget until ctx or the
// frame's deadline ends. A connection that waits holds what it has: the deadline
// breaks the circle when all wait for each other.
func (m *memory) grow(ctx context.Context, f *frame, b []byte, n int) ([]byte, error) {
	size := roundUp(n)
	if size > freeFrame && !m.frames.TryAcquire(int64(size)) {
		ctx, cancel := context.WithDeadline(ctx, f.deadline)
		defer cancel()
		if err := m.frames.Acquire(ctx, int64(size)); err != nil {
			return b, errNoMemory
		}
	}
	next := m.get(size)
	next = append(next[:0], b...)
	if !m.put(b) && cap(b) <= freeFrame {
		f.small = b[:0]
	}
	m.frames.Release(f.held)
	if f.held = 0; size > freeFrame {
		f.held = int64(size)
	}
	return next, nil
}

// release lets go of a frame between two requests, keeping what is free.
func (m *memory) release(f *frame) {
	if cap(f.buf) < 1<<minPooled {
		return
	}
	m.put(f.buf)
	m.frames.Release(f.held)
	f.buf, f.held = f.small, 0
}

// roundUp is the next power of two, or n when no pool would take the buffer.
func roundUp(n int) int {
	if n > 1<<maxPooled {
		return n
	}
	return 1 << bits.Len(uint(max(n, 512)-1))
}

func (m *memory) get(size int) []byte {
	if i := bits.Len(uint(size-1)) - minPooled; i >= 0 && i < len(m.pools) {
		if b, ok := m.pools[i].Get().(*[]byte); ok {
			return (*b)[:0]
		}
	}
	return make([]byte, 0, size)
}

// put gives a buffer back; false when it is of no size that a pool keeps.
func (m *memory) put(b []byte) bool {
	c := cap(b)
	if c&(c-1) != 0 {
		return false
	}
	i := bits.Len(uint(c)) - 1 - minPooled
	if i < 0 || i >= len(m.pools) {
		return false
	}
	b = b[:0]
	invariants.Poison(b[:cap(b)])
	m.pools[i].Put(&b)
	return true
}

// acquireDecode looks at a body before it is decoded, reserves what that will
// allocate, and returns the function that gives it back. An error means that
// the body must not be decoded.
func (m *memory) acquireDecode(ctx context.Context, h *wire.RequestHeader, body []byte) (release func(), err error) {
	size, err := wire.Measure(h.Key, h.Version, body)
	if err != nil {
		return nil, err
	}
	if most := decodeFactor*len(body) + decodeSlack; size > most {
		return nil, fmt.Errorf("%w: %d bytes for a body of %d, at most %d are allowed", errSwells, size, len(body), most)
	}
	if size <= freeDecode {
		return func() {}, nil
	}
	n := min(int64(size), decodeBudget)
	if err := m.decode.Acquire(ctx, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { m.decode.Release(n) }), nil
}
