package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DeleteRecords (v0-v2)
//
// Behavior:
//   - Moves a partition's log start up to an offset, or to the high watermark
//     for -1, and answers the new start. Each partition succeeds or fails by
//     itself. Needs Delete on the topic.
//   - A topic of a mirror that is not stopped is refused with 145 (spec 10.5,
//     MIR-257), an internal topic as Kafka does, one that is only compacted with
//     POLICY_VIOLATION.
//   - It is answered when the leader has the new start, and does not wait for the
//     followers as Kafka does, so that the timeout has no use: one that is elected
//     before its next fetch still has what was deleted.
//
// Version notes:
//   - v1: throttled after the answer; it is not
//   - v2: flexible
func (s *Server) registerDeleteRecords() {
	s.register(21, 0, 2, s.deleteRecords)
}

func (s *Server) deleteRecords(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DeleteRecordsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	img := s.o.Controller.Image()
	resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = req.Topics[i].Topic
		topic := img.Topic(rt.Topic)
		allowed := s.allowedTopic(r, authz.Delete, rt.Topic)
		for _, in := range req.Topics[i].Partitions {
			out := kmsg.NewDeleteRecordsResponseTopicPartition()
			out.Partition = in.Partition
			low, err := int64(-1), errTopicDenied
			if allowed {
				low, err = s.deleteBelow(topic, in.Partition, in.Offset)
			}
			if err != nil {
				low = -1
				s.o.Logger.Debug("records not deleted", "topic", rt.Topic, "partition", in.Partition, "offset", in.Offset, "err", err)
			}
			out.LowWatermark = low
			out.ErrorCode, _ = errorCode(err) // the answer has no room for a message
			rt.Partitions = append(rt.Partitions, out)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

func (s *Server) deleteBelow(topic *metadata.Topic, index int32, offset int64) (low int64, err error) {
	if topic == nil {
		return -1, errUnknownPartition
	}
	if topic.Internal {
		return -1, fmt.Errorf("%w: records of an internal topic cannot be deleted", controller.ErrInvalidTopic)
	}
	p := s.o.Partitions.ByID(topic.ID, index)
	if p == nil {
		return -1, missing(topic, index, false)
	}
	return p.DeleteRecords(offset)
}
