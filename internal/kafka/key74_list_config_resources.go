package kafka

import (
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// ListConfigResources (v0-v1)
//
// Behavior:
//   - Names what has configs: topics (2), brokers (4, and 8 for their loggers),
//     groups with configs of their own (32) and mirrors (64). Client metrics (16)
//     have none here: the answer for them is empty.
//   - A type that nobody knows is UNSUPPORTED_VERSION, as in Kafka.
//
// Version notes:
//   - v0: client metrics only (KIP-1000)
//   - v1: types; none asks for all (KIP-1142)
func (s *Server) registerListConfigResources() {
	s.register(74, 0, 1, s.listConfigResources)
}

func (s *Server) listConfigResources(r *request, body kmsg.Request) (kmsg.Response, error) {
	const clientMetrics = 16
	const topics, brokers, mirrors = int8(controller.ResourceTopic), int8(controller.ResourceBroker), int8(controller.ResourceMirror)
	const loggers, groups = int8(resourceLogger), int8(controller.ResourceGroup)
	req := body.(*kmsg.ListConfigResourcesRequest)
	resp := req.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	if !s.allowedCluster(r, authz.DescribeConfigs) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	types := req.ResourceTypes
	switch {
	case req.Version < 1:
		types = []int8{clientMetrics}
	case len(types) == 0:
		types = []int8{topics, brokers, loggers, clientMetrics, groups, mirrors}
	}
	img := s.o.Controller.Image()
	add := func(kind int8, name string) {
		c := kmsg.NewListConfigResourcesResponseConfigResource()
		c.Type, c.Name = kind, name
		resp.ConfigResources = append(resp.ConfigResources, c)
	}
	seen := map[int8]bool{}
	for _, kind := range types {
		if seen[kind] {
			continue
		}
		seen[kind] = true
		switch kind {
		case topics:
			for t := range img.AllTopics() {
				add(kind, t.Name)
			}
		case brokers, loggers:
			for _, b := range img.Brokers() {
				add(kind, strconv.Itoa(int(b.ID)))
			}
		case mirrors:
			for _, m := range img.Mirrors() {
				add(kind, m.Name)
			}
		case groups:
			for _, name := range img.ConfiguredGroups() {
				add(kind, name)
			}
		case clientMetrics:
		default:
			resp.ErrorCode, resp.ConfigResources = kerr.UnsupportedVersion.Code, nil
			return resp, nil
		}
	}
	return resp, nil
}
