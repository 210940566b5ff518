package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// IncrementalAlterConfigs (v0-v1)
//
// Behavior:
//   - Topics (2), brokers (4) and mirrors (64); all changes of one resource or
//     none. Names and values are checked by the controller (C4).
//   - Allowed on mirrored topics, except for mirror.name (spec 10.5).
//
// Version notes:
//   - v1: flexible
func (s *Server) registerIncrementalAlterConfigs() {
	s.register(44, 0, 1, s.incrementalAlterConfigs)
}

func (s *Server) incrementalAlterConfigs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	alter := make([]controller.AlterConfigs, len(req.Resources))
	for i := range req.Resources {
		in := &req.Resources[i]
		alter[i] = controller.AlterConfigs{Type: controller.ConfigResource(in.ResourceType), Name: in.ResourceName}
		for j := range in.Configs {
			c := &in.Configs[j]
			alter[i].Ops = append(alter[i].Ops, controller.ConfigOp{Name: c.Name, Value: c.Value, Op: controller.ConfigOpType(c.Op)})
		}
	}
	for i, err := range s.o.Controller.AlterConfigs(r.ctx, alter, req.ValidateOnly) {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = req.Resources[i].ResourceType, req.Resources[i].ResourceName
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		resp.Resources = append(resp.Resources, out)
	}
	s.settle(r.ctx)
	return resp, nil
}
