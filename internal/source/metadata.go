package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Metadata is what the source says about itself and some of its topics.
type Metadata struct {
	ClusterID string
	Brokers   map[int32]sdk.BrokerAddr
	Topics    map[string]*Topic
}

// Topic is one topic of the source.
type Topic struct {
	Name       string
	ID         [16]byte // zero: the source has no topic ids
	Err        error    // the source's answer for this topic; kerr.UnknownTopicOrPartition if it is gone
	Internal   bool
	Partitions []Partition // by index
}

// Partition is one partition of a topic of the source.
type Partition struct {
	Index       int32
	Leader      int32 // -1: none
	LeaderEpoch int32 // -1: the source does not say
	Err         error
}

// maxPartitions bounds a topic's partition index: a source that names a larger
// one is lying or out of our reach.
const maxPartitions = 1 << 20

// Metadata describes topics, all of them when topics is nil, none when it is
// empty. A topic that cannot be described carries its own error; the others
// are not affected.
func (c *Cluster) Metadata(ctx context.Context, topics []string) (*Metadata, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	if topics != nil {
		req.Topics = make([]kmsg.MetadataRequestTopic, 0, len(topics))
	}
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	control, done := c.use()
	defer done()
	resp, err := req.RequestWith(ctx, control.client)
	if err != nil {
		return nil, c.adminFailed(ctx, "metadata", err)
	}
	if err := c.same(control, resp); err != nil {
		return nil, fail("", "metadata", err)
	}
	m := &Metadata{Brokers: brokersOf(resp), Topics: make(map[string]*Topic, len(resp.Topics))}
	if resp.ClusterID != nil {
		m.ClusterID = *resp.ClusterID
		c.learn(m.ClusterID, m.Brokers, control)
	}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.Topic != nil {
			m.Topics[*t.Topic] = describeTopic(t)
		}
	}
	return m, nil
}

func describeTopic(t *kmsg.MetadataResponseTopic) *Topic {
	out := &Topic{Name: *t.Topic, ID: t.TopicID, Internal: t.IsInternal, Err: codeError(t.ErrorCode, nil)}
	for _, p := range t.Partitions {
		out.Partitions = append(out.Partitions, Partition{
			Index: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Err: codeError(p.ErrorCode, nil),
		})
	}
	slices.SortFunc(out.Partitions, func(a, b Partition) int { return cmp.Compare(a.Index, b.Index) })
	for i, p := range out.Partitions {
		if p.Index != int32(i) || i >= maxPartitions {
			// A hole would shift every later partition; nothing may be built
			// on such an answer.
			out.Partitions = nil
			out.Err = fmt.Errorf("source %s: partition %d is listed in place %d", out.Name, p.Index, i)
			break
		}
	}
	return out
}

// ConfigEntry is one topic config of the source. Dynamic says that it was set
// on the topic itself; only those are copied (W47).
type ConfigEntry struct {
	Name    string
	Value   *string
	Dynamic bool
}

// TopicConfigs are the configs of one topic, or why they cannot be read.
type TopicConfigs struct {
	Entries []ConfigEntry
	Err     error
}

// TopicConfigs reads the configs of topics. A topic whose configs cannot be read
// carries its own error; the others are not affected. (The request is built by
// hand because kadm answers one missing right with an error for all topics.)
//
// A topic that one broker listed may be unknown to the next one for a moment
// after its creation, since brokers learn of it one by one: it is asked for
// again, as a leader that is not ready is.
func (c *Cluster) TopicConfigs(ctx context.Context, topics []string) (map[string]TopicConfigs, error) {
	out := make(map[string]TopicConfigs, len(topics))
	for try := 1; len(topics) > 0; try++ {
		if err := c.topicConfigs(ctx, topics, out); err != nil {
			return nil, err
		}
		topics = slices.DeleteFunc(slices.Clone(topics), func(name string) bool {
			return !errors.Is(out[name].Err, kerr.UnknownTopicOrPartition)
		})
		if len(topics) == 0 || try == patience || !c.wait(ctx) {
			break
		}
	}
	return out, nil
}

func (c *Cluster) topicConfigs(ctx context.Context, topics []string, out map[string]TopicConfigs) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range topics {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, name
		req.Resources = append(req.Resources, r)
	}
	control, done := c.use()
	defer done()
	resp, err := req.RequestWith(ctx, control.client)
	if err != nil {
		return c.adminFailed(ctx, "topic configs", err)
	}
	for _, r := range resp.Resources {
		t := TopicConfigs{Err: fail("", "configs of topic "+r.ResourceName, codeError(r.ErrorCode, r.ErrorMessage))}
		for _, e := range r.Configs {
			t.Entries = append(t.Entries, ConfigEntry{
				Name: e.Name, Value: e.Value, Dynamic: e.Source == kmsg.ConfigSourceDynamicTopicConfig,
			})
		}
		out[r.ResourceName] = t
	}
	return nil
}
