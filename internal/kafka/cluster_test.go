package kafka

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// What clients are told of partitions in a cluster whose brokers come and go.
func TestPartitionsOfACluster(t *testing.T) {
	e := metadata.NewImage().Edit()
	e.PutBroker(&metadata.Broker{ID: 1})
	e.PutBroker(&metadata.Broker{ID: 2, Fenced: true})
	img := e.Image(1)
	for name, tc := range map[string]struct {
		p       metadata.Partition
		leader  int32
		code    int16
		offline []int32
	}{
		"a leader that lives":  {metadata.Partition{Leader: 1, LeaderEpoch: 3, Replicas: []int32{1, 2}, ISR: []int32{1}, ELR: []int32{2}}, 1, 0, []int32{2}},
		"a leader that is not": {metadata.Partition{Leader: 2, LeaderEpoch: 3, Replicas: []int32{2, 1}, ISR: []int32{2}}, -1, kerr.LeaderNotAvailable.Code, []int32{2}},
		"no leader":            {metadata.Partition{Leader: -1, LeaderEpoch: 3, Replicas: []int32{2, 7}, LastKnownELR: []int32{7}}, -1, kerr.LeaderNotAvailable.Code, []int32{2, 7}},
	} {
		topic := &metadata.Topic{Name: "t", Partitions: []*metadata.Partition{&tc.p}}
		got := describeTopic(img, topic).Partitions[0]
		if got.Leader != tc.leader || got.ErrorCode != tc.code || got.LeaderEpoch != 3 || !slices.Equal(got.OfflineReplicas, tc.offline) ||
			!slices.Equal(got.Replicas, tc.p.Replicas) || !slices.Equal(got.ISR, tc.p.ISR) {
			t.Errorf("%s: Metadata %+v", name, got)
		}
		page := partitionPage(img, &tc.p)
		if page.LeaderID != tc.leader || page.ErrorCode != tc.code || !slices.Equal(page.OfflineReplicas, tc.offline) ||
			!slices.Equal(page.EligibleLeaderReplicas, tc.p.ELR) || !slices.Equal(page.LastKnownELR, tc.p.LastKnownELR) || page.EligibleLeaderReplicas == nil {
			t.Errorf("%s: DescribeTopicPartitions %+v", name, page)
		}
	}
}

// Only brokers that live are told of, with the endpoint of the listener that the
// client came in on; the controller is one of them.
func TestBrokersOfACluster(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(12)
	resp := ask[*kmsg.MetadataResponse](t, c, req)
	if len(resp.Brokers) != 1 || resp.ControllerID != resp.Brokers[0].NodeID {
		t.Errorf("%+v", resp)
	}
	describe := ask[*kmsg.DescribeClusterResponse](t, c, kmsg.NewPtrDescribeClusterRequest())
	if len(describe.Brokers) != 1 || describe.ControllerID != describe.Brokers[0].NodeID {
		t.Errorf("%+v", describe)
	}
}

// A broker that has no replica says who leads (KIP-951), all leaders of an answer with
// their addresses.
func TestAsksForWhatIsElsewhere(t *testing.T) {
	b, err := startBroker(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.stop() })
	elsewhere := []int32{7, 8}
	for i, id := range elsewhere {
		if err := join(b.controller, controller.RegisterBroker{ID: id, Incarnation: [16]byte{byte(id)}, Endpoints: []metadata.Endpoint{
			{Name: b.server.Endpoints()[0].Name, Host: "192.0.2.1", Port: int32(100 + i), Protocol: "PLAINTEXT"},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	res := b.controller.CreateTopics(t.Context(), []controller.CreateTopic{{Name: "elsewhere", Assignment: map[int32][]int32{0: {7}, 1: {8}}}}, false)
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	topic := res[0].Topic
	c := dial(t, b.addr)

	fetch := fetchFrom(topic, 0, 0)
	fetch.SetVersion(16)
	second := kmsg.NewFetchRequestTopicPartition()
	second.Partition, second.PartitionMaxBytes = 1, 1000
	fetch.Topics[0].Partitions = append(fetch.Topics[0].Partitions, second)
	fetched := ask[*kmsg.FetchResponse](t, c, fetch)
	var told []int32
	for _, p := range fetched.Topics[0].Partitions {
		if p.ErrorCode != kerr.NotLeaderForPartition.Code {
			t.Errorf("fetch: %+v", p)
		}
		told = append(told, p.CurrentLeader.LeaderID)
	}
	if !slices.Equal(told, elsewhere) || len(fetched.Brokers) != 2 || fetched.Brokers[1].Port != 101 {
		t.Errorf("fetch names %v at %+v", told, fetched.Brokers)
	}

	produce := kmsg.NewPtrProduceRequest()
	produce.SetVersion(12)
	produce.Acks, produce.TimeoutMillis = 1, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	for i := range elsewhere {
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = int32(i), []byte{}
		rt.Partitions = append(rt.Partitions, rp)
	}
	produce.Topics = append(produce.Topics, rt)
	produced := ask[*kmsg.ProduceResponse](t, c, produce)
	told = nil
	for _, p := range produced.Topics[0].Partitions {
		if p.ErrorCode != kerr.NotLeaderForPartition.Code {
			t.Errorf("produce: %+v", p)
		}
		told = append(told, p.CurrentLeader.LeaderID)
	}
	if !slices.Equal(told, elsewhere) || len(produced.Brokers) != 2 || produced.Brokers[0].Port != 100 {
		t.Errorf("produce names %v at %+v", told, produced.Brokers)
	}
}
