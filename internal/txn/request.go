package txn

import "time"

// TopicPartition names one partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Marker ends a producer's transaction in a partition.
type Marker struct {
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool // else abort
	// CoordinatorEpoch is the leader epoch of the partition of
	// __transaction_state; a later one fences it.
	CoordinatorEpoch int32
	// Version is the transaction's version (KIP-890). From 2 on, the marker's
	// epoch is the producer's next one.
	Version int
}

// epochBump is the first transaction version in which every end of a
// transaction raises the producer's epoch (KIP-890, part 2).
const epochBump = 2

// InitRequest asks for the producer id and epoch of a transactional id.
type InitRequest struct {
	ID      string
	Timeout time.Duration
	// Principal is who asks, for MaxIDsPerPrincipal; "": nobody that is counted.
	Principal string
	// ProducerID and ProducerEpoch are what the producer has, to go on after an
	// error (KIP-360); -1 and -1 for a producer that starts.
	ProducerID    int64
	ProducerEpoch int16
}

// Producer is a producer id with its epoch; -1 and -1 are none.
type Producer struct {
	ID    int64
	Epoch int16
}

// EndRequest commits or aborts a transaction.
type EndRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool
	// Version is the transaction version that the producer works by: 2 from
	// EndTxn v5 on, else 0.
	Version int
}

// Listing is one transactional id of ListTransactions.
type Listing struct {
	ID         string
	ProducerID int64
	State      State
}

// Filter chooses the ids of a listing.
type Filter struct {
	States      []string // none: all
	ProducerIDs []int64  // none: all
	// LongerThan, if not negative, leaves out what began later than that.
	LongerThan time.Duration
	// Pattern, if not empty, must match the whole id.
	Pattern string
}

// Description is one transactional id of DescribeTransactions.
type Description struct {
	ID         string
	Err        error
	State      State
	ProducerID int64
	Epoch      int16
	Timeout    time.Duration
	Started    time.Time // zero: no transaction
	Partitions []TopicPartition
}
