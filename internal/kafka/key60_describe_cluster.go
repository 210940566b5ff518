package kafka

import (
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeCluster (v0-v2)
//
// Behavior:
//   - Names the brokers by the listener that the request came in on. Everybody
//     may ask; authorized operations are none without Describe on the cluster
//     (KIP-430).
//
// Version notes:
//   - v1: endpoint type (KIP-919); only brokers (1) are served, there are no
//     controller listeners
//   - v2: fenced brokers on request (KIP-1073)
func (s *Server) registerDescribeCluster() {
	s.register(60, 0, 2, s.describeCluster)
}

func (s *Server) describeCluster(r *request, body kmsg.Request) (kmsg.Response, error) {
	const brokers = 1
	req := body.(*kmsg.DescribeClusterRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ClusterAuthorizedOperations = math.MinInt32
	resp.EndpointType = brokers
	if req.Version >= 1 && req.EndpointType != brokers {
		resp.ErrorCode = kerr.MismatchedEndpointType.Code
		text := "this listener serves brokers; controllers have none of their own"
		resp.ErrorMessage = &text
		return resp, nil
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = s.clusterOperations(r)
	}
	img := s.o.Controller.Image()
	resp.ClusterID, resp.ControllerID = img.ClusterID, s.controllerBroker(img)
	for _, b := range img.Brokers() {
		e, ok := r.conn.listener.endpointOf(b)
		if !ok || b.Fenced && !(req.Version >= 2 && req.IncludeFencedBrokers) {
			continue
		}
		out := kmsg.NewDescribeClusterResponseBroker()
		out.NodeID, out.Host, out.Port, out.IsFenced = b.ID, e.Host, e.Port, b.Fenced
		if b.Rack != "" {
			out.Rack = &b.Rack
		}
		resp.Brokers = append(resp.Brokers, out)
	}
	return resp, nil
}
