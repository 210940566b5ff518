package mirror

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func mirrorConfig(mirror, key, value string) []controller.AlterConfigs {
	return []controller.AlterConfigs{{Type: controller.ResourceMirror, Name: mirror, Ops: []controller.ConfigOp{{Name: key, Value: &value}}}}
}

// MIR-043: four configs of the source are here, and an override that only we have stays.
// MIR-044: those that mean something else here are never copied. MIR-045: nor what the
// operator leaves out. MIR-048: a copied key that is changed here is changed back.
// MIR-054: a paused topic is left alone.
func TestConfigSync(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.alterMirror(metadata.MirrorTopicPropsExclude, "min.insync.replicas,unclean.leader.election.enable,.*replication.throttled.replicas,message.timestamp.*,retention.bytes")
	w.start("m", "orders")
	w.state("orders", 0, metadata.StateMirroring)
	local := "7"
	must(t, w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "orders",
		Ops: []controller.ConfigOp{{Name: "segment.jitter.ms", Value: &local}}}}, false)[0])
	admin := adminOf(t, src)
	for k, v := range map[string]string{
		"retention.ms": "3600000", "segment.bytes": "1048576", "compression.type": "zstd", "max.message.bytes": "2000000",
		"min.insync.replicas": "2", "unclean.leader.election.enable": "true", "message.timestamp.type": "LogAppendTime", "retention.bytes": "5000000",
	} {
		must(t, alter(admin, "orders", k, v))
	}
	want := map[string]string{"retention.ms": "3600000", "segment.bytes": "1048576", "compression.type": "zstd", "max.message.bytes": "2000000", "segment.jitter.ms": "7"}
	have := func() map[string]string {
		got := maps.Clone(w.ctrl.Image().Topic("orders").Configs)
		delete(got, "mirror.name")
		return got
	}
	w.until("configs are copied", func() bool { return maps.Equal(have(), want) })
	w.refreshes(2)
	if got := have(); !maps.Equal(got, want) {
		t.Errorf("configs %v, want %v", got, want)
	}
	other := "1000"
	must(t, w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "orders",
		Ops: []controller.ConfigOp{{Name: "retention.ms", Value: &other}}}}, false)[0])
	w.until("changed back", func() bool { return maps.Equal(have(), want) })

	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	must(t, alter(admin, "orders", "retention.ms", "5"))
	w.refreshes(3)
	if got := have(); !maps.Equal(got, want) {
		t.Errorf("configs of a paused topic %v", got)
	}
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	want["retention.ms"] = "5"
	w.until("copied after the resume", func() bool { return maps.Equal(have(), want) })
}

// MIR-102: a group that is ahead of what is here gets our log end, and more as it comes.
// MIR-103: one that is behind our log start gets that. MIR-104: one that goes back there
// goes back here. MIR-105: filters. MIR-108: nothing is written for a paused topic, and
// everything after the resume. MIR-109: nor for a topic that is not mirrored. MIR-112: one group that cannot be
// written holds up no other. MIR-106: and nothing after the stop.
func TestGroupSync(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "local"))
	w := newWorld(t, nil)
	var refuse atomic.Bool
	commitGroup := w.commitGroup
	w.m.Close()
	w.startManager(func(o *Options) {
		o.CommitGroup = func(ctx context.Context, group string, offsets []GroupOffset) ([]error, error) {
			if group == "bad" && refuse.Load() {
				return nil, errors.New("refused")
			}
			return commitGroup(ctx, group, offsets)
		}
	})
	for range 10 {
		produce(t, src, "orders", 0, "x")
	}
	produce(t, src, "local", 0, "x", "x")
	must(t, src.DeleteRecords("orders", 0, 3))
	w.create("m", src)
	w.alterMirror(metadata.MirrorGroupsInclude, "g-.*,bad")
	w.alterMirror(metadata.MirrorGroupsExclude, "g-not")
	admin := adminOf(t, src)
	commit(t, admin, "g-ahead", "orders", 0, 14)
	commit(t, admin, "g-behind", "orders", 0, 1)
	commit(t, admin, "g-idle", "orders", 0, 8)
	commit(t, admin, "g-idle", "local", 0, 2)
	commit(t, admin, "g-not", "orders", 0, 5)
	commit(t, admin, "another", "orders", 0, 5)
	commit(t, admin, "bad", "orders", 0, 5)
	refuse.Store(true)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 10)
	wants := func(when string, want map[string]int64) {
		t.Helper()
		w.until(when, func() bool {
			for g, at := range want {
				if w.committed(g, "orders", 0) != at {
					return false
				}
			}
			return true
		})
	}
	wants("clamped", map[string]int64{"g-ahead": 10, "g-behind": 3, "g-idle": 8})
	for range 3 {
		produce(t, src, "orders", 0, "x")
	}
	wants("more as it comes", map[string]int64{"g-ahead": 13})
	produce(t, src, "orders", 0, "x", "x")
	wants("all of it", map[string]int64{"g-ahead": 14})
	commit(t, admin, "g-idle", "orders", 0, 4)
	wants("back", map[string]int64{"g-idle": 4})
	refuse.Store(false)
	wants("the bad one", map[string]int64{"bad": 5})
	w.refreshes(2)
	for _, g := range []string{"g-not", "another"} {
		if at := w.committed(g, "orders", 0); at != -1 {
			t.Errorf("group %s is at %d", g, at)
		}
	}
	if at := w.committed("g-idle", "local", 0); at != -1 {
		t.Errorf("in a topic that is not mirrored the group is at %d", at)
	}

	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	commit(t, admin, "g-idle", "orders", 0, 9)
	w.refreshes(3)
	if at := w.committed("g-idle", "orders", 0); at != 4 {
		t.Errorf("while paused the group went to %d", at)
	}
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	wants("after the resume", map[string]int64{"g-idle": 9})

	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	commit(t, admin, "g-idle", "orders", 0, 11)
	w.refreshes(3)
	if at := w.committed("g-idle", "orders", 0); at != 9 {
		t.Errorf("after the stop the group went to %d", at)
	}
}
