package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A subject that is named twice is answered once; what differs stays.
func TestRepeatsAreAnsweredOnce(t *testing.T) {
	topic := newTopic(t, 3)
	c := dial(t, testBroker(t).addr)
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(12)
	for range 1000 {
		byName, byID := kmsg.NewMetadataRequestTopic(), kmsg.NewMetadataRequestTopic()
		byName.Topic, byID.TopicID = &topic.Name, topic.ID
		req.Topics = append(req.Topics, byName, byID)
	}
	if resp := ask[*kmsg.MetadataResponse](t, c, req); len(resp.Topics) != 2 {
		t.Errorf("%d topics in the answer, want one by name and one by id", len(resp.Topics))
	}

	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.SetVersion(4)
	for range 1000 {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic.Name
		configs.Resources = append(configs.Resources, r)
	}
	if resp := ask[*kmsg.DescribeConfigsResponse](t, c, configs); len(resp.Resources) != 1 {
		t.Errorf("%d resources in the answer, want 1", len(resp.Resources))
	}

	producers := kmsg.NewPtrDescribeProducersRequest()
	for range 3 {
		pt := kmsg.NewDescribeProducersRequestTopic()
		pt.Topic, pt.Partitions = topic.Name, []int32{0, 1, 0, 1}
		producers.Topics = append(producers.Topics, pt)
	}
	dropRepeats(producers)
	if len(producers.Topics) != 1 || len(producers.Topics[0].Partitions) != 2 {
		t.Errorf("%+v", producers.Topics)
	}

	all := kmsg.NewPtrMetadataRequest()
	dropRepeats(all)
	if all.Topics != nil {
		t.Error("null became empty")
	}
}
