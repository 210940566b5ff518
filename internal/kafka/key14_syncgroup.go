package kafka

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// SyncGroup, versions 0 to 5. Members wait until the leader's assignment has
// come and is stored. v3 group instance id (KIP-345); v4 flexible; v5 protocol
// type and name, checked against the generation's.
func (s *Server) registerSyncGroup() {
	s.register(keySyncGroup, 0, 5, s.syncGroup)
}

func (s *Server) syncGroup(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.SyncGroupRequest)
	if !s.allowed(r, authz.Read, authz.Group, req.Group) {
		return &kmsg.SyncGroupResponse{ErrorCode: groupCode(errGroupDenied)}, nil
	}
	sync := &group.SyncRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
		ProtocolType: orEmpty(req.ProtocolType), Protocol: orEmpty(req.Protocol),
	}
	for _, a := range req.GroupAssignment {
		sync.Assignments = append(sync.Assignments, group.Assignment{MemberID: a.MemberID, Data: bytes.Clone(a.MemberAssignment)})
	}
	res := s.o.Groups.Sync(r.ctx, sync)
	if gaveUp(r, res.Err) {
		return nil, res.Err
	}
	return &kmsg.SyncGroupResponse{
		ErrorCode: groupCode(res.Err), ProtocolType: orNil(res.ProtocolType), Protocol: orNil(res.Protocol),
		MemberAssignment: res.Assignment,
	}, nil
}
