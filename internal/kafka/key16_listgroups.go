package kafka

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// ListGroups, versions 0 to 5: the groups this broker coordinates. While one of
// its partitions is loading, the code says so and the list is what is known. Who
// may not describe the cluster sees the groups that he may describe.
//
// v3 flexible; v4 filter by state (KIP-518); v5 type, and a
// filter by it (KIP-848). Filters do not mind case; an unknown state or type finds
// nothing.
//
// With a private tagged field it is a mirror's question, from another broker of
// this cluster: see mirrorgroups.go.
func (s *Server) registerListGroups() {
	s.register(16, 0, 5, s.listGroups)
}

func (s *Server) listGroups(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ListGroupsRequest)
	if b, ok := tagOf(&req.UnknownTags, tagGroupsAbove); ok {
		return s.listGroupsAbove(r, b)
	}
	all, err := s.o.Groups.List(r.ctx)
	if gaveUp(r, err) {
		return nil, err
	}
	resp := &kmsg.ListGroupsResponse{ErrorCode: groupCode(err)}
	every := s.visible(r, authz.Describe, authz.Cluster, authz.ClusterName)
	for _, l := range all {
		if !every && !s.visible(r, authz.Describe, authz.Group, l.Group) {
			continue
		}
		if !passes(req.StatesFilter, l.State.String()) || !passes(req.TypesFilter, l.Type) {
			continue
		}
		resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{
			Group: l.Group, ProtocolType: l.ProtocolType, GroupState: l.State.String(), GroupType: l.Type,
		})
	}
	return resp, nil
}

func passes(filter []string, value string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
}

// listGroupsAbove names the groups coordinated here whose committed offset in one
// partition lies above an end. Needs ClusterAction.
func (s *Server) listGroupsAbove(r *request, asked []byte) (kmsg.Response, error) {
	tp, end, ok := groupsAboveOf(asked)
	switch {
	case !s.allowedCluster(r, authz.ClusterAction):
		return &kmsg.ListGroupsResponse{ErrorCode: kerr.ClusterAuthorizationFailed.Code}, nil
	case !ok:
		return &kmsg.ListGroupsResponse{ErrorCode: kerr.InvalidRequest.Code}, nil
	}
	above, err := s.o.Groups.GroupsAbove(r.ctx, tp, end)
	if gaveUp(r, err) {
		return nil, err
	}
	resp := &kmsg.ListGroupsResponse{ErrorCode: groupCode(err)}
	for _, id := range above {
		resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: id})
	}
	return resp, nil
}
