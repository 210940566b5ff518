package kafka

import "sync"

// maxPipelined is how many produce requests of one connection may wait for
// their acknowledgement. At 1 ms per group commit it allows 64 000 requests a
// second on one connection; beyond it the connection is not read, so what one
// client can have in flight is bounded.
const maxPipelined = 64

// A pending answer is encoded when it is sent, by the writer.
type pending interface {
	// appendFrame encodes the answer. It is called once, after complete.
	appendFrame(dst []byte) []byte
}

// outbox keeps the order of one connection's answers while some of them wait
// for an acknowledgement. The connection's goroutine pushes, whoever finishes a
// request completes, the writer sends the finished ones at the head.
//
// Invariant: once an answer is in the box, nobody but the writer writes to the
// socket until drain returned.
type outbox struct {
	mu      sync.Mutex // never held across a write or a callback
	changed sync.Cond  // something became ready, left, or the box closed
	queue   []entry
	sent    uint64 // answers that have left; queue[0] is number sent
	writing bool   // the writer is out with answers it has taken
	started bool
	closed  bool
	done    chan struct{} // closed when the writer has ended
}

type entry struct {
	p     pending
	ready bool
}

func (o *outbox) init() {
	o.changed.L = &o.mu
	o.done = make(chan struct{})
}

// push appends an answer that is not ready yet and returns its number; false
// when the connection is going. It waits while the box is full.
func (o *outbox) push(p pending, write func([]byte) error) (ticket uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) >= maxPipelined && !o.closed {
		o.changed.Wait()
	}
	if o.closed {
		return 0, false
	}
	if !o.started {
		o.started = true
		go o.run(write)
	}
	o.queue = append(o.queue, entry{p: p})
	return o.sent + uint64(len(o.queue)) - 1, true
}

// complete marks an answer ready. Any goroutine may call it, once per ticket.
func (o *outbox) complete(ticket uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || ticket < o.sent {
		return
	}
	o.queue[ticket-o.sent].ready = true
	if ticket == o.sent {
		o.changed.Broadcast()
	}
}

// run is the writer: one write for all answers that are ready at the head.
func (o *outbox) run(write func([]byte) error) {
	defer close(o.done)
	var buf []byte
	var taken []pending
	for {
		o.mu.Lock()
		o.writing = false
		if len(taken) > 0 {
			o.changed.Broadcast() // for drain and push
		}
		for !o.closed && (len(o.queue) == 0 || !o.queue[0].ready) {
			o.changed.Wait()
		}
		if o.closed {
			o.mu.Unlock()
			return
		}
		taken = taken[:0]
		for len(o.queue) > len(taken) && o.queue[len(taken)].ready {
			taken = append(taken, o.queue[len(taken)].p)
		}
		o.queue = append(o.queue[:0], o.queue[len(taken):]...)
		clear(o.queue[len(o.queue):cap(o.queue)])
		o.sent += uint64(len(taken))
		o.writing = true
		o.mu.Unlock()

		buf = buf[:0]
		for _, p := range taken {
			buf = p.appendFrame(buf)
		}
		clear(taken)
		if err := write(buf); err != nil {
			o.close()
			return
		}
		if cap(buf) > freeFrame {
			buf = nil
		}
	}
}

// empty tells whether nothing waits or is being written.
func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue) == 0 && !o.writing
}

// drain waits until every pushed answer has been written. False: the
// connection is going.
func (o *outbox) drain() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.queue) > 0 || o.writing) && !o.closed {
		o.changed.Wait()
	}
	return !o.closed
}

// close drops what waits and ends the writer.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.queue = nil
	o.mu.Unlock()
	o.changed.Broadcast()
}

// wait returns when the writer has ended; the box must be closed.
func (o *outbox) wait() {
	o.mu.Lock()
	started := o.started
	o.mu.Unlock()
	if started {
		<-o.done
	}
}
