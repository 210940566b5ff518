package group

import (
	"testing"
	"time"
)

// settingsHarness is a consumer group whose settings the test may change.
func settingsHarness() (h *consumerHarness, s *ConsumerSettings) {
	h = newConsumerHarness()
	s = &ConsumerSettings{SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second}
	h.o.ConsumerSettings = func(string) ConsumerSettings { return *s }
	h.setTopic("a", 0, 4)
	return h, s
}

// heartbeat sends one of a member that is subscribed to topic a.
func (h *consumerHarness) heartbeat(t *testing.T, id string, epoch int32) ConsumerHeartbeatResult {
	t.Helper()
	to := h.ticket()
	r := &ConsumerHeartbeatRequest{Group: "g", MemberID: id, Epoch: epoch, RebalanceTimeout: -1}
	if epoch == EpochJoin {
		r.RebalanceTimeout, r.Names, r.Owned = time.Minute, []string{"a"}, []TopicIDPartitions{}
	}
	if err := h.step(consumerHeartbeatInput{to: to, req: r}); err != nil {
		t.Fatal(err)
	}
	if err := h.ackAll(); err != nil {
		t.Fatal(err)
	}
	res := h.answers[to].(ConsumerHeartbeatResult)
	if res.Err != nil {
		t.Fatalf("heartbeat of %s at %d: %v", id, epoch, res.Err)
	}
	return res
}

// A group's settings hold from the next heartbeat on.
func TestConsumerSettingsChange(t *testing.T) {
	h, s := settingsHarness()
	a := h.heartbeat(t, "a", EpochJoin)
	if a.HeartbeatInterval != 5*time.Second {
		t.Errorf("told to come every %s", a.HeartbeatInterval)
	}
	*s = ConsumerSettings{SessionTimeout: 50 * time.Second, HeartbeatInterval: 7 * time.Second}
	if a = h.heartbeat(t, "a", a.Epoch); a.HeartbeatInterval != 7*time.Second {
		t.Errorf("told to come every %s after the change", a.HeartbeatInterval)
	}
	h.now = h.now.Add(49 * time.Second)
	if err := h.step(tick{}); err != nil || len(h.m.consumer.members) != 1 {
		t.Fatalf("out before its session ended: %v, %s", err, h.describe())
	}
	h.now = h.now.Add(time.Second)
	if err := h.step(tick{}); err != nil || len(h.m.consumer.members) != 0 {
		t.Fatalf("in after its session ended: %v, %s", err, h.describe())
	}
}

// Within the interval the target stays; a newcomer is in, with nothing, and the
// first heartbeat afterwards shares out for all that came meanwhile.
func TestConsumerAssignmentInterval(t *testing.T) {
	h, s := settingsHarness()
	s.AssignmentInterval = time.Second
	a := h.heartbeat(t, "a", EpochJoin)
	if a.Epoch != 1 || len(a.Assignment) != 1 || len(a.Assignment[0].Partitions) != 4 {
		t.Fatalf("the first member waits: %+v", a)
	}
	h.now = h.now.Add(999 * time.Millisecond)
	for _, id := range []string{"b", "c"} {
		if r := h.heartbeat(t, id, EpochJoin); r.Epoch != 1 || len(r.Assignment) != 0 {
			t.Errorf("%s is at %d with %v before the interval is over", id, r.Epoch, r.Assignment)
		}
	}
	if got := h.m.consumer.shown(); got != Assigning {
		t.Errorf("state %s", got)
	}
	h.now = h.now.Add(time.Millisecond)
	h.heartbeat(t, "b", 1)
	if c := h.m.consumer; c.epoch != 3 || c.assignmentEpoch != 3 || len(c.target) != 3 {
		t.Errorf("after the interval: epoch %d, target of %d for %d members", c.epoch, c.assignmentEpoch, len(c.target))
	}

	// A clock that is set back, and a restart, hold up nothing.
	h.now = h.now.Add(-time.Hour)
	if r := h.heartbeat(t, "d", EpochJoin); r.Epoch != 4 {
		t.Errorf("with the clock set back the newcomer is at %d", r.Epoch)
	}
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	if r := h.heartbeat(t, "e", EpochJoin); r.Epoch != 5 {
		t.Errorf("after a restart the newcomer is at %d", r.Epoch)
	}
}
