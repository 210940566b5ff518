package kafka

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DescribeTopicPartitions (v0)
//
// Behavior:
//   - Metadata by pages (KIP-966): topics in the order of their names, none named
//     asks for all, and at most as many partitions as the client wants, never more
//     than 2 000. What did not fit begins at the answer's cursor.
//   - Topics that the client may not describe are refused where they are named and
//     left out otherwise.
//   - A page of no partitions, or a cursor before the first, is INVALID_REQUEST for
//     every topic.
//   - Replicas outside of the ISR that have every committed record are told as
//     eligible leaders (KIP-966).
func (s *Server) registerDescribeTopicPartitions() {
	s.register(75, 0, 0, s.describeTopicPartitions)
}

// maxPartitionsPage is Kafka's max.request.partition.size.limit.
const maxPartitionsPage = 2000

func (s *Server) describeTopicPartitions(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeTopicPartitionsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	img := s.o.Controller.Image()
	left := min(int(req.ResponsePartitionLimit), maxPartitionsPage)
	from, first := "", int32(0)
	if req.Cursor != nil {
		from, first = req.Cursor.Topic, req.Cursor.Partition
	}
	names := make([]string, 0, len(req.Topics))
	for i := range req.Topics {
		names = append(names, req.Topics[i].Topic)
	}
	all := len(names) == 0
	if all {
		for t := range img.AllTopics() {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	if left < 1 || first < 0 {
		// There is no place for an error of the whole request.
		for _, name := range names {
			resp.Topics = append(resp.Topics, topicPage(name, kerr.InvalidRequest))
		}
		return resp, nil
	}
	for _, name := range slices.Compact(names) {
		if strings.Compare(name, from) < 0 {
			continue
		}
		if all && !s.visible(r, authz.Describe, authz.Topic, name) {
			continue
		}
		if !all && !s.allowedTopic(r, authz.Describe, name) {
			resp.Topics = append(resp.Topics, topicPage(name, kerr.TopicAuthorizationFailed))
			continue
		}
		t := img.Topic(name)
		if t == nil {
			resp.Topics = append(resp.Topics, topicPage(name, kerr.UnknownTopicOrPartition))
			continue
		}
		begin := int32(0)
		if name == from {
			begin = min(first, int32(len(t.Partitions)))
		}
		if left == 0 {
			resp.NextCursor = pageCursor(name, begin)
			return resp, nil
		}
		out := topicPage(name, nil)
		out.TopicID, out.IsInternal = t.ID, t.Internal
		out.AuthorizedOperations = s.operations(r, authz.Topic, name)
		end := min(begin+int32(left), int32(len(t.Partitions)))
		for _, p := range t.Partitions[begin:end] {
			out.Partitions = append(out.Partitions, partitionPage(img, p))
		}
		left -= int(end - begin)
		resp.Topics = append(resp.Topics, out)
		if int(end) < len(t.Partitions) {
			resp.NextCursor = pageCursor(name, end)
			return resp, nil
		}
	}
	return resp, nil
}

func pageCursor(topic string, partition int32) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	c := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	c.Topic, c.Partition = topic, partition
	return &c
}

func topicPage(name string, err *kerr.Error) kmsg.DescribeTopicPartitionsResponseTopic {
	out := kmsg.NewDescribeTopicPartitionsResponseTopic()
	out.Topic = &name
	if err != nil {
		out.ErrorCode = err.Code
	}
	return out
}

func partitionPage(img *metadata.Image, p *metadata.Partition) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	out := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	out.Partition, out.LeaderID, out.LeaderEpoch = p.Index, p.Leader, p.LeaderEpoch
	out.Replicas, out.ISR = p.Replicas, p.ISR
	out.EligibleLeaderReplicas = append([]int32{}, p.ELR...)
	out.LastKnownELR = append([]int32{}, p.LastKnownELR...)
	out.OfflineReplicas = []int32{}
	for _, id := range p.Replicas {
		if b := img.Broker(id); b == nil || b.Fenced {
			out.OfflineReplicas = append(out.OfflineReplicas, id)
		}
	}
	if b := img.Broker(p.Leader); b == nil || b.Fenced {
		out.ErrorCode, out.LeaderID = kerr.LeaderNotAvailable.Code, -1
	}
	return out
}
