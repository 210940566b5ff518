package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DeleteAcls (v1-v3)
//
// Behavior:
//   - Removes what each filter selects and tells what that was; nothing is a
//     success. Needs Alter on the cluster. Without an authorizer:
//     SECURITY_DISABLED.
//   - What two filters of a request select is told for the first.
//
// Version notes:
//   - v1: resource pattern types (KIP-290)
//   - v2: flexible
//   - v3: the resource type User (KIP-373)
func (s *Server) registerDeleteACLs() { s.register(31, 1, 3, s.deleteACLs) }

func (s *Server) deleteACLs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DeleteACLsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	deleted := make([]controller.DeletedACLs, len(req.Filters))
	if err := s.mayUseACLs(r, authz.Alter); err != nil {
		for i := range deleted {
			deleted[i].Err = err
		}
	} else {
		filters := make([]metadata.ACLFilter, len(req.Filters))
		for i, f := range req.Filters {
			filters[i] = metadata.ACLFilter{
				ResourceType: metadata.ACLResourceType(f.ResourceType), ResourceName: f.ResourceName,
				Pattern: metadata.ACLPatternType(f.ResourcePatternType), Principal: f.Principal, Host: f.Host,
				Operation: metadata.ACLOperation(f.Operation), Permission: metadata.ACLPermission(f.PermissionType),
			}
		}
		deleted = s.o.Controller.DeleteACLs(r.ctx, filters)
	}
	for _, d := range deleted {
		res := kmsg.NewDeleteACLsResponseResult()
		res.ErrorCode, res.ErrorMessage = errorCode(d.Err)
		for _, a := range d.ACLs {
			m := kmsg.NewDeleteACLsResponseResultMatchingACL()
			m.ResourceType, m.ResourceName = kmsg.ACLResourceType(a.ResourceType), a.ResourceName
			m.ResourcePatternType, m.Principal, m.Host = kmsg.ACLResourcePatternType(a.Pattern), a.Principal, a.Host
			m.Operation, m.PermissionType = kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.Permission)
			res.MatchingACLs = append(res.MatchingACLs, m)
		}
		resp.Results = append(resp.Results, res)
	}
	return resp, nil
}
