package txn

import (
	"fmt"
	"maps"
	"time"
)

// onAdd takes partitions into the transaction, and begins it with the first
// ones. Adds that come while another change is under way wait for its end, and
// are then stored together: with implicit adds (KIP-890) a producer sends one
// for each partition it writes to, and the next transaction follows the end of
// the last one closely.
func (m *machine) onAdd(now time.Time, ins []addInput, fx *effects) {
	v := m.values
	v.partitions = maps.Clone(m.partitions)
	if v.partitions == nil {
		v.partitions = map[TopicPartition]struct{}{}
	}
	var to []ticket
	for _, in := range ins {
		switch wait, err := m.admits(in.producerID, in.producerEpoch); {
		case err != nil:
			fx.reply(in.to, err)
		case wait && len(m.held) >= m.o.MaxHeld:
			fx.reply(in.to, error(ErrConcurrent))
		case wait:
			m.held = append(m.held, held{in, now.Add(m.o.HoldAdds)})
		case m.has(in.partitions):
			fx.reply(in.to, error(nil))
		default:
			to = append(to, in.to)
			for _, tp := range in.partitions {
				v.partitions[tp] = struct{}{}
			}
			v.version = in.version
		}
	}
	if len(to) == 0 {
		return
	}
	if m.state != Ongoing {
		v.started = now
	}
	if err := m.begin(now, add, v, error(nil), fx, to...); err != nil {
		for _, t := range to {
			fx.reply(t, err)
		}
	}
}

// admits tells whether a producer may add now, or has to wait.
func (m *machine) admits(producerID int64, epoch int16) (wait bool, err error) {
	switch {
	case m.dead:
		return false, ErrUnknownProducer
	case m.nextID >= 0 && producerID == m.nextID && epoch == 0:
		return true, nil // it was told its new id already, which is true after the markers
	case producerID != m.producerID:
		return false, fmt.Errorf("%w: it has %d, not %d", ErrUnknownProducer, m.producerID, producerID)
	case epoch != m.epoch:
		return false, fmt.Errorf("%w: it is at epoch %d, not %d", ErrFenced, m.epoch, epoch)
	}
	return m.writing || m.state.deciding(), nil
}

// has tells whether all of the partitions are in the transaction already.
func (m *machine) has(partitions []TopicPartition) bool {
	for _, tp := range partitions {
		if _, ok := m.partitions[tp]; !ok || m.state != Ongoing {
			return false
		}
	}
	return true
}

// onVerify tells which partitions are in the producer's transaction.
func (m *machine) onVerify(in verifyInput) verifyResult {
	switch {
	case in.producerID != m.producerID:
		return verifyResult{err: fmt.Errorf("%w: it has %d, not %d", ErrUnknownProducer, m.producerID, in.producerID)}
	case in.producerEpoch != m.epoch:
		return verifyResult{err: fmt.Errorf("%w: it is at epoch %d, not %d", ErrFenced, m.epoch, in.producerEpoch)}
	case m.state.deciding():
		return verifyResult{err: ErrConcurrent}
	}
	errs := make([]error, len(in.partitions))
	for i, tp := range in.partitions {
		if !m.has([]TopicPartition{tp}) {
			errs[i] = ErrNotInTransaction
		}
	}
	return verifyResult{errs: errs}
}
