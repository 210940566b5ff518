package segment

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
