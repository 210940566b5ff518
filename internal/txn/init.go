package txn

import (
	"fmt"
	"time"
)

// onInit gives the transactional id to a producer, with an epoch that fences
// the one before.
func (m *machine) onInit(now time.Time, in initInput, fx *effects) {
	refuse := func(err error) { fx.reply(in.to, initResult{Producer{-1, -1}, err}) }
	r := in.req
	goesOn := r.ProducerID >= 0
	switch {
	case m.writing, m.state.deciding():
		refuse(ErrConcurrent)
		return
	case goesOn && !m.known(r.ProducerID, r.ProducerEpoch):
		refuse(fmt.Errorf("%w: it has producer id %d, not %d", ErrFenced, m.producerID, r.ProducerID))
		return
	case m.state == Ongoing && goesOn && (r.ProducerID != m.producerID || r.ProducerEpoch != m.epoch):
		// Kafka lets it abort the current producer's transaction before it is told.
		refuse(fmt.Errorf("%w: it is at epoch %d, not %d", ErrFenced, m.epoch, r.ProducerEpoch))
		return
	case m.state == Ongoing:
		// The transaction of the producer before is aborted first. The caller asks
		// again, and gets the epoch after the one that fenced.
		m.o.Logger.Info("transaction aborted by a new producer", "transactional_id", m.id, "producer_id", m.producerID)
		m.fence(now, in.to, fx)
		return
	}

	v := m.values
	v.timeout, v.partitions, v.started, v.lastEpoch = r.Timeout, nil, time.Time{}, -1
	switch {
	case m.producerID < 0, exhausted(m.epoch) && (!goesOn || r.ProducerEpoch == m.epoch):
		if in.newID < 0 {
			refuse(errNeedProducerID)
			return
		}
		if goesOn {
			v.lastEpoch = m.epoch
		}
		v.previousID, v.producerID, v.epoch = m.producerID, in.newID, 0
	case goesOn && r.ProducerEpoch == m.lastEpoch && r.ProducerEpoch != m.epoch:
		// Asked again after an answer that was lost. Nobody else can have the epoch:
		// a producer that starts leaves no last one.
		v.lastEpoch = m.lastEpoch
	case goesOn && r.ProducerEpoch != m.epoch:
		refuse(fmt.Errorf("%w: it is at epoch %d, not %d", ErrFenced, m.epoch, r.ProducerEpoch))
		return
	default:
		v.epoch++
		if goesOn {
			v.lastEpoch = m.epoch
		}
	}
	if err := m.begin(now, initialize, v, initResult{producer: Producer{v.producerID, v.epoch}}, fx, in.to); err != nil {
		refuse(err)
	}
}

// known tells whether a producer that wants to go on may be this id's: it has
// the producer id, or had the one before until its epochs were used up. (An id
// that was just made knows nobody, and takes anyone: the old one expired.)
func (m *machine) known(producerID int64, epoch int16) bool {
	return m.producerID < 0 || producerID == m.producerID || producerID == m.previousID && exhausted(epoch)
}

// fence aborts the ongoing transaction with an epoch above its producer's. to,
// if not 0, is told to ask again.
func (m *machine) fence(now time.Time, to ticket, fx *effects) {
	v := m.values
	if v.epoch < maxEpoch {
		v.epoch++
	}
	v.lastEpoch, v.version = -1, epochBump
	if err := m.begin(now, fence, v, initResult{Producer{-1, -1}, ErrConcurrent}, fx, to); err != nil {
		fx.reply(to, initResult{Producer{-1, -1}, err})
	}
}
