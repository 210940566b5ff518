package controller

import (
	"context"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// CreateACLs adds ACLs, each for itself.
func (c *Controller) CreateACLs(ctx context.Context, acls []metadata.ACL) []error {
	cmds := make([]Command, len(acls))
	for i, a := range acls {
		cmds[i] = createACL{a}
	}
	return itemErrors(c.do(ctx, false, false, cmds), len(cmds))
}

// CopyACLs brings ACLs to what mirrors' sources have, each for itself.
func (c *Controller) CopyACLs(ctx context.Context, acls []CopyACL) []error {
	cmds := make([]Command, len(acls))
	for i, a := range acls {
		cmds[i] = copyACL{a}
	}
	return itemErrors(c.do(ctx, false, false, cmds), len(cmds))
}

// DeletedACLs is what one filter removed.
type DeletedACLs struct {
	ACLs []metadata.ACL
	Err  error
}

// DeleteACLs removes what filters select, each for itself: what two select, the
// first removes.
func (c *Controller) DeleteACLs(ctx context.Context, filters []metadata.ACLFilter) []DeletedACLs {
	cmds := make([]Command, len(filters))
	for i, f := range filters {
		cmds[i] = deleteACLs{f}
	}
	rep := c.do(ctx, false, false, cmds)
	results := make([]DeletedACLs, len(filters))
	for i, err := range itemErrors(rep, len(filters)) {
		results[i].Err = err
		if err != nil {
			continue
		}
		for _, ch := range rep.items[i].changes {
			results[i].ACLs = append(results[i].ACLs, ch.(deleteACL).ACL)
		}
	}
	return results
}
