package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// MIR-122: a pause of what is paused is done and changes nothing, and so is a resume of what
// runs; what is stopped is not resumed. MIR-149: a stopped partition tells no lag, and where
// it stopped, which neither a write here nor one there moves.
func TestTwiceAndAfter(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"), kfake.ClusterID("the-source"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 2)
	state := func() string {
		p := w.ctrl.Image().Topic("orders").Partitions[0]
		return fmt.Sprintf("%+v of %+v", *p.Mirror, w.ctrl.Image().Topic("orders").Attachment())
	}
	runs := state()
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	w.refreshes(1)
	if now := state(); now != runs {
		t.Errorf("after the resume of what runs: %s, before %s", now, runs)
	}
	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	paused := state()
	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.refreshes(1)
	if now := state(); now != paused {
		t.Errorf("after the second pause: %s, before %s", now, paused)
	}
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateMirroring)
	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	if out, err := w.c.Resume(w.ctx, "m", []string{"orders"}, nil); err != nil || len(out) != 1 || !errors.Is(out[0].Err, controller.ErrNotPaused) {
		t.Errorf("resume of what is stopped: %v, %v", out, err)
	}

	source := "the-source"
	for _, when := range []string{"after the stop", "after a write here and one there"} {
		d := w.partition("orders", 0)
		if d.State != metadata.StateStopped || d.Lag != -1 || d.SourceOffset != -1 || d.Progress != nil {
			t.Errorf("%s: %+v", when, d)
		}
		epoch, offset, err := w.c.LastMirroredEpoch("m", &source, EpochQuery{Topic: "orders"})
		if epoch != 0 || offset != 2 || err != nil {
			t.Errorf("%s: it stopped in epoch %d at %d, %v", when, epoch, offset, err)
		}
		w.write("orders", "mine")
		produce(t, src, "orders", 0, "theirs")
		w.refreshes(1)
	}
}

// MIR-024: the source's topic is here under another name. It is refused, another one of the
// same request starts, and the one that is here is left alone.
func TestTopicOfThatIDWithAnotherName(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "other"))
	w := newWorld(t, nil)
	w.create("m", src)
	must(t, w.ctrl.CreateTopics(w.ctx, []controller.CreateTopic{
		{Name: "renamed", Partitions: 1, ID: metadata.TopicID(src.TopicInfo("orders").TopicID)},
	}, false)[0].Err)
	w.write("renamed", "mine")
	out, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{".*"}})
	if err != nil || len(out) != 2 {
		t.Fatal(out, err)
	}
	for _, o := range out {
		if (o.Err != nil) != (o.Name == "orders") {
			t.Errorf("%s: %v", o.Name, o.Err)
		}
	}
	produce(t, src, "orders", 0, "a")
	produce(t, src, "other", 0, "a")
	w.caughtUp("other", 0, 1)
	w.refreshes(2)
	w.write("renamed", "more")
	if topic := w.ctrl.Image().Topic("renamed"); topic.MirrorName != "" || w.ctrl.Image().Topic("orders") != nil {
		t.Errorf("it is in mirror %q, and orders is %+v", topic.MirrorName, w.ctrl.Image().Topic("orders"))
	}
	if end, _ := w.parts.Get("renamed", 0).LogEnd(); end != 2 {
		t.Errorf("it ends at %d", end)
	}
}

// MIR-111: what a consumer noted beside its offset comes along, and the epoch, which is that
// of our log there.
//
// MIR-116: a group that is deleted at the source stays here, as it was last. Once it is
// deleted here too it does not come back; a new one of its name there does.
func TestNotesAndDeletedGroups(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	var mu sync.Mutex
	last := make(map[string]GroupOffset)
	commitGroup := w.commitGroup
	w.m.Close()
	w.startManager(func(o *Options) {
		o.CommitGroup = func(ctx context.Context, group string, offsets []GroupOffset) ([]error, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, o := range offsets {
				last[group] = o
			}
			return commitGroup(ctx, group, offsets)
		}
	})
	get := func() (GroupOffset, bool) {
		mu.Lock()
		defer mu.Unlock()
		o, ok := last["g"]
		return o, ok
	}
	for range 5 {
		produce(t, src, "orders", 0, "x")
	}
	admin := adminOf(t, src)
	note := func(at int64, text string) {
		t.Helper()
		offsets := make(kadm.Offsets)
		offsets.Add(kadm.Offset{Topic: "orders", At: at, LeaderEpoch: 0, Metadata: text})
		_, err := admin.CommitOffsets(w.ctx, "g", offsets)
		must(t, err)
	}
	note(3, "from the shelf")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 5)
	w.until("the note is here", func() bool {
		o, ok := get()
		return ok && o.Offset == 3 && o.Metadata != nil && *o.Metadata == "from the shelf"
	})
	o, _ := get()
	part := w.parts.Get("orders", 0)
	if epoch, ok := part.ReadLog().EpochAt(2); !ok || o.LeaderEpoch != epoch || o.LeaderEpoch > part.Info().LeaderEpoch {
		t.Errorf("committed in epoch %d, the log's is %d, ours %d", o.LeaderEpoch, epoch, part.Info().LeaderEpoch)
	}

	_, err := admin.DeleteGroups(w.ctx, "g")
	must(t, err)
	w.refreshes(3)
	if at := w.committed("g", "orders", 0); at != 3 {
		t.Errorf("deleted there, the group is at %d here", at)
	}
	w.groups.Lock()
	delete(w.groups.committed, "g") // an operator deletes it here
	w.groups.Unlock()
	w.refreshes(3)
	if at := w.committed("g", "orders", 0); at != -1 {
		t.Errorf("deleted here, the group is at %d", at)
	}
	note(1, "")
	w.until("a new one of that name", func() bool { return w.committed("g", "orders", 0) == 1 })
}

// MIR-412: each kind of synchronisation counts its errors, and none those of another kind.
func TestErrorsAreCountedByKind(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	commit(t, adminOf(t, src), "g", "orders", 0, 1)
	w.until("the group is here", func() bool { return w.committed("g", "orders", 0) == 1 })
	errors := func() (out [3]uint64) {
		for i, task := range []syncTask{syncConfigs, syncGroups, syncTopics} {
			out[i] = w.m.peer("m").health[task].errors.Get()
		}
		return out
	}
	before := errors()
	w.refreshes(3)
	if now := errors(); now != before {
		t.Fatalf("without an error: %v, before %v", now, before)
	}
	// One kind after the other is refused by the source.
	refuse := func(key int16, answer func(kmsg.Request) kmsg.Response) {
		src.ControlKey(key, func(r kmsg.Request) (kmsg.Response, error, bool) {
			src.KeepControl()
			if answer == nil {
				return nil, nil, false
			}
			return answer(r), nil, true
		})
	}
	refuse(int16(kmsg.DescribeConfigs), func(r kmsg.Request) kmsg.Response {
		req := r.(*kmsg.DescribeConfigsRequest)
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, resource := range req.Resources {
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ResourceType, rr.ResourceName, rr.ErrorCode = resource.ResourceType, resource.ResourceName, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, rr)
		}
		return resp
	})
	w.until("an error of the configs", func() bool { return errors()[0] > before[0] })
	if now := errors(); now[1] != before[1] || now[2] != before[2] {
		t.Errorf("configs were refused: %v, before %v", now, before)
	}
	refuse(int16(kmsg.ListGroups), func(r kmsg.Request) kmsg.Response {
		resp := r.(*kmsg.ListGroupsRequest).ResponseKind().(*kmsg.ListGroupsResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	})
	w.until("an error of the groups", func() bool { return errors()[1] > before[1] })
	if now := errors(); now[2] != before[2] {
		t.Errorf("configs and groups were refused: %v, before %v", now, before)
	}
	if d := w.partition("orders", 0); d.State != metadata.StateMirroring {
		t.Errorf("the topic: %+v", d)
	}
}

// MIR-259: records that were ten hours old when they were mirrored are kept for the fourteen
// that are left of a day, not for another day. What comes afterwards is mirrored on.
func TestRetentionByTheirOwnTimes(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	must(t, alter(adminOf(t, src), "orders", "retention.ms", "86400000"))
	now := time.Now()
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	defer cl.Close()
	for range 3 {
		must(t, cl.ProduceSync(w.ctx, &kgo.Record{Timestamp: now.Add(-10 * time.Hour), Value: []byte("old")}).FirstErr())
	}
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
	w.until("the config is here", func() bool { return w.ctrl.Image().Topic("orders").Configs["retention.ms"] == "86400000" })
	log := w.parts.Get("orders", 0).Log()
	for _, c := range []struct {
		after time.Duration
		start int64
	}{{14*time.Hour - time.Minute, 0}, {14*time.Hour + time.Minute, 3}} {
		w.until(fmt.Sprint("what is left after ", c.after), func() bool {
			_, err := log.Retain(now.Add(c.after), 3)
			must(t, err)
			return log.StartOffset() == c.start
		})
		if end := log.EndOffset(); end != 3 {
			t.Errorf("after %v it ends at %d", c.after, end)
		}
	}
	must(t, cl.ProduceSync(w.ctx, kgo.StringRecord("new")).FirstErr())
	w.caughtUp("orders", 0, 4)
	w.equals(src, "orders", 0)
}

// MIR-425: more and fewer connections to each broker of the source, while records come.
// Those that begin to be fetched afterwards are spread over as many, and no log has a gap
// or a record twice.
func TestFetchersWhileRunning(t *testing.T) {
	const partitions = 6
	src := newSource(t, kfake.SeedTopics(partitions, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	end := int64(0)
	flows := func() {
		t.Helper()
		end++
		for p := range int32(partitions) {
			produce(t, src, "orders", p, strings.Repeat("x", int(end)))
		}
		for p := range int32(partitions) {
			w.caughtUp("orders", p, end)
		}
	}
	flows()
	peer := w.m.peer("m")
	for _, n := range []int{4, 2, 5, 1} {
		settings := *w.m.settings.Load()
		settings.FetchersPerBroker = n
		w.m.Set(settings)
		flows() // by those of before
		w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
		for p := range int32(partitions) {
			produce(t, src, "orders", p, "while it is paused")
			w.state("orders", p, metadata.StatePaused)
		}
		end++
		w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
		flows()
		used := make(map[int]bool)
		peer.mu.Lock()
		for key := range peer.mu.workers {
			used[key.index] = true
		}
		peer.mu.Unlock()
		wants := make(map[int]bool)
		for p := range int32(partitions) {
			wants[fetcherIndex("orders", p, n)] = true
		}
		if fmt.Sprint(used) != fmt.Sprint(wants) {
			t.Errorf("%d connections to a broker: %v are used, want %v", n, used, wants)
		}
	}
	for p := range int32(partitions) {
		w.equals(src, "orders", p)
	}
}
