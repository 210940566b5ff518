package mirror

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// refreshes waits until the source has been described n times more.
func (w *world) refreshes(n int) {
	w.t.Helper()
	var seen []time.Time
	w.until("refreshed", func() bool {
		for _, s := range w.c.Describe(w.ctx, []string{"m"})[0].Syncs {
			if at := time.Now().Add(-time.Duration(s.AgeMillis) * time.Millisecond); s.AgeMillis >= 0 && s.Task == "topics" &&
				(len(seen) == 0 || at.Sub(seen[len(seen)-1]) > 20*time.Millisecond) {
				seen = append(seen, at)
			}
		}
		return len(seen) > n
	})
}

func (w *world) mirrored() (names []string) {
	for _, t := range w.ctrl.Image().MirrorTopics("m") {
		names = append(names, t.Name)
	}
	return names
}

// MIR-029: include `orders-.*` and exclude `orders-internal` find exactly those, a new one
// by itself, and another family only when it is included. MIR-021: a topic that is
// started before it exists follows when it does. MIR-035: what is mirrored stays when its
// pattern goes. MIR-032: what is excluded is stopped. MIR-033: what is stopped stays so,
// over refreshes and a restart.
func TestDiscovery(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders-us", "orders-eu", "orders-internal", "payments"))
	w := newWorld(t, nil)
	w.create("m", src)
	out, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{"orders-.*", "later"}, Exclude: []string{"orders-internal"}})
	if got := w.names(out, err); !slices.Equal(got, []string{"orders-eu", "orders-us"}) {
		t.Fatalf("started %v", got)
	}
	want := func(names ...string) {
		t.Helper()
		w.until(fmt.Sprint(names), func() bool { return slices.Equal(w.mirrored(), names) })
		w.refreshes(3)
		if got := w.mirrored(); !slices.Equal(got, names) {
			t.Fatalf("mirrored are %v, want %v", got, names)
		}
	}
	want("orders-eu", "orders-us")
	must(t, errors.Join(src.CreateTopic("orders-jp", 1, nil), src.CreateTopic("later", 1, nil)))
	want("later", "orders-eu", "orders-jp", "orders-us")
	w.start("m", "payments")
	want("later", "orders-eu", "orders-jp", "orders-us", "payments")

	w.alterMirror(metadata.MirrorTopicsInclude, "orders-.*,later")
	want("later", "orders-eu", "orders-jp", "orders-us", "payments")
	w.state("payments", 0, metadata.StateMirroring)

	w.state("orders-eu", 0, metadata.StateMirroring)
	w.alterMirror(metadata.MirrorTopicsExclude, "__.*,orders-internal,orders-eu")
	w.state("orders-eu", 0, metadata.StateStopped)
	if p := w.ctrl.Image().Topic("orders-eu").Partitions[0]; !p.Mirror.HasLME {
		t.Errorf("stopped by an exclude: %+v", p.Mirror)
	}
	w.writable("orders-eu", 0)
	w.names(w.c.Stop(w.ctx, "m", []string{"orders-us"}, nil))
	w.state("orders-us", 0, metadata.StateStopped)
	produce(t, src, "orders-us", 0, "new")
	w.m.Close()
	w.register()
	w.startManager(nil)
	w.state("orders-jp", 0, metadata.StateMirroring)
	w.refreshes(3)
	if s := w.partition("orders-us", 0).State; s != metadata.StateStopped {
		t.Errorf("orders-us is %v again", s)
	}
	// MIR-034: until it is started by name.
	w.start("m", "orders-us")
	w.caughtUp("orders-us", 0, 1)
}

// slowGroups is a source that takes long to list its groups, the first time.
type slowGroups struct {
	Source
	once          sync.Once
	asked, answer chan struct{}
}

func (s *slowGroups) Groups(ctx context.Context) ([]source.Group, error) {
	s.once.Do(func() { close(s.asked); <-s.answer })
	return s.Source.Groups(ctx)
}

// A topic was started by name while a round was under way that had begun when the mirror
// excluded it: the round stopped it again, and nothing would have started it. Nor does one
// that looked before the start and asks for the stop behind it (MIR-034).
func TestStartDuringRound(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders-us", "orders-eu"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders-.*")
	w.state("orders-eu", 0, metadata.StateMirroring) // the round asks for its groups
	w.names(w.c.Stop(w.ctx, "m", []string{"orders-us"}, nil))
	w.state("orders-us", 0, metadata.StateStopped)
	slow := &slowGroups{asked: make(chan struct{}), answer: make(chan struct{})}
	w.tells("m", func(real Source) Source { slow.Source = real; return slow })
	<-slow.asked
	before := w.ctrl.Image()
	w.names(w.c.Start(w.ctx, StartRequest{Mirror: "m", Topics: []string{"orders-us"}}))
	close(slow.answer)
	w.refreshes(2)
	p := w.m.peer("m")
	if err := p.stopExcluded(w.ctx, []*metadata.Topic{before.Topic("orders-us")}, regexp.MustCompile("orders-us"), before.Revision); err != nil {
		t.Error(err)
	}
	produce(t, src, "orders-us", 0, "a")
	w.caughtUp("orders-us", 0, 1)
}

// MIR-023, MIR-039: a topic of that name with another id, which is written to here, is
// left alone, and named; the others of the request start. MIR-022: an empty one with the
// right id is taken over. MIR-036: each topic is answered for itself, and the request may
// be sent again.
func TestTopicsThatAreThere(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "local", "empty", "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	created := w.ctrl.CreateTopics(w.ctx, []controller.CreateTopic{
		{Name: "local", Partitions: 1}, {Name: "empty", Partitions: 1, ID: metadata.TopicID(src.TopicInfo("empty").TopicID)},
	}, false)
	must(t, errors.Join(created[0].Err, created[1].Err))
	w.write("local", "mine")
	out, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{".*"}})
	if err != nil || len(out) != 3 {
		t.Fatal(out, err)
	}
	for _, o := range out {
		if bad := errors.Is(o.Err, controller.ErrInconsistentTopicID); bad != (o.Name == "local") {
			t.Errorf("%s: %v", o.Name, o.Err)
		}
	}
	for _, name := range []string{"empty", "orders"} {
		produce(t, src, name, 0, "a")
		w.caughtUp(name, 0, 1)
	}
	again, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{".*"}})
	if err != nil || len(again) != 3 {
		t.Fatal(again, err)
	}
	w.refreshes(2)
	w.write("local", "more")
	if end, _ := w.parts.Get("local", 0).LogEnd(); end != 2 || w.ctrl.Image().Topic("local").MirrorName != "" {
		t.Errorf("the local topic ends at %d, in mirror %q", end, w.ctrl.Image().Topic("local").MirrorName)
	}
}

// writable waits until a partition takes writes: its state is in the image before that.
func (w *world) writable(topic string, p int32) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s-%d is writable", topic, p), func() bool { return !w.parts.Get(topic, p).Info().ReadOnly })
}

// write produces one record to a topic here.
func (w *world) write(topic, value string) { w.writeTo(topic, 0, value) }

func (w *world) writeTo(topic string, p int32, value string) {
	w.t.Helper()
	w.until(topic+" leads", func() bool { p := w.parts.Get(topic, p); return p != nil && p.Info().Leader })
	done := make(chan error, 1)
	w.parts.Get(topic, p).Produce(record.Build(record.NoProducer(1), []record.Record{{Value: []byte(value)}}), partition.ProduceOptions{Acks: -1},
		func(_ partition.ProduceResult, err error) { done <- err })
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

// MIR-012: a mirror is not deleted while any topic of it is MIRRORING, PAUSED or FAILED,
// and nothing changes; when all are STOPPED it is, and they are ordinary topics with the
// bytes that they had. MIR-011: nothing of it is in the next one of that name.
func TestDeleteAndAfter(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "gone"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 2)
	refused := func(when string) {
		t.Helper()
		err := w.c.Delete(w.ctx, "m")
		if !errors.Is(err, controller.ErrMirrorNotEmpty) && !errors.Is(err, controller.ErrMirrorStates) || w.ctrl.Image().Mirror("m") == nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("MIRRORING")
	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	refused("PAUSED")
	must(t, src.DeleteTopic("gone"))
	w.failed("gone", 0, "deleted")
	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	refused("one STOPPED, one FAILED")
	w.names(w.c.Stop(w.ctx, "m", []string{"gone"}, nil))
	w.state("gone", 0, metadata.StateStopped)
	before := w.bytesOf("orders", 0)
	must(t, w.c.Delete(w.ctx, "m"))
	topic := w.ctrl.Image().Topic("orders")
	if topic.MirrorName != "" || topic.Partitions[0].Mirror != nil || string(w.bytesOf("orders", 0)) != string(before) {
		t.Errorf("after the delete: in %q, state %+v", topic.MirrorName, topic.Partitions[0].Mirror)
	}
	w.write("orders", "mine")
	if err := w.c.Create(w.ctx, "m", map[string]string{"bootstrap.servers": strings.Join(src.ListenAddrs(), ",")}); err != nil {
		t.Fatal(err)
	}
	if m := w.ctrl.Image().Mirror("m"); m.Config(metadata.MirrorTopicsInclude) != "" || len(w.mirrored()) != 0 {
		t.Errorf("the new mirror has %v and %v", m.Configs, w.mirrored())
	}
}

// MIR-127, MIR-146: one topic of two is paused, resumed and stopped: the other goes on all
// the time, and is read-only. MIR-137: what cannot be stopped is told apart.
func TestOneOfTwo(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "one", "two"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.create("n", src)
	w.start("m", ".*")
	two := int64(0)
	goesOn := func() {
		t.Helper()
		produce(t, src, "two", 0, "x")
		two++
		w.caughtUp("two", 0, two)
		if !w.parts.Get("two", 0).Info().ReadOnly {
			t.Error("the other topic is writable")
		}
	}
	w.state("one", 0, metadata.StateMirroring)
	w.names(w.c.Pause(w.ctx, "m", []string{"one"}, nil))
	w.state("one", 0, metadata.StatePaused)
	goesOn()
	w.names(w.c.Resume(w.ctx, "m", []string{"one"}, nil))
	w.state("one", 0, metadata.StateMirroring)
	goesOn()
	w.names(w.c.Stop(w.ctx, "m", []string{"one"}, nil))
	w.state("one", 0, metadata.StateStopped)
	goesOn()
	res := w.ctrl.CreateTopics(w.ctx, []controller.CreateTopic{{Name: "plain", Partitions: 1}}, false)
	must(t, res[0].Err)
	said := map[string]bool{}
	for _, c := range []struct{ mirror, topic string }{{"m", "nowhere"}, {"m", "plain"}, {"n", "two"}} {
		out, err := w.c.Stop(w.ctx, c.mirror, []string{c.topic}, nil)
		if err != nil || len(out) != 1 || out[0].Err == nil {
			t.Fatal(c, out, err)
		}
		said[out[0].Err.Error()] = true
	}
	if len(said) != 3 {
		t.Errorf("said was %v", said)
	}
	goesOn()
}

// MIR-005: twenty create one name at once: one of them does.
func TestCreateAtOnce(t *testing.T) {
	src := newSource(t)
	w := newWorld(t, nil)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			errs[i] = w.c.Create(w.ctx, "n", map[string]string{"bootstrap.servers": strings.Join(src.ListenAddrs(), ",")})
		})
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, controller.ErrMirrorExists) {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d creates succeeded", made)
	}
}

// MIR-138: a stop of everything: 200 topics of 3 partitions, one of which has no leader, and
// one topic too few replicas in sync. All others are STOPPED and writable, also those beside
// the first; the second is as soon as its ISR is enough.
func TestStopOfEverything(t *testing.T) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("t-%03d", i))
	}
	src := newSource(t, kfake.SeedTopics(3, names...))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = time.Second })
	w.create("m", src)
	epoch, err := w.ctrl.RegisterBroker(w.ctx, controller.RegisterBroker{ID: 2, Incarnation: [16]byte{2}})
	must(t, err)
	_, err = w.ctrl.Heartbeat(w.ctx, controller.Heartbeat{Broker: 2, Epoch: epoch, Revision: w.ctrl.Image().Revision})
	must(t, err)
	for name, replicas := range map[string]map[int32][]int32{"t-100": {0: {1}, 1: {2}, 2: {1}}, "t-150": {0: {1, 2}, 1: {1, 2}, 2: {1, 2}}} {
		res := w.ctrl.CreateTopics(w.ctx, []controller.CreateTopic{{
			Name: name, ID: metadata.TopicID(src.TopicInfo(name).TopicID), Assignment: replicas,
		}}, false)
		must(t, res[0].Err)
	}
	_, err = w.ctrl.Heartbeat(w.ctx, controller.Heartbeat{Broker: 2, Epoch: epoch, Revision: w.ctrl.Image().Revision, WantFence: true})
	must(t, err)
	if got := w.start("m", "t-.*"); len(got) != 200 {
		t.Fatalf("%d topics were started", len(got))
	}
	count := func(want metadata.MirrorState) (n int) {
		for _, topic := range w.ctrl.Image().MirrorTopics("m") {
			for _, p := range topic.Partitions {
				if topic.MirrorState(p) == want {
					n++
				}
			}
		}
		return n
	}
	w.until("all but one mirror", func() bool { return count(metadata.StateMirroring) == 599 })
	minISR := func(value string) {
		t.Helper()
		must(t, w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "t-150",
			Ops: []controller.ConfigOp{{Name: "min.insync.replicas", Value: &value}}}}, false)[0])
	}
	minISR("2")
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.until("all but four are stopped", func() bool { return count(metadata.StateStopped) == 596 })
	if s := w.partition("t-100", 1).State; s == metadata.StateStopped {
		t.Errorf("the one that nobody works at is %v", s)
	}
	if s := w.partition("t-150", 1).State; s == metadata.StateStopped {
		t.Errorf("the one with too few in its ISR is %v", s)
	}
	w.writeTo("t-100", 0, "x")
	w.writeTo("t-149", 2, "x")
	minISR("1")
	w.until("all but one are stopped", func() bool { return count(metadata.StateStopped) == 599 })
	w.writeTo("t-150", 1, "x")
}

// MIR-050: one broker of the source says once that it does not know the topic. That is no
// deletion: nothing fails.
func TestOneBrokerForgetsATopic(t *testing.T) {
	src := newSource(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	lies := 0
	src.ControlKey(3, func(req kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		r := req.(*kmsg.MetadataRequest)
		if lies++; lies > 1 || len(r.Topics) > 0 {
			lies--
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.MetadataResponse)
		for i, addr := range src.ListenAddrs() {
			b := kmsg.NewMetadataResponseBroker()
			host, port, _ := strings.Cut(addr, ":")
			b.NodeID, b.Host = int32(i), host
			fmt.Sscan(port, &b.Port)
			resp.Brokers = append(resp.Brokers, b)
		}
		id := "kfake"
		resp.ClusterID = &id
		return resp, nil, true
	})
	w.until("it was told", func() bool { return lies > 0 })
	w.refreshes(3)
	if d := w.partition("orders", 0); d.State != metadata.StateMirroring || d.RetryAttempt != 0 {
		t.Errorf("%+v", d)
	}
	produce(t, src, "orders", 0, "b")
	w.caughtUp("orders", 0, 2)
}
