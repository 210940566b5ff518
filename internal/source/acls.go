package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ErrNoAuthorizer is a source without an authorizer, which has no ACLs.
var ErrNoAuthorizer = errors.New("the source has no authorizer")

// maxACLs bounds what is taken from a source; Apache Kafka's own authorizer slows down
// long before.
const maxACLs = 100_000

// ACL is one ACL of the source.
type ACL struct {
	ResourceType kmsg.ACLResourceType
	ResourceName string
	Pattern      kmsg.ACLResourcePatternType
	Principal    string
	Host         string
	Operation    kmsg.ACLOperation
	Permission   kmsg.ACLPermissionType
	// Clusters are the ids of those from which a mirror of the source copies it; none
	// for one of its own, and for a source that does not tell.
	Clusters []string
}

// ACLs reads all ACLs of the source, for which it wants Describe on the cluster. The
// error is ErrNoAuthorizer where there can be none.
func (c *Cluster) ACLs(ctx context.Context) ([]ACL, error) {
	const op = "describe ACLs"
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	control, done := c.use()
	defer done()
	resp, err := req.RequestWith(ctx, control.client)
	if err != nil {
		return nil, c.adminFailed(ctx, op, err)
	}
	if resp.ErrorCode == kerr.SecurityDisabled.Code {
		return nil, ErrNoAuthorizer
	}
	if err := codeError(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return nil, fail("", op, err)
	}
	var acls []ACL
	for _, r := range resp.Resources {
		for i := range r.ACLs {
			a := &r.ACLs[i]
			acls = append(acls, ACL{
				ResourceType: r.ResourceType, ResourceName: r.ResourceName, Pattern: r.ResourcePatternType,
				Principal: a.Principal, Host: a.Host, Operation: a.Operation, Permission: a.PermissionType,
				Clusters: wire.ACLClusters(a),
			})
		}
	}
	if len(acls) > maxACLs {
		return nil, fail("", op, fmt.Errorf("%d ACLs, more than the %d that are copied", len(acls), maxACLs))
	}
	return acls, nil
}
