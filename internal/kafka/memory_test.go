package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

func TestMemoryBudget(t *testing.T) {
	m := newMemory(1 << 20)
	var a, b frame
	var err error
	if a.buf, err = m.grow(t.Context(), &a, []byte("abc"), 300<<10); err != nil || !bytes.Equal(a.buf, []byte("abc")) || cap(a.buf) < 300<<10 {
		t.Fatalf("%q %d %v", a.buf, cap(a.buf), err)
	}
	if a.held != 512<<10 {
		t.Fatalf("holds %d", a.held)
	}
	if b.buf, err = m.grow(t.Context(), &b, nil, 400<<10); err != nil {
		t.Fatal(err)
	}
	// The budget is spent: the third waits until its deadline.
	var c frame
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.grow(gone, &c, nil, 100<<10); !errors.Is(err, errNoMemory) {
		t.Fatal(err)
	}
	// Small frames need none.
	if _, err := m.grow(gone, &c, nil, freeFrame); err != nil {
		t.Fatal(err)
	}
	m.release(&a)
	if cap(a.buf) > freeFrame || a.held != 0 {
		t.Fatalf("after release %d %d", cap(a.buf), a.held)
	}
	if c.buf, err = m.grow(t.Context(), &c, nil, 500<<10); err != nil || c.held != 512<<10 {
		t.Fatal(err)
	}
	m.release(&b)
	m.release(&c)
	if !m.frames.TryAcquire(1 << 20) {
		t.Fatal("budget leaked")
	}
}

// metadataFor is a body of Metadata v4 with n empty names: of two bytes each, and
// of a struct each when decoded.
func metadataFor(n int) (*wire.RequestHeader, []byte) {
	body := binary.BigEndian.AppendUint32(nil, uint32(n))
	return &wire.RequestHeader{Key: 3, Version: 4}, append(body, make([]byte, 2*n+1)...)
}

func TestMemoryDecodeBudget(t *testing.T) {
	m := newMemory(1)
	h, body := metadataFor(10)
	if _, err := m.acquireDecode(t.Context(), h, body); err != nil || !m.decode.TryAcquire(decodeBudget) {
		t.Fatal("a small body needs the budget", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	h, body = metadataFor(10_000)
	if _, err := m.acquireDecode(gone, h, body); !errors.Is(err, context.Canceled) {
		t.Fatal("granted beyond the budget", err)
	}
	m.decode.Release(decodeBudget)
	release, err := m.acquireDecode(t.Context(), h, body)
	if err != nil || m.decode.TryAcquire(decodeBudget) {
		t.Fatal("nothing reserved", err)
	}
	release()
	release() // a handler that waits gives it back early, and again at the end
	if !m.decode.TryAcquire(decodeBudget) {
		t.Fatal("budget leaked or given back twice")
	}
}

// A body that becomes more than four times its size is not decoded.
func TestMemoryRefusesWhatSwells(t *testing.T) {
	m := newMemory(1)
	h, body := metadataFor(500_000)
	if _, err := m.acquireDecode(t.Context(), h, body); !errors.Is(err, errSwells) {
		t.Fatal(err)
	}
	h, body = metadataFor(5_000) // as many short names as honest clients have
	if _, err := m.acquireDecode(t.Context(), h, body); err != nil {
		t.Fatal(err)
	}
	if _, err := m.acquireDecode(t.Context(), h, body[:100]); !errors.Is(err, wire.ErrShortBody) {
		t.Fatal(err)
	}
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[int]int{1: 512, 512: 512, 513: 1024, 64 << 10: 64 << 10, 64<<10 + 1: 128 << 10, 4 << 20: 4 << 20, 4<<20 + 1: 4<<20 + 1} {
		if got := roundUp(n); got != want {
			t.Errorf("roundUp(%d) = %d, want %d", n, got, want)
		}
	}
}
