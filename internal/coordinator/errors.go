package coordinator

import "errors"

// What every coordinator answers. internal/kafka maps each to one Kafka error
// code.
var (
	// ErrNotCoordinator: this broker does not lead the partition of the name.
	ErrNotCoordinator = errors.New("this broker is not the coordinator")
	// ErrLoading: the partition is being replayed; ask again.
	ErrLoading = errors.New("the coordinator's partition is being loaded")
	// ErrNotAvailable: the topic does not exist yet, or its log did not take the
	// write; find the coordinator anew.
	ErrNotAvailable = errors.New("the coordinator is not available")
	// ErrUnsettled: a batch is in the log and was not acknowledged, so whoever
	// leads later may find it there. Nobody is told either outcome: the shard
	// begins anew from the log.
	ErrUnsettled = errors.New("what was written may still be committed")
)
