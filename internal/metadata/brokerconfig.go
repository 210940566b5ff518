package metadata

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrReadOnlyConfig is a config that only a start of the broker can change.
var ErrReadOnlyConfig = errors.New("config cannot be changed while the broker runs")

// topicDefaultKeys names the broker config that is the default of a topic config,
// as Kafka names it.
var topicDefaultKeys = map[string]string{
	"cleanup.policy":                  "log.cleanup.policy",
	"compression.gzip.level":          "compression.gzip.level",
	"compression.lz4.level":           "compression.lz4.level",
	"compression.type":                "compression.type",
	"compression.zstd.level":          "compression.zstd.level",
	"delete.retention.ms":             "log.cleaner.delete.retention.ms",
	DurabilityConfig:                  "durability",
	"max.compaction.lag.ms":           "log.cleaner.max.compaction.lag.ms",
	"max.message.bytes":               "message.max.bytes",
	"message.timestamp.after.max.ms":  "log.message.timestamp.after.max.ms",
	"message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
	"message.timestamp.type":          "log.message.timestamp.type",
	"min.cleanable.dirty.ratio":       "log.cleaner.min.cleanable.ratio",
	"min.compaction.lag.ms":           "log.cleaner.min.compaction.lag.ms",
	"min.insync.replicas":             "min.insync.replicas",
	"retention.bytes":                 "log.retention.bytes",
	"retention.ms":                    "log.retention.ms",
	"segment.bytes":                   "log.segment.bytes",
	"segment.ms":                      "log.roll.ms",
	"unclean.leader.election.enable":  "unclean.leader.election.enable",
}

// Dynamic broker configs: what takes effect on a running broker. Everything else
// about a broker stands in its properties file and needs a restart. The rows of
// internal/config that are marked dynamic are these, which a test there holds
// together.
var brokerTable = newTable(append(topicDefaultDefs(), []*ConfigDef{
	{Name: GroupDefaultKey(GroupAssignmentInterval), Type: TypeInt, Default: "1000", check: atLeast(0),
		Doc: "Default of " + GroupAssignmentInterval + " for groups that do not say."},
	{Name: "follower.replication.throttled.rate", Type: TypeLong, Default: "9223372036854775807", check: atLeast(0),
		Doc: "Bytes per second that this broker's replicas take together which are in follower.replication.throttled.replicas of their topics and not in sync."},
	{Name: "leader.replication.throttled.rate", Type: TypeLong, Default: "9223372036854775807", check: atLeast(0),
		Doc: "Bytes per second that this broker gives to others' replicas for what it leads and leader.replication.throttled.replicas of the topics lists."},
	{Name: "mirror.replication.throttled.rate", Type: TypeLong, Default: "9223372036854775807", check: atLeast(0),
		Doc: "Bytes per second that this broker takes from the sources of mirrors for what it leads and mirror.replication.throttled.replicas of the topics lists."},
	{Name: "log.cleaner.backoff.ms", Type: TypeLong, Default: "15000", check: atLeast(0),
		Doc: "Time between two looks for logs to compact, when there was nothing to do."},
	{Name: "log.cleaner.dedupe.buffer.size", Type: TypeLong, Default: "134217728", check: between(1<<20, 1<<40),
		Doc: "Memory of all cleaner threads together for the keys of the logs being compacted."},
	{Name: "log.cleaner.io.max.bytes.per.second", Type: TypeDouble, Default: "1.7976931348623157E308", check: atLeastFloat(1),
		Doc: "Bytes that all cleaner threads together read and write per second."},
	{Name: "log.cleaner.threads", Type: TypeInt, Default: "1", check: between(1, 64),
		Doc: "Logs that are compacted at the same time. A change must stay within half to double of the value before."},
	{Name: "log.level", Type: TypeString, Default: "info", check: oneOf("debug", "info", "warn", "error"),
		Doc: "What is logged to standard error."},
	{Name: "max.connection.creation.rate", Type: TypeInt, Default: "2147483647", check: atLeast(1),
		Doc: "Client connections taken per second, of all listeners. Those beyond wait."},
	{Name: "max.connections", Type: TypeInt, Default: "10000", check: between(1, 1<<30),
		Doc: "Client connections in all. Those that are open stay."},
	{Name: "max.connections.per.ip", Type: TypeInt, Default: "2147483647", check: atLeast(1),
		Doc: "Client connections from one address. Those that are open stay."},
	{Name: "mirror.num.replica.fetchers", Type: TypeInt, Default: "1", check: between(1, 64),
		Doc: "Fetch connections per source broker and mirror, for fetches that begin after the change. It must stay within half to double of the value before."},
	{Name: "mirror.metadata.refresh.interval.ms", Type: TypeLong, Default: "60000", check: atLeast(100),
		Doc: "Period of the source refresh, from the next refresh on."},
	{Name: "mirror.truncation.timeout.ms", Type: TypeLong, Default: "300000", check: atLeast(0),
		Doc: "Longest stay in the gate before FAILED; 0 waits for ever."},
}...))

// topicDefaultDefs are the rows of the topic table under the names that brokers
// have for them.
func topicDefaultDefs() []*ConfigDef {
	var defs []*ConfigDef
	for _, d := range topicTable.defs {
		if name, ok := topicDefaultKeys[d.Name]; ok {
			def := *d
			def.Name, def.Doc = name, "Default of "+d.Name+" for topics that do not say. "+d.Doc
			defs = append(defs, &def)
		}
	}
	return defs
}

// BrokerConfigDefs is the table of dynamic broker configs by name. Shared.
func BrokerConfigDefs() []*ConfigDef { return brokerTable.defs }

// BrokerConfigDef is one row, or nil.
func BrokerConfigDef(name string) *ConfigDef { return brokerTable.byName[name] }

// TopicDefaultKey is the broker config that a topic config takes its default
// from, or "".
func TopicDefaultKey(topicConfig string) string { return topicDefaultKeys[topicConfig] }

// ValidateBrokerConfigs checks all dynamic configs of one broker, or of all.
func ValidateBrokerConfigs(configs map[string]string) error {
	for _, name := range sortedKeys(configs) {
		d := brokerTable.byName[name]
		if d == nil {
			return fmt.Errorf("%w: %s: not a dynamic broker config; it can only stand in the properties file", ErrInvalidConfig, name)
		}
		if err := d.Validate(configs[name]); err != nil {
			return err
		}
	}
	return nil
}

// BrokerSettings is what holds for one broker, in Kafka's order of precedence:
// what was set for it while it ran, what was set so for all brokers, and what its
// own file says. The defaults of the tables come after.
type BrokerSettings struct {
	Own, All, Static map[string]string
}

// BrokerSettings answers the settings of a broker whose file says static.
func (img *Image) BrokerSettings(broker int32, static map[string]string) BrokerSettings {
	return BrokerSettings{Own: img.BrokerConfigs(broker), All: img.BrokerConfigs(DefaultBroker), Static: static}
}

// Get is the value in force of a config; false if it is set nowhere, so that the
// default of its table holds.
func (s BrokerSettings) Get(name string) (string, bool) {
	for _, layer := range []map[string]string{s.Own, s.All, s.Static} {
		if v, ok := layer[name]; ok {
			return v, true
		}
	}
	return "", false
}

// TopicDefaults are the broker's own defaults of topic configs, by the topic's
// names; what is not set is not among them.
func (s BrokerSettings) TopicDefaults() map[string]string {
	defaults := make(map[string]string)
	for _, topic := range slices.Sorted(maps.Keys(topicDefaultKeys)) {
		if v, ok := s.Get(topicDefaultKeys[topic]); ok {
			defaults[topic] = v
		}
	}
	return defaults
}

// BrokerConfig is one config of a broker as its own file and defaults have it,
// for DescribeConfigs.
type BrokerConfig struct {
	ConfigDef
	Value string
	Set   bool // by the file or the command line
}
