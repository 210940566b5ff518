package controller

import "github.com/lockstep-kafka/lockstep/internal/metadata"

// RegisterBroker announces a started broker process. It is fenced until its first
// heartbeat says that it has seen the metadata up to here and opened its logs.
type RegisterBroker struct {
	ID          int32
	Incarnation [16]byte // random, drawn at process start
	Rack        string
	Endpoints   []metadata.Endpoint
	// Durability is what holds on this broker for topics that do not set
	// [metadata.DurabilityConfig].
	Durability string
	// PreviousEpoch is the broker epoch under which the process before this one
	// stopped cleanly, everything flushed; -1 if it did not, or there was none.
	PreviousEpoch int64
	// Restored is the backup that the metadata began with which this process has
	// followed since its start ([metadata.Image.Restored]).
	Restored string
}

// BrokerEpoch names one registration of a broker.
type BrokerEpoch struct {
	ID    int32
	Epoch int64
}

// Heartbeat is what a broker says of itself, every broker.heartbeat.interval.ms.
type Heartbeat struct {
	Broker int32
	Epoch  int64 // its broker epoch
	// Revision is that of the image that all of its watchers have been shown.
	Revision int64
	// WantFence asks to be taken for gone: the last word of a broker that stops.
	WantFence bool
	// WantShutdown asks that its leaderships be moved away (controlled shutdown).
	// It is said again until the answer is ShouldShutdown.
	WantShutdown bool
	// Offline are replicas whose logs the broker cannot use and that others can
	// replace (Resignable), at most MaxOffline. They are named again until the image
	// shows that others do. They stand in place of the log directories that a broker
	// lost (KIP-112, KIP-858): the controller does not know what is in which.
	Offline []OfflineReplica `json:",omitempty"`
	// Unusable are all replicas whose logs the broker cannot use, at most MaxUnusable
	// partitions: none of them is elected where records may be lost anyhow. With so many
	// there may be more, and none of the broker's is.
	Unusable []UnusableReplicas `json:",omitempty"`
}

// HeartbeatResult answers a heartbeat.
type HeartbeatResult struct {
	Fenced bool
	// ShouldShutdown says that whatever could be moved from the broker has been.
	ShouldShutdown bool
	// CaughtUp says that Revision shows the broker's registration.
	CaughtUp bool
}

// ISRMember is a member of an ISR, in the registration under which its leader saw
// it catch up (KIP-903); epoch -1 if the leader does not know.
type ISRMember = BrokerEpoch

// AlterISR is the wish of a leader for another ISR (KIP-497).
type AlterISR struct {
	Topic          metadata.TopicID
	Partition      int32
	LeaderEpoch    int32
	PartitionEpoch int32 // of the partition as the leader knows it
	ISR            []ISRMember
}

// AlterISRResult answers one wish. Partition is as it is now, also with an error;
// nil if there is none.
type AlterISRResult struct {
	Partition *metadata.Partition
	Err       error
}

// ElectLeader asks for an election (KIP-460): of the preferred leader, which is the
// first replica, or of whoever lives if nobody else is left, whatever is lost.
type ElectLeader struct {
	Topic     string
	Partition int32
	Unclean   bool
}

// Reassign moves a partition to other replicas, preferred leader first; nil takes
// the reassignment under way back (KIP-455).
type Reassign struct {
	Topic     string
	Partition int32
	Replicas  []int32
}

// ReplicaEnd is how far a log reaches that came back from an unclean stop.
type ReplicaEnd struct {
	Topic     metadata.TopicID
	Partition int32
	LastEpoch int32 // leader epoch of the last batch, -1 if the log is empty
	End       int64 // log end offset
}

// CreateTopic describes one topic to create.
type CreateTopic struct {
	Name string
	// ID is given for a mirror topic, whose id is its source's (G3); zero draws
	// a new one.
	ID metadata.TopicID
	// Partitions and ReplicationFactor: -1 or 0 take the default, unless
	// Assignment says it all.
	Partitions        int32
	ReplicationFactor int16
	// Assignment maps every partition 0..n-1 to its replicas, preferred leader
	// first; nil lets the controller place them.
	Assignment map[int32][]int32
	Configs    map[string]string
	Internal   bool
}

// TopicResult is the outcome for one topic. Err wraps one of the sentinels.
type TopicResult struct {
	Name  string
	Topic *metadata.Topic // as it is afterwards; nil if it does not exist
	Err   error
	// SkippedConfigs are configs of a source topic that mean nothing here, or
	// have a value we refuse, and were left out at creation (9.10).
	SkippedConfigs []string
}

// CreatePartitions grows one topic.
type CreatePartitions struct {
	Topic string
	Total int32 // partitions afterwards
	// Assignment gives the replicas of the new partitions only, in order; nil
	// lets the controller place them.
	Assignment [][]int32
	// FromMirror marks the growth of a mirror topic after its source (W16), the
	// only one allowed before the topic is STOPPED (10.5). Nothing to add is
	// then a success.
	FromMirror bool
}

// ConfigResource is what a config belongs to, by Kafka's numbers.
type ConfigResource int8

const (
	ResourceTopic  ConfigResource = 2
	ResourceBroker ConfigResource = 4
	ResourceGroup  ConfigResource = 32
	ResourceMirror ConfigResource = 64
)

// ConfigOpType is one way to change a key, by Kafka's numbers.
type ConfigOpType int8

const (
	ConfigSet      ConfigOpType = 0
	ConfigDelete   ConfigOpType = 1
	ConfigAppend   ConfigOpType = 2
	ConfigSubtract ConfigOpType = 3
)

// ConfigOp changes one key. Append and subtract work on lists.
type ConfigOp struct {
	Name  string
	Value *string
	Op    ConfigOpType
}

// AlterConfigs changes configs of one resource, all operations or none. The name
// of a broker is its id in decimal, or empty for all brokers.
type AlterConfigs struct {
	Type ConfigResource
	Name string
	Ops  []ConfigOp
	// Static is what the file of the broker says that asks. What may only change
	// in steps is compared with it where nothing dynamic is set. For a group these
	// are the values in force there, defaults too, that its configs are held to.
	Static map[string]string
}

// QuotaOp changes one quota.
type QuotaOp struct {
	Key    string
	Value  float64
	Remove bool
}

// AlterQuotas changes the quotas of one entity, all operations or none.
type AlterQuotas struct {
	Entity metadata.QuotaEntity
	Ops    []QuotaOp
}

// MirrorTopic is a source topic to mirror, as the source describes it.
type MirrorTopic struct {
	Name       string
	ID         metadata.TopicID // zero: the source has no topic ids (W13)
	Partitions int32            // 0 or less: unknown; creation is left to a later refresh (W12)
	// Configs are the source's overrides, already without what
	// topic.properties.exclude names. Used if the topic is created.
	Configs map[string]string
}

// StartMirrorTopics attaches topics to a mirror (9.2).
type StartMirrorTopics struct {
	Mirror string
	Topics []MirrorTopic
	// Include and Exclude are merged into topics.include and topics.exclude
	// (W5). Names meant literally come escaped ([metadata.LiteralPattern]).
	Include, Exclude []string
	// Validation is the image revision at which the caller looked, -1 to skip
	// the check (P14).
	Validation int64
}

// SetMirrorTopics stops, pauses or resumes topics of a mirror (9.13, 9.14).
type SetMirrorTopics struct {
	Mirror string
	Topics []string
	// Desired is DesiredStopped, DesiredPaused, or DesiredMirroring to resume.
	Desired metadata.Desired
	// Patterns of a stop are kept away from discovery: taken out of
	// topics.include, or else added to topics.exclude.
	Patterns   []string
	Validation int64 // as in StartMirrorTopics
}

// MirrorStateWrite asks for one partition's state, LME record or failure info
// to be written (key 101 of the spec; here a call, D7).
//
// What the controller does by itself: it counts state epochs (S5); it writes an
// LME record (-1, -1) on entry to PREPARING if there is none, and for a
// partition that goes from UNKNOWN to STOPPING; it deletes the record on entry
// to MIRRORING (W66); it remembers the previous state on entry to FAILED (S13);
// it clears the failure info on entry to PAUSED and STOPPED (S14).
type MirrorStateWrite struct {
	Topic     metadata.TopicID
	Partition int32
	// State is the wanted state, StateUnknown (-1) to leave it.
	State metadata.MirrorState
	// LeaderEpoch is the writer's leader epoch, -1 to skip the check (S6).
	LeaderEpoch int32
	// StateEpoch is the state epoch the writer last saw, -1 to skip (S5).
	StateEpoch int32
	// SetLME records LME and LMO, in STOPPING only. A record that exists is
	// kept, unless LMO is lower than its LMO (9.14 step 2).
	SetLME bool
	LME    int32
	LMO    int64
	// DeleteLME forgets the record.
	DeleteLME bool
	// ErrorMessage is for FAILED.
	ErrorMessage string
	// RetryAttempt is for FAILED: 1 or more is stored as given, anything else
	// counts one further than stored (S13). The caller knows the maximum.
	RetryAttempt int32
	// NonRetryable is for FAILED: the attempt becomes -1 and stays so until
	// start, recover or stop.
	NonRetryable bool
	// ClearFailure forgets the failure info: the first data after a retry
	// passed its checks (S14, W39). Not for FAILED.
	ClearFailure bool
	// Gate is for MIRRORING: the gate that was passed. Nil: none was.
	Gate *MirrorGate
}

// MirrorGate is a gate (9.6.4) that a mirror partition passed. Replicas that are not
// in it are stale from now on, and cut to Target before they follow or lead (O4).
type MirrorGate struct {
	Target         int64   // where the leader cut its log
	Confirmed      []int32 // who has, the leader among them
	PartitionEpoch int32   // in which this was found; refused if it is over: another may be in the ISR
}

// MirrorStateResult answers one write. StateEpoch is the stored one, also with
// an error.
type MirrorStateResult struct {
	StateEpoch int32
	Err        error
}

// AlterScram changes the SCRAM credentials of one user, all of them or none.
type AlterScram struct {
	User    string
	Deletes []metadata.ScramMechanism
	Puts    []*metadata.ScramCredential
}

// Bump asks that a partition's leader epoch be above a minimum (W32).
type Bump struct {
	Topic          metadata.TopicID
	Partition      int32
	MinLeaderEpoch int32
}
