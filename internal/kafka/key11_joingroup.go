package kafka

import (
	"bytes"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// JoinGroup, versions 0 to 9. The answer comes when the generation is fixed,
// which may take as long as the slowest member's rebalance timeout. Needs Read on
// the group, as the other keys of members do.
//
// v1 rebalance timeout (KIP-62; before, the session timeout); v4 a member
// without id gets one and joins again (KIP-394); v5 group instance id (KIP-345);
// v6 flexible; v7 protocol type in the answer; v8 reason (KIP-800); v9 a
// returning static leader may skip the assignment (KIP-814).
func (s *Server) registerJoinGroup() {
	s.register(keyJoinGroup, 0, 9, s.joinGroup)
}

func (s *Server) joinGroup(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.JoinGroupRequest)
	if !s.allowed(r, authz.Read, authz.Group, req.Group) {
		return deniedJoin(req), nil
	}
	join := &group.JoinRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID),
		ClientID: r.clientID(), ClientHost: r.clientHost(),
		SessionTimeout:   time.Duration(req.SessionTimeoutMillis) * time.Millisecond,
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		ProtocolType:     req.ProtocolType,
		RequireKnownID:   req.Version >= 4, CanSkipAssignment: req.Version >= 9,
		Reason: orEmpty(req.Reason),
	}
	if req.Version < 1 || req.RebalanceTimeoutMillis < 0 {
		join.RebalanceTimeout = join.SessionTimeout
	}
	for _, p := range req.Protocols {
		join.Protocols = append(join.Protocols, group.Protocol{Name: p.Name, Metadata: bytes.Clone(p.Metadata)})
	}
	res := s.o.Groups.Join(r.ctx, join)
	if gaveUp(r, res.Err) {
		return nil, res.Err
	}

	resp := &kmsg.JoinGroupResponse{
		ErrorCode: groupCode(res.Err), Generation: res.Generation, MemberID: res.MemberID, LeaderID: res.Leader,
		ProtocolType: orNil(res.ProtocolType), Protocol: &res.Protocol, SkipAssignment: res.SkipAssignment,
	}
	if req.Version >= 7 && res.Protocol == "" {
		resp.Protocol = nil // nullable from here
	}
	for _, m := range res.Members {
		resp.Members = append(resp.Members, kmsg.JoinGroupResponseMember{
			MemberID: m.MemberID, InstanceID: orNil(m.InstanceID), ProtocolMetadata: m.Metadata,
		})
	}
	return resp, nil
}

func deniedJoin(req *kmsg.JoinGroupRequest) *kmsg.JoinGroupResponse {
	resp := &kmsg.JoinGroupResponse{ErrorCode: groupCode(errGroupDenied), Generation: -1, MemberID: req.MemberID}
	if req.Version < 7 {
		resp.Protocol = new(string) // nullable from v7
	}
	return resp
}
