package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// Heartbeat, versions 0 to 4: keeps the session, and tells the member when to
// rejoin. v3 group instance id (KIP-345); v4 flexible.
func (s *Server) registerHeartbeat() {
	s.register(12, 0, 4, s.heartbeat)
}

func (s *Server) heartbeat(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.HeartbeatRequest)
	if !s.allowed(r, authz.Read, authz.Group, req.Group) {
		return &kmsg.HeartbeatResponse{ErrorCode: groupCode(errGroupDenied)}, nil
	}
	err := s.o.Groups.Heartbeat(r.ctx, &group.HeartbeatRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
	})
	if gaveUp(r, err) {
		return nil, err
	}
	return &kmsg.HeartbeatResponse{ErrorCode: groupCode(err)}, nil
}
