package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DescribeAcls (v1-v3)
//
// Behavior:
//   - Tells the ACLs that a filter selects, by resource. Needs Describe on the
//     cluster.
//   - Without an authorizer: SECURITY_DISABLED, as ACLs would protect nothing.
//   - A filter with a value that we do not know: INVALID_REQUEST.
//
// Version notes:
//   - v1: resource pattern types (KIP-290)
//   - v2: flexible
//   - v3: the resource type User (KIP-373)
func (s *Server) registerDescribeACLs() { s.register(29, 1, 3, s.describeACLs) }

func (s *Server) describeACLs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeACLsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeACLsResponse)
	filter := metadata.ACLFilter{
		ResourceType: metadata.ACLResourceType(req.ResourceType), ResourceName: req.ResourceName,
		Pattern: metadata.ACLPatternType(req.ResourcePatternType), Principal: req.Principal, Host: req.Host,
		Operation: metadata.ACLOperation(req.Operation), Permission: metadata.ACLPermission(req.PermissionType),
	}
	err := s.mayUseACLs(r, authz.Describe)
	if err == nil {
		err = controller.CheckACLFilter(&filter)
	}
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = errorCode(err)
		return resp, nil
	}
	var last metadata.ACL
	for a := range s.o.Controller.Image().ACLs() {
		if !filter.Matches(a) {
			continue
		}
		// The image has the ACLs of one resource together.
		if n := len(resp.Resources); n == 0 || a.ResourceType != last.ResourceType || a.ResourceName != last.ResourceName || a.Pattern != last.Pattern {
			res := kmsg.NewDescribeACLsResponseResource()
			res.ResourceType, res.ResourceName = kmsg.ACLResourceType(a.ResourceType), a.ResourceName
			res.ResourcePatternType = kmsg.ACLResourcePatternType(a.Pattern)
			resp.Resources = append(resp.Resources, res)
		}
		last = a
		entry := kmsg.NewDescribeACLsResponseResourceACL()
		entry.Principal, entry.Host = a.Principal, a.Host
		entry.Operation, entry.PermissionType = kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.Permission)
		res := &resp.Resources[len(resp.Resources)-1]
		res.ACLs = append(res.ACLs, entry)
	}
	return resp, nil
}

// mayUseACLs is the check of the three keys of ACLs, in Kafka's order.
func (s *Server) mayUseACLs(r *request, op authz.Operation) error {
	if !s.allowedCluster(r, op) {
		return errClusterDenied
	}
	if s.o.Authorizer == nil {
		return errNoAuthorizer
	}
	return nil
}
