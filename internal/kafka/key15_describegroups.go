package kafka

import (
	"errors"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// DescribeGroups, versions 0 to 6.
//
//   - A group that does not exist, or is a consumer group (KIP-848), is "Dead", without an error before v6
//     (KIP-1043 made it GROUP_ID_NOT_FOUND).
//   - Each group needs Describe.
//   - Members' metadata and assignments are told while the group is stable.
//
// v3 authorized operations (KIP-430); v4
// group instance id (KIP-345); v5 flexible; v6 message.
func (s *Server) registerDescribeGroups() {
	s.register(15, 0, 6, s.describeGroups)
}

func (s *Server) describeGroups(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeGroupsRequest)
	var resp kmsg.DescribeGroupsResponse
	for _, id := range req.Groups {
		if !s.allowed(r, authz.Describe, authz.Group, id) {
			g := kmsg.DescribeGroupsResponseGroup{Group: id, AuthorizedOperations: math.MinInt32}
			g.ErrorCode, g.ErrorMessage = errorCode(errGroupDenied)
			resp.Groups = append(resp.Groups, g)
			continue
		}
		d := s.o.Groups.Describe(r.ctx, id)
		if gaveUp(r, d.Err) {
			return nil, d.Err
		}
		g := kmsg.DescribeGroupsResponseGroup{
			Group: id, State: d.State.String(), ProtocolType: d.ProtocolType, Protocol: d.Protocol,
			AuthorizedOperations: math.MinInt32, // not asked for
		}
		if g.ErrorCode = groupCode(d.Err); d.Err != nil {
			if errors.Is(d.Err, group.ErrNotFound) {
				if req.Version < 6 {
					g.ErrorCode = 0
				}
			} else {
				g.State = ""
			}
			text := d.Err.Error()
			g.ErrorMessage = &text
		}
		if req.IncludeAuthorizedOperations && g.ErrorCode == 0 {
			g.AuthorizedOperations = s.operations(r, authz.Group, id)
		}
		for _, m := range d.Members {
			g.Members = append(g.Members, kmsg.DescribeGroupsResponseGroupMember{
				MemberID: m.MemberID, InstanceID: orNil(m.InstanceID), ClientID: m.ClientID, ClientHost: m.ClientHost,
				ProtocolMetadata: m.Metadata, MemberAssignment: m.Assignment,
			})
		}
		resp.Groups = append(resp.Groups, g)
	}
	return &resp, nil
}
