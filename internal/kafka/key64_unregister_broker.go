package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// UnregisterBroker (v0)
//
// Behavior:
//   - Forgets a broker that is gone for good. One that is alive is refused with
//     INVALID_REQUEST (Kafka fences it). Replicas keep its id until they are moved.
//     Needs Alter on the cluster.
func (s *Server) registerUnregisterBroker() {
	s.register(64, 0, 0, s.unregisterBroker)
}

func (s *Server) unregisterBroker(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.UnregisterBrokerRequest)
	resp := req.ResponseKind().(*kmsg.UnregisterBrokerResponse)
	if !s.allowedCluster(r, authz.Alter) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	resp.ErrorCode, resp.ErrorMessage = errorCode(s.o.Controller.UnregisterBroker(r.ctx, req.BrokerID))
	return resp, nil
}
