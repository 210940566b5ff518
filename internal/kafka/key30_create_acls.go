package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// CreateAcls (v1-v3)
//
// Behavior:
//   - Each ACL succeeds or fails by itself; one that exists is a success. Needs
//     Alter on the cluster. Without an authorizer: SECURITY_DISABLED.
//   - Refused: wildcards of filters, an empty name, a cluster of another name
//     than kafka-cluster, a principal that is not Type:Name, texts beyond 1 KiB
//     (INVALID_REQUEST); more than 50 000 ACLs (POLICY_VIOLATION).
//   - Hosts are addresses or *; a network in CIDR form is stored and fits
//     nobody, as with Kafka.
//   - ACLs of mirrors have the resource type 8 (KIP-1279), which tools of Apache
//     Kafka print as UNKNOWN.
//
// Version notes:
//   - v1: resource pattern types (KIP-290)
//   - v2: flexible
//   - v3: the resource type User (KIP-373)
func (s *Server) registerCreateACLs() { s.register(30, 1, 3, s.createACLs) }

func (s *Server) createACLs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.CreateACLsRequest)
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	errs := make([]error, len(req.Creations))
	if err := s.mayUseACLs(r, authz.Alter); err != nil {
		for i := range errs {
			errs[i] = err
		}
	} else {
		acls := make([]metadata.ACL, len(req.Creations))
		for i, c := range req.Creations {
			acls[i] = metadata.ACL{
				ResourceType: metadata.ACLResourceType(c.ResourceType), ResourceName: c.ResourceName,
				Pattern: metadata.ACLPatternType(c.ResourcePatternType), Principal: c.Principal, Host: c.Host,
				Operation: metadata.ACLOperation(c.Operation), Permission: metadata.ACLPermission(c.PermissionType),
			}
		}
		errs = s.o.Controller.CreateACLs(r.ctx, acls)
	}
	for _, err := range errs {
		res := kmsg.NewCreateACLsResponseResult()
		res.ErrorCode, res.ErrorMessage = errorCode(err)
		resp.Results = append(resp.Results, res)
	}
	return resp, nil
}
