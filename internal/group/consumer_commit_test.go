package group

import (
	"errors"
	"testing"
	"time"
)

// commit sends an offset of topic a by a member; inTxn, in a transaction.
func (h *consumerHarness) commit(t *testing.T, id string, epoch, partition int32, inTxn bool) error {
	t.Helper()
	to := h.ticket()
	offsets := []Offset{{Topic: "a", Partition: partition, Offset: 7}}
	var in any = commitInput{to: to, req: &CommitRequest{Group: "g", MemberID: id, Generation: epoch, Retention: -1, Offsets: offsets}}
	if inTxn {
		in = txnCommitInput{to: to, req: &TxnCommitRequest{Group: "g", MemberID: id, Generation: epoch, ProducerID: 1, Offsets: offsets}}
	}
	if err := h.step(in); err != nil {
		t.Fatal(err)
	}
	if err := h.ackAll(); err != nil {
		t.Fatal(err)
	}
	return h.answers[to].(commitResult).err
}

// A member may commit with an epoch that is behind, as long as it has had the
// partition since then; whoever got it meanwhile is safe from the one before.
func TestCommitAtOlderEpoch(t *testing.T) {
	h, _ := settingsHarness()
	a := h.heartbeat(t, "a", EpochJoin) // all of a's four partitions
	b := h.heartbeat(t, "b", EpochJoin) // two of them are to be b's
	h.heartbeat(t, "a", a.Epoch)        // which a is told
	check := func(what, id string, epoch, partition int32, want error) {
		t.Helper()
		if err := h.commit(t, id, epoch, partition, false); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if want != nil {
			want = ErrIllegalGeneration
		}
		if err := h.commit(t, id, epoch, partition, true); !errors.Is(err, want) || errors.Is(err, ErrStaleMemberEpoch) {
			t.Errorf("%s, in a transaction: %v, want %v", what, err, want)
		}
	}
	gone := h.m.consumer.members["a"].revoking
	if gone.count() != 2 {
		t.Fatalf("revoked: %v\n%s", gone, h.describe())
	}
	var kept, lost int32 = -1, -1
	for i := range int32(4) {
		if p := (partitionID{gone.topics()[0], i}); gone.has(p) {
			lost = i
		} else {
			kept = i
		}
	}
	check("what it still has to give up", "a", a.Epoch, lost, nil)

	owned := h.m.consumer.members["a"].assigned.public()
	to := h.ticket()
	if err := h.step(consumerHeartbeatInput{to: to, req: &ConsumerHeartbeatRequest{Group: "g", MemberID: "a", Epoch: a.Epoch, RebalanceTimeout: -1, Owned: owned}}); err != nil {
		t.Fatal(err)
	}
	if err := h.ackAll(); err != nil {
		t.Fatal(err)
	}
	now := h.m.consumer.members["a"].epoch
	if now <= a.Epoch {
		t.Fatalf("a is still at %d\n%s", now, h.describe())
	}
	check("what it has had all along", "a", a.Epoch, kept, nil)
	check("what it has at its epoch", "a", now, kept, nil)
	check("at its own epoch nothing else is asked", "a", now, lost, nil)
	check("what it gave up", "a", a.Epoch, lost, ErrStaleMemberEpoch)
	check("an epoch that is not there yet", "a", now+1, kept, ErrStaleMemberEpoch)
	check("no epoch", "a", -1, kept, ErrStaleMemberEpoch)
	h.heartbeat(t, "b", b.Epoch)
	if err := h.commit(t, "b", b.Epoch-1, lost, false); !errors.Is(err, ErrStaleMemberEpoch) {
		t.Errorf("before it got the partition: %v\n%s", err, h.describe())
	}
	check("what it got", "b", b.Epoch, lost, nil)
	h.setTopic("a", 0, 0)
	check("a topic that is gone", "a", a.Epoch, kept, ErrStaleMemberEpoch)

	// Since when somebody has a partition is not in the log: after a load only the
	// epoch of then counts.
	h.setTopic("a", 0, 4)
	if err := h.restart(); err != nil {
		t.Fatal(err)
	}
	check("after a load", "a", a.Epoch, kept, ErrStaleMemberEpoch)
	check("after a load, its epoch", "a", now, kept, nil)
}

// What builds on a write that fails is not on its way beside it: it is written with
// what the log refused, or its client would hold on to what a restart has never
// heard of. An answer that changed nothing, but tells what was refused, is refused.
func TestAnswersBehindAFailedWrite(t *testing.T) {
	h, _ := settingsHarness()
	beat := func(r *ConsumerHeartbeatRequest) ticket {
		to := h.ticket()
		if err := h.step(consumerHeartbeatInput{to: to, req: r}); err != nil {
			t.Fatal(err)
		}
		return to
	}
	join := func(id string) ticket {
		return beat(&ConsumerHeartbeatRequest{Group: "g", MemberID: id, RebalanceTimeout: time.Minute, Names: []string{"a"}, Owned: []TopicIDPartitions{}})
	}
	first := join("x")
	again := beat(&ConsumerHeartbeatRequest{Group: "g", MemberID: "x", Epoch: 1, RebalanceTimeout: -1})
	second := join("y")
	if len(h.inflight) != 1 || len(h.answers) != 0 {
		t.Fatalf("%d writes are under way, answered: %v", len(h.inflight), h.answers)
	}
	if err := h.ack(true); err != nil {
		t.Fatal(err)
	}
	for _, to := range []ticket{first, again} {
		if err := h.answers[to].(ConsumerHeartbeatResult).Err; !errors.Is(err, errDisk) {
			t.Errorf("of the write that failed: %v", err)
		}
	}
	if len(h.inflight) != 1 || h.answers[second] != nil {
		t.Fatalf("%d writes are under way, answered: %v", len(h.inflight), h.answers)
	}
	if err := h.ack(false); err != nil {
		t.Fatal(err)
	}
	if res := h.answers[second].(ConsumerHeartbeatResult); res.Err != nil {
		t.Errorf("of what was written with it: %v", res.Err)
	}
	known := h.describe()
	if err := h.restart(); err != nil || h.describe() != known {
		t.Errorf("%v: before\n%s\nafter\n%s", err, known, h.describe())
	}

	// Asked again all of it is written, and there after a restart.
	for _, id := range []string{"x", "y"} {
		h.heartbeat(t, id, EpochJoin)
	}
	was := h.describe()
	if err := h.restart(); err != nil || h.describe() != was {
		t.Errorf("%v: before\n%s\nafter\n%s", err, was, h.describe())
	}
}
