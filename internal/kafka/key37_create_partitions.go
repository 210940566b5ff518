package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// CreatePartitions (v0-v3)
//
// Behavior:
//   - Each topic succeeds or fails by itself, and needs Alter. A topic of a mirror that is not
//     stopped is refused with 145 (spec 10.5): its growth follows the source.
//
// Version notes:
//   - v2: flexible
//   - v3: THROTTLING_QUOTA_EXCEEDED as in CreateTopics v6 (KIP-599)
func (s *Server) registerCreatePartitions() {
	s.register(37, 0, 3, s.createPartitions)
}

func (s *Server) createPartitions(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.CreatePartitionsRequest)
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	seen := map[string]int{}
	for i := range req.Topics {
		seen[req.Topics[i].Topic]++
	}
	img := s.o.Controller.Image()
	var grow []controller.CreatePartitions
	var at []int
	for i := range req.Topics {
		in := &req.Topics[i]
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = in.Topic
		var err error
		if seen[in.Topic] > 1 {
			err = fmt.Errorf("%w: topic %q is named more than once", controller.ErrInvalidRequest, in.Topic)
		} else if !s.allowedTopic(r, authz.Alter, in.Topic) {
			err = errTopicDenied
		} else if t := img.Topic(in.Topic); t != nil && !req.ValidateOnly && int(in.Count) > len(t.Partitions) {
			err = s.mutate(r, int(in.Count)-len(t.Partitions), req.Version >= 3)
		}
		if out.ErrorCode, out.ErrorMessage = errorCode(err); err == nil {
			g := controller.CreatePartitions{Topic: in.Topic, Total: in.Count}
			for _, a := range in.Assignment {
				g.Assignment = append(g.Assignment, a.Replicas)
			}
			grow, at = append(grow, g), append(at, i)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(grow) > 0 {
		for i, res := range s.o.Controller.CreatePartitions(r.ctx, grow, req.ValidateOnly) {
			out := &resp.Topics[at[i]]
			out.ErrorCode, out.ErrorMessage = errorCode(res.Err)
		}
		s.settle(r.ctx)
	}
	return resp, nil
}
