package kafka

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// mirrorWorld is a server with mirroring, a connection to it, and a source.
type mirrorWorld struct {
	t      *testing.T
	source *kfake.Cluster
	c      *wire.Client
}

func newMirrorWorld(t *testing.T, topics ...string) *mirrorWorld {
	t.Helper()
	b := testBroker(t)
	manager, err := mirror.NewManager(mirror.Options{
		NodeID: 1, ClusterID: b.controller.Image().ClusterID, Controller: b.controller, Partitions: b.partitions,
		RefreshInterval: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	manager.Start()
	t.Cleanup(manager.Close)
	source, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	s := anotherServer(t, func(o *Options) { o.Mirrors = mirror.NewCoordinator(manager) })
	return &mirrorWorld{t: t, source: source, c: dial(t, addrOf(s))}
}

func (w *mirrorWorld) create(name string, configs ...string) (int16, string) {
	w.t.Helper()
	req := &wire.CreateClusterMirrorRequest{MirrorName: name}
	for i := 0; i+1 < len(configs); i += 2 {
		req.Config = append(req.Config, wire.MirrorConfig{Name: configs[i], Value: &configs[i+1]})
	}
	return ask[*wire.CreateClusterMirrorResponse](w.t, w.c, req).Status()
}

// topics sends a command over topics and gives "topic code" per topic, or the
// code of the request.
func (w *mirrorWorld) topics(req kmsg.Request) []string {
	w.t.Helper()
	resp := ask[kmsg.Response](w.t, w.c, req)
	if code, message := resp.(interface{ Status() (int16, string) }).Status(); code != 0 {
		return []string{"request " + strconv.Itoa(int(code)) + " " + message}
	}
	var out []string
	for _, r := range resp.(interface {
		Results() []wire.MirrorTopicResult
	}).Results() {
		out = append(out, r.Name+" "+strconv.Itoa(int(r.ErrorCode)))
	}
	return out
}

// state waits until both partitions of a topic are in a state.
func (w *mirrorWorld) state(name, topic, state string) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		resp := ask[*wire.DescribeClusterMirrorsResponse](w.t, w.c, &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{name}})
		for _, t := range resp.Mirrors[0].Topics {
			if t.TopicName == topic && !slices.ContainsFunc(t.Partitions, func(p wire.DescribedMirrorPartition) bool { return p.StateValue != state }) {
				return
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s is not %s: %+v", topic, state, resp.Mirrors)
		}
	}
}

func TestMirrorKeys(t *testing.T) {
	orders, other := uniqueName(t), uniqueName(t)
	w := newMirrorWorld(t, orders, other)
	addr := strings.Join(w.source.ListenAddrs(), ",")
	m := "mirror-" + uniqueName(t)

	// 94: what it refuses, and its codes (section 5.3).
	for _, test := range []struct {
		name    string
		configs []string
		want    int16
	}{
		{m + ".removed", []string{"bootstrap.servers", addr}, 135},
		{m, nil, 42},
		{m, []string{"bootstrap.servers", addr, "bootstrap.servers", addr}, 42},
		{m, []string{"bootstrap.servers", addr, "nonsense", "1"}, 40},
		{m, []string{"bootstrap.servers", "127.0.0.1:1", "request.timeout.ms", "2000"}, 7},
		{m, []string{"bootstrap.servers", addr}, 0},
		{m, []string{"bootstrap.servers", addr}, 136},
	} {
		code, message := w.create(test.name, test.configs...)
		if code != test.want || (code != 0) != (message != "") || strings.Contains(message, "\n") {
			t.Errorf("create %s %v: %d %q, want %d", test.name, test.configs, code, message, test.want)
		}
	}

	// 95
	start := wire.NewStartMirrorTopicsRequest(m)
	start.IncludePatterns = []string{".*"}
	start.ExcludePatterns = []string{other}
	if got := w.topics(start); !slices.Equal(got, []string{orders + " 0"}) {
		t.Fatalf("start: %q", got)
	}
	if got := w.topics(wire.NewStartMirrorTopicsRequest("nobody")); !strings.HasPrefix(got[0], "request 137 ") {
		t.Errorf("start in no mirror: %q", got)
	}
	named := wire.NewStartMirrorTopicsRequest(m)
	named.Topics = []wire.StartMirrorTopic{{TopicName: "__transaction_state"}}
	if got := w.topics(named); !strings.HasPrefix(got[0], "request 42 ") {
		t.Errorf("start of an excluded topic: %q", got)
	}
	w.state(m, orders, "MIRRORING")

	// 98
	list := ask[*wire.ListClusterMirrorsResponse](t, w.c, &wire.ListClusterMirrorsRequest{IncludeTopicNames: true})
	i := slices.IndexFunc(list.Mirrors, func(l wire.ListedMirror) bool { return l.MirrorName == m })
	if l := list.Mirrors[i]; l.SourceBootstrap != addr || l.SourceClusterID == "" || l.TopicCount != 1 || !slices.Equal(l.TopicNames, []string{orders}) {
		t.Errorf("list: %+v", l)
	}

	// Clients are refused (10.5), and mirrored topics are not deleted.
	topic := testBroker(t).controller.Image().Topic(orders)
	if p := produced(t, ask[kmsg.Response](t, w.c, produceTo(topic, 0, -1, batchOf("x")))); p.ErrorCode != 134 {
		t.Errorf("produce: %d", p.ErrorCode)
	}

	// 97 while it is mirrored
	source := list.Mirrors[i].SourceClusterID
	epochs := &wire.LastMirroredEpochsRequest{MirrorName: m, RequesterClusterID: &source,
		Topics: []wire.LastMirroredEpochsTopic{{Name: orders, Partitions: []int32{0, 9}}}}
	if got := ask[*wire.LastMirroredEpochsResponse](t, w.c, epochs).Topics[0].Partitions; got[0].ErrorCode != 145 || got[1].ErrorCode != 3 {
		t.Errorf("last mirrored epochs: %+v", got)
	}

	// 102, 103, 106
	pause := wire.NewPauseMirrorTopicsRequest(m)
	pause.Patterns = []string{".*"}
	if got := w.topics(pause); !slices.Equal(got, []string{orders + " 0"}) {
		t.Errorf("pause: %q", got)
	}
	w.state(m, orders, "PAUSED")
	if got := w.topics(pause); !slices.Equal(got, []string{orders + " 0"}) {
		t.Errorf("pause of what is paused: %q", got)
	}
	if got := w.topics(&wire.RecoverMirrorTopicsRequest{MirrorName: m, Topics: []string{orders}}); !slices.Equal(got, []string{orders + " 145"}) {
		t.Errorf("recover of what did not fail: %q", got)
	}
	resume := wire.NewResumeMirrorTopicsRequest(m)
	resume.Topics = []string{orders, "unknown-topic"}
	if got := w.topics(resume); !slices.Equal(got, []string{orders + " 0", "unknown-topic 3"}) {
		t.Errorf("resume: %q", got)
	}
	w.state(m, orders, "MIRRORING")

	// DEC-12, MIR-257: not while it is mirrored.
	deleteAll := kmsg.NewPtrDeleteRecordsRequest()
	deleted := kmsg.NewDeleteRecordsRequestTopic()
	deleted.Topic, deleted.Partitions = orders, []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}
	deleteAll.Topics = append(deleteAll.Topics, deleted)
	deletion := func() int16 {
		return ask[*kmsg.DeleteRecordsResponse](t, w.c, deleteAll).Topics[0].Partitions[0].ErrorCode
	}
	if code := deletion(); code != 145 {
		t.Errorf("DeleteRecords while mirrored: %d", code)
	}

	// 104 and 96
	if code, _ := ask[*wire.DeleteClusterMirrorResponse](t, w.c, wire.NewDeleteClusterMirrorRequest(m)).Status(); code != 143 {
		t.Errorf("delete of a mirror at work: %d", code)
	}
	stop := wire.NewRemoveTopicsFromMirrorRequest(m)
	stop.Patterns = []string{".*"}
	if got := w.topics(stop); !slices.Equal(got, []string{orders + " 0"}) {
		t.Errorf("stop: %q", got)
	}
	w.state(m, orders, "STOPPED")
	if got := w.topics(stop); !slices.Equal(got, []string{orders + " 0"}) {
		t.Errorf("stop of what is stopped: %q", got)
	}
	for _, test := range []struct {
		req  kmsg.Request
		want string
	}{
		{&wire.PauseMirrorTopicsRequest{MirrorName: m, Topics: []string{orders}, StateValidationOffset: -1}, orders + " 142"},
		{&wire.ResumeMirrorTopicsRequest{MirrorName: m, Topics: []string{orders}, StateValidationOffset: -1}, orders + " 141"},
	} {
		if got := w.topics(test.req); !slices.Equal(got, []string{test.want}) {
			t.Errorf("%T of a stopped topic: %q", test.req, got)
		}
	}
	if p := produced(t, ask[kmsg.Response](t, w.c, produceTo(topic, 0, -1, batchOf("x")))); p.ErrorCode != 0 {
		t.Errorf("produce after the stop: %d", p.ErrorCode)
	}
	if code := deletion(); code != 0 {
		t.Errorf("DeleteRecords after the stop: %d", code)
	}

	// 97 and the lookup of 99
	if got := ask[*wire.LastMirroredEpochsResponse](t, w.c, epochs).Topics[0].Partitions[0]; got.ErrorCode != 0 || got.LastMirroredEpoch != -1 || got.LastMirroredOffset != 0 {
		t.Errorf("last mirrored epoch of an empty partition: %+v", got)
	}
	lookup := &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{m, "nobody"}, ClusterID: &source,
		Lookups: []wire.EpochLookupTopic{{TopicID: topic.ID, Partitions: []int32{0, 1}}}}
	described := ask[*wire.DescribeClusterMirrorsResponse](t, w.c, lookup)
	if len(described.LookupResults) != 1 || len(described.LookupResults[0].Partitions) != 2 {
		t.Errorf("lookup: %+v", described.LookupResults)
	}
	if described.Mirrors[1].ErrorCode != 137 {
		t.Errorf("describe of no mirror: %+v", described.Mirrors[1])
	}

	if code, message := ask[*wire.DeleteClusterMirrorResponse](t, w.c, wire.NewDeleteClusterMirrorRequest(m)).Status(); code != 0 {
		t.Errorf("delete: %d %s", code, message)
	}
	if code, _ := ask[*wire.DeleteClusterMirrorResponse](t, w.c, wire.NewDeleteClusterMirrorRequest(m)).Status(); code != 137 {
		t.Errorf("second delete: %d", code)
	}
	if a := testBroker(t).controller.Image().Topic(orders).Attachment(); a.Desired != metadata.DesiredNone {
		t.Errorf("after the delete: %+v", a)
	}
}

// A client that fails fast: the code is final for it.
func TestProduceToMirrorFailsFast(t *testing.T) {
	name := uniqueName(t)
	w := newMirrorWorld(t, name)
	m := "mirror-" + uniqueName(t)
	if code, message := w.create(m, "bootstrap.servers", strings.Join(w.source.ListenAddrs(), ",")); code != 0 {
		t.Fatal(message)
	}
	start := wire.NewStartMirrorTopicsRequest(m)
	start.IncludePatterns = []string{name}
	w.topics(start)
	w.state(m, name, "MIRRORING")
	err := newClient(t).ProduceSync(t.Context(), &kgo.Record{Topic: name, Value: []byte("x")}).FirstErr()
	if err == nil {
		t.Fatal("a client wrote to a mirrored topic")
	}
	stop := wire.NewRemoveTopicsFromMirrorRequest(m)
	stop.Patterns = []string{name}
	w.topics(stop)
	w.state(m, name, "STOPPED")
}
