package txn

import (
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
)

// What a caller of the coordinator branches on. internal/kafka maps each to one
// Kafka error code; nothing in this package knows codes.
var (
	// ErrNotCoordinator: this broker does not lead the id's partition.
	ErrNotCoordinator = coordinator.ErrNotCoordinator
	// ErrLoading: the id's partition is being replayed; ask again.
	ErrLoading = coordinator.ErrLoading
	// ErrNotAvailable: the topic does not exist yet, or its log did not take the
	// write; find the coordinator anew.
	ErrNotAvailable = coordinator.ErrNotAvailable
	// ErrInvalidRequest: no transactional id, or one that no key can hold.
	ErrInvalidRequest = errors.New("invalid transaction request")
	// ErrInvalidTimeout: the transaction timeout is not in (0, MaxTimeout].
	ErrInvalidTimeout = errors.New("invalid transaction timeout")
	// ErrUnknownProducer: the transactional id is not known, or has another
	// producer id.
	ErrUnknownProducer = errors.New("the producer id is not the transactional id's")
	// ErrFenced: a newer producer has the transactional id.
	ErrFenced = errors.New("a newer producer has the transactional id")
	// ErrConcurrent: the id's last transaction is not through yet; ask again.
	ErrConcurrent = errors.New("another change of the transactional id is under way")
	// ErrInvalidState: not from the state the transaction is in.
	ErrInvalidState = errors.New("not in this state of the transaction")
	// ErrNotInTransaction: a verified partition is not in the transaction; the
	// producer has to abort it.
	ErrNotInTransaction = errors.New("the partition is not in the transaction")
	// ErrNotFound: no such transactional id.
	ErrNotFound = errors.New("transactional id not found")
	// ErrTooManyIDs: the coordinator holds MaxIDs transactional ids.
	ErrTooManyIDs = errors.New("the coordinator has its maximum of transactional ids")
	// ErrTooLarge: the transaction has more partitions than one record holds.
	ErrTooLarge = errors.New("transaction too large for one record")
	// ErrInvalidPattern: a listing's pattern is no regular expression.
	ErrInvalidPattern = errors.New("invalid pattern of transactional ids")
)

// What WriteMarkers answers for a partition, beside nil. Everything else means
// "not yet" and is tried again.
var (
	// ErrPartitionGone: the partition was deleted, and with it what the marker
	// would have ended.
	ErrPartitionGone = errors.New("the partition does not exist any more")
	// ErrMarkerOutdated: the partition has seen a later epoch of the producer, so
	// nothing of this transaction is open there.
	ErrMarkerOutdated = errors.New("the partition has seen a later epoch of the producer")
	// ErrCoordinatorFenced: the partition has heard of a later coordinator, which
	// finishes the transaction.
	ErrCoordinatorFenced = errors.New("a later transaction coordinator has taken over")
)

// errNeedProducerID asks the caller to come back with a new producer id, which
// only the controller can give.
var errNeedProducerID = errors.New("a new producer id is needed")
