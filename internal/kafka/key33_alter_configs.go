package kafka

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// AlterConfigs (v0-v2)
//
// Behavior:
//   - Replaces all overrides of a resource: what is not named goes back to its
//     default. Clients older than 2.3 know nothing else; newer ones use
//     IncrementalAlterConfigs (44), which does not lose what a second
//     administrator sets at the same time.
//   - Topics, brokers and groups; needs AlterConfigs on the topic, the group, or
//     for brokers the cluster.
//   - Mirrors are refused: the replacement would take away their address. So are
//     loggers, as in Kafka.
//
// Version notes:
//   - v2: flexible
func (s *Server) registerAlterConfigs() {
	s.register(33, 0, 2, s.alterConfigs)
}

func (s *Server) alterConfigs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	img := s.o.Controller.Image()
	named := map[resourceKey]int{}
	for i := range req.Resources {
		named[resourceKey{controller.ConfigResource(req.Resources[i].ResourceType), req.Resources[i].ResourceName}]++
	}
	var alter []controller.AlterConfigs
	var at []int
	for i := range req.Resources {
		in := &req.Resources[i]
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		var a controller.AlterConfigs
		err := s.mayConfigure(r, authz.AlterConfigs, controller.ConfigResource(in.ResourceType), in.ResourceName)
		if err == nil {
			a, err = replaceConfigs(img, in)
		}
		if err == nil {
			err = s.checkAlter(&a, named)
		}
		if err == nil {
			alter, at = append(alter, a), append(at, i)
		}
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		resp.Resources = append(resp.Resources, out)
	}
	if len(alter) > 0 {
		for i, err := range s.o.Controller.AlterConfigs(r.ctx, alter, req.ValidateOnly) {
			out := &resp.Resources[at[i]]
			out.ErrorCode, out.ErrorMessage = errorCode(err)
		}
		s.settle(r.ctx)
	}
	return resp, nil
}

// replaceConfigs turns "exactly these" into changes of what is there now.
func replaceConfigs(img *metadata.Image, in *kmsg.AlterConfigsRequestResource) (controller.AlterConfigs, error) {
	a := controller.AlterConfigs{Type: controller.ConfigResource(in.ResourceType), Name: in.ResourceName}
	var now map[string]string
	switch a.Type {
	case controller.ResourceTopic:
		t := img.Topic(in.ResourceName)
		if t == nil {
			return a, fmt.Errorf("%w: %q", errUnknownPartition, in.ResourceName)
		}
		now = t.Configs
	case controller.ResourceBroker:
		id := metadata.DefaultBroker
		if a.Name != "" {
			n, err := strconv.ParseInt(a.Name, 10, 32)
			if err != nil || n < 0 {
				return a, fmt.Errorf("%w: broker %q is not a number", controller.ErrInvalidRequest, a.Name)
			}
			id = int32(n)
		}
		now = img.BrokerConfigs(id)
	case controller.ResourceGroup:
		now = img.GroupConfigs(a.Name)
	default:
		return a, fmt.Errorf("%w: only configs of topics, brokers and groups can be replaced as a whole; use incremental changes", controller.ErrInvalidRequest)
	}
	named := map[string]bool{}
	for i := range in.Configs {
		c := &in.Configs[i]
		named[c.Name] = true
		op := controller.ConfigOp{Name: c.Name, Value: c.Value, Op: controller.ConfigSet}
		if c.Value == nil {
			op.Op = controller.ConfigDelete
		}
		a.Ops = append(a.Ops, op)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !named[name] {
			a.Ops = append(a.Ops, controller.ConfigOp{Name: name, Op: controller.ConfigDelete})
		}
	}
	return a, nil
}
