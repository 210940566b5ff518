package group

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestMigration: a classic group becomes a consumer group when a member of the
// new kind joins, keeps what it reads, and is a classic one again when that leaves.
func TestMigration(t *testing.T) {
	h := newConsumerHarness()
	h.o.InitialRebalanceDelay = -1
	h.setTopic("a", 1, 2)
	ask := func(make func(to ticket) any) any {
		t.Helper()
		to := h.ticket()
		if err := h.step(make(to)); err != nil {
			t.Fatal(err)
		}
		if err := h.ackAll(); err != nil {
			t.Fatal(err)
		}
		return h.answers[to]
	}
	join := func(owned ...int32) any {
		s := kmsg.NewConsumerMemberMetadata()
		s.Version, s.Topics = 1, []string{"a"}
		if len(owned) > 0 {
			s.OwnedPartitions = []kmsg.ConsumerMemberMetadataOwnedPartition{{Topic: "a", Partitions: owned}}
		}
		id := "old"
		if len(h.m.members) == 0 && (h.m.consumer == nil || len(h.m.consumer.members) == 0) {
			id = ""
		}
		return ask(func(to ticket) any {
			return joinInput{to, &JoinRequest{Group: "g", MemberID: id, SessionTimeout: 10 * time.Second, RebalanceTimeout: 20 * time.Second,
				ProtocolType: "consumer", Protocols: []Protocol{{"cooperative-sticky", s.AppendTo(nil)}}}, "old"}
		})
	}
	sync := func(generation int32, assignments ...Assignment) SyncResult {
		return ask(func(to ticket) any {
			return syncInput{to, &SyncRequest{Group: "g", MemberID: "old", Generation: generation, Assignments: assignments}}
		}).(SyncResult)
	}
	beat := func(epoch int32, more func(*ConsumerHeartbeatRequest)) ConsumerHeartbeatResult {
		r := &ConsumerHeartbeatRequest{Group: "g", MemberID: "new", Epoch: epoch, RebalanceTimeout: -1}
		if more != nil {
			more(r)
		}
		return ask(func(to ticket) any { return consumerHeartbeatInput{to: to, req: r} }).(ConsumerHeartbeatResult)
	}
	joining := func(r *ConsumerHeartbeatRequest) {
		r.RebalanceTimeout, r.Names, r.Owned = 20*time.Second, []string{"a"}, []TopicIDPartitions{}
	}

	j := join().(JoinResult)
	both := h.m
	both.topics = h.topics
	all := share{h.topics.image.Topic("a").ID: {0, 1}}
	if r := sync(j.Generation, Assignment{"old", both.toClassic(all, 1)}); r.Err != nil || !both.ofClassic(r.Assignment).equal(all) {
		t.Fatalf("classic group: %+v %+v", j, r)
	}

	// Up.
	if r := beat(EpochJoin, joining); r.Err != nil || r.Epoch != 2 || len(r.Assignment) != 0 {
		t.Fatalf("the new member hears %+v", r)
	}
	if err, _ := ask(func(to ticket) any {
		return heartbeatInput{to, &HeartbeatRequest{Group: "g", MemberID: "old", Generation: 1}}
	}).(error); !errors.Is(err, ErrRebalancing) {
		t.Fatalf("the old member hears %v", err)
	}
	j = join(0, 1).(JoinResult)
	r := sync(j.Generation)
	if r.Err != nil || both.ofClassic(r.Assignment).count() != 1 {
		t.Fatalf("after the upgrade the old member joins: %+v and has %+v", j, r)
	}
	kept := both.ofClassic(r.Assignment)[h.topics.image.Topic("a").ID][0]
	if j = join(kept).(JoinResult); j.Err != nil || j.Generation != 2 {
		t.Fatalf("after revoking: %+v", j)
	}
	sync(j.Generation)
	if r := beat(2, nil); !r.HasAssignment || len(r.Assignment) != 1 || r.Assignment[0].Partitions[0] == kept {
		t.Fatalf("the new member has %+v, the old one keeps %d", r, kept)
	}
	up := h.describe()
	if err := h.restart(); err != nil || h.describe() != up {
		t.Fatalf("a restart changes\n%s\nto\n%s (%v)", up, h.describe(), err)
	}

	// Down.
	if r := beat(EpochLeave, nil); r.Err != nil {
		t.Fatal(r.Err)
	}
	if h.m.consumer != nil || h.m.state != PreparingRebalance || len(h.m.members) != 1 {
		t.Fatalf("after the last new member left: %s", h.describe())
	}
	if err := h.restart(); err != nil || h.m.consumer != nil || h.m.state != Stable || h.m.members["old"] == nil {
		t.Fatalf("a restart makes of it %s (%v)", h.describe(), err)
	}
	if j = join(kept).(JoinResult); j.Err != nil || j.Leader != "old" || j.Generation <= 2 {
		t.Fatalf("the old member leads itself: %+v", j)
	}

	// Empty groups change whatever the policy is; others only as it says.
	h.o.ConsumerMigration = MigrateNever
	if r := beat(EpochJoin, joining); !errors.Is(r.Err, ErrNotFound) {
		t.Fatalf("upgraded against the policy: %+v", r)
	}
	ask(func(to ticket) any {
		return leaveInput{to, &LeaveRequest{Group: "g", Members: []LeaveMember{{MemberID: "old"}}}}
	})
	if r := beat(EpochJoin, joining); r.Err != nil || len(r.Assignment) != 1 {
		t.Fatalf("an empty classic group is not upgraded: %+v", r)
	}
	beat(EpochLeave, nil)
	if j, ok := join().(JoinResult); !ok || j.Err != nil || h.m.consumer != nil {
		t.Fatalf("an empty consumer group is no classic one again: %+v", j)
	}
}

// Classic members that are left alone in a consumer group, which may not turn
// classic, get what a topic has grown by: their heartbeats look at the topics too.
func TestTopicGrowsForClassicMembersAlone(t *testing.T) {
	h, _ := settingsHarness()
	h.o.ConsumerMigration = MigrateUpgrade
	h.heartbeat(t, "new", EpochJoin)
	ask := func(make func(to ticket) any) any {
		t.Helper()
		to := h.ticket()
		if err := h.step(make(to)); err != nil {
			t.Fatal(err)
		}
		if err := h.ackAll(); err != nil {
			t.Fatal(err)
		}
		return h.answers[to]
	}
	s := kmsg.NewConsumerMemberMetadata()
	s.Version, s.Topics = 1, []string{"a"}
	join := func() int32 {
		t.Helper()
		r := ask(func(to ticket) any {
			return joinInput{to, &JoinRequest{Group: "g", MemberID: "old", SessionTimeout: 10 * time.Second, RebalanceTimeout: 20 * time.Second,
				ProtocolType: "consumer", Protocols: []Protocol{{"cooperative-sticky", s.AppendTo(nil)}}}, "old"}
		}).(JoinResult)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r.Generation
	}
	beat := func(generation int32) any {
		t.Helper()
		return ask(func(to ticket) any {
			return heartbeatInput{to, &HeartbeatRequest{Group: "g", MemberID: "old", Generation: generation}}
		})
	}
	leave := &ConsumerHeartbeatRequest{Group: "g", MemberID: "new", Epoch: EpochLeave, RebalanceTimeout: -1}
	join()
	ask(func(to ticket) any { return consumerHeartbeatInput{to: to, req: leave} })
	generation := join()
	if err := beat(generation); err != nil || h.m.consumer.members["old"].assigned.count() != 4 {
		t.Fatalf("alone it hears %v\n%s", err, h.describe())
	}
	h.setTopic("a", 0, 6)
	if err, _ := beat(generation).(error); !errors.Is(err, ErrRebalancing) {
		t.Fatalf("after the topic has grown it hears %v\n%s", err, h.describe())
	}
	join()
	if n := h.m.consumer.members["old"].assigned.count(); n != 6 {
		t.Errorf("it gets %d partitions\n%s", n, h.describe())
	}
}
