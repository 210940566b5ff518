package txn

import (
	"fmt"
	"math"
	"time"
)

const maxEpoch = math.MaxInt16

// onEnd commits or aborts. It answers when the decision is stored; the markers
// follow. With transaction version 2 every end raises the epoch, which is how an
// end that is asked for again is told from the end of the next transaction.
func (m *machine) onEnd(now time.Time, in endInput, fx *effects) {
	refuse := func(err error) { fx.reply(in.to, endResult{Producer{-1, -1}, err}) }
	r := in.req
	bumps := r.Version >= epochBump
	// The producer asks again after an answer that was lost: its epoch is the one
	// before, or the last of the producer id before.
	again := bumps && r.ProducerID == m.producerID && int(r.ProducerEpoch)+1 == int(m.epoch)
	overflowed := bumps && r.ProducerID == m.previousID && r.ProducerEpoch == maxEpoch-1 && m.epoch == 0
	switch {
	case r.ProducerID != m.producerID && !overflowed:
		refuse(fmt.Errorf("%w: it has %d, not %d", ErrUnknownProducer, m.producerID, r.ProducerID))
		return
	case !m.mayEnd(r, again, overflowed):
		refuse(fmt.Errorf("%w: it is at epoch %d, not %d", ErrFenced, m.epoch, r.ProducerEpoch))
		return
	case m.writing, bumps && m.state.deciding() && !again && !overflowed:
		refuse(ErrConcurrent)
		return
	}

	by := abort
	if r.Commit {
		by = commit
	}
	repeated := !bumps || again || overflowed
	switch {
	case m.state == PrepareCommit && r.Commit, m.state == PrepareAbort && !r.Commit:
		refuse(ErrConcurrent)
		return
	case repeated && m.state == CompleteCommit && r.Commit, repeated && m.state == CompleteAbort && !r.Commit:
		fx.reply(in.to, endResult{producer: Producer{m.producerID, m.epoch}})
		return
	case m.state != Ongoing && (repeated || r.Commit):
		refuse(fmt.Errorf("%w: %s while %s", ErrInvalidState, by, m.state))
		return
	}

	v := m.values
	v.version = r.Version
	if m.state != Ongoing {
		v.started, v.partitions = now, nil // nothing was added, so the abort begins and ends at once
	}
	after := Producer{v.producerID, v.epoch}
	if bumps {
		if exhausted(m.epoch) {
			if in.newID < 0 {
				refuse(errNeedProducerID)
				return
			}
			v.nextID = in.newID
		}
		v.lastEpoch = m.epoch
		v.epoch++
		after = Producer{v.producerID, v.epoch}
		if v.nextID >= 0 {
			after = Producer{v.nextID, 0}
		}
	}
	if err := m.begin(now, by, v, endResult{producer: after}, fx, in.to); err != nil {
		refuse(err)
	}
}

// mayEnd tells whether the epoch is the producer's, or that of a repeated
// request in a state where one can be.
func (m *machine) mayEnd(r *EndRequest, again, overflowed bool) bool {
	current := r.ProducerID == m.producerID && r.ProducerEpoch == m.epoch
	switch {
	case r.Version < epochBump:
		return current
	case m.state.deciding():
		// The epoch of the next transaction was told already, and its producer may
		// abort before the markers of this one are through. Apache Kafka fences it
		// there; it is no other producer, so it waits.
		return again || current
	case m.state == CompleteCommit || m.state == CompleteAbort:
		return current || again || overflowed
	}
	return current
}
