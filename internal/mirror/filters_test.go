package mirror

import (
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// Which source topics a start takes (W3), given what the mirror excludes.
//
// MIR-030: whole names, literals and patterns together, exclude before include. MIR-031:
// internal topics are never among them.
func TestStartFilters(t *testing.T) {
	topics := []string{"__consumer_offsets", "a.b", "axb", "orders", "other"}
	for _, test := range []struct {
		name    string
		exclude string // of the mirror; empty is the default
		r       StartRequest
		want    []string
		err     error
	}{
		{"everything but internal ones", "", StartRequest{Include: []string{".*"}}, []string{"a.b", "axb", "orders", "other"}, nil},
		{"a name is a pattern too", "", StartRequest{Include: []string{"a.b"}}, []string{"a.b", "axb"}, nil},
		{"request excludes", "", StartRequest{Include: []string{".*"}, Exclude: []string{"o.*"}}, []string{"a.b", "axb"}, nil},
		{"what a stop excluded is free again", "__.*,.*", StartRequest{Include: []string{".*"}}, []string{"a.b", "axb", "orders", "other"}, nil},
		{"by name as well", "__.*,orders", StartRequest{Topics: []string{"orders"}}, nil, nil},
		{"what another stop excluded is not", "__.*,orders", StartRequest{Include: []string{".*"}}, []string{"a.b", "axb", "other"}, nil},
		{"a named topic that is excluded", "__.*,o.*", StartRequest{Topics: []string{"orders"}}, nil, controller.ErrInvalidRequest},
		{"a named topic that the request excludes", "", StartRequest{Topics: []string{"orders"}, Exclude: []string{"o.*"}}, nil, controller.ErrInvalidRequest},
		{"a name twice", "", StartRequest{Topics: []string{"orders", "orders"}}, nil, controller.ErrInvalidRequest},
		{"a pattern with a comma", "", StartRequest{Include: []string{"a{1,2}"}}, nil, controller.ErrInvalidConfig},
		{"an empty pattern", "", StartRequest{Include: []string{" "}}, nil, controller.ErrInvalidConfig},
		{"no pattern at all", "", StartRequest{}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := &metadata.Mirror{Name: "m", Configs: map[string]string{}}
			if test.exclude != "" {
				m.Configs[metadata.MirrorTopicsExclude] = test.exclude
			}
			include, exclude, err := startFilters(m, test.r)
			if !errors.Is(err, test.err) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			var got []string
			for _, name := range topics {
				if include.MatchString(name) && !exclude.MatchString(name) {
					got = append(got, name)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("took %v, want %v", got, test.want)
			}
		})
	}
}

func TestConfigOps(t *testing.T) {
	type kv = map[string]string
	set := func(names ...string) map[string]struct{} {
		m := make(map[string]struct{})
		for _, n := range names {
			m[n] = struct{}{}
		}
		return m
	}
	for _, test := range []struct {
		name       string
		have, want kv
		ours       map[string]struct{}
		ops        []string
	}{
		{"equal", kv{"a": "1"}, kv{"a": "1"}, nil, nil},
		{"new and changed", kv{"a": "1"}, kv{"a": "2", "b": "3"}, nil, []string{"a=2", "b=3"}},
		{"gone on the source, set by us", kv{"a": "1"}, kv{}, set("a"), []string{"-a"}},
		{"gone on the source, set by the operator", kv{"a": "1"}, kv{}, nil, nil},
		{"gone on both", kv{}, kv{}, set("a"), nil},
		{"an operator's own key stays", kv{"x": "9", "a": "1"}, kv{"a": "1"}, set("a"), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			ops, now := configOps(test.have, test.want, test.ours)
			var got []string
			for _, op := range ops {
				if op.Op == controller.ConfigDelete {
					got = append(got, "-"+op.Name)
				} else {
					got = append(got, op.Name+"="+*op.Value)
				}
			}
			if !slices.Equal(got, test.ops) || len(now) != len(test.want) {
				t.Errorf("ops %v, answers for %v; want %v", got, now, test.ops)
			}
		})
	}
}

func TestCopiedConfigs(t *testing.T) {
	exclude, err := metadata.CompileRegexList("min.insync.replicas")
	if err != nil {
		t.Fatal(err)
	}
	entry := func(name, value string, dynamic bool) source.ConfigEntry {
		return source.ConfigEntry{Name: name, Value: kmsg.StringPtr(value), Dynamic: dynamic}
	}
	copied, skipped := copiedConfigs([]source.ConfigEntry{
		entry("cleanup.policy", "compact", true),
		entry("retention.ms", "5", false),
		entry("min.insync.replicas", "2", true),
		entry("mirror.name", "m", true),
		entry("from.the.future", "x", true),
		entry("segment.bytes", "many", true),
		{Name: "segment.ms", Dynamic: true},
	}, exclude)
	if len(copied) != 1 || copied["cleanup.policy"] != "compact" || len(skipped) != 2 {
		t.Errorf("copied %v, skipped %v", copied, skipped)
	}
}

// The spread over fetchers is Kafka's: Java's string hash.
func TestFetcherIndex(t *testing.T) {
	for _, test := range []struct {
		topic     string
		partition int32
		fetchers  int
		want      int
	}{
		{"", 5, 4, 1},
		{"a", 0, 4, 31 * 97 % 4},
		{"ab", 1, 7, (31*3105 + 1) % 7},
		{"a-rather-long-topic-name", 3, 1, 0},
	} {
		if got := fetcherIndex(test.topic, test.partition, test.fetchers); got != test.want {
			t.Errorf("fetcherIndex(%q, %d, %d) = %d, want %d", test.topic, test.partition, test.fetchers, got, test.want)
		}
	}
	for p := range int32(1000) {
		if i := fetcherIndex("polygenelubricants", p, 3); i < 0 || i > 2 { // hash of the smallest integer
			t.Fatalf("index %d", i)
		}
	}
}
