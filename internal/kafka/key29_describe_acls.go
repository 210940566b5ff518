package kafka

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// DescribeAcls (v1-v3)
//
// Behavior:
//   - Tells the ACLs that a filter selects, by resource. Needs Describe on the
//     cluster.
//   - Without an authorizer: SECURITY_DISABLED, as ACLs would protect nothing.
//   - A filter with a value that we do not know: INVALID_REQUEST.
//   - An ACL that a mirror has copied here, and keeps as its source has it, tells in a
//     tagged field of ours from which clusters it comes.
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
	img := s.o.Controller.Image()
	mirroring := make(map[string]bool)
	for _, m := range img.Mirrors() {
		mirroring[m.Name] = slices.ContainsFunc(img.MirrorTopics(m.Name), func(t *metadata.Topic) bool {
			return t.Attachment().Desired != metadata.DesiredStopped
		})
	}
	for a := range img.ACLs() {
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
		if ids := copiedFrom(img.ACLSources(a), mirroring); len(ids) > 0 {
			wire.SetACLClusters(&entry, ids)
		}
		res := &resp.Resources[len(resp.Resources)-1]
		res.ACLs = append(res.ACLs, entry)
	}
	return resp, nil
}

// copiedFrom are the clusters whose ACL it is that mirrors have copied here: none if
// one of these mirrors has nothing left that it mirrors, as after a failover.
func copiedFrom(sources []metadata.ACLSource, mirroring map[string]bool) (ids []string) {
	for _, s := range sources {
		if !mirroring[s.Mirror] {
			return nil
		}
		ids = append(ids, s.Clusters...)
	}
	return slices.Compact(slices.Sorted(slices.Values(ids)))
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
