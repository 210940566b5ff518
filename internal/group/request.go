package group

import "time"

// JoinRequest asks to become, or stay, a member of a group's next generation.
type JoinRequest struct {
	Group      string
	MemberID   string // empty for a member without an id
	InstanceID string // empty for a dynamic member (KIP-345)
	ClientID   string
	ClientHost string

	SessionTimeout   time.Duration
	RebalanceTimeout time.Duration

	ProtocolType string
	Protocols    []Protocol // in the member's order of preference

	// RequireKnownID: a dynamic member without an id gets one and must join
	// again with it (KIP-394, JoinGroup v4).
	RequireKnownID bool
	// CanSkipAssignment: the client understands that a returning static leader
	// needs not compute an assignment (KIP-814, JoinGroup v9).
	CanSkipAssignment bool
	Reason            string // why the client joins (KIP-800); logged only
}

// Protocol is one assignor a member knows, and what it tells the leader in it.
type Protocol struct {
	Name     string
	Metadata []byte
}

// JoinResult answers a join. With Err, MemberID and Generation only are set.
type JoinResult struct {
	Err            error
	MemberID       string
	Generation     int32 // -1 with an error
	ProtocolType   string
	Protocol       string
	Leader         string
	SkipAssignment bool
	Members        []JoinMember // for the leader only
}

// JoinMember is what the leader learns of each member.
type JoinMember struct {
	MemberID   string
	InstanceID string
	Metadata   []byte
}

// SyncRequest asks for the member's assignment; the leader's carries all.
type SyncRequest struct {
	Group        string
	MemberID     string
	InstanceID   string
	Generation   int32
	ProtocolType string // empty: not said (before SyncGroup v5)
	Protocol     string // empty: not said
	Assignments  []Assignment
}

// Assignment is one member's share, opaque to the broker.
type Assignment struct {
	MemberID string
	Data     []byte
}

// SyncResult answers a sync.
type SyncResult struct {
	Err          error
	ProtocolType string
	Protocol     string
	Assignment   []byte
}

// HeartbeatRequest keeps a member's session.
type HeartbeatRequest struct {
	Group      string
	MemberID   string
	InstanceID string
	Generation int32
}

// LeaveRequest takes members out of a group (one before LeaveGroup v3).
type LeaveRequest struct {
	Group   string
	Members []LeaveMember
}

// LeaveMember names a member by its id, or a static one by its instance id alone.
type LeaveMember struct {
	MemberID   string
	InstanceID string
	Reason     string
}

// LeaveResult answers a leave: Err for the whole, Members one error each.
type LeaveResult struct {
	Err     error
	Members []error
}

// CommitRequest stores offsets. A consumer that is in no group's generation
// sends Generation -1 and no member.
type CommitRequest struct {
	Group      string
	MemberID   string
	InstanceID string
	Generation int32
	// NoMemberEpochs: the request is older than member epochs, and Generation
	// cannot be one (before OffsetCommit v9).
	NoMemberEpochs bool
	// Retention, if not negative, is how long these offsets live, whatever the
	// group does (OffsetCommit v2 to v4).
	Retention time.Duration
	Offsets   []Offset
}

// Offset is a committed position: the next record the group will read.
type Offset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // of the record before; -1 unknown
	Metadata    string
	// Unstable is told in the place of an offset that a transaction may replace.
	Unstable bool
}

// TopicPartition names one partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// DeleteOffsetsResult answers OffsetDelete: Err for the whole, Partitions one each.
type DeleteOffsetsResult struct {
	Err        error
	Partitions []error
}

// Listing is one group of ListGroups.
type Listing struct {
	Group        string
	ProtocolType string
	State        State
	Type         string // TypeClassic or TypeConsumer
}

// Description is one group of DescribeGroups.
type Description struct {
	Group        string
	Err          error
	State        State
	ProtocolType string
	Protocol     string
	Members      []MemberDescription
}

// MemberDescription is one member of a Description. Metadata and Assignment are
// those of the current protocol, and only there while the group is stable.
type MemberDescription struct {
	MemberID   string
	InstanceID string
	ClientID   string
	ClientHost string
	Metadata   []byte
	Assignment []byte
}
