//go:build linux

package controller

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// deafProxy stands before a controller. What is connected when it goes silent gets
// nothing more of what the controller says, and nobody is told.
type deafProxy struct {
	l    net.Listener
	to   string
	done sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	silent []*atomic.Bool
}

func newDeafProxy(t *testing.T, to string) *deafProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &deafProxy{l: l, to: to}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.serve(c)
		}
	})
	t.Cleanup(p.close)
	return p
}

func (p *deafProxy) serve(front net.Conn) {
	back, err := net.Dial("tcp", p.to)
	if err != nil {
		front.Close()
		return
	}
	silent := new(atomic.Bool)
	p.mu.Lock()
	p.conns, p.silent = append(p.conns, front, back), append(p.silent, silent)
	p.mu.Unlock()
	p.done.Go(func() { _, _ = io.Copy(back, front); back.Close() })
	p.done.Go(func() {
		b := make([]byte, 32<<10)
		for {
			n, err := back.Read(b)
			if !silent.Load() {
				_, _ = front.Write(b[:n])
				if err != nil {
					front.Close()
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// hush silences what is connected; what connects later is heard.
func (p *deafProxy) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.silent {
		s.Store(true)
	}
}

func (p *deafProxy) close() {
	p.l.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

// TestDeafControllers: what two controllers say to their third is lost on every
// connection that there is, and one of the two dies. The third would neither hear votes nor
// a leader for as long as those connections live, which is for ever. They are opened anew,
// and the cluster goes on.
func TestDeafControllers(t *testing.T) {
	if testing.Short() {
		t.Skip("etcd's members are silent for 1.7 s when all is well, and this waits for longer than that")
	}
	w := newTestCluster(t, 3)
	proxies := make(map[int32]*deafProxy)
	listen := make(map[int32]string)
	for i, v := range w.voters {
		p := newDeafProxy(t, v.Addr)
		proxies[v.ID], listen[v.ID] = p, v.Addr
		w.voters[i].Addr = p.l.Addr().String()
	}
	options := func(id int32) Options {
		o := w.options(id)
		o.Listen = listen[id]
		return o
	}
	w.start(options(1), options(2), options(3))
	active, other := w.leader()
	w.broker(active, active.o.NodeID)
	create(t, active, "before", 1)
	gone := active.o.NodeID
	for id, p := range proxies {
		if id != gone {
			p.hush() // who is connected to the two that stay hears them no more
		}
	}
	began := time.Now()
	w.stop(gone)
	for deadline := began.Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // silence is measured in seconds
		r := other.CreateTopics(t.Context(), []CreateTopic{{Name: "after"}}, false)
		if r[0].Err == nil || errors.Is(r[0].Err, ErrTopicExists) || errors.Is(r[0].Err, ErrInvalidReplicationFactor) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute after one of three died the others do not hear each other: %v", r[0].Err)
		}
	}
	t.Logf("the two that are left went on after %v", time.Since(began).Round(time.Millisecond))
}
