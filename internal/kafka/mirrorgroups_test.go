package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A mirror commits for groups that either broker coordinates, leaves those with
// members alone wherever they are, and finds all groups above a cut.
func TestMirrorGroupsOfTwoBrokers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := controller.Open(ctx, controller.Options{Dir: t.TempDir(), NodeID: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	nodes := []*brokerNode{startNode(t, c, 1), startNode(t, c, 2)}
	for _, res := range c.CreateTopics(ctx, []controller.CreateTopic{{Name: "t", Assignment: map[int32][]int32{0: {1}, 1: {2}}}}, false) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	if _, err := nodes[0].groups.EnsureTopic(ctx, c); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addrOf(nodes[0].server)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)

	parts := c.Image().Topic(group.TopicName).Partitions
	led := map[int32]int{}
	routes := &MirrorGroups{NodeID: 1, Groups: nodes[0].groups, Image: c.Image, Peers: wirePeers{c.Image}}
	commit := func(id string, offset int64) ([]error, error) {
		for { // the other coordinator may still be loading
			errs, err := routes.Commit(ctx, id, []group.Offset{{Topic: "t", Partition: 1, Offset: offset, LeaderEpoch: -1}, {Topic: "none", Offset: 1}})
			if ctx.Err() != nil || err == nil && !errors.Is(errs[0], group.ErrLoading) && !errors.Is(errs[0], group.ErrNotCoordinator) || errors.Is(err, group.ErrActive) {
				return errs, err
			}
			time.Sleep(10 * time.Millisecond) // a poll
		}
	}
	for i := range 8 {
		id := fmt.Sprint("g", i)
		led[parts[group.PartitionFor(id, int32(len(parts)))].Leader]++
		errs, err := commit(id, int64(i))
		if err != nil || errs[0] != nil {
			t.Fatalf("%s: %v, %v", id, errs, err)
		}
		got, err := admin.FetchOffsets(ctx, id)
		if o, ok := got.Lookup("t", 1); err != nil || !ok || o.At != int64(i) {
			t.Fatalf("%s: %+v, %v", id, o, err)
		}
	}
	if len(led) != 2 {
		t.Fatalf("only brokers %v had anything to do", led)
	}
	above, err := routes.Above(ctx, group.TopicPartition{Topic: "t", Partition: 1}, 4)
	if err != nil || fmt.Sprint(above) != "[g5 g6 g7]" {
		t.Errorf("above the cut: %v, %v", above, err)
	}

	for i := range 8 {
		id := fmt.Sprint("g", i)
		member, err := kgo.NewClient(kgo.SeedBrokers(addrOf(nodes[0].server)), kgo.ConsumerGroup(id), kgo.ConsumeTopics("t"))
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; { // until it is in the group
			d, err := admin.DescribeGroups(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			n = len(d[id].Members)
		}
		if _, err := commit(id, 100); !errors.Is(err, group.ErrActive) {
			t.Errorf("%s has a member: %v", id, err)
		}
		member.Close()
	}

	// MIR-107: once the stop of a topic is recorded, nothing of its source is committed
	// any more, neither by a broker that knows it nor by one that has yet to hear of it.
	if err := c.CreateMirror(ctx, "m", map[string]string{"bootstrap.servers": "127.0.0.1:1", "mirror.source.cluster.id": "source"}); err != nil {
		t.Fatal(err)
	}
	topic := c.Image().Topic("t")
	started, err := c.StartMirrorTopics(ctx, controller.StartMirrorTopics{
		Mirror: "m", Topics: []controller.MirrorTopic{{Name: "t", ID: topic.ID, Partitions: 2}}, Validation: -1,
	})
	if err != nil || started[0].Err != nil {
		t.Fatal(started, err)
	}
	before := c.Image()
	stopped, err := c.SetMirrorTopics(ctx, controller.SetMirrorTopics{Mirror: "m", Topics: []string{"t"}, Desired: metadata.DesiredStopped, Validation: -1})
	if err != nil || stopped[0].Err != nil {
		t.Fatal(stopped, err)
	}
	if err := c.WaitWatchers(ctx); err != nil {
		t.Fatal(err)
	}
	late := []group.Offset{{Topic: "t", Partition: 1, Offset: 7, LeaderEpoch: -1}}
	for i := range 8 {
		id := fmt.Sprint("late", i)
		if errs, err := routes.Commit(ctx, id, late); err != nil || !errors.Is(errs[0], controller.ErrTopicNotInMirror) {
			t.Errorf("%s after the stop: %v, %v", id, errs, err)
		}
		if parts[group.PartitionFor(id, int32(len(parts)))].Leader == 1 {
			continue
		}
		behind := &MirrorGroups{NodeID: 1, Groups: nodes[0].groups, Image: func() *metadata.Image { return before }, Peers: wirePeers{c.Image}}
		if errs, err := behind.Commit(ctx, id, late); err != nil || !errors.Is(errs[0], controller.ErrTopicNotInMirror) {
			t.Errorf("%s after the stop, by a broker that does not know of it: %v, %v", id, errs, err)
		}
	}
}
