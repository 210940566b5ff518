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
	ErrClosed             = errors.New("partition was closed")
)
