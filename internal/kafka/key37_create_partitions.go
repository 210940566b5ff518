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
//   - v3: may be throttled; it is not
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
	var grow []controller.CreatePartitions
	var at []int
	for i := range req.Topics {
		in := &req.Topics[i]
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = in.Topic
		if seen[in.Topic] > 1 {
			out.ErrorCode, out.ErrorMessage = errorCode(fmt.Errorf("%w: topic %q is named more than once", controller.ErrInvalidRequest, in.Topic))
		} else if !s.allowedTopic(r, authz.Alter, in.Topic) {
			out.ErrorCode, out.ErrorMessage = errorCode(errTopicDenied)
		} else {
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
