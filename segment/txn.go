package segment

import "github.com/lockstep-kafka/lockstep/internal/producer"

// What is asked before something of a transaction is appended. Each is
// answered with ErrRebuilding while the log's history is being gathered.

// CheckMarker says whether a marker may be appended; see
// producer.Table.CheckMarker.
func (l *Log) CheckMarker(id int64, epoch int16, coordinatorEpoch int32, version int) error {
	if err := l.Ready(); err != nil {
		return err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.CheckMarker(id, epoch, coordinatorEpoch, version)
}

// CheckProducerEpoch says whether a coordinator may append in a producer's
// name; see producer.Table.CheckEpoch.
func (l *Log) CheckProducerEpoch(id int64, epoch int16) error {
	if err := l.Ready(); err != nil {
		return err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.CheckEpoch(id, epoch)
}

// InTransaction says whether a producer has a transaction open in this epoch.
func (l *Log) InTransaction(id int64, epoch int16) (bool, error) {
	if err := l.Ready(); err != nil {
		return false, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.producers.InTransaction(id, epoch), nil
}

// ReadCommitted is Read for a read-committed consumer: end must be a last stable
// offset, so that all transactions below it are decided. It also tells which of
// those in the view were aborted.
//
// The two belong together. With an older view than list, compaction could have
// dropped a transaction whose records the view still has, and a consumer would
// be given them; with an older list, a consumer would wait for a marker that is
// in the view no more, and skip what its producer wrote later. So both are taken
// again when compaction, or a truncation, came in between.
func (l *Log) ReadCommitted(offset int64, maxBytes int, end int64, atLeastOne bool) (View, []producer.AbortedTxn, error) {
	return l.readCommitted(offset, maxBytes, end, atLeastOne, func() {})
}

// readCommitted calls between between the two steps, for tests.
func (l *Log) readCommitted(offset int64, maxBytes int, end int64, atLeastOne bool, between func()) (View, []producer.AbortedTxn, error) {
	for {
		cuts, forgets := l.cuts.Load(), l.forgets.Load()
		v, err := l.Read(offset, maxBytes, end, atLeastOne)
		if err != nil || v.Len() == 0 {
			return v, nil, err
		}
		between()
		// No further than the view goes: a consumer far behind would be told of
		// all transactions up to the log end, with each fetch.
		aborted := l.Aborted(offset, v.End)
		if l.cuts.Load() == cuts && l.forgets.Load() == forgets {
			return v, aborted, nil
		}
		v.Release()
	}
}
