package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Options of a Coordinator. The functions at the top come from a
// PartitionStore in the server and from a model in tests.
type Options struct {
	// NodeID is this broker's id: Apply leads the partitions whose leader it is.
	NodeID int32

	// Partitions tells how many partitions __consumer_offsets has; 0 while it
	// does not exist. Required.
	Partitions func() int32
	// Append writes one batch to a partition of __consumer_offsets in the given
	// leader epoch and calls done once the batch is acknowledged or refused. It
	// must not wait for the acknowledgement itself; done may run on any goroutine
	// and even before Append returns. The batch is the log's from then on.
	// Required.
	Append func(partition, leaderEpoch int32, batch []byte, done func(error))
	// AppendOffsets is Append for offsets in a producer's transaction. With verify
	// the transaction must be open in the partition, or v vouch for it. Required.
	AppendOffsets func(index, leaderEpoch int32, batch []byte, verify bool, v *partition.Verification, done func(error))
	// AppendMarker is Append for the end of a transaction. Required.
	AppendMarker func(index, leaderEpoch int32, m partition.Marker, done func(error))
	// Load calls fn for each batch of a partition, from log start to log end,
	// and returns the first error, or the context's. Batches are valid during the
	// call only. Required.
	Load func(ctx context.Context, partition, leaderEpoch int32, fn func(record.Batch) error) error

	// Alive tells whether the cluster still counts on this broker; while it does
	// not, nothing is answered but ErrNotCoordinator. Default: always.
	Alive func() bool
	// Clock gives time to deadlines. Default: clock.System().
	Clock clock.Clock
	// Logger hears of rebalances, loads and refused writes. Default: discard.
	Logger *slog.Logger
	// NewID makes the unique part of a member id. Default: a random UUID.
	NewID func() string

	// MinSessionTimeout and MaxSessionTimeout bound what a member may ask for
	// (group.min.session.timeout.ms, group.max.session.timeout.ms). Defaults:
	// 6 s, 30 min.
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration
	// InitialRebalanceDelay is how long the first rebalance of an empty group
	// waits for more members (group.initial.rebalance.delay.ms). Longer saves
	// rebalances when many consumers start together, shorter starts the first
	// consumer sooner. Default: 3 s; negative: no wait.
	InitialRebalanceDelay time.Duration
	// NewMemberTimeout is how long a member that has never completed a join is
	// kept while its join waits. Default: 5 min.
	NewMemberTimeout time.Duration

	// MaxGroupSize bounds the members of one group, those included that have
	// only been given an id (group.max.size). Default: 10 000.
	MaxGroupSize int
	// MaxGroups bounds the groups of one partition of __consumer_offsets.
	// Default: 100 000.
	MaxGroups int
	// Assignors are what members of consumer groups may choose from, the default
	// first (group.consumer.assignors). Default: uniform, range.
	Assignors []string
	// ConsumerSessionTimeout and ConsumerHeartbeatInterval are those of all
	// members of consumer groups: without a heartbeat for so long one is out; so
	// often it is told to send one (group.consumer.session.timeout.ms,
	// group.consumer.heartbeat.interval.ms). Defaults: 45 s, 5 s.
	ConsumerSessionTimeout    time.Duration
	ConsumerHeartbeatInterval time.Duration
	// ConsumerSettings, if set, tells those of one group in place of the two, and
	// how long its assignment stays before it may change again; the shards call it,
	// so it must not block.
	ConsumerSettings func(group string) ConsumerSettings
	// ConsumerMaxSize bounds the members of one consumer group
	// (group.consumer.max.size). Default: 10 000.
	ConsumerMaxSize int
	// ConsumerMigration tells which groups with members may change their protocol
	// (group.consumer.migration.policy). Default: bidirectional.
	ConsumerMigration MigrationPolicy
	// MaxPatterns bounds the different patterns that the members of one group are
	// subscribed to: each is held against the names of all topics whenever these
	// change. Default: 64.
	MaxPatterns int
	// MaxPatternBytes bounds one of them. Default: 1024.
	MaxPatternBytes int

	// MaxProtocolBytes bounds what one member may say about its protocols.
	// It bounds the subscription of a member of a consumer group too.
	// Default: 1 MiB.
	MaxProtocolBytes int
	// MaxGroupBytes bounds what the members of one group say about their protocols
	// together, MaxMemberBytes what those of all groups do. Beyond the second, small
	// members (4 KiB) are taken still, up to twice of it. Defaults: 16 and 64 MiB.
	MaxGroupBytes  int
	MaxMemberBytes int
	// MaxOffsetsPerGroup bounds the partitions one group may have committed.
	// Default: 1 000 000.
	MaxOffsetsPerGroup int
	// MaxOffsetMetadataBytes bounds the string beside a committed offset
	// (offset.metadata.max.bytes). Default: 4096.
	MaxOffsetMetadataBytes int
	// MaxWriteBytes bounds the records of one write; they must fit one record
	// batch, because a group's state is stored whole or not at all. Default: 4 MiB.
	MaxWriteBytes int
	// MaxQueued bounds the requests waiting for one partition's goroutine.
	// Default: 65 536.
	MaxQueued int
	// WriteTimeout is how long a request waits for the log
	// (offsets.commit.timeout.ms). Then it is told to ask again; what it asked for
	// takes effect all the same when the log acknowledges it. Default: 5 s.
	WriteTimeout time.Duration

	// OffsetsRetention is how long offsets outlive the group's last member, or
	// the last commit where there were no members (offsets.retention.minutes).
	// Default: 7 days.
	OffsetsRetention time.Duration
	// OffsetsRetentionCheck is the time between two looks for expired offsets
	// (offsets.retention.check.interval.ms). Default: 10 min.
	OffsetsRetentionCheck time.Duration

	// OffsetsTopicPartitions, OffsetsTopicReplicationFactor and
	// OffsetsTopicSegmentBytes shape __consumer_offsets when it is created
	// (offsets.topic.num.partitions, .replication.factor, .segment.bytes). While
	// there are fewer live brokers than the factor says, it is lowered to their
	// number, or with OffsetsTopicStrict the topic is not created. Defaults: 50, 3,
	// 100 MiB.
	OffsetsTopicStrict            bool
	OffsetsTopicPartitions        int32
	OffsetsTopicReplicationFactor int16
	OffsetsTopicSegmentBytes      int32
}

// ConsumerSettings are what may differ from one consumer group to the other.
type ConsumerSettings struct {
	SessionTimeout    time.Duration
	HeartbeatInterval time.Duration
	// AssignmentInterval is the least time from one target to the next
	// (consumer.assignment.interval.ms); 0: none.
	AssignmentInterval time.Duration
}

func (o *Options) consumerSettings(group string) ConsumerSettings {
	if o.ConsumerSettings != nil {
		return o.ConsumerSettings(group)
	}
	return ConsumerSettings{SessionTimeout: o.ConsumerSessionTimeout, HeartbeatInterval: o.ConsumerHeartbeatInterval}
}

// EnsureDefaults fills what was left zero.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.NewID == nil {
		o.NewID = newUUID
	}
	def(&o.MinSessionTimeout, 6*time.Second)
	def(&o.MaxSessionTimeout, 30*time.Minute)
	def(&o.InitialRebalanceDelay, 3*time.Second)
	def(&o.NewMemberTimeout, 5*time.Minute)
	def(&o.MaxGroupSize, 10_000)
	def(&o.MaxGroups, 100_000)
	if len(o.Assignors) == 0 {
		o.Assignors = []string{"uniform", "range"}
	}
	def(&o.ConsumerSessionTimeout, 45*time.Second)
	def(&o.ConsumerHeartbeatInterval, 5*time.Second)
	def(&o.ConsumerMaxSize, 10_000)
	def(&o.ConsumerMigration, MigrateBoth)
	def(&o.MaxPatterns, 64)
	def(&o.MaxPatternBytes, 1024)
	def(&o.MaxProtocolBytes, 1<<20)
	def(&o.MaxGroupBytes, 16<<20)
	def(&o.MaxMemberBytes, 64<<20)
	def(&o.MaxOffsetsPerGroup, 1_000_000)
	def(&o.MaxOffsetMetadataBytes, 4096)
	def(&o.MaxWriteBytes, 4<<20)
	def(&o.MaxQueued, 1<<16)
	def(&o.WriteTimeout, 5*time.Second)
	def(&o.OffsetsRetention, 7*24*time.Hour)
	def(&o.OffsetsRetentionCheck, 10*time.Minute)
	def(&o.OffsetsTopicPartitions, 50)
	def(&o.OffsetsTopicReplicationFactor, 3)
	def(&o.OffsetsTopicSegmentBytes, 100<<20)
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names every fault at once.
func (o *Options) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Partitions == nil, "group: Partitions is required")
	fault(o.Append == nil, "group: Append is required")
	fault(o.AppendOffsets == nil, "group: AppendOffsets is required")
	fault(o.AppendMarker == nil, "group: AppendMarker is required")
	fault(o.Load == nil, "group: Load is required")
	fault(o.MinSessionTimeout <= 0, "group: MinSessionTimeout %s must be positive", o.MinSessionTimeout)
	fault(o.MaxSessionTimeout < o.MinSessionTimeout, "group: MaxSessionTimeout %s is below MinSessionTimeout %s",
		o.MaxSessionTimeout, o.MinSessionTimeout)
	fault(o.NewMemberTimeout <= 0, "group: NewMemberTimeout %s must be positive", o.NewMemberTimeout)
	fault(o.MaxGroupSize < 1, "group: MaxGroupSize %d must be positive", o.MaxGroupSize)
	for _, name := range o.Assignors {
		fault(assignors[name] == nil, "group: assignor %q is not one of %v", name, Assignors())
	}
	fault(o.ConsumerSessionTimeout <= 0, "group: ConsumerSessionTimeout %s must be positive", o.ConsumerSessionTimeout)
	fault(o.ConsumerHeartbeatInterval <= 0 || o.ConsumerHeartbeatInterval >= o.ConsumerSessionTimeout,
		"group: ConsumerHeartbeatInterval %s must be positive and below ConsumerSessionTimeout %s",
		o.ConsumerHeartbeatInterval, o.ConsumerSessionTimeout)
	fault(o.ConsumerMaxSize < 1, "group: ConsumerMaxSize %d must be positive", o.ConsumerMaxSize)
	fault(!slices.Contains([]MigrationPolicy{MigrateBoth, MigrateUpgrade, MigrateDowngrade, MigrateNever}, o.ConsumerMigration),
		"group: ConsumerMigration %q is not a policy", o.ConsumerMigration)
	fault(o.MaxPatterns < 1, "group: MaxPatterns %d must be positive", o.MaxPatterns)
	fault(o.MaxPatternBytes < 1, "group: MaxPatternBytes %d must be positive", o.MaxPatternBytes)
	fault(o.MaxGroups < 1, "group: MaxGroups %d must be positive", o.MaxGroups)
	fault(o.MaxProtocolBytes < 1, "group: MaxProtocolBytes %d must be positive", o.MaxProtocolBytes)
	fault(o.MaxGroupBytes < 1, "group: MaxGroupBytes %d must be positive", o.MaxGroupBytes)
	fault(o.MaxMemberBytes < 1, "group: MaxMemberBytes %d must be positive", o.MaxMemberBytes)
	fault(o.MaxOffsetsPerGroup < 1, "group: MaxOffsetsPerGroup %d must be positive", o.MaxOffsetsPerGroup)
	fault(o.MaxOffsetMetadataBytes < 0 || o.MaxOffsetMetadataBytes > 32767,
		"group: MaxOffsetMetadataBytes %d must be in [0, 32767]", o.MaxOffsetMetadataBytes)
	fault(o.MaxWriteBytes < 1024, "group: MaxWriteBytes %d must be at least 1024", o.MaxWriteBytes)
	fault(o.WriteTimeout <= 0, "group: WriteTimeout %s must be positive", o.WriteTimeout)
	fault(o.MaxQueued < 1, "group: MaxQueued %d must be positive", o.MaxQueued)
	fault(o.OffsetsRetention <= 0, "group: OffsetsRetention %s must be positive", o.OffsetsRetention)
	fault(o.OffsetsRetentionCheck <= 0, "group: OffsetsRetentionCheck %s must be positive", o.OffsetsRetentionCheck)
	fault(o.OffsetsTopicPartitions < 1, "group: OffsetsTopicPartitions %d must be positive", o.OffsetsTopicPartitions)
	fault(o.OffsetsTopicReplicationFactor < 1, "group: OffsetsTopicReplicationFactor %d must be positive",
		o.OffsetsTopicReplicationFactor)
	fault(o.OffsetsTopicSegmentBytes < 1<<20, "group: OffsetsTopicSegmentBytes %d must be at least 1 MiB",
		o.OffsetsTopicSegmentBytes)
	return errors.Join(errs...)
}
