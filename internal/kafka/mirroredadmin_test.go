package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// mirroredTopic is a topic that is in a mirror of a source that nobody has.
func mirroredTopic(t *testing.T) (topic *metadata.Topic, mirror string) {
	t.Helper()
	b := testBroker(t)
	topic, mirror = newTopic(t, 1), uniqueName(t)
	if err := b.controller.CreateMirror(t.Context(), mirror, map[string]string{"bootstrap.servers": "127.0.0.1:1", "mirror.source.cluster.id": "source"}); err != nil {
		t.Fatal(err)
	}
	res, err := b.controller.StartMirrorTopics(t.Context(), controller.StartMirrorTopics{
		Mirror: mirror, Topics: []controller.MirrorTopic{{Name: topic.Name, ID: topic.ID, Partitions: 1}}, Validation: -1,
	})
	if err != nil || res[0].Err != nil {
		t.Fatal(res, err)
	}
	if err := b.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return topic, mirror
}

// One request is about a mirrored topic and an ordinary one: refused for the first, done
// for the second. MIR-041: CreatePartitions. MIR-384: DeleteTopics.
func TestMirroredBesideOrdinary(t *testing.T) {
	mirrored, _ := mirroredTopic(t)
	ordinary := newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.SetVersion(3)
	grow.TimeoutMillis = 10_000
	for _, topic := range []*metadata.Topic{mirrored, ordinary} {
		gt := kmsg.NewCreatePartitionsRequestTopic()
		gt.Topic, gt.Count = topic.Name, 3
		grow.Topics = append(grow.Topics, gt)
	}
	want := map[string]int16{mirrored.Name: codeInvalidMirrorStates, ordinary.Name: 0}
	for _, r := range ask[*kmsg.CreatePartitionsResponse](t, c, grow).Topics {
		if r.ErrorCode != want[r.Topic] {
			t.Errorf("create partitions of %s: %d", r.Topic, r.ErrorCode)
		}
	}
	img := testBroker(t).controller.Image()
	if a, b := len(img.Topic(mirrored.Name).Partitions), len(img.Topic(ordinary.Name).Partitions); a != 1 || b != 3 {
		t.Errorf("the mirrored topic has %d partitions, the ordinary one %d", a, b)
	}
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.SetVersion(6)
	del.TimeoutMillis = 10_000
	for _, topic := range []*metadata.Topic{mirrored, ordinary} {
		dt := kmsg.NewDeleteTopicsRequestTopic()
		dt.TopicID = topic.ID
		del.Topics = append(del.Topics, dt)
	}
	for _, r := range ask[*kmsg.DeleteTopicsResponse](t, c, del).Topics {
		if code := map[metadata.TopicID]int16{mirrored.ID: codeInvalidMirrorStates}[metadata.TopicID(r.TopicID)]; r.ErrorCode != code {
			t.Errorf("delete of %x: %d", r.TopicID, r.ErrorCode)
		}
	}
	img = testBroker(t).controller.Image()
	if img.Topic(mirrored.Name) == nil || img.Topic(ordinary.Name) != nil {
		t.Error("the wrong topic was deleted")
	}
}

// MIR-385: which mirror a topic is in is nobody's to set, neither at its creation nor by
// a change of its configs in either way, and it is not among those that are described.
func TestMirrorBindingIsNobodysToSet(t *testing.T) {
	mirrored, mirror := mirroredTopic(t)
	ordinary := newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	value := mirror

	create := kmsg.NewPtrCreateTopicsRequest()
	create.SetVersion(7)
	ct := kmsg.NewCreateTopicsRequestTopic()
	ct.Topic, ct.NumPartitions, ct.ReplicationFactor = uniqueName(t), 1, 1
	ct.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: metadata.MirrorNameConfig, Value: &value}}
	create.Topics = append(create.Topics, ct)
	if code := ask[*kmsg.CreateTopicsResponse](t, c, create).Topics[0].ErrorCode; code != kerr.InvalidConfig.Code && code != kerr.InvalidRequest.Code {
		t.Errorf("create: %d", code)
	}
	if testBroker(t).controller.Image().Topic(ct.Topic) != nil {
		t.Error("the topic was created")
	}
	for _, topic := range []*metadata.Topic{mirrored, ordinary} {
		for _, op := range []kmsg.IncrementalAlterConfigOp{kmsg.IncrementalAlterConfigOpSet, kmsg.IncrementalAlterConfigOpDelete} {
			alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
			alter.SetVersion(1)
			r := kmsg.NewIncrementalAlterConfigsRequestResource()
			r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic.Name
			r.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: metadata.MirrorNameConfig, Op: op, Value: &value}}
			alter.Resources = append(alter.Resources, r)
			if code := ask[*kmsg.IncrementalAlterConfigsResponse](t, c, alter).Resources[0].ErrorCode; code != kerr.InvalidConfig.Code && code != kerr.InvalidRequest.Code {
				t.Errorf("incremental alter, op %v: %d", op, code)
			}
		}
		whole := kmsg.NewPtrAlterConfigsRequest()
		whole.SetVersion(1)
		w := kmsg.NewAlterConfigsRequestResource()
		w.ResourceType, w.ResourceName = kmsg.ConfigResourceTypeTopic, topic.Name
		w.Configs = []kmsg.AlterConfigsRequestResourceConfig{{Name: metadata.MirrorNameConfig, Value: &value}}
		whole.Resources = append(whole.Resources, w)
		if code := ask[*kmsg.AlterConfigsResponse](t, c, whole).Resources[0].ErrorCode; code != kerr.InvalidConfig.Code && code != kerr.InvalidRequest.Code {
			t.Errorf("alter: %d", code)
		}
	}
	img := testBroker(t).controller.Image()
	if img.Topic(mirrored.Name).MirrorName != mirror || img.Topic(ordinary.Name).MirrorName != "" {
		t.Errorf("bound to %q and %q", img.Topic(mirrored.Name).MirrorName, img.Topic(ordinary.Name).MirrorName)
	}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.SetVersion(4)
	rs := kmsg.NewDescribeConfigsRequestResource()
	rs.ResourceType, rs.ResourceName = kmsg.ConfigResourceTypeTopic, mirrored.Name
	describe.Resources = append(describe.Resources, rs)
	for _, r := range ask[*kmsg.DescribeConfigsResponse](t, c, describe).Resources[0].Configs {
		if r.Name == metadata.MirrorNameConfig {
			t.Errorf("it is described: %+v", r)
		}
	}
}
