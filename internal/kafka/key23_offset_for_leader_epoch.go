package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// OffsetForLeaderEpoch (v2-v4)
//
// Behavior:
//   - Answers the largest epoch in the log that is not above the asked one, and
//     where it ends; (-1, -1) when the log has none (spec L3). Consumers find
//     truncation with it, mirrors where histories part. Each topic needs
//     Describe, or the client ClusterAction.
//
// Version notes:
//   - v2: current leader epoch
//   - v3: replica id; everyone may ask, so it decides nothing
//   - v4: flexible
func (s *Server) registerOffsetForLeaderEpoch() {
	s.register(23, 2, 4, s.offsetForLeaderEpoch)
}

func (s *Server) offsetForLeaderEpoch(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.OffsetForLeaderEpochRequest)
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	img := s.o.Controller.Image()
	broker := s.visible(r, authz.ClusterAction, authz.Cluster, authz.ClusterName)
	for i := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = req.Topics[i].Topic
		topic := img.Topic(rt.Topic)
		allowed := s.allowedOr(r, broker, authz.Describe, authz.Topic, rt.Topic)
		for _, in := range req.Topics[i].Partitions {
			out := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			out.Partition = in.Partition
			var p *partition.Partition
			if topic != nil && allowed {
				p = s.o.Partitions.ByID(topic.ID, in.Partition)
			}
			end := sdk.EpochEnd{Epoch: -1, End: -1}
			var err error
			if !allowed {
				err = errTopicDenied
			} else if p == nil {
				err = missing(topic, in.Partition, false)
			} else {
				end, err = p.EpochEnd(in.CurrentLeaderEpoch, in.LeaderEpoch)
			}
			if err != nil {
				end = sdk.EpochEnd{Epoch: -1, End: -1}
			}
			out.LeaderEpoch, out.EndOffset = end.Epoch, end.End
			out.ErrorCode, _ = errorCode(err)
			rt.Partitions = append(rt.Partitions, out)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}
