package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// IncrementalAlterConfigs (v0-v1)
//
// Behavior:
//   - Topics (2), brokers (4; the empty name for all), loggers (8), groups (32) and
//     mirrors (64); all changes of one resource or none. Names and values are checked by the
//     controller (C4): INVALID_CONFIG names what it refuses. A config of the
//     broker that needs a restart is refused with INVALID_REQUEST, as in Kafka.
//   - Levels of loggers (KIP-412) hold until the broker's next start, or until its
//     config log.level changes.
//   - Needs AlterConfigs on the topic, the group, the mirror, or for brokers and
//     their loggers the cluster.
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
	named := map[resourceKey]int{}
	for i := range req.Resources {
		named[resourceKey{controller.ConfigResource(req.Resources[i].ResourceType), req.Resources[i].ResourceName}]++
	}
	var alter []controller.AlterConfigs
	var at []int // index in the request of each change
	for i := range req.Resources {
		in := &req.Resources[i]
		a := controller.AlterConfigs{Type: controller.ConfigResource(in.ResourceType), Name: in.ResourceName}
		for j := range in.Configs {
			c := &in.Configs[j]
			a.Ops = append(a.Ops, controller.ConfigOp{Name: c.Name, Value: c.Value, Op: controller.ConfigOpType(c.Op)})
		}
		err := s.mayConfigure(r, authz.AlterConfigs, a.Type, a.Name)
		if err == nil {
			err = s.checkAlter(&a, named)
		}
		switch {
		case err != nil:
		case a.Type == resourceLogger:
			err = s.alterLoggers(&a, req.ValidateOnly)
		default:
			alter, at = append(alter, a), append(at, i)
		}
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		resp.Resources = append(resp.Resources, out)
	}
	for i, err := range s.o.Controller.AlterConfigs(r.ctx, alter, req.ValidateOnly) {
		out := &resp.Resources[at[i]]
		out.ErrorCode, out.ErrorMessage = errorCode(err)
	}
	s.settle(r.ctx)
	return resp, nil
}
