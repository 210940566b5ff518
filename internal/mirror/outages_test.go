package mirror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// MIR-007: a create, or a change, with one bad setting among good ones is refused as a
// whole, and the error names the setting.
func TestBadConfigSpoilsAll(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	before := fmt.Sprint(w.ctrl.Image().Mirror("m").Configs)
	for key, value := range map[string]string{
		"fetch.mux": "1", "request.timeout.ms": "soon", metadata.MirrorTopicsInclude: "(", metadata.MirrorGroupsExclude: "[",
		"security.protocol": "QUIC", "fetch.backoff.ms": "-1", "reconnect.backoff.ms": "-5",
	} {
		good := map[string]string{"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.max.bytes": "65536", key: value}
		if err := w.c.Create(w.ctx, "n", good); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("create with %s=%s: %v", key, value, err)
		}
		if w.ctrl.Image().Mirror("n") != nil {
			t.Fatalf("a mirror was made with %s=%s", key, value)
		}
		change := mirrorConfig("m", "fetch.max.bytes", "65536")
		change[0].Ops = append(change[0].Ops, mirrorConfig("m", key, value)[0].Ops...)
		if err := w.ctrl.AlterConfigs(w.ctx, change, false)[0]; err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("change with %s=%s: %v", key, value, err)
		}
		if now := fmt.Sprint(w.ctrl.Image().Mirror("m").Configs); now != before {
			t.Fatalf("after a refused change with %s=%s: %s, before %s", key, value, now, before)
		}
	}
}

// MIR-047: the source has a value that we refuse. The topic's other configs are copied, the
// round is counted as one with an error that names it, and records flow.
func TestConfigThatIsRefused(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	admin := adminOf(t, src)
	must(t, alter(admin, "orders", "cleanup.policy", "shred"))
	must(t, alter(admin, "orders", "retention.ms", "3600000"))
	produce(t, src, "orders", 0, "a")
	w.caughtUp("orders", 0, 1)
	w.until("the other config is copied", func() bool { return w.ctrl.Image().Topic("orders").Configs["retention.ms"] == "3600000" })
	w.until("an error of the task", func() bool {
		for _, s := range w.c.Describe(w.ctx, []string{"m"})[0].Syncs {
			if s.Task == "configs" && s.Error != nil && strings.Contains(*s.Error, "cleanup.policy") {
				return true
			}
		}
		return false
	})
	must(t, alter(admin, "orders", "cleanup.policy", "compact"))
	w.until("it is mended", func() bool { return w.ctrl.Image().Topic("orders").Configs["cleanup.policy"] == "compact" })
}

// MIR-271: two mirrors of two sources, with credentials of their own. When one source is
// gone, what comes of the other does not notice. MIR-272: a topic of a name that another
// source has already here is refused, and that one goes on.
func TestFanIn(t *testing.T) {
	srcA := newSource(t, kfake.SeedTopics(1, "a", "both"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "anna", "pw-anna"))
	srcC := newSource(t, kfake.SeedTopics(1, "c", "both"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "carl", "pw-carl"))
	w := newWorld(t, nil)
	writers := map[*kfake.Cluster]*kgo.Client{}
	for src, user := range map[*kfake.Cluster]string{srcA: "anna", srcC: "carl"} {
		must(t, w.c.Create(w.ctx, "of-"+user, map[string]string{
			"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
			"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaasOf(user, "pw-"+user),
		}))
		cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.SASL(plain.Auth{User: user, Pass: "pw-" + user}.AsMechanism()))
		must(t, err)
		defer cl.Close()
		writers[src] = cl
	}
	write := func(src *kfake.Cluster, topic string) {
		t.Helper()
		must(t, writers[src].ProduceSync(w.ctx, &kgo.Record{Topic: topic, Value: []byte(topic)}).FirstErr())
	}
	write(srcA, "a")
	write(srcA, "both")
	write(srcC, "c")
	w.start("of-anna", "a|both")
	w.start("of-carl", "c")
	for _, topic := range []string{"a", "both", "c"} {
		w.caughtUp(topic, 0, 1)
	}
	out, err := w.c.Start(w.ctx, StartRequest{Mirror: "of-carl", Topics: []string{"both"}})
	if err != nil || len(out) != 1 || !errors.Is(out[0].Err, controller.ErrInconsistentTopicID) && !errors.Is(out[0].Err, controller.ErrTopicInOtherMirror) {
		t.Errorf("the second topic of that name: %v, %v", out, err)
	}
	write(srcC, "both")
	write(srcA, "both")
	w.caughtUp("both", 0, 2)
	if got := w.ctrl.Image().Topic("both").Attachment().Mirror; got != "of-anna" {
		t.Errorf("it is in mirror %q", got)
	}
	srcC.Close()
	w.failed("c", 0, "unreachable")
	for range 5 {
		write(srcA, "a")
	}
	w.caughtUp("a", 0, 6)
	if d := w.partition("a", 0); d.RetryAttempt != 0 || d.State != metadata.StateMirroring {
		t.Errorf("the other source's topic: %+v", d)
	}
}

// guarded is a source whose user "mirror" may do what ACLs say; admin may do all.
func guarded(t *testing.T, topics ...string) (*kfake.Cluster, *kgo.Client, *kadm.Client) {
	t.Helper()
	src := newSource(t, kfake.SeedTopics(1, topics...), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "pw"), kfake.User("PLAIN", "mirror", "pw"))
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "pw"}.AsMechanism()), kgo.DefaultProduceTopic(topics[0]))
	must(t, err)
	t.Cleanup(cl.Close)
	for _, topic := range topics {
		must(t, cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte("a")}).FirstErr())
	}
	return src, cl, kadm.NewClient(cl)
}

func rightsTo(topic string) *kadm.ACLBuilder {
	return kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Allow("User:mirror").AllowHosts("*").
		Operations(kadm.OpRead, kadm.OpDescribe, kadm.OpDescribeConfigs)
}

func (w *world) createAs(name, user string, src *kfake.Cluster) {
	w.t.Helper()
	must(w.t, w.c.Create(w.ctx, name, map[string]string{
		"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
		"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaasOf(user, "pw"),
	}))
}

// MIR-366: the right to a topic is taken while it is mirrored. It alone fails, and says what
// it lacks; with the right it goes on where it was.
//
// MIR-291: another topic's retries are used up meanwhile: it stays FAILED with the count at
// the limit, and is not fetched any more; recover starts it again when the right is back.
func TestRightsTakenAndGiven(t *testing.T) {
	for _, attempts := range []int{1000, 3} {
		t.Run(fmt.Sprintf("%d attempts", attempts), func(t *testing.T) {
			src, writer, admin := guarded(t, "orders", "other")
			for _, topic := range []string{"orders", "other"} {
				_, err := admin.CreateACLs(t.Context(), rightsTo(topic))
				must(t, err)
			}
			w := newWorld(t, func(o *Options) { o.RetryAttempts, o.RetryMax = attempts, 200*time.Millisecond })
			w.createAs("m", "mirror", src)
			w.start("m", "orders|other")
			w.caughtUp("orders", 0, 1)
			w.caughtUp("other", 0, 1)
			_, err := admin.DeleteACLs(t.Context(), rightsTo("orders"))
			must(t, err)
			d := w.failed("orders", 0, "")
			if text := strings.ToLower(d.ErrorMessage); !strings.Contains(text, "authoriz") {
				t.Errorf("it says %q", d.ErrorMessage)
			}
			for range 3 {
				must(t, writer.ProduceSync(t.Context(), &kgo.Record{Topic: "other", Value: []byte("b")}).FirstErr())
			}
			w.caughtUp("other", 0, 4)
			if d := w.partition("other", 0); d.RetryAttempt != 0 {
				t.Errorf("the other topic: %+v", d)
			}
			if attempts == 3 {
				w.until("the retries are used up", func() bool { return w.partition("orders", 0).RetryAttempt == 3 })
				var fetched, asked atomic.Int64
				src.ControlKey(3, func(kmsg.Request) (kmsg.Response, error, bool) {
					src.KeepControl()
					asked.Add(1)
					return nil, nil, false
				})
				refreshes := func(n int64) { // which fail for this topic
					n += asked.Load()
					w.until("refreshes", func() bool { return asked.Load() > n })
				}
				src.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
					src.KeepControl()
					for _, topic := range r.(*kmsg.FetchRequest).Topics {
						if topic.TopicID == src.TopicInfo("orders").TopicID || topic.Topic == "orders" {
							fetched.Add(1)
						}
					}
					return nil, nil, false
				})
				refreshes(10)
				if d := w.partition("orders", 0); fetched.Load() > 0 || d.State != metadata.StateFailed || d.RetryAttempt != 3 {
					t.Errorf("fetched %d times, %+v", fetched.Load(), d)
				}
				_, err = admin.CreateACLs(t.Context(), rightsTo("orders"))
				must(t, err)
				refreshes(10)
				if d := w.partition("orders", 0); d.State != metadata.StateFailed {
					t.Errorf("without a command: %+v", d)
				}
				w.names(w.c.Recover(w.ctx, "m", []string{"orders"}, nil))
			} else {
				_, err = admin.CreateACLs(t.Context(), rightsTo("orders"))
				must(t, err)
			}
			must(t, writer.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("b")}).FirstErr())
			w.caughtUp("orders", 0, 2)
			if w.cut() > 0 {
				t.Errorf("%d records were cut", w.cut())
			}
		})
	}
}

// MIR-300: nobody is at the first address of a source. The second one is used, at creation
// and after a restart.
func TestFirstAddressDead(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	must(t, w.c.Create(w.ctx, "m", map[string]string{
		"bootstrap.servers": "127.0.0.1:1," + strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
	}))
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	w.m.Close()
	w.register()
	w.startManager(nil)
	produce(t, src, "orders", 0, "b")
	w.caughtUp("orders", 0, 2)
}

// MIR-301: the source's brokers move to other addresses, one after the other, until nobody
// is where the mirror's settings say. Records flow on, without a command; a broker that
// joins meanwhile is found as well.
func TestBrokersMoveOneByOne(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(3, "orders"), kfake.NumBrokers(3))
	w := newWorld(t, nil)
	bootstrap := src.ListenAddrs()
	// The fake elects leaders when nodes go and come, and has no answer about an epoch in
	// which nothing was written. It loses nothing.
	src.ControlKey(23, func(r kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		req := r.(*kmsg.OffsetForLeaderEpochRequest)
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, 1000
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	w.create("m", src)
	w.start("m", "orders")
	end := int64(0)
	flows := func(when string) {
		t.Helper()
		end++
		for p := range int32(3) {
			produce(t, src, "orders", p, when)
		}
		for p := range int32(3) {
			w.caughtUp("orders", p, end)
		}
	}
	flows("before")
	for node := range int32(3) {
		must(t, src.RemoveNode(node))
		_, _, err := src.AddNode(node, 0)
		must(t, err)
		flows(fmt.Sprintf("node %d has moved", node))
	}
	for _, addr := range bootstrap {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Fatalf("somebody is at %s", addr)
		}
	}
	must(t, src.CreateTopic("later", 1, nil))
	w.start("m", "later")
	produce(t, src, "later", 0, "a")
	w.caughtUp("later", 0, 1)
	w.until("the source is described again", func() bool {
		for _, s := range w.c.Describe(w.ctx, []string{"m"})[0].Syncs {
			if s.Error != nil {
				return false
			}
		}
		return true
	})
	flows("after")
	if w.cut() > 0 {
		t.Errorf("%d records were cut", w.cut())
	}
}

// MIR-301: a leader is at another address from one moment to the next, and its old one
// still answers. Nobody waits for that to end.
func TestLeaderIsReadWhereItIsNow(t *testing.T) {
	p := &peer{}
	p.mu.cluster = (*source.Cluster)(nil)
	at := func(port, epoch int32) *source.Metadata {
		return &source.Metadata{
			Brokers: map[int32]sdk.BrokerAddr{1: {ID: 1, Host: "a", Port: port}, 2: {ID: 2, Host: "b", Port: 1}},
			Topics:  map[string]*source.Topic{"orders": {Name: "orders", Partitions: []source.Partition{{Leader: 1, LeaderEpoch: epoch}, {Index: 1, Leader: 2}}}},
		}
	}
	gone := at(1, 4)
	delete(gone.Brokers, 1)
	p.mu.known = map[string]*source.Topic{}
	for i, step := range []struct {
		answer *source.Metadata
		moved  int
	}{{at(1, 4), 0}, {at(1, 4), 0}, {at(2, 4), 1}, {at(2, 4), 0}, {at(2, 5), 1}, {gone, 0}, {at(3, 5), 0}} {
		if moved := p.learn(p.mu.cluster, step.answer); len(moved) != step.moved || step.moved == 1 && moved[0] != (nameKey{"orders", 0}) {
			t.Errorf("answer %d: moved %v", i, moved)
		}
	}
}

// MIR-411: the partitions that are counted by state are those that are described.
func TestCountsByState(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(3, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	for p := range int32(3) {
		w.state("orders", p, metadata.StateMirroring)
	}
	counts := func() string {
		described := map[string]int{}
		for p := range int32(3) {
			described[w.partition("orders", p).State.String()]++
		}
		counted := map[string]int{}
		for i, s := range stateNumbers {
			if n := w.m.stateCounts[i].Load(); n > 0 {
				counted[s.String()] = int(n)
			}
		}
		if fmt.Sprint(described) == fmt.Sprint(counted) {
			return ""
		}
		return fmt.Sprintf("described %v, counted %v", described, counted)
	}
	w.until("the counts are those described", func() bool { return counts() == "" })
	src.Close()
	for p := range int32(3) {
		w.state("orders", p, metadata.StateFailed)
	}
	w.until("the counts are those described: "+counts(), func() bool { return counts() == "" })
}
