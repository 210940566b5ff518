package main

import (
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// liveConfig is what holds for this broker of the configs that change while it
// runs: it follows the metadata and tells each part what is new for it. The
// metadata's watcher owns it once the broker has started.
type liveConfig struct {
	cfg      *config.Config
	node     int32
	level    *slog.LevelVar
	static   map[string]string
	settings metadata.BrokerSettings
	told     map[string]string // values in force that the parts have been told
}

func newLiveConfig(cfg *config.Config, node int32, level *slog.LevelVar, img *metadata.Image) *liveConfig {
	l := &liveConfig{cfg: cfg, node: node, level: level, static: map[string]string{}}
	for _, e := range cfg.Entries() {
		if e.Set {
			l.static[e.Name] = e.Value
		}
	}
	l.settings = img.BrokerSettings(node, l.static)
	l.level.Set(logLevel(l.value("log.level")))
	l.told = l.values()
	return l
}

// follow tells the parts what a new image changes.
func (l *liveConfig) follow(b *broker, img *metadata.Image) {
	l.settings = img.BrokerSettings(l.node, l.static)
	now := l.values()
	changed := func(names ...string) bool {
		for _, n := range names {
			if now[n] != l.told[n] {
				return true
			}
		}
		return false
	}
	for _, d := range metadata.BrokerConfigDefs() {
		if changed(d.Name) {
			b.logger.Info("config changed", "config", d.Name, "value", now[d.Name], "before", l.told[d.Name])
		}
	}
	if changed("log.level") {
		l.level.Set(logLevel(l.value("log.level")))
	}
	if changed("max.connections", "max.connections.per.ip") {
		b.server.SetConnectionLimits(l.int("max.connections"), l.int("max.connections.per.ip"))
	}
	if changed("max.connection.creation.rate") {
		b.server.SetConnectionRate(l.int("max.connection.creation.rate"))
	}
	if changed("log.cleaner.threads", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second", "log.cleaner.backoff.ms") {
		b.partitions.SetCleaner(l.cleaner())
	}
	if changed("leader.replication.throttled.rate", "follower.replication.throttled.rate", "mirror.replication.throttled.rate") {
		b.partitions.SetThrottles(l.throttles())
	}
	if changed("mirror.metadata.refresh.interval.ms", "mirror.truncation.timeout.ms", "mirror.num.replica.fetchers") {
		b.mirrors.Set(l.mirrors())
	}
	for _, d := range metadata.TopicConfigDefs() {
		if name := metadata.TopicDefaultKey(d.Name); name != "" && changed(name) {
			b.partitions.SetTopicDefaults(l.settings.TopicDefaults())
			break
		}
	}
	l.told = now
}

func (l *liveConfig) values() map[string]string {
	values := make(map[string]string)
	for _, d := range metadata.BrokerConfigDefs() {
		values[d.Name] = l.value(d.Name)
	}
	return values
}

// value is the one in force. The tables were checked to agree on defaults.
func (l *liveConfig) value(name string) string {
	if v, ok := l.settings.Get(name); ok {
		return strings.TrimSpace(v)
	}
	return metadata.BrokerConfigDef(name).Default
}

func (l *liveConfig) int(name string) int {
	n, _ := strconv.ParseInt(l.value(name), 10, 64) // validated before it was stored
	return int(n)
}

// throttles are the bytes per second of throttled replicas, given, taken, and taken from
// sources of mirrors.
func (l *liveConfig) throttles() (leader, follower, mirror int64) {
	rate := func(of string) int64 { return int64(l.int(of + ".replication.throttled.rate")) }
	return rate("leader"), rate("follower"), rate("mirror")
}

func (l *liveConfig) duration(name string) time.Duration {
	return time.Duration(l.int(name)) * time.Millisecond
}

func (l *liveConfig) cleaner() partition.CleanerOptions {
	rate, _ := strconv.ParseFloat(l.value("log.cleaner.io.max.bytes.per.second"), 64)
	return partition.CleanerOptions{
		Enabled: l.cfg.Bool("log.cleaner.enable"), Threads: l.int("log.cleaner.threads"),
		Memory:         int64(l.int("log.cleaner.dedupe.buffer.size")),
		BytesPerSecond: rate,
		Backoff:        max(l.duration("log.cleaner.backoff.ms"), time.Millisecond), // 0 is the package's default
	}
}

// groups tells what holds for a consumer group, as of the newest image: the groups
// ask from goroutines of their own.
func (l *liveConfig) groups(image func() *metadata.Image) func(string) group.ConsumerSettings {
	cfg, node, static := l.cfg, l.node, l.static
	return func(id string) group.ConsumerSettings {
		img := image()
		settings := img.BrokerSettings(node, static)
		s := img.GroupSettings(id, func(name string) string {
			if v, ok := settings.Get(name); ok {
				return v
			}
			return cfg.String(name)
		})
		return group.ConsumerSettings{
			SessionTimeout:     time.Duration(s.SessionTimeout) * time.Millisecond,
			HeartbeatInterval:  time.Duration(s.HeartbeatInterval) * time.Millisecond,
			AssignmentInterval: time.Duration(s.AssignmentInterval) * time.Millisecond,
		}
	}
}

func (l *liveConfig) mirrors() mirror.Settings {
	s := mirror.Settings{
		RefreshInterval:   l.duration("mirror.metadata.refresh.interval.ms"),
		TruncationTimeout: l.duration("mirror.truncation.timeout.ms"),
		FetchersPerBroker: l.int("mirror.num.replica.fetchers"),
	}
	if s.TruncationTimeout == 0 {
		s.TruncationTimeout = -1 // for ever; the package's zero is its default
	}
	return s
}

// brokerConfigs is what DescribeConfigs shows of this broker's file and defaults.
func brokerConfigs(cfg *config.Config) []metadata.BrokerConfig {
	var out []metadata.BrokerConfig
	for _, e := range cfg.Entries() {
		out = append(out, metadata.BrokerConfig{
			ConfigDef: metadata.ConfigDef{Name: e.Name, Type: e.Type, Default: e.Default, NoDefault: e.Default == "" && e.Secret, Secret: e.Secret, Doc: e.Doc},
			Value:     e.Value, Set: e.Set,
		})
	}
	return out
}
