package kafka

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

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
