package producer

import (
	"errors"
	"fmt"
)

// ErrCoordinatorFenced: a marker of a transaction coordinator that a newer one
// has replaced.
var ErrCoordinatorFenced = errors.New("producer: fenced transaction coordinator")

// EpochBump is the transaction version from which on a marker carries the
// producer's next epoch (KIP-890), so that nothing of the ended transaction can
// be written behind it.
const EpochBump = 2

// CheckMarker says whether our coordinator's marker may be appended. An open
// transaction is not asked for: a coordinator that did not hear of the first
// marker's success sends it again, and a marker that ends nothing is harmless.
//
// With EpochBump a marker of the epoch in which a transaction is open would be
// the late double of the one before: the marker of the open one has the next
// epoch.
func (t *Table) CheckMarker(id int64, epoch int16, coordinatorEpoch int32, version int) error {
	s := t.producers[id]
	switch {
	case s == nil:
		return nil
	case epoch < s.epoch:
		return fmt.Errorf("%w: marker of producer %d with epoch %d, current is %d", ErrFencedEpoch, id, epoch, s.epoch)
	case version >= EpochBump && epoch == s.epoch && s.txnFirst >= 0:
		return fmt.Errorf("%w: marker of producer %d with epoch %d belongs to an earlier transaction than the one open since offset %d",
			ErrFencedEpoch, id, epoch, s.txnFirst)
	case coordinatorEpoch < s.coordEp:
		return fmt.Errorf("%w: marker of producer %d by a coordinator of epoch %d, current is %d", ErrCoordinatorFenced, id, coordinatorEpoch, s.coordEp)
	}
	return nil
}

// CheckEpoch says whether a batch that a coordinator writes in a producer's
// name (offsets in a transaction) may be appended. It has no sequence.
func (t *Table) CheckEpoch(id int64, epoch int16) error {
	if s := t.producers[id]; s != nil && epoch < s.epoch {
		return fmt.Errorf("%w: producer %d wrote with epoch %d, current is %d", ErrFencedEpoch, id, epoch, s.epoch)
	}
	return nil
}

// InTransaction says whether a producer has a transaction open in this epoch.
func (t *Table) InTransaction(id int64, epoch int16) bool {
	s := t.producers[id]
	return s != nil && s.txnFirst >= 0 && s.epoch == epoch
}
