package kafka

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

// text is an answer that encodes to itself.
type text string

func (t text) appendFrame(dst []byte) []byte { return append(dst, t...) }

func newOutbox() *outbox {
	o := new(outbox)
	o.init()
	return o
}

// Answers leave in the order of their requests, in whatever order they became
// ready, and those that are ready together leave with one write.
func TestOutboxKeepsOrder(t *testing.T) {
	o := newOutbox()
	var mu sync.Mutex
	var writes []string
	write := func(b []byte) error {
		mu.Lock()
		defer mu.Unlock()
		writes = append(writes, string(b))
		return nil
	}
	var tickets []uint64
	for i := range 4 {
		ticket, ok := o.push(text(fmt.Sprint(i)), write)
		if !ok {
			t.Fatal("closed")
		}
		tickets = append(tickets, ticket)
	}
	for _, i := range []int{3, 1, 2} {
		o.complete(tickets[i])
	}
	if mu.Lock(); len(writes) != 0 {
		t.Fatalf("%q left before the first answer", writes)
	}
	mu.Unlock()
	o.complete(tickets[0])
	if !o.drain() {
		t.Fatal("closed")
	}
	if mu.Lock(); len(writes) != 1 || writes[0] != "0123" {
		t.Fatalf("writes %q", writes)
	}
	mu.Unlock()
	if !o.empty() {
		t.Fatal("not empty after drain")
	}
	o.close()
	o.wait()
}

// A connection that has too much in flight is held until an answer has left.
func TestOutboxBound(t *testing.T) {
	o := newOutbox()
	write := func([]byte) error { return nil }
	var first uint64
	for i := range maxPipelined {
		ticket, _ := o.push(text("x"), write)
		if i == 0 {
			first = ticket
		}
	}
	pushed := make(chan bool)
	go func() {
		_, ok := o.push(text("y"), write)
		pushed <- ok
	}()
	o.complete(first)
	if !<-pushed {
		t.Fatal("closed")
	}
	o.close()
	o.wait()
	if _, ok := o.push(text("z"), write); ok {
		t.Fatal("pushed into a closed box")
	}
}

// Whoever waits for the box is let go when the connection ends, and what
// completes afterwards is nobody's.
func TestOutboxClose(t *testing.T) {
	o := newOutbox()
	ticket, _ := o.push(text("x"), func([]byte) error { return errors.New("reset by peer") })
	drained := make(chan bool)
	go func() { drained <- o.drain() }()
	o.complete(ticket) // the write fails and closes the box
	if <-drained {
		// The answer had left the queue before the write failed; what matters
		// is that drain came back and the box is closed.
		t.Log("drained before the failure was seen")
	}
	o.wait()
	o.complete(ticket)
	if o.drain() {
		t.Fatal("open after a failed write")
	}
}
