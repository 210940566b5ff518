package mirror

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

func nextOffset(t *testing.T, log []byte) int64 {
	t.Helper()
	next := int64(0)
	for len(log) > 0 {
		b, rest, err := record.Next(log)
		if err != nil {
			t.Fatal(err)
		}
		next, log = b.NextOffset(), rest
	}
	return next
}

// The life of a mirror: create, start, follow, pause, resume, grow, stop, and
// what a stop leaves in the log (A.4).
//
// MIR-120: pause, one record more on the source, resume: nothing comes in between, nobody
// writes, nothing is cut.
func TestMirrorLife(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(2, "orders", "other"), kfake.SeedTopics(1, "__internal"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)

	if got := w.start("m", "or.*"); !slices.Equal(got, []string{"orders"}) {
		t.Fatalf("started %v", got)
	}
	w.caughtUp("orders", 0, 3)
	w.state("orders", 1, metadata.StateMirroring)
	topic := w.ctrl.Image().Topic("orders")
	if id := src.TopicInfo("orders").TopicID; topic.ID != id {
		t.Errorf("topic id %v, source has %v", topic.ID, id)
	}
	if !w.parts.Get("orders", 0).Info().ReadOnly {
		t.Error("a mirrored partition must be read-only")
	}

	produce(t, src, "orders", 0, "d")
	w.caughtUp("orders", 0, 4)

	w.names(w.c.Pause(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StatePaused)
	w.state("orders", 1, metadata.StatePaused)
	produce(t, src, "orders", 0, "e")
	w.refreshes(2)
	if info := w.parts.Get("orders", 0).Info(); info.LogEnd != 4 || info.HighWatermark != 4 || !info.ReadOnly {
		t.Errorf("while paused: %+v", info)
	}
	w.names(w.c.Resume(w.ctx, "m", nil, []string{".*"}))
	w.caughtUp("orders", 0, 5)
	w.equals(src, "orders", 0)
	if got := w.cut(); got != 0 {
		t.Errorf("%d records were cut", got)
	}

	mirrored := w.bytesOf("orders", 0)
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StateStopped)
	w.state("orders", 1, metadata.StateStopped)
	image := w.ctrl.Image()
	p := image.Topic("orders").Partitions[0]
	if p.Mirror.LMO != 5 || !p.Mirror.HasLME {
		t.Errorf("last mirrored: %+v", p.Mirror)
	}
	all := w.bytesOf("orders", 0)
	if string(all[:len(mirrored)]) != string(mirrored) {
		t.Error("a stop changed mirrored bytes")
	}
	reset, rest, err := record.Next(all[len(mirrored):])
	if err != nil || len(rest) != 0 || !reset.IsControl() {
		t.Fatalf("after the mirrored batches: %v, %d bytes more", err, len(rest))
	}
	if kind, _, _ := reset.Control(); kind != record.MirrorPIDReset || reset.BaseOffset() != 5 {
		t.Errorf("control type %d at %d", kind, reset.BaseOffset())
	}
	if reset.PartitionLeaderEpoch() <= p.Mirror.LME || reset.PartitionLeaderEpoch() != p.LeaderEpoch {
		t.Errorf("reset has epoch %d; last mirrored %d, leader epoch %d", reset.PartitionLeaderEpoch(), p.Mirror.LME, p.LeaderEpoch)
	}
	if w.parts.Get("orders", 0).Info().ReadOnly {
		t.Error("a stopped partition must be writable")
	}
	// MIR-136: a stop that is repeated adds nothing.
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.refreshes(1)
	if again := w.ctrl.Image().Topic("orders").Partitions[0].Mirror; string(w.bytesOf("orders", 0)) != string(all) || again.LMO != 5 || again.StateEpoch != p.Mirror.StateEpoch {
		t.Errorf("after the second stop: %+v, before %+v", again, p.Mirror)
	}
	// Discovery never restarts what was stopped.
	produce(t, src, "orders", 0, "f")
	epoch, offset, err := w.c.LastMirroredEpoch("m", nil, EpochQuery{Topic: "orders"})
	if err != nil || epoch != p.Mirror.LME || offset != 5 {
		t.Errorf("last mirrored epoch: %d, %d, %v", epoch, offset, err)
	}

	if err := w.c.Delete(w.ctx, "m"); err != nil {
		t.Fatal(err)
	}
	if got := w.ctrl.Image().Topic("orders").MirrorName; got != "" {
		t.Errorf("after delete the topic is still in %q", got)
	}
}

// Start over a log that was failed over and written to: the source (an ordinary
// Kafka) knows no last mirrored epoch, so everything is copied anew (S000-20).
func TestFailbackToOldKafka(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 2)
	w.names(w.c.Stop(w.ctx, "m", nil, []string{"orders"}))
	w.state("orders", 0, metadata.StateStopped)
	produce(t, src, "orders", 0, "c")
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
}

// Topic growth (MIR-040), discovery, config changes (MIR-046) and group offsets
// (MIR-100) follow the source; an active group is left alone (MIR-101).
func TestRefresh(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 3)

	if err := src.CreateTopic("late", 2, map[string]string{"cleanup.policy": "compact", "min.insync.replicas": "2"}); err != nil {
		t.Fatal(err)
	}
	produce(t, src, "late", 1, "x")
	w.caughtUp("late", 1, 1)
	late := w.ctrl.Image().Topic("late")
	if late.Configs["cleanup.policy"] != "compact" || late.Configs["min.insync.replicas"] != "" {
		t.Errorf("configs at creation: %v", late.Configs)
	}

	admin := adminOf(t, src)
	if err := alter(admin, "late", "retention.ms", "12345"); err != nil {
		t.Fatal(err)
	}
	w.until("config copied", func() bool { return w.ctrl.Image().Topic("late").Configs["retention.ms"] == "12345" })
	if err := alter(admin, "late", "retention.ms", ""); err != nil {
		t.Fatal(err)
	}
	w.until("config deleted", func() bool { _, ok := w.ctrl.Image().Topic("late").Configs["retention.ms"]; return !ok })

	if _, err := admin.UpdatePartitions(w.ctx, 3, "orders"); err != nil {
		t.Fatal(err)
	}
	produce(t, src, "orders", 2, "grown")
	w.caughtUp("orders", 2, 1)

	commit(t, admin, "readers", "orders", 0, 2)
	committed := func(group string) int64 {
		w.groups.Lock()
		defer w.groups.Unlock()
		n, ok := w.groups.committed[group][nameKey{"orders", 0}]
		if !ok {
			return -1
		}
		return n
	}
	w.until("group copied", func() bool { return committed("readers") == 2 })
	for _, s := range w.c.Describe(w.ctx, []string{"m"})[0].Syncs {
		if s.AgeMillis < 0 || s.Error != nil {
			t.Errorf("sync of %s: %+v", s.Task, s)
		}
	}
	w.groups.Lock()
	w.groups.active["readers"] = true
	w.groups.Unlock()
	commit(t, admin, "readers", "orders", 0, 3)
	commit(t, admin, "marker", "orders", 0, 1)
	w.until("the next group copied", func() bool { return committed("marker") == 1 })
	if got := committed("readers"); got != 2 {
		t.Errorf("an active group was overwritten: %d", got)
	}
}

// A source that goes away: FAILED and retried, the stop works all the same, and
// a source that comes back is mirrored on.
func TestSourceAway(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)
	src.Close()
	d := w.failed("orders", 0, "source unreachable: ")
	if d.RetryAttempt < 1 {
		t.Errorf("attempt %d", d.RetryAttempt)
	}
	// What would be lost is told of a source that is gone too: that is when it is
	// asked for. The offsets beside it are those of a mirror that runs (P9).
	if p := d.Progress; p == nil || p.SourceSeen != 1 || p.LogEnd != 1 || p.HeardMillis < 0 || d.SourceOffset != -1 || d.Lag != -1 {
		t.Errorf("known of the source: %+v, offsets %d, lag %d", d.Progress, d.SourceOffset, d.Lag)
	}
	// MIR-414: what failed, and how often, is known after a restart.
	w.m.Close()
	w.register()
	w.startManager(nil)
	if again := w.failed("orders", 0, "source unreachable: "); again.RetryAttempt < d.RetryAttempt {
		t.Errorf("attempt %d after a restart, it was %d", again.RetryAttempt, d.RetryAttempt)
	}
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StateStopped)
	if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 2 {
		t.Errorf("log end %d after the stop", end)
	}
}

// A new Manager goes on where the old one was, from the log end, without
// copying or asking for anything twice.
func TestManagerRestart(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 2)
	before := w.bytesOf("orders", 0)
	for range 3 {
		w.m.Close()
		w.register() // a new incarnation: leader epochs rise
		w.startManager(nil)
		w.state("orders", 0, metadata.StateMirroring)
	}
	produce(t, src, "orders", 0, "c")
	w.caughtUp("orders", 0, 3)
	if after := w.bytesOf("orders", 0); string(after[:len(before)]) != string(before) {
		t.Error("a restart changed mirrored bytes")
	}
}

// Other settings of the connection close it and open another; what runs goes on
// (C5). Filters do not touch it.
func TestReconfigure(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(3, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)
	set := func(name, value string) {
		t.Helper()
		for _, err := range w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceMirror, Name: "m",
			Ops: []controller.ConfigOp{{Name: name, Value: &value}}}}, false) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	before := w.m.peer("m").mu.cluster
	set("groups.exclude", "x")
	set("fetch.max.bytes", "65536")
	w.until("another connection", func() bool { c, err := w.m.peer("m").source(); return err == nil && c != before })
	for p := range int32(3) {
		produce(t, src, "orders", p, "b")
	}
	w.caughtUp("orders", 0, 2)
	w.caughtUp("orders", 1, 1)
	w.caughtUp("orders", 2, 1)
}

// Leader elections on the source are followed; so many of them raise our epoch.
//
// MIR-080: every record has the epoch here that it has on the source.
func TestSourceElections(t *testing.T) {
	src := newSource(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "orders"))
	// Kafka's leader notes its epoch when it is elected; kfake only with the first
	// batch, and until then it denies to know the one before. Nothing is ever
	// lost in this test, so every epoch reaches beyond our end.
	src.ControlKey(23, func(req kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		r := req.(*kmsg.OffsetForLeaderEpochRequest)
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, rt := range r.Topics {
			st := kmsg.NewOffsetForLeaderEpochResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				sp.Partition, sp.LeaderEpoch, sp.EndOffset = rp.Partition, rp.LeaderEpoch, 1<<40
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)
	for i := range 16 {
		leader := src.LeaderFor("orders", 0)
		if err := src.MoveTopicPartition("orders", 0, 1-leader); err != nil {
			t.Fatal(err)
		}
		produce(t, src, "orders", 0, "x")
		w.caughtUp("orders", 0, int64(i+2))
	}
	w.equals(src, "orders", 0) // epochs are in the batches
	epochs := 0
	for rest := w.bytesOf("orders", 0); len(rest) > 0; {
		b, next, err := record.Next(rest)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := w.parts.Get("orders", 0).Log().EpochAt(b.BaseOffset()); !ok || e != b.PartitionLeaderEpoch() {
			t.Errorf("epoch %d at %d, the batch says %d", e, b.BaseOffset(), b.PartitionLeaderEpoch())
		}
		epochs, rest = max(epochs, int(b.PartitionLeaderEpoch())), next
	}
	if epochs < 16 {
		t.Errorf("the newest epoch is %d: the elections left no trace", epochs)
	}
	p := w.ctrl.Image().Topic("orders").Partitions[0]
	if newest, _ := w.parts.Get("orders", 0).Log().LatestEpoch(); p.LeaderEpoch < newest {
		t.Errorf("our leader epoch %d is below the log's %d (W43)", p.LeaderEpoch, newest)
	}
}

// What we know of the source's leader is old after a pause: the source is asked
// again, and nothing fails on the way.
func TestResumeAfterElection(t *testing.T) {
	src := newSource(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "orders"))
	w := newWorld(t, func(o *Options) {
		o.RefreshInterval, o.RetryInitial, o.RetryMax = time.Hour, time.Hour, time.Hour // a failure would stay one
	})
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)
	w.names(w.c.Pause(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StatePaused)
	if err := src.MoveTopicPartition("orders", 0, 1-src.LeaderFor("orders", 0)); err != nil {
		t.Fatal(err)
	}
	produce(t, src, "orders", 0, "b")
	w.names(w.c.Resume(w.ctx, "m", nil, []string{".*"}))
	w.caughtUp("orders", 0, 2)
}

// Retention on the source runs ahead of a paused mirror: the log begins again at
// the source's start, which is told (MIR-124).
//
// MIR-250: it is told once, and what is left is the source's, byte for byte.
func TestRetentionAhead(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 2)
	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	produce(t, src, "orders", 0, "c", "d", "e", "f")
	if err := src.DeleteRecords("orders", 0, 5); err != nil {
		t.Fatal(err)
	}
	gaps := w.m.metrics.gaps.Get()
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	w.caughtUp("orders", 0, 6)
	if got := w.m.metrics.gaps.Get() - gaps; got != 1 {
		t.Errorf("%d gaps were told", got)
	}
	if start := w.parts.Get("orders", 0).Info().LogStart; start != 5 {
		t.Errorf("log start %d, want 5", start)
	}
	w.equals(src, "orders", 0)
}

// A deleted source topic (MIR-049), and one that is created anew.
func TestSourceTopicGone(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "again"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)
	w.state("again", 0, metadata.StateMirroring)
	if err := src.DeleteTopic("orders"); err != nil {
		t.Fatal(err)
	}
	if d := w.failed("orders", 0, "deleted"); d.RetryAttempt != nonRetryable {
		t.Errorf("attempt %d, want non-retryable", d.RetryAttempt)
	}
	if err := errors.Join(src.DeleteTopic("again"), src.CreateTopic("again", 1, nil)); err != nil {
		t.Fatal(err)
	}
	if d := w.failed("again", 0, "created anew"); d.RetryAttempt != nonRetryable {
		t.Errorf("attempt %d, want non-retryable", d.RetryAttempt)
	}
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StateStopped)
	w.state("again", 0, metadata.StateStopped)
}

// What create refuses, and that nothing is stored then (MIR-004, MIR-008, MIR-009).
func TestCreateRefusals(t *testing.T) {
	src := newSource(t)
	w := newWorld(t, nil)
	addr := strings.Join(src.ListenAddrs(), ",")
	own := newSource(t, kfake.ClusterID(w.ctrl.Image().ClusterID))
	guarded := strings.Join(newSource(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "right")).ListenAddrs(), ",")
	for _, test := range []struct {
		name    string
		mirror  string
		configs map[string]string
		want    error
		text    string
	}{
		{"bad name", "a.paused", map[string]string{"bootstrap.servers": addr}, controller.ErrInvalidMirrorName, ""},
		{"no address", "m", nil, controller.ErrInvalidRequest, "bootstrap.servers"},
		{"unknown key", "m", map[string]string{"bootstrap.servers": addr, "fetch.mux": "1"}, controller.ErrInvalidConfig, "fetch.mux"},
		{"bad value", "m", map[string]string{"bootstrap.servers": addr, "fetch.max.bytes": "x"}, controller.ErrInvalidConfig, "fetch.max.bytes"},
		{"id given", "m", map[string]string{"bootstrap.servers": addr, "mirror.source.cluster.id": "x"}, controller.ErrInvalidConfig, "mirror.source.cluster.id"},
		{"nobody there", "m", map[string]string{"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": "2000"}, ErrSourceUnreachable, "127.0.0.1:1"},
		{"wrong password", "m", map[string]string{"bootstrap.servers": guarded, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
			"sasl.jaas.config": `org.apache.kafka.common.security.plain.PlainLoginModule required username="user" password="hunter2";`}, controller.ErrInvalidConfig, guarded},
		{"no TLS there", "m", map[string]string{"bootstrap.servers": addr, "security.protocol": "SSL", "request.timeout.ms": "500"}, controller.ErrInvalidConfig, addr},
		{"ourselves", "m", map[string]string{"bootstrap.servers": strings.Join(own.ListenAddrs(), ",")}, controller.ErrInvalidRequest, "itself"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := w.c.Create(w.ctx, test.mirror, test.configs)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("create: %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the password is shown: %v", err)
			}
			if len(w.ctrl.Image().Mirrors()) != 0 {
				t.Error("a mirror was stored")
			}
		})
	}
	w.create("m", src)
	if err := w.c.Create(w.ctx, "m", map[string]string{"bootstrap.servers": addr}); !errors.Is(err, controller.ErrMirrorExists) {
		t.Errorf("second create: %v", err)
	}
	if _, err := w.c.Start(w.ctx, StartRequest{Mirror: "n", Include: []string{".*"}}); !errors.Is(err, controller.ErrUnknownMirror) {
		t.Errorf("start in no mirror: %v", err)
	}
	if _, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Topics: []string{"__consumer_offsets"}}); !errors.Is(err, controller.ErrInvalidRequest) {
		t.Errorf("start of an excluded topic: %v", err)
	}
	if _, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{"("}}); !errors.Is(err, controller.ErrInvalidConfig) {
		t.Errorf("start with a bad pattern: %v", err)
	}
	if err := w.c.Delete(w.ctx, "n"); !errors.Is(err, controller.ErrUnknownMirror) {
		t.Errorf("delete of no mirror: %v", err)
	}
}
