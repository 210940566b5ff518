package group

import (
	"regexp"
	"time"
)

// TopicIDPartitions are partitions of one topic, which is named by its id.
type TopicIDPartitions struct {
	TopicID    [16]byte
	Partitions []int32
}

// Member epochs that a heartbeat asks with.
const (
	// EpochJoin: to become a member, or to begin anew without any partition.
	EpochJoin = 0
	// EpochLeave: to leave.
	EpochLeave = -1
	// EpochLeaveStatic: to leave for a while; a static member comes back under
	// its instance id and finds its partitions.
	EpochLeaveStatic = -2
)

// ConsumerHeartbeatRequest is the one request of the consumer protocol
// (KIP-848): it joins, keeps the session, tells what has changed, and leaves.
// What has not changed since the last one is not said: nil, or negative.
type ConsumerHeartbeatRequest struct {
	Group      string
	MemberID   string // empty: give me one (version 0 only)
	Epoch      int32
	InstanceID *string
	Rack       *string
	ClientID   string
	ClientHost string

	RebalanceTimeout time.Duration
	Names            []string // topics subscribed to; empty, not nil: none
	Regex            *string  // topics subscribed to by a pattern; empty: none
	Assignor         *string
	Owned            []TopicIDPartitions // empty, not nil: none

	// OwnMemberID: the client must have chosen its member id (version 1,
	// KIP-1082).
	OwnMemberID bool
	// Visible tells which topics a pattern may find for this client; nil: all.
	Visible func(topic string) bool

	pattern *regexp.Regexp // of Regex; set by Coordinator.ConsumerHeartbeat
}

// ConsumerHeartbeatResult answers a heartbeat. With Err nothing else is set.
type ConsumerHeartbeatResult struct {
	Err               error
	MemberID          string
	Epoch             int32
	HeartbeatInterval time.Duration
	// Assignment is what the member may read now; it must let go of all else.
	// It counts only if HasAssignment: otherwise nothing has changed.
	HasAssignment bool
	Assignment    []TopicIDPartitions
}

// ConsumerDescription is one group of ConsumerGroupDescribe.
type ConsumerDescription struct {
	Group           string
	Err             error
	State           State
	Epoch           int32
	AssignmentEpoch int32
	Assignor        string
	Members         []ConsumerMemberDescription
}

// ConsumerMemberDescription is one member of a ConsumerDescription.
type ConsumerMemberDescription struct {
	MemberID   string
	InstanceID string
	Rack       string
	ClientID   string
	ClientHost string
	Epoch      int32
	Names      []string
	Regex      string
	Assignment []TopicPartitions
	Target     []TopicPartitions
	Classic    bool // takes part by JoinGroup and SyncGroup
}

// TopicPartitions are partitions of one topic, with both its names.
type TopicPartitions struct {
	TopicID    [16]byte
	Topic      string
	Partitions []int32
}
