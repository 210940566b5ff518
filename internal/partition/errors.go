package partition

import "errors"

// What a caller branches on. They arrive wrapped with the partition and the
// offsets concerned.
var (
	ErrUnknown            = errors.New("partition is not on this broker")
	ErrNotLeader          = errors.New("this broker does not lead the partition")
	ErrFencedEpoch        = errors.New("leader epoch of the request is older than the partition's")
	ErrUnknownEpoch       = errors.New("leader epoch of the request is newer than the partition's")
	ErrReadOnly           = errors.New("topic is read-only while it is mirrored")
	ErrMirrored           = errors.New("topic is mirrored and not stopped")
	ErrPolicy             = errors.New("the topic's configuration does not allow this")
	ErrOutOfRange         = errors.New("offset is out of range")
	ErrOffsetNotAvailable = errors.New("offsets are not available yet")
	ErrStorage            = errors.New("log cannot be used")
	ErrDirOffline         = errors.New("log directory is offline")
	ErrTooLarge           = errors.New("batch is larger than max.message.bytes")
	ErrTimestamp          = errors.New("timestamp is outside the range that the topic allows")
	ErrNotEnoughReplicas  = errors.New("fewer replicas in sync than min.insync.replicas")
	// ErrMayCommit stands beside the reason for which a write was not acknowledged
	// though it was appended. Without it nothing was written.
	ErrMayCommit = errors.New("the batch is in the log and may still be committed")
	// ErrNotEnoughReplicasAfter: the ISR has become too small while a write waited.
	ErrNotEnoughReplicasAfter = errors.New("fewer replicas in sync than min.insync.replicas since the append")
	ErrTimedOut               = errors.New("the replicas did not have the batch in time")
	// ErrUnverified refuses a transactional batch of which nobody knows that its
	// transaction is under way: if the coordinator does not, nobody would ever end
	// it, and read-committed consumers would stop in front of it for good (KIP-890).
	ErrUnverified = errors.New("the batch is not part of a transaction that is known to be under way")
	ErrClosed     = errors.New("partition was closed")
)
