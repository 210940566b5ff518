package controller

import (
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// What a command may be refused for. Each is wrapped with the facts; which Kafka
// error code belongs to it is decided in internal/kafka only (the number behind
// each is that code, for orientation).
var (
	ErrUnknownTopic   = errors.New("unknown topic or partition") // 3
	ErrUnknownTopicID = errors.New("unknown topic id")           // 100
	// ErrStoreFull: a controller's file has reached metadata.etcd.quota.bytes, so that
	// nothing is written. Reading goes on.
	ErrStoreFull                   = errors.New("metadata store has reached its quota") // 56
	ErrInvalidTopic                = errors.New("invalid topic name")                   // 17
	ErrTopicExists                 = errors.New("topic already exists")                 // 36
	ErrInvalidPartitions           = errors.New("invalid number of partitions")         // 37
	ErrInvalidReplicationFactor    = errors.New("invalid replication factor")           // 38
	ErrInvalidReplicaAssignment    = errors.New("invalid replica assignment")           // 39
	ErrInvalidConfig               = metadata.ErrInvalidConfig                          // 40
	ErrNotController               = errors.New("not the active controller")            // 41
	errAskAnother                  = errors.New("ask another controller")
	ErrInvalidRequest              = errors.New("invalid request")                     // 42
	ErrFencedLeaderEpoch           = errors.New("leader epoch is fenced")              // 74
	ErrUnknownScram                = errors.New("no such SCRAM credential")            // 91
	ErrUnacceptableCredential      = errors.New("unacceptable credential")             // 93
	ErrStaleBrokerEpoch            = errors.New("broker epoch is stale")               // 77
	ErrPreferredLeaderNotAvailable = errors.New("preferred leader cannot lead")        // 80
	ErrEligibleLeadersNotAvailable = errors.New("no replica can lead")                 // 83
	ErrElectionNotNeeded           = errors.New("no election is needed")               // 84
	ErrNoReassignment              = errors.New("no reassignment is under way")        // 85
	ErrInvalidUpdateVersion        = errors.New("partition epoch is fenced")           // 95
	ErrDuplicateBroker             = errors.New("a living broker has this id")         // 101
	ErrUnknownBroker               = errors.New("unknown broker")                      // 102
	ErrIneligibleReplica           = errors.New("replica is not eligible for the ISR") // 107
	ErrInconsistentTopicID         = errors.New("topic exists with another id")        // 103
	ErrFencedStateEpoch            = errors.New("mirror state epoch is fenced")        // 124
	ErrReadOnlyTopic               = errors.New("topic is read-only")                  // 134
	ErrInvalidMirrorName           = errors.New("invalid mirror name")                 // 135
	ErrMirrorExists                = errors.New("mirror already exists")               // 136
	ErrUnknownMirror               = errors.New("unknown mirror")                      // 137
	ErrTopicInOtherMirror          = errors.New("topic is in another mirror")          // 138
	ErrTopicNotInMirror            = errors.New("topic is not in this mirror")         // 139
	ErrNotPaused                   = errors.New("mirror topic is not paused")          // 141
	ErrBeingStopped                = errors.New("mirror topic is being stopped")       // 142
	ErrMirrorNotEmpty              = errors.New("mirror is not empty")                 // 143
	ErrMirrorStates                = errors.New("mirror states do not allow this")     // 145
	ErrNotStopped                  = errors.New("mirror topic is not stopped")         // 146
)

// ErrOtherMetadata is a process that has followed the metadata since before they were
// restored from a backup: what it knows is of another cluster.
var ErrOtherMetadata = errors.New("the metadata were restored from a backup since this process was started")

// ErrClosed is returned once the controller is closing.
var ErrClosed = errors.New("controller is closed")
