package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// CreateTopics (v2-v7)
//
// Behavior:
//   - Each topic succeeds or fails by itself; a name given twice fails in both
//     places and creates nothing.
//   - Needs Create on the cluster or on the topic; the answer tells configs to
//     those who have DescribeConfigs on the topic.
//   - The answer comes when this broker's metadata shows the topic.
//
// Version notes:
//   - v4: partitions and replication factor -1 take the defaults (KIP-464)
//   - v5: flexible; the answer has partitions, replication and configs (KIP-525)
//   - v6: beyond controller_mutation_rate a topic is refused with
//     THROTTLING_QUOTA_EXCEEDED; before, the client is only throttled (KIP-599)
//   - v7: topic id in the answer (KIP-516)
//
// Not done: v8 with a mirror's topic id is for brokers of one cluster (P17);
// mirrors make their topics through the controller.
func (s *Server) registerCreateTopics() {
	s.register(19, 2, 7, s.createTopics)
}

func (s *Server) createTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.CreateTopicsRequest)
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	seen := map[string]int{}
	for i := range req.Topics {
		seen[req.Topics[i].Topic]++
	}
	results := make([]controller.TopicResult, len(req.Topics))
	var create []controller.CreateTopic
	var at []int // index in the request of each create
	every := s.visible(r, authz.Create, authz.Cluster, authz.ClusterName)
	for i := range req.Topics {
		in := &req.Topics[i]
		ct, err := createTopic(in)
		if !s.allowedOr(r, every, authz.Create, authz.Topic, in.Topic) {
			err = errTopicDenied
		}
		if seen[in.Topic] > 1 {
			err = fmt.Errorf("%w: topic %q is named more than once", controller.ErrInvalidRequest, in.Topic)
		}
		if err == nil && !req.ValidateOnly {
			err = s.mutate(r, s.partitionsOf(&ct), req.Version >= 6)
		}
		if results[i] = (controller.TopicResult{Name: in.Topic, Err: err}); err == nil {
			create, at = append(create, ct), append(at, i)
		}
	}
	if len(create) > 0 {
		for i, res := range s.o.Controller.CreateTopics(r.ctx, create, req.ValidateOnly) {
			results[at[i]] = res
		}
		s.settle(r.ctx)
	}
	settings := s.settings(s.o.Controller.Image())
	for i := range results {
		out := createdTopic(&req.Topics[i], &results[i], settings)
		if out.ErrorCode == 0 && !s.visible(r, authz.DescribeConfigs, authz.Topic, out.Topic) {
			out.ConfigErrorCode, _ = errorCode(errTopicDenied)
			out.NumPartitions, out.ReplicationFactor, out.Configs = -1, -1, nil
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}

func createTopic(in *kmsg.CreateTopicsRequestTopic) (controller.CreateTopic, error) {
	ct := controller.CreateTopic{Name: in.Topic, Partitions: in.NumPartitions, ReplicationFactor: in.ReplicationFactor}
	if len(in.ReplicaAssignment) > 0 {
		if in.NumPartitions != -1 || in.ReplicationFactor != -1 {
			return ct, fmt.Errorf("%w: topic %q has both a replica assignment and numbers", controller.ErrInvalidRequest, in.Topic)
		}
		ct.Assignment = make(map[int32][]int32, len(in.ReplicaAssignment))
		for _, a := range in.ReplicaAssignment {
			if _, twice := ct.Assignment[a.Partition]; twice {
				return ct, fmt.Errorf("%w: topic %q assigns partition %d twice", controller.ErrInvalidReplicaAssignment, in.Topic, a.Partition)
			}
			ct.Assignment[a.Partition] = a.Replicas
		}
	} else {
		// 0 is not a default but a mistake (KIP-464 chose -1).
		if in.NumPartitions == 0 || in.NumPartitions < -1 {
			return ct, fmt.Errorf("%w: %d", controller.ErrInvalidPartitions, in.NumPartitions)
		}
		if in.ReplicationFactor == 0 || in.ReplicationFactor < -1 {
			return ct, fmt.Errorf("%w: %d", controller.ErrInvalidReplicationFactor, in.ReplicationFactor)
		}
	}
	ct.Configs = make(map[string]string, len(in.Configs))
	for _, c := range in.Configs {
		if _, twice := ct.Configs[c.Name]; twice {
			return ct, fmt.Errorf("%w: %s is given twice", controller.ErrInvalidConfig, c.Name)
		}
		if c.Value == nil {
			return ct, fmt.Errorf("%w: %s has no value", controller.ErrInvalidConfig, c.Name)
		}
		ct.Configs[c.Name] = *c.Value
	}
	return ct, nil
}

func createdTopic(in *kmsg.CreateTopicsRequestTopic, res *controller.TopicResult, settings metadata.BrokerSettings) kmsg.CreateTopicsResponseTopic {
	out := kmsg.NewCreateTopicsResponseTopic()
	out.Topic = in.Topic
	out.ErrorCode, out.ErrorMessage = errorCode(res.Err)
	out.NumPartitions, out.ReplicationFactor = -1, -1
	t := res.Topic
	if res.Err != nil || t == nil {
		return out
	}
	out.TopicID = t.ID
	out.NumPartitions = int32(len(t.Partitions))
	if len(t.Partitions) > 0 {
		out.ReplicationFactor = int16(len(t.Partitions[0].Replicas))
	}
	for _, d := range metadata.TopicConfigDefs() {
		e := topicConfig(t, d, settings)
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.Source, c.ReadOnly, c.IsSensitive = e.name, e.value, int8(e.source), e.readOnly, e.secret
		out.Configs = append(out.Configs, c)
	}
	return out
}
