package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// ListPartitionReassignments (v0)
//
// Behavior:
//   - None is ever under way (see key 45).
func (s *Server) registerListPartitionReassignments() {
	s.register(46, 0, 0, s.listPartitionReassignments)
}

func (s *Server) listPartitionReassignments(r *request, body kmsg.Request) (kmsg.Response, error) {
	resp := body.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	if !s.allowedCluster(r, authz.Describe) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
	}
	return resp, nil
}
