package controller

import (
	"slices"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A topic that comes back with its id once took over what a mirror had recorded of its
// earlier life, where the deletion of that had been cut short: it began STOPPED, with
// the old last mirrored offset (seed 40028 of mirrorsim).
func TestNoStateOfAnEarlierLife(t *testing.T) {
	id := metadata.TopicID{7}
	b := newBuilder(metadata.NewImage())
	revision := int64(0)
	apply := func(changes ...Change) {
		t.Helper()
		revision++
		if err := b.apply(changes, revision); err != nil {
			t.Fatal(err)
		}
	}
	decide := func(cmd Command) []Change {
		t.Helper()
		changes, err := Decide(b.view(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		return changes
	}
	stopped := &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopped, StateEpoch: 5, HasLME: true, LME: 3, LMO: 40}
	apply(putBroker{&metadata.Broker{ID: 1, Endpoints: []metadata.Endpoint{{Name: "A", Host: "h", Port: 1}}}}, putMirror{&metadata.Mirror{Name: "m"}})
	start := startTopic{Mirror: "m", Topic: MirrorTopic{Name: "t", ID: id, Partitions: 1}, Defaults: defaults{ReplicationFactor: 1, MaxPartitions: 10, MinISR: 1}}
	apply(decide(start)...)
	apply(putState{id, 0, stopped}, setAttachment{ID: id, Value: metadata.Attachment{Mirror: "m", Desired: metadata.DesiredStopped}.Value()})
	deletion := decide(deleteTopicByID{id})
	apply(slices.DeleteFunc(deletion, func(c Change) bool { // the rest is not written
		_, state := c.(deleteState)
		_, part := c.(deletePartition)
		return state || part
	})...)
	apply(decide(start)...)
	p := b.view().Partition(id, 0)
	if p == nil || p.Mirror != nil || p.LeaderEpoch == 0 {
		t.Fatalf("%+v", p)
	}
	// A partition that is added later has none either.
	apply(putState{id, 1, stopped})
	apply(decide(growTopic{CreatePartitions: CreatePartitions{Topic: "t", Total: 2, FromMirror: true}, Defaults: start.Defaults})...)
	if p := b.view().Partition(id, 1); p == nil || p.Mirror != nil {
		t.Fatalf("%+v", p)
	}
}
