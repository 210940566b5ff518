package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// LeaveGroup, versions 0 to 5. v3 several members, and static ones by instance
// id alone, so that an administrator can remove them (KIP-345); v4 flexible; v5
// reason (KIP-800). Before v3 the one member's error is the answer's.
func (s *Server) registerLeaveGroup() {
	s.register(13, 0, 5, s.leaveGroup)
}

func (s *Server) leaveGroup(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.LeaveGroupRequest)
	if !s.allowed(r, authz.Read, authz.Group, req.Group) {
		return &kmsg.LeaveGroupResponse{ErrorCode: groupCode(errGroupDenied)}, nil
	}
	leave := &group.LeaveRequest{Group: req.Group}
	if req.Version < 3 {
		leave.Members = []group.LeaveMember{{MemberID: req.MemberID}}
	}
	for _, m := range req.Members {
		leave.Members = append(leave.Members, group.LeaveMember{
			MemberID: m.MemberID, InstanceID: orEmpty(m.InstanceID), Reason: orEmpty(m.Reason),
		})
	}
	res := s.o.Groups.Leave(r.ctx, leave)
	if gaveUp(r, res.Err) {
		return nil, res.Err
	}
	resp := &kmsg.LeaveGroupResponse{ErrorCode: groupCode(res.Err)}
	if res.Err != nil {
		return resp, nil
	}
	if req.Version < 3 {
		resp.ErrorCode = groupCode(res.Members[0])
		return resp, nil
	}
	for i, m := range req.Members {
		resp.Members = append(resp.Members, kmsg.LeaveGroupResponseMember{
			MemberID: m.MemberID, InstanceID: m.InstanceID, ErrorCode: groupCode(res.Members[i]),
		})
	}
	return resp, nil
}
