package group

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// leaveRefused is a consumer group that its only member leaves, while the log
// refuses to erase the member; before it says so, a classic member's join that is
// turned down has ended the group.
func leaveRefused(t *testing.T, refuseEnd bool) *consumerHarness {
	t.Helper()
	h, _ := settingsHarness()
	h.heartbeat(t, "old", EpochJoin)
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	leave := &ConsumerHeartbeatRequest{Group: "g", MemberID: "old", Epoch: EpochLeave, RebalanceTimeout: -1}
	try(h.step(consumerHeartbeatInput{to: h.ticket(), req: leave}))
	join := &JoinRequest{Group: "g", MemberID: "unknown", SessionTimeout: 10 * time.Second, RebalanceTimeout: 20 * time.Second, ProtocolType: "consumer"}
	try(h.step(joinInput{h.ticket(), join, ""}))
	if h.m.consumer != nil || len(h.m.members) != 0 || len(h.inflight) != 2 {
		t.Fatalf("%d writes under way, %s", len(h.inflight), h.describe())
	}
	if h.m.forgettable() {
		t.Error("the group may be forgotten before the log has its end")
	}
	try(h.ack(true))
	try(h.ack(refuseEnd))
	return h
}

// A member left, the log did not take it, and the group ended. The next group of
// that name must not find the member in the log: it would hold partitions that the
// new members read, and give them away when it times out.
func TestMemberWhoseEndWasRefusedStaysGone(t *testing.T) {
	for name, c := range map[string]struct{ refuseEnd, loadBefore bool }{
		"the group's end is stored":               {false, false},
		"the group's end is refused":              {true, false},
		"and the group is loaded before the next": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := leaveRefused(t, c.refuseEnd)
			if c.loadBefore {
				// What was refused is lost with the leader: the old member is back,
				// and its session ends anew.
				if err := h.restart(); err != nil {
					t.Fatal(err)
				}
				h.now = h.now.Add(time.Hour)
				if err := h.step(tick{}); err != nil {
					t.Fatal(err)
				}
			}
			a := h.heartbeat(t, "new", EpochJoin)
			if len(a.Assignment) != 1 || !slices.Equal(a.Assignment[0].Partitions, []int32{0, 1, 2, 3}) {
				t.Fatalf("the new member gets %v", a.Assignment)
			}
			before := h.describe()
			if err := h.restart(); err != nil {
				t.Fatal(err)
			}
			if after := h.describe(); after != before {
				t.Errorf("before a restart:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// A group of which only the erasing is left to be done is kept until it is.
func TestEndOfRefusedGroupIsTriedAgain(t *testing.T) {
	h := leaveRefused(t, true)
	if h.m.forgettable() {
		t.Fatal("the group may be forgotten, and its records are in the log")
	}
	if err := h.step(sweep{}); err != nil {
		t.Fatal(err)
	}
	if err := h.ackAll(); err != nil {
		t.Fatal(err)
	}
	if !h.m.forgettable() {
		t.Error("the group is kept, and nothing is left of it")
	}
	live := map[string]bool{}
	for _, e := range h.log {
		live[string(e.key)] = e.value != nil
	}
	for key, there := range live {
		if there {
			t.Errorf("the log still has %x", key)
		}
	}
}

// Records of a member whose group is gone, as a log may have them, are erased with
// the first write of the next group.
func TestLeftoversAreErased(t *testing.T) {
	h, _ := settingsHarness()
	h.heartbeat(t, "old", EpochJoin)
	h.log = append(h.log, groupKeyTombstone(keyTargetEpoch, "g"), groupKeyTombstone(keyEpoch, "g"))
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	h.heartbeat(t, "new", EpochJoin)
	before := h.describe()
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	if after := h.describe(); after != before {
		t.Errorf("before a restart:\n%s\nafter:\n%s", before, after)
	}
}

// What lets go of a partition and what takes it never run side by side on their way
// to the log: were the first refused and the second stored, two would hold it after
// a load.
func TestChangesReachTheLogOneAfterAnother(t *testing.T) {
	h, _ := settingsHarness()
	h.heartbeat(t, "a", EpochJoin)
	leave := &ConsumerHeartbeatRequest{Group: "g", MemberID: "a", Epoch: EpochLeave, RebalanceTimeout: -1}
	if err := h.step(consumerHeartbeatInput{to: h.ticket(), req: leave}); err != nil {
		t.Fatal(err)
	}
	to := h.ticket()
	join := &ConsumerHeartbeatRequest{Group: "g", MemberID: "b", RebalanceTimeout: time.Minute, Names: []string{"a"}, Owned: []TopicIDPartitions{}}
	if err := h.step(consumerHeartbeatInput{to: to, req: join}); err != nil {
		t.Fatal(err)
	}
	if len(h.inflight) != 1 {
		t.Fatalf("%d writes under way", len(h.inflight))
	}
	if err := h.ack(true); err != nil {
		t.Fatal(err)
	}
	if err := h.ackAll(); err != nil {
		t.Fatal(err)
	}
	if res := h.answers[to].(ConsumerHeartbeatResult); res.Err != nil || len(res.Assignment) != 1 {
		t.Fatalf("b hears %+v", res)
	}
	before := h.describe()
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	if after := h.describe(); after != before || strings.Contains(after, "\na@") {
		t.Errorf("before a restart:\n%s\nafter:\n%s", before, after)
	}
}

// A change of several writes of which one is refused is written again as a whole.
func TestPartsOfAChangeReachTheLogOneAfterAnother(t *testing.T) {
	h, _ := settingsHarness()
	h.o.MaxWriteBytes = 200
	to := h.ticket()
	join := &ConsumerHeartbeatRequest{Group: "g", MemberID: "b", RebalanceTimeout: time.Minute, Names: []string{"a"}, Owned: []TopicIDPartitions{}}
	if err := h.step(consumerHeartbeatInput{to: to, req: join}); err != nil {
		t.Fatal(err)
	}
	if len(h.inflight) != 1 {
		t.Fatalf("%d writes under way", len(h.inflight))
	}
	for _, fail := range []bool{false, true} {
		if h.answers[to] != nil {
			t.Fatalf("answered ahead of the log: %+v", h.answers[to])
		}
		if err := h.ack(fail); err != nil {
			t.Fatal(err)
		}
	}
	if res, ok := h.answers[to].(ConsumerHeartbeatResult); !ok || res.Err == nil || len(h.inflight) != 0 {
		t.Fatalf("after a refusal b hears %+v, %d writes under way", h.answers[to], len(h.inflight))
	}
	h.heartbeat(t, "b", EpochJoin)
	before := h.describe()
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	if after := h.describe(); after != before {
		t.Errorf("before a restart:\n%s\nafter:\n%s", before, after)
	}
}
