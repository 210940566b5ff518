package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// DeleteGroups, versions 0 to 2: removes groups without members, with their
// offsets. Each needs Delete. Answered when the tombstones are stored. v2 flexible.
func (s *Server) registerDeleteGroups() {
	s.register(42, 0, 2, s.deleteGroups)
}

func (s *Server) deleteGroups(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DeleteGroupsRequest)
	var resp kmsg.DeleteGroupsResponse
	for _, id := range req.Groups {
		if !s.allowed(r, authz.Delete, authz.Group, id) {
			resp.Groups = append(resp.Groups, kmsg.DeleteGroupsResponseGroup{Group: id, ErrorCode: groupCode(errGroupDenied)})
			continue
		}
		err := s.o.Groups.Delete(r.ctx, id)
		if gaveUp(r, err) {
			return nil, err
		}
		resp.Groups = append(resp.Groups, kmsg.DeleteGroupsResponseGroup{Group: id, ErrorCode: groupCode(err)})
	}
	return &resp, nil
}
