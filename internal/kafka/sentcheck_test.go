package kafka

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// A buffer that changes under a response is found before it is sent.
func TestSentCheck(t *testing.T) {
	var c sentCheck
	buf := append([]byte("head"), "records"...)
	c.gathered(buf, 4)
	c.sending(append(buf, "tail"...))
	c.gathered(buf, 4)
	invariants.Poison(buf) // as a pool does with what it gets back
	defer func() {
		if recover() == nil {
			t.Error("poisoned records were sent")
		}
	}()
	c.sending(buf)
}

// What was gathered is what arrives. (The planted bug bufferReusedEarly turns
// this red.)
func TestGatheredArrives(t *testing.T) {
	near, far := net.Pipe()
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(far)
		got <- b
	}()
	g := gatherer{conn: &conn{server: &Server{o: Options{WriteTimeout: time.Second}}, nc: near}, buf: make([]byte, 0, 64)}
	if err := g.bytes([]byte("head")); err != nil {
		t.Fatal(err)
	}
	g.buf = append(g.buf, "records"...)
	g.check.gathered(g.buf, 4)
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	_ = near.Close()
	if b := <-got; string(b) != "headrecords" {
		t.Errorf("%q arrived", b)
	}
}
