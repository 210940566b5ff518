package mirror

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func (w *world) committed(group, topic string, p int32) int64 {
	w.groups.Lock()
	defer w.groups.Unlock()
	if n, ok := w.groups.committed[group][nameKey{topic, p}]; ok {
		return n
	}
	return -1
}

// A planned failover: what consumers have committed on the source since the last
// round, which may be a minute old, is here before the topic is STOPPED. A
// topic that is not stopped is left to the next round.
func TestStopDrainsGroups(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "other"))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = time.Hour })
	for _, topic := range []string{"orders", "other"} {
		produce(t, src, topic, 0, "a", "b", "c")
	}
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 3)
	w.caughtUp("other", 0, 3)
	admin := adminOf(t, src)
	commit(t, admin, "readers", "orders", 0, 2)
	commit(t, admin, "readers", "other", 0, 2)
	commit(t, admin, "busy", "orders", 0, 3)
	w.groups.Lock()
	w.groups.active["busy"] = true
	w.groups.Unlock()

	w.names(w.c.Stop(w.ctx, "m", nil, []string{"orders"}))
	if got := w.committed("readers", "orders", 0); got != 2 {
		t.Errorf("orders was stopped with the group at %d, on the source it is at 2", got)
	}
	if got := w.committed("readers", "other", 0); got != -1 {
		t.Errorf("other is not stopped, and its group was brought to %d", got)
	}
	if got := w.committed("busy", "orders", 0); got != -1 {
		t.Errorf("an active group was overwritten with %d", got)
	}
	w.state("orders", 0, metadata.StateStopped)

	// GI-71: what was asked of the source before the stop is not written after it.
	late := []GroupOffset{{Topic: "orders", Offset: 3}, {Topic: "other", Offset: 3}, {Topic: "unknown", Offset: 3}}
	if left := w.m.peer("m").stillMirrored(late); len(left) != 1 || left[0].Topic != "other" {
		t.Errorf("still written after the stop: %+v", left)
	}
	w.names(w.c.Pause(w.ctx, "m", nil, []string{"other"}))
	if left := w.m.peer("m").stillMirrored([]GroupOffset{{Topic: "other"}}); len(left) != 0 {
		t.Errorf("still written after the pause: %+v", left)
	}
}

// A dead source costs a failover nothing: it is not asked (W59).
func TestStopDoesNotAskTheDead(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	src.Close()
	w.failed("orders", 0, "source unreachable: ")
	p := w.m.peer("m")
	w.until("the refresh notices", func() bool { return !p.answers(w.ctrl.Image().MirrorTopics("m")) })
	begin := time.Now()
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	if took := time.Since(begin); took > drainPatience/2 {
		t.Errorf("the stop was recorded after %v", took)
	}
	w.state("orders", 0, metadata.StateStopped)
}
