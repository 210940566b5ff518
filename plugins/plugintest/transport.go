package plugintest

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// patience is how long the contract waits for bytes: long enough for a laden
// machine, and only reached when a test fails.
const patience = 20 * time.Second

func runTransport(t *testing.T, o Options) {
	if o.Echo == "" {
		o.Echo = echoServer(t)
	}
	if o.Unreachable == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		o.Unreachable = l.Addr().String()
		l.Close()
	}
	h := Host(t, o)
	dial, err := h.Dialer("tested")
	if err != nil {
		t.Fatal(err)
	}

	t.Run("bytes", func(t *testing.T) { echo(t, dial, o.Echo, 8<<20) })

	t.Run("many connections", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { echo(t, dial, o.Echo, 64<<10) })
		}
		wg.Wait()
	})

	t.Run("unreachable", func(t *testing.T) {
		if c, err := dial(t.Context(), "tcp", o.Unreachable); err == nil {
			c.Close()
			t.Errorf("dialling %s succeeded; the failure must be the answer and not a stream that ends", o.Unreachable)
		}
	})

	t.Run("gone asker", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if c, err := dial(ctx, "tcp", o.Echo); err == nil {
			c.Close()
			t.Error("dialling with an ended context succeeded")
		}
	})

	t.Run("close ends a read", func(t *testing.T) {
		c, err := dial(t.Context(), "tcp", o.Echo)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
		c.Close()
		if err := <-ended; err == nil {
			t.Error("a read after Close got bytes")
		}
	})
	checkAlive(t, h)

	t.Run("stop ends connections", func(t *testing.T) {
		c, err := dial(t.Context(), "tcp", o.Echo)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		h.Close()
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("read after the host closed: %v, want an end", err)
		}
	})
}

// echo sends n random bytes, ends its direction, and wants them back whole.
func echo(t *testing.T, dial sdk.DialFunc, address string, n int) {
	c, err := dial(t.Context(), "tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	sent := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(sent)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(sent); err != nil {
			t.Error(err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(c)
	wg.Wait()
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back, equal: %v, error: %v", len(got), len(sent), bytes.Equal(got, sent), err)
	}
	if c.RemoteAddr().String() != address {
		t.Errorf("the connection says it leads to %s, not %s", c.RemoteAddr(), address)
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

func echoServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
				c.(*net.TCPConn).CloseWrite()
			})
		}
	})
	return l.Addr().String()
}
