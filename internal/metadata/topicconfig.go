package metadata

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Own topic configs. The rest of the table is Apache Kafka's, of version 4.x.
const (
	// DurabilityConfig says when an acks=all produce is answered (D11): "fsync"
	// after a group-committed fsync on min.insync.replicas replicas,
	// "replicated" when they have it in memory, as Apache Kafka does.
	DurabilityConfig = "durability"
	// MinISRConfig and UncleanElectionConfig are what elections and the high
	// watermark depend on.
	MinISRConfig          = "min.insync.replicas"
	UncleanElectionConfig = "unclean.leader.election.enable"
	// MirrorULEConfig makes every gate of the topic wait for all assigned
	// replicas (S000-1, spec 4.3). Read anew at every gate evaluation (C8).
	MirrorULEConfig = "mirror.support.unclean.leader.election"
	// MirrorThrottledReplicasConfig names the replicas under the mirror throttle.
	LeaderThrottledReplicasConfig   = "leader.replication.throttled.replicas"
	FollowerThrottledReplicasConfig = "follower.replication.throttled.replicas"
	MirrorThrottledReplicasConfig   = "mirror.replication.throttled.replicas"
)

const (
	maxLong = "9223372036854775807"
)

// minSegmentBytes is Kafka's floor since 4.0 (KIP-1030): smaller segments only
// multiply files.
const minSegmentBytes = 1 << 20

var topicTable = newTable([]*ConfigDef{
	{Name: "cleanup.policy", Type: TypeList, Default: "delete", check: listOf("delete", "compact"),
		Doc: "What becomes of old segments: deleted by time and size, compacted by key, or both. Empty keeps everything (KIP-1161)."},
	{Name: "compression.gzip.level", Type: TypeInt, Default: "-1", check: gzipLevel,
		Doc: "Level used where the broker itself compresses with gzip: -1 or 1 to 9."},
	{Name: "compression.lz4.level", Type: TypeInt, Default: "9", check: between(1, 17),
		Doc: "Level used where the broker itself compresses with lz4."},
	{Name: "compression.type", Type: TypeString, Default: "producer",
		check: oneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
		Doc:   "Codec of the topic: what clients send in another one is compressed anew; producer keeps what the producer chose. Mirrored batches are never changed."},
	{Name: "compression.zstd.level", Type: TypeInt, Default: "3", check: between(-131072, 22),
		Doc: "Level used where the broker itself compresses with zstd."},
	{Name: "delete.retention.ms", Type: TypeLong, Default: "86400000", check: atLeast(0),
		Doc: "How long tombstones and transaction markers survive compaction."},
	{Name: DurabilityConfig, Type: TypeString, Default: "fsync", check: oneOf("fsync", "replicated"),
		Doc: "When acks=all is answered: fsync survives power loss of all brokers at once, replicated does not."},
	{Name: "file.delete.delay.ms", Type: TypeLong, Default: "60000", check: atLeast(0),
		Doc: "Kept for Kafka's sake: a segment's file goes when its last reader has left."},
	{Name: "flush.messages", Type: TypeLong, Default: maxLong, check: atLeast(1),
		Doc: "Kept for Kafka's sake, without effect: what is on disk when is decided by durability."},
	{Name: "flush.ms", Type: TypeLong, Default: maxLong, check: atLeast(0),
		Doc: "Kept for Kafka's sake, without effect: what is on disk when is decided by durability."},
	{Name: FollowerThrottledReplicasConfig, Type: TypeList, Default: "", check: throttledReplicas,
		Doc: "Replicas that take no more than follower.replication.throttled.rate of their brokers until they are in sync: partition:broker,… or *."},
	{Name: "index.interval.bytes", Type: TypeInt, Default: "4096", check: atLeast(0),
		Doc: "Kept for Kafka's sake: the index here is not a file per segment."},
	{Name: LeaderThrottledReplicasConfig, Type: TypeList, Default: "", check: throttledReplicas,
		Doc: "Replicas that, leading, give those who are not in sync no more than leader.replication.throttled.rate of their brokers: partition:broker,… or *."},
	{Name: MirrorThrottledReplicasConfig, Type: TypeList, Default: "", check: throttledReplicas,
		Doc: "Replicas that, leading, take no more than mirror.replication.throttled.rate of their brokers from the source of a mirror: partition:broker,… or *."},
	{Name: "local.retention.bytes", Type: TypeLong, Default: "-2", check: atLeast(-2),
		Doc: "Tiered storage is not supported; the value is kept and has no effect."},
	{Name: "local.retention.ms", Type: TypeLong, Default: "-2", check: atLeast(-2),
		Doc: "Tiered storage is not supported; the value is kept and has no effect."},
	{Name: "max.compaction.lag.ms", Type: TypeLong, Default: maxLong, check: atLeast(1),
		Doc: "Longest time a record stays uncompacted."},
	{Name: "max.message.bytes", Type: TypeInt, Default: "1048588", check: atLeast(0),
		Doc: "Largest batch a client may write. Mirrored batches are not bound by it."},
	{Name: "message.timestamp.after.max.ms", Type: TypeLong, Default: "3600000", check: atLeast(0),
		Doc: "How far a record's timestamp may be ahead of the broker's clock (KIP-937, default of KIP-1030)."},
	{Name: "message.timestamp.before.max.ms", Type: TypeLong, Default: maxLong, check: atLeast(0),
		Doc: "How far a record's timestamp may be behind the broker's clock (KIP-937)."},
	{Name: "message.timestamp.type", Type: TypeString, Default: "CreateTime", check: oneOf("CreateTime", "LogAppendTime"),
		Doc: "Whose timestamp a record carries."},
	{Name: "min.cleanable.dirty.ratio", Type: TypeDouble, Default: "0.5", check: betweenFloat(0, 1),
		Doc: "Share of uncompacted bytes from which a log is compacted."},
	{Name: "min.compaction.lag.ms", Type: TypeLong, Default: "0", check: atLeast(0),
		Doc: "Shortest time a record stays uncompacted."},
	{Name: MinISRConfig, Type: TypeInt, Default: "1", check: atLeast(1),
		Doc: "Replicas that must have a record before acks=all is answered."},
	{Name: MirrorThrottledReplicasConfig, Type: TypeList, Default: "", check: throttledReplicas,
		Doc: "Kept for the specification's sake, without effect: mirror fetches are not throttled."},
	{Name: MirrorULEConfig, Type: TypeBoolean, Default: "false",
		Doc: "Before mirroring, wait for all assigned replicas and not only the in-sync ones to have cut their logs, so that unclean leader elections cannot bring back what was cut."},
	{Name: "preallocate", Type: TypeBoolean, Default: "false",
		Doc: "Kept for Kafka's sake, without effect."},
	{Name: "remote.log.copy.disable", Type: TypeBoolean, Default: "false",
		Doc: "Tiered storage is not supported; the value is kept and has no effect."},
	{Name: "remote.log.delete.on.disable", Type: TypeBoolean, Default: "false",
		Doc: "Tiered storage is not supported; the value is kept and has no effect."},
	{Name: "remote.storage.enable", Type: TypeBoolean, Default: "false", check: refuseTrue("tiered storage is not supported"),
		Doc: "Tiered storage is not supported: only false is accepted."},
	{Name: "retention.bytes", Type: TypeLong, Default: "-1", check: atLeast(-1),
		Doc: "Size from which old segments are deleted; -1 is no limit."},
	{Name: "retention.ms", Type: TypeLong, Default: "604800000", check: atLeast(-1),
		Doc: "Age from which segments are deleted; -1 is no limit."},
	{Name: "segment.bytes", Type: TypeInt, Default: "1073741824", check: atLeast(minSegmentBytes),
		Doc: "Size at which a segment is closed."},
	{Name: "segment.index.bytes", Type: TypeInt, Default: "10485760", check: atLeast(4),
		Doc: "Kept for Kafka's sake: the index here is not a file per segment."},
	{Name: "segment.jitter.ms", Type: TypeLong, Default: "0", check: atLeast(0),
		Doc: "Kept for Kafka's sake, without effect: segments roll with their next append."},
	{Name: "segment.ms", Type: TypeLong, Default: "604800000", check: atLeast(1),
		Doc: "Age at which a segment is closed."},
	{Name: UncleanElectionConfig, Type: TypeBoolean, Default: "false",
		Doc: "Let a replica outside the ISR lead when none inside is left. Loses records."},
})

// TopicConfigDefs is the table of topic configs by name, mirror.name excepted:
// that one is internal (M4). Shared: do not write to it.
func TopicConfigDefs() []*ConfigDef { return topicTable.defs }

// TopicConfigDef is one row, or nil.
func TopicConfigDef(name string) *ConfigDef { return topicTable.byName[name] }

// ValidateTopicConfig checks one override.
func ValidateTopicConfig(name, value string) error {
	d := topicTable.byName[name]
	if d == nil {
		return fmt.Errorf("%w: %s: no such topic config", ErrInvalidConfig, name)
	}
	return d.Validate(value)
}

// ValidateTopicConfigs checks a whole set of overrides, and what must hold
// between two of them.
func ValidateTopicConfigs(configs map[string]string) error {
	for _, name := range sortedKeys(configs) {
		if err := ValidateTopicConfig(name, configs[name]); err != nil {
			return err
		}
	}
	t := Topic{Configs: configs}
	if lo, hi := t.ConfigInt("min.compaction.lag.ms"), t.ConfigInt("max.compaction.lag.ms"); lo > hi {
		return fmt.Errorf("%w: min.compaction.lag.ms=%d is above max.compaction.lag.ms=%d", ErrInvalidConfig, lo, hi)
	}
	return nil
}

// Config is the value in force: the override, or the default of the table.
func (t *Topic) Config(name string) string {
	if v, ok := t.Configs[name]; ok {
		return v
	}
	if d := topicTable.byName[name]; d != nil {
		return d.Default
	}
	return ""
}

// ConfigInt is Config for integers. A value that was stored has been validated;
// should a newer version have stored another form, the default holds.
func (t *Topic) ConfigInt(name string) int64 {
	if n, err := strconv.ParseInt(strings.TrimSpace(t.Config(name)), 10, 64); err == nil {
		return n
	}
	if d := topicTable.byName[name]; d != nil {
		n, _ := strconv.ParseInt(d.Default, 10, 64)
		return n
	}
	return 0
}

// ConfigBool is Config for booleans.
func (t *Topic) ConfigBool(name string) bool {
	return strings.EqualFold(strings.TrimSpace(t.Config(name)), "true")
}

// HasPolicy reports whether cleanup.policy names p ("delete", "compact").
func (t *Topic) HasPolicy(p string) bool {
	for _, s := range SplitList(t.Config("cleanup.policy")) {
		if s == p {
			return true
		}
	}
	return false
}

func gzipLevel(v string) error {
	if strings.TrimSpace(v) == "-1" {
		return nil
	}
	if between(1, 9)(v) != nil {
		return errors.New("must be -1 or between 1 and 9")
	}
	return nil
}

func refuseTrue(why string) func(string) error {
	return func(v string) error {
		if strings.EqualFold(strings.TrimSpace(v), "true") {
			return errors.New(why)
		}
		return nil
	}
}

// throttledReplicas is Kafka's form: empty, *, or partition:broker pairs.
func throttledReplicas(v string) error {
	if strings.TrimSpace(v) == "*" {
		return nil
	}
	for _, pair := range SplitList(v) {
		p, b, ok := strings.Cut(pair, ":")
		_, errP := strconv.ParseUint(p, 10, 31)
		_, errB := strconv.ParseUint(b, 10, 31)
		if !ok || errP != nil || errB != nil {
			return fmt.Errorf("%q is not partition:broker", pair)
		}
	}
	return nil
}
