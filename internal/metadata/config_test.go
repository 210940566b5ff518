package metadata

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
)

// TestTopicConfigTable holds that the table is sound: every default passes its own
// check, and nothing of Kafka's 4.x table is missing.
func TestTopicConfigTable(t *testing.T) {
	kafka := strings.Fields(`cleanup.policy compression.gzip.level compression.lz4.level compression.type
		compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
		follower.replication.throttled.replicas index.interval.bytes leader.replication.throttled.replicas
		local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes
		message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type
		min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
		remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
		segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable`)
	for _, name := range kafka {
		if TopicConfigDef(name) == nil {
			t.Errorf("%s is missing", name)
		}
	}
	if len(TopicConfigDefs()) != len(kafka)+4 {
		t.Errorf("%d configs, want Kafka's %d and four of our own", len(TopicConfigDefs()), len(kafka))
	}
	for _, defs := range [][]*ConfigDef{TopicConfigDefs(), MirrorConfigDefs(), BrokerConfigDefs()} {
		for _, d := range defs {
			if d.Doc == "" {
				t.Errorf("%s: no word on what it is", d.Name)
			}
			if d.NoDefault {
				continue
			}
			if err := d.Validate(d.Default); err != nil {
				t.Errorf("default: %v", err)
			}
		}
	}
	if TopicConfigDef(MirrorNameConfig) != nil {
		t.Error("mirror.name is internal and must not be in the table (M4)")
	}
}

func TestValidateTopicConfig(t *testing.T) {
	for _, c := range []struct {
		name, value string
		ok          bool
	}{
		{"cleanup.policy", "compact,delete", true},
		{"cleanup.policy", " compact , delete ", true},
		{"cleanup.policy", "", true},
		{"cleanup.policy", "compact,compact", false},
		{"cleanup.policy", "shred", false},
		{"compression.type", "zstd", true},
		{"compression.type", "ZSTD", false},
		{"compression.gzip.level", "0", false},
		{"compression.gzip.level", "-1", true},
		{"retention.ms", "-1", true},
		{"retention.ms", "-2", false},
		{"retention.ms", "9223372036854775808", false},
		{"retention.ms", "1h", false},
		{"segment.bytes", "1048576", true},
		{"segment.bytes", "1048575", false},
		{"segment.bytes", "3000000000", false}, // an int in Kafka
		{"min.cleanable.dirty.ratio", "1.1", false},
		{"min.cleanable.dirty.ratio", "NaN", false},
		{"min.insync.replicas", "0", false},
		{"unclean.leader.election.enable", "TRUE", true},
		{"unclean.leader.election.enable", "yes", false},
		{"remote.storage.enable", "true", false},
		{"remote.storage.enable", "false", true},
		{"follower.replication.throttled.replicas", "0:1,1:2", true},
		{"follower.replication.throttled.replicas", "*", true},
		{"follower.replication.throttled.replicas", "0-1", false},
		{MirrorThrottledReplicasConfig, "0:1", true},
		{MirrorThrottledReplicasConfig, "0", false},
		{DurabilityConfig, "fsync", true},
		{DurabilityConfig, "never", false},
		{MirrorULEConfig, "true", true},
		{MirrorNameConfig, "m", false},
		{"message.format.version", "2.8", false}, // gone since 4.0
	} {
		err := ValidateTopicConfig(c.name, c.value)
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), c.name)) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
	if ValidateTopicConfigs(map[string]string{"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}) == nil {
		t.Error("a compaction lag with the minimum above the maximum was accepted")
	}
}

func TestTopicConfigInForce(t *testing.T) {
	topic := &Topic{Configs: map[string]string{"retention.ms": "5", "cleanup.policy": "compact", MirrorULEConfig: "True"}}
	if topic.ConfigInt("retention.ms") != 5 || topic.ConfigInt("retention.bytes") != -1 || topic.ConfigInt("no.such") != 0 {
		t.Error("integers")
	}
	if !topic.HasPolicy("compact") || topic.HasPolicy("delete") || !topic.ConfigBool(MirrorULEConfig) || topic.ConfigBool("preallocate") {
		t.Error("policies or booleans")
	}
	if topic.Config(DurabilityConfig) != "fsync" || topic.Config("no.such") != "" {
		t.Error("defaults")
	}
}

func TestValidateMirrorConfigs(t *testing.T) {
	const boot = MirrorBootstrapServers
	with := func(kv ...string) map[string]string {
		m := map[string]string{boot: "a:9092"}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name    string
		configs map[string]string
		want    string // part of the error, empty for none
	}{
		{"one key suffices (S002)", map[string]string{boot: ":9094"}, ""},
		{"several", map[string]string{boot: "a:1, b:65535,[::1]:9092"}, ""},
		{"none", map[string]string{}, "bootstrap.servers: required"},
		{"no address", map[string]string{boot: " , "}, "at least one"},
		{"no port", map[string]string{boot: "a"}, "not host:port"},
		{"port 0", map[string]string{boot: "a:0"}, "port must be"},
		{"unknown (C4)", with("topics.inclode", "a"), "topics.inclode: no such"},
		{"bad number", with("fetch.min.bytes", "x"), "fetch.min.bytes"},
		{"refused by RE2 (C2)", with("topics.include", "(?=a)"), "topics.include"},
		{"two halves of one group", with("topics.include", "a)|(b"), "topics.include"},
		{"protocol", with("security.protocol", "TLS"), "security.protocol"},
		{"mechanism", with("sasl.mechanism", "GSSAPI"), "sasl.mechanism"},
		{"hostname check off", with("ssl.endpoint.identification.algorithm", ""), ""},
		{"JKS", with("ssl.truststore.type", "JKS"), "convert with keytool"},
		{"ACL rule", with("acls.include", "TOPIC;a.*;READ;ALLOW;User:x,*"), ""},
		{"ACL rule too long", with("acls.include", "TOPIC;a;b;ALLOW;e;f"), "more than five"},
		{"ACL resource", with("acls.include", "CLUSTER_MIRROR"), "resource type"},
		{"older spellings (C1)", with("mirror.topics.include", "a", "mirror.fetch.min.bytes", "2", "acl.include", "*"), ""},
		{"both spellings", with("mirror.topics.include", "a", "topics.include", "b"), "two spellings"},
		{"both, the same", with("mirror.topics.include", "a", "topics.include", "a"), ""},
		{"Java's", with("ssl.provider", "x"), ""},
	} {
		canonical, _, err := ValidateMirrorConfigs(c.configs)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		case err != nil && canonical != nil:
			t.Errorf("%s: something to store in spite of the error", c.name)
		}
	}
	canonical, ignored, err := ValidateMirrorConfigs(with("mirror.topics.include", "a", "acl.include", "*", "ssl.provider", "x", MirrorSourceClusterID, "s"))
	want := with("topics.include", "a", "acls.include", "*", "ssl.provider", "x", MirrorSourceClusterID, "s")
	if err != nil || !maps.Equal(canonical, want) || len(ignored) != 1 || ignored[0] != "ssl.provider" {
		t.Errorf("canonical %v, ignored %v, %v", canonical, ignored, err)
	}
}

// TestSecretsStaySecret prints a mirror in every way that logs and errors do.
func TestSecretsStaySecret(t *testing.T) {
	const canary = "canary-7f3a"
	m := &Mirror{Name: "m", Configs: map[string]string{
		MirrorBootstrapServers: "a:1", "sasl.jaas.config": canary, "ssl.key.password": canary,
		"ssl.keystore.key": canary, "ssl.keystore.password": canary, "ssl.truststore.password": canary,
	}}
	for _, s := range []string{
		fmt.Sprint(m), fmt.Sprintf("%+v", m), fmt.Sprintf("%#v", m), m.LogValue().String(), fmt.Sprint(m.Redacted()),
	} {
		if strings.Contains(s, canary) || !strings.Contains(s, "a:1") {
			t.Errorf("printed: %s", s)
		}
	}
	secret := &ConfigDef{Name: "k", Secret: true, check: func(string) error { return errors.New(canary) }}
	if err := secret.Validate(canary); strings.Contains(err.Error(), canary) {
		t.Errorf("error: %v", err)
	}
}

func TestCompileRegexList(t *testing.T) {
	for _, c := range []struct {
		list, name string
		want       bool
	}{
		{"", "a", false},
		{"", "", false},
		{".*", "anything", true},
		{"a.b", "axb", true},
		{LiteralPattern("a.b"), "axb", false},
		{LiteralPattern("a.b"), "a.b", true},
		{" a , b ", "b", true},
		{"a,b", "ab", false},
		{"a", "ba", false}, // both ends are anchored
		{"a|b,c", "b", true},
		{"a|b,c", "bc", false},
		{"__.*", "__consumer_offsets", true},
	} {
		re, err := CompileRegexList(c.list)
		if err != nil || re.MatchString(c.name) != c.want {
			t.Errorf("%q on %q: want %v (%v)", c.list, c.name, c.want, err)
		}
	}
	m := &Mirror{Configs: map[string]string{}}
	if re := regexp.MustCompile("^(" + m.Config(MirrorTopicsExclude) + ")$"); !re.MatchString("__x") {
		t.Error("the default must keep internal topics out")
	}
}

func TestConnectionConfigsEqual(t *testing.T) {
	a := map[string]string{MirrorBootstrapServers: "a:1", MirrorTopicsInclude: "x"}
	b := map[string]string{MirrorBootstrapServers: "a:1", MirrorGroupsExclude: "y"}
	if !ConnectionConfigsEqual(a, b) {
		t.Error("filters must not reconnect (C5)")
	}
	b["request.timeout.ms"] = "1"
	if ConnectionConfigsEqual(a, b) {
		t.Error("a timeout must reconnect")
	}
}

func TestTopicID(t *testing.T) {
	id, err := NewTopicID(strings.NewReader(strings.Repeat("\x00", 16) + strings.Repeat("\xfb", 16) + strings.Repeat("a", 16)))
	if err != nil || id.String()[0] == '-' || id.Reserved() {
		t.Fatalf("%v, %v", id, err)
	}
	back, err := ParseTopicID(id.String())
	if err != nil || back != id {
		t.Errorf("%v, %v", back, err)
	}
	for _, s := range []string{"", "x", strings.Repeat("A", 23), strings.Repeat("!", 22)} {
		if _, err := ParseTopicID(s); err == nil {
			t.Errorf("%q was read", s)
		}
	}
	if !(TopicID{}).IsZero() || !(TopicID{15: 1}).Reserved() {
		t.Error("zero and one are Kafka's own")
	}
}

// MIR-433: an id that was given to the topic of a source without ids goes with any that the
// source tells later, and no other id does, whatever version it has.
func TestIsTopicOf(t *testing.T) {
	drawn, other := TopicID{1, 6: 0x4a, 15: 1}, TopicID{1, 6: 0x8a, 15: 2}
	given := drawn.WithoutSource()
	for _, c := range []struct {
		ours, source TopicID
		want         bool
	}{
		{drawn, drawn, true}, {drawn, TopicID{}, true}, {drawn, other, false}, {other, drawn, false},
		{given, given, true}, {given, TopicID{}, true}, {given, drawn, true}, {given, other, true}, {drawn, given, false},
	} {
		if got := c.ours.IsTopicOf(c.source); got != c.want {
			t.Errorf("%v here, %v on the source: %v", c.ours, c.source, got)
		}
	}
	if given.Reserved() || given.String()[0] == '-' || given == drawn || given != given.WithoutSource() {
		t.Errorf("given %v", given)
	}
}
