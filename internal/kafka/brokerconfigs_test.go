package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// configWorld is a server of a broker whose file sets two configs.
type configWorld struct {
	t *testing.T
	c *wire.Client
}

func newConfigWorld(t *testing.T) *configWorld {
	s := anotherServer(t, func(o *Options) {
		for _, c := range []metadata.BrokerConfig{
			{ConfigDef: metadata.ConfigDef{Name: "log.retention.ms", Type: metadata.TypeLong, Default: "604800000"}, Value: "7000", Set: true},
			{ConfigDef: metadata.ConfigDef{Name: "log.roll.ms", Type: metadata.TypeLong, Default: "604800000"}, Value: "604800000"},
			{ConfigDef: metadata.ConfigDef{Name: "node.id", Type: metadata.TypeInt, Default: "1", Doc: "Number of this node."}, Value: "1", Set: true},
		} {
			o.BrokerConfigs = append(o.BrokerConfigs, c)
		}
	})
	w := &configWorld{t, dial(t, addrOf(s))}
	t.Cleanup(func() {
		for _, name := range []string{"", "1"} { // of the shared controller
			w.replace(kmsg.ConfigResourceTypeBroker, name)
		}
	})
	return w
}

func (w *configWorld) alter(kind kmsg.ConfigResourceType, name string, ops ...string) (int16, string) {
	w.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.SetVersion(1)
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kind, name
	for _, op := range ops {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		var set bool
		var value string
		if c.Name, value, set = strings.Cut(op, "="); set {
			c.Value = &value
		} else {
			c.Op = kmsg.IncrementalAlterConfigOpDelete
		}
		r.Configs = append(r.Configs, c)
	}
	req.Resources = append(req.Resources, r)
	resp := ask[*kmsg.IncrementalAlterConfigsResponse](w.t, w.c, req)
	return resp.Resources[0].ErrorCode, str(resp.Resources[0].ErrorMessage)
}

func (w *configWorld) replace(kind kmsg.ConfigResourceType, name string, values ...string) int16 {
	w.t.Helper()
	req := kmsg.NewPtrAlterConfigsRequest()
	req.SetVersion(2)
	r := kmsg.NewAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kind, name
	for _, v := range values {
		c := kmsg.NewAlterConfigsRequestResourceConfig()
		k, v, _ := strings.Cut(v, "=")
		c.Name, c.Value = k, &v
		r.Configs = append(r.Configs, c)
	}
	req.Resources = append(req.Resources, r)
	resp, err := w.c.RequestVersion(w.t.Context(), req)
	if err != nil {
		return -1 // after the test
	}
	return resp.(*kmsg.AlterConfigsResponse).Resources[0].ErrorCode
}

// show is a config with its source and synonyms: value<source name=value<source…
func (w *configWorld) show(kind kmsg.ConfigResourceType, resource, config string) string {
	w.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.SetVersion(4)
	req.IncludeSynonyms, req.IncludeDocumentation = true, true
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kind, resource
	if config != "" {
		r.ConfigNames = []string{config}
	}
	req.Resources = append(req.Resources, r)
	resp := ask[*kmsg.DescribeConfigsResponse](w.t, w.c, req)
	var out []string
	for _, c := range resp.Resources[0].Configs {
		text := fmt.Sprintf("%s<%v", str(c.Value), c.Source)
		if c.ReadOnly {
			text += " read-only"
		}
		for _, y := range c.ConfigSynonyms {
			text += fmt.Sprintf(" %s=%s<%v", y.Name, str(y.Value), y.Source)
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

// Every layer hides those below it, in DescribeConfigs of topic and broker alike
// (KIP-226).
func TestConfigPrecedence(t *testing.T) {
	w := newConfigWorld(t)
	const topic, broker = kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker
	name := newTopic(t, 1).Name
	const file = "log.retention.ms=7000<STATIC_BROKER_CONFIG log.retention.ms=604800000<DEFAULT_CONFIG"
	check := func(kind kmsg.ConfigResourceType, resource, config, want string) {
		t.Helper()
		if got := w.show(kind, resource, config); got != want {
			t.Errorf("%v %s %s:\n%s\nwant\n%s", kind, resource, config, got, want)
		}
	}
	must := func(kind kmsg.ConfigResourceType, resource string, ops ...string) {
		t.Helper()
		if code, text := w.alter(kind, resource, ops...); code != 0 {
			t.Fatal(code, text)
		}
	}
	check(topic, name, "retention.ms", "7000<STATIC_BROKER_CONFIG "+file)
	check(broker, "1", "log.retention.ms", "7000<STATIC_BROKER_CONFIG "+file)
	check(topic, name, "segment.ms", "604800000<DEFAULT_CONFIG log.roll.ms=604800000<DEFAULT_CONFIG")
	must(broker, "", "log.retention.ms=8000")
	const all = "log.retention.ms=8000<DYNAMIC_DEFAULT_BROKER_CONFIG " + file
	check(topic, name, "retention.ms", "8000<DYNAMIC_DEFAULT_BROKER_CONFIG "+all)
	check(broker, "1", "log.retention.ms", "8000<DYNAMIC_DEFAULT_BROKER_CONFIG "+all)
	check(broker, "", "", "8000<DYNAMIC_DEFAULT_BROKER_CONFIG log.retention.ms=8000<DYNAMIC_DEFAULT_BROKER_CONFIG")
	must(broker, "1", "log.retention.ms=9000")
	const own = "log.retention.ms=9000<DYNAMIC_BROKER_CONFIG " + all
	check(topic, name, "retention.ms", "9000<DYNAMIC_BROKER_CONFIG "+own)
	must(topic, name, "retention.ms=10000")
	check(topic, name, "retention.ms", "10000<DYNAMIC_TOPIC_CONFIG retention.ms=10000<DYNAMIC_TOPIC_CONFIG "+own)
	// And back.
	must(topic, name, "retention.ms")
	must(broker, "1", "log.retention.ms")
	check(topic, name, "retention.ms", "8000<DYNAMIC_DEFAULT_BROKER_CONFIG "+all)
	// The old request replaces all.
	if code := w.replace(broker, "", "log.roll.ms=5000"); code != 0 {
		t.Fatal(code)
	}
	check(topic, name, "retention.ms", "7000<STATIC_BROKER_CONFIG "+file)
	check(broker, "1", "node.id", "1<STATIC_BROKER_CONFIG read-only node.id=1<STATIC_BROKER_CONFIG node.id=1<DEFAULT_CONFIG")
}

// What is refused, and the words name the key.
func TestConfigsRefused(t *testing.T) {
	w := newConfigWorld(t)
	const broker = kmsg.ConfigResourceTypeBroker
	for _, tc := range []struct {
		resource, op string
		want         *kerr.Error
	}{
		{"1", "node.id=2", kerr.InvalidRequest}, // needs a restart
		{"1", "no.such.config=1", kerr.InvalidConfig},
		{"", "log.retention.ms=soon", kerr.InvalidConfig},
		{"", "log.retention.ms=-2", kerr.InvalidConfig},
		{"", "log.segment.bytes=1000", kerr.InvalidConfig},
		{"", "log.cleanup.policy=shred", kerr.InvalidConfig},
		{"", "compression.type=brotli", kerr.InvalidConfig},
		{"", "durability=maybe", kerr.InvalidConfig},
		{"", "log.cleaner.threads=20", kerr.InvalidConfig}, // a step of more than double
		{"", "log.cleaner.dedupe.buffer.size=1000", kerr.InvalidConfig},
		{"", "log.cleaner.min.compaction.lag.ms=9223372036854775808", kerr.InvalidConfig},
		{"", "log.cleaner.max.compaction.lag.ms=0", kerr.InvalidConfig},
		{"", "log.level=loud", kerr.InvalidConfig},
		{"", "max.connections=0", kerr.InvalidConfig},
		{"9", "log.retention.ms=1", kerr.BrokerIDNotRegistered},
	} {
		code, text := w.alter(broker, tc.resource, tc.op)
		key, _, _ := strings.Cut(tc.op, "=")
		if code != tc.want.Code || tc.resource != "9" && !strings.Contains(text, key) {
			t.Errorf("%s: code %d, want %d: %s", tc.op, code, tc.want.Code, text)
		}
	}
	if code := w.replace(broker, "1", "node.id=2"); code != kerr.InvalidRequest.Code {
		t.Error("AlterConfigs changed a read-only config:", code)
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.SetVersion(1)
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = broker, "1"
	req.Resources = append(req.Resources, r, r)
	resp := ask[*kmsg.IncrementalAlterConfigsResponse](t, w.c, req)
	codes := []int16{resp.Resources[0].ErrorCode, resp.Resources[1].ErrorCode}
	if !slices.Equal(codes, []int16{kerr.InvalidRequest.Code, kerr.InvalidRequest.Code}) {
		t.Error("a resource named twice:", codes)
	}
}
