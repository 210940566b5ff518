package main

import (
	"slices"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Only what waits for this broker's logs is told, and only of logs that are open.
func TestWaitedEnds(t *testing.T) {
	waits := func(index int32, known ...int32) *metadata.Partition {
		return &metadata.Partition{Index: index, Leader: metadata.NoLeader, Replicas: []int32{1, 2}, LastKnownELR: known}
	}
	led := waits(2, 1, 2)
	led.Leader = 2
	eligible := waits(3, 1)
	eligible.ELR = []int32{2}
	e := metadata.NewImage().Edit()
	id := metadata.TopicID{1}
	e.PutTopic(&metadata.Topic{ID: id, Name: "t", Partitions: []*metadata.Partition{waits(0, 1, 2), waits(1, 2), led, eligible, waits(4, 1)}})
	img := e.Image(1)
	got := waitedEnds(img, 1, func(_ metadata.TopicID, index int32) (int32, int64, bool) { return 3, 100 + int64(index), index != 4 })
	if want := []controller.ReplicaEnd{{Topic: id, Partition: 0, LastEpoch: 3, End: 100}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
