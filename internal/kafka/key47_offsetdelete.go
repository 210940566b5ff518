package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// OffsetDelete, version 0 (KIP-496): deletes committed offsets of an empty
// group, or of topics that no member of a group of consumers reads.
// Needs Delete on the group and Read on each topic.
func (s *Server) registerOffsetDelete() {
	s.register(47, 0, 0, s.offsetDelete)
}

func (s *Server) offsetDelete(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.OffsetDeleteRequest)
	if !s.allowed(r, authz.Delete, authz.Group, req.Group) {
		return &kmsg.OffsetDeleteResponse{ErrorCode: groupCode(errGroupDenied)}, nil
	}
	var resp kmsg.OffsetDeleteResponse
	img := s.o.Controller.Image()
	var keys []group.TopicPartition
	var answers []*int16
	for _, rt := range req.Topics {
		out := kmsg.OffsetDeleteResponseTopic{
			Topic: rt.Topic, Partitions: make([]kmsg.OffsetDeleteResponseTopicPartition, len(rt.Partitions)),
		}
		t := img.Topic(rt.Topic)
		allowed := s.allowedTopic(r, authz.Read, rt.Topic)
		for j, rp := range rt.Partitions {
			out.Partitions[j].Partition = rp.Partition
			if !allowed {
				out.Partitions[j].ErrorCode = groupCode(errTopicDenied)
				continue
			}
			if t == nil || t.Partition(rp.Partition) == nil {
				out.Partitions[j].ErrorCode = kerr.UnknownTopicOrPartition.Code
				continue
			}
			keys = append(keys, group.TopicPartition{Topic: rt.Topic, Partition: rp.Partition})
			answers = append(answers, &out.Partitions[j].ErrorCode)
		}
		resp.Topics = append(resp.Topics, out)
	}
	res := s.o.Groups.DeleteOffsets(r.ctx, req.Group, keys)
	if gaveUp(r, res.Err) {
		return nil, res.Err
	}
	if res.Err != nil {
		return &kmsg.OffsetDeleteResponse{ErrorCode: groupCode(res.Err)}, nil
	}
	for i, code := range answers {
		*code = groupCode(res.Partitions[i])
	}
	return &resp, nil
}
