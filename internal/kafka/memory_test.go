package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

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

// A peer that has sent a whole frame gets the room of the next at once, where those
// that have not get what they have filled; small frames make it forget.
func TestFrameOfAProvenPeer(t *testing.T) {
	const k = 1 << 10
	var f frame
	for i, step := range []struct{ n, size, want int }{
		{64 * k, 12000 * k, 64 * k},       // a stranger
		{256 * k, 12000 * k, 256 * k},     // that has filled its first buffer
		{64 * k, 300 * k, 64 * k},         // still one
		{64 * k, 8000 * k, 8000 * k},      // after one of 8000 KiB
		{64 * k, 12000 * k, 8000 * k},     // no more than what is proven
		{12000 * k, 12000 * k, 12000 * k}, // what has arrived counts in any case
	} {
		if i == 3 {
			f.filled(8000 * k)
		}
		if got := f.want(step.n, step.size); got != step.want {
			t.Errorf("step %d: room for %d KiB of %d, want %d", i, got/k, step.size/k, step.want/k)
		}
	}
	for range 60 {
		f.filled(1 * k)
	}
	if got := f.want(64*k, 12000*k); got != 64*k {
		t.Errorf("after many small frames there is room for %d KiB at once", got/k)
	}
}

// Who has sent large requests, and then states one more and sends nothing of it, is cut
// off like a stranger, and the room that it was given at once comes back.
func TestProvenPeerFallsSilent(t *testing.T) {
	topic := newTopic(t, 1)
	s := anotherServer(t, func(o *Options) { o.FrameTimeout = 200 * time.Millisecond })
	c := dialRaw(t, addrOf(s))
	for i := range int32(3) {
		req := produceTo(topic, 0, 1, batchOf(strings.Repeat("x", 900<<10)))
		c.send(i, req)
		_, resp := c.receive(req)
		if code := produced(t, resp.(*kmsg.ProduceResponse)).ErrorCode; code != 0 {
			t.Fatalf("request %d: code %d", i, code)
		}
	}
	// 256 KiB of Produce: the more, the longer the server waits for it.
	if _, err := c.Write([]byte{0, 4, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	c.closedByPeer()
	s.running.Wait()
	if !s.memory.frames.TryAcquire(s.memory.total) {
		t.Error("budget leaked")
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
	for n, want := range map[int]int{1: 512, 512: 512, 513: 1024, 64 << 10: 64 << 10, 64<<10 + 1: 128 << 10, 16 << 20: 16 << 20, 16<<20 + 1: 16<<20 + 1} {
		if got := roundUp(n); got != want {
			t.Errorf("roundUp(%d) = %d, want %d", n, got, want)
		}
	}
}
