package partition

import (
	"fmt"
	"time"
)

// pendingAck is one write that waits for the high watermark to pass its end.
type pendingAck struct {
	end      int64
	deadline time.Time // zero: it waits for as long as the leadership lasts
	done     func(error)
}

// ackQueue holds the waiting writes of one partition, in log order: appends
// are serialised, so their ends only grow and the queue needs no sorting. Its
// length is bounded by the requests that connections may have in flight.
type ackQueue struct {
	q []pendingAck
}

func (a *ackQueue) add(end int64, deadline time.Time, done func(error)) {
	a.q = append(a.q, pendingAck{end, deadline, done})
}

// take removes and returns the writes that end at or below highWatermark.
func (a *ackQueue) take(highWatermark int64) []pendingAck {
	n := 0
	for n < len(a.q) && a.q[n].end <= highWatermark {
		n++
	}
	if n == 0 {
		return nil
	}
	out := append([]pendingAck(nil), a.q[:n]...)
	a.q = append(a.q[:0], a.q[n:]...)
	return out
}

// takeTimed removes and returns the writes of clients, who wait for a time of
// their own choice.
func (a *ackQueue) takeTimed() []pendingAck {
	return a.takeIf(func(p *pendingAck) bool { return !p.deadline.IsZero() })
}

// takeLate removes and returns the writes that have waited too long.
func (a *ackQueue) takeLate(now time.Time) []pendingAck {
	return a.takeIf(func(p *pendingAck) bool { return !p.deadline.IsZero() && now.After(p.deadline) })
}

func (a *ackQueue) takeIf(match func(*pendingAck) bool) (out []pendingAck) {
	kept := a.q[:0]
	for i := range a.q {
		if match(&a.q[i]) {
			out = append(out, a.q[i])
		} else {
			kept = append(kept, a.q[i])
		}
	}
	clear(a.q[len(kept):])
	a.q = kept
	return out
}

func (a *ackQueue) takeAll() []pendingAck {
	out := a.q
	a.q = nil
	return out
}

// finish answers writes outside of every lock, because an answer may write to
// a socket or call back into this partition. A refusal comes after the append,
// and says so: the batch is in the log, and may be acknowledged by whoever leads
// later.
func (p *Partition) finish(acks []pendingAck, err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrMayCommit, err)
	}
	for _, a := range acks {
		a.done(err)
	}
}
