package mirror

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

func imageOf(alive ...int32) *metadata.Image {
	e := metadata.NewImage().Edit()
	for _, id := range []int32{1, 2, 3} {
		b := &metadata.Broker{ID: id, Fenced: true}
		for _, a := range alive {
			b.Fenced = b.Fenced && a != id
		}
		e.PutBroker(b)
	}
	return e.Image(1)
}

// The mirrors are spread over the brokers; when one dies, its mirrors move and no
// other one's do.
func TestOwner(t *testing.T) {
	all, without := imageOf(1, 2, 3), imageOf(1, 3)
	owned := map[int32]int{}
	for i := range 300 {
		name := fmt.Sprint("mirror-", i)
		before, after := owner(all, name), owner(without, name)
		owned[before]++
		if after == 2 || before != 2 && after != before {
			t.Errorf("%s: owned by %d, and by %d without broker 2", name, before, after)
		}
	}
	for id := int32(1); id <= 3; id++ {
		if owned[id] < 60 {
			t.Errorf("broker %d owns %d of 300 mirrors", id, owned[id])
		}
	}
	if got := owner(imageOf(), "m"); got != -1 {
		t.Errorf("with nobody alive broker %d owns the mirror", got)
	}
}

// What a leader elsewhere does not tell is unknown, and what it tells unasked is not
// believed.
func TestOffsetsOfOtherBrokers(t *testing.T) {
	req := &wire.ReadMirrorOffsetsRequest{Topics: []wire.ReadMirrorOffsetsTopic{{TopicName: "t", Partitions: []int32{0, 1}}}}
	found := map[nameKey]wire.MirrorOffsets{}
	takeOffsets(found, req, &wire.ReadMirrorOffsetsResponse{Topics: []wire.ReadMirrorOffsetsResponseTopic{
		{TopicName: "t", Partitions: []wire.MirrorOffsets{{Partition: 0, SourceOffset: 0, DestinationOffset: 0}, {Partition: 7}}}, {TopicName: "u", Partitions: []wire.MirrorOffsets{{}}},
	}})
	if _, ok := found[nameKey{"t", 0}]; !ok || len(found) != 1 {
		t.Fatalf("%v", found)
	}
	topic := &metadata.Topic{Name: "t", Configs: map[string]string{}, Partitions: []*metadata.Partition{{Index: 0}, {Index: 1}}}
	topic.MirrorName = "m"
	for _, p := range topic.Partitions {
		p.Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateMirroring}
		o, known := found[nameKey{"t", p.Index}]
		d, want := describe(topic, p, o, known), int64(0)
		if p.Index == 1 {
			want = -1
		}
		if d.State != metadata.StateMirroring || d.Lag != want || d.SourceOffset != want || d.DestinationOffset != want {
			t.Errorf("partition %d: %+v, want offsets %d", p.Index, d, want)
		}
	}
}
