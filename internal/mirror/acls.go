package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// maxACLBatch is how many ACLs one call of the controller copies.
const maxACLBatch = 1000

// syncACLs copies the source's ACLs (9.12). Without a topic that is being mirrored
// nothing is: after a failover the rights here are this cluster's to change.
func (p *peer) syncACLs(ctx context.Context, cluster Source, mirror *metadata.Mirror, attached []*metadata.Topic) error {
	rules, err := metadata.CompileACLRules(mirror.Config(metadata.MirrorACLsInclude))
	if err != nil {
		return err
	}
	mirroring := func(t *metadata.Topic) bool { return t.Attachment().Desired == metadata.DesiredMirroring }
	if len(rules) == 0 || !slices.ContainsFunc(attached, mirroring) {
		return nil
	}
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	theirs, err := cluster.ACLs(ctx)
	if errors.Is(err, source.ErrNoAuthorizer) {
		p.tell("acls", "the source has no authorizer: there are no ACLs to copy")
		return nil
	}
	if err != nil {
		return err
	}
	delete(p.sync.told, "acls")
	c := aclCopies{rules: rules, mirror: p.name, source: mirror.SourceClusterID(), here: p.m.o.ClusterID}
	copies := c.of(p.m.o.Controller.Image(), theirs)
	var errs []error
	failed, added, removed := 0, 0, 0
	for batch := range slices.Chunk(copies, maxACLBatch) {
		for i, err := range p.m.o.Controller.CopyACLs(ctx, batch) {
			switch {
			case err != nil:
				failed++
				if failed == 1 {
					errs = append(errs, fmt.Errorf("ACL of %s on %s %s: %w", batch[i].ACL.Principal, batch[i].ACL.ResourceType, batch[i].ACL.ResourceName, err))
				}
			case batch[i].Gone:
				removed++
			default:
				added++
			}
		}
	}
	if failed > 1 {
		errs = append(errs, fmt.Errorf("and %d more ACLs", failed-1))
	}
	if added+removed > 0 {
		p.log.Info("ACLs follow the source", "added", added, "removed", removed)
	}
	return errors.Join(errs...)
}

// aclCopies decides which ACLs a mirror copies.
type aclCopies struct {
	rules        metadata.ACLRules
	mirror       string
	source, here string // cluster ids
}

// of are the changes that bring the ACLs here to theirs (W56, W57): what is missing
// is added, what the mirror itself had added and the source has no more is removed.
// Left alone are
//
//   - those that the rules do not select, also if they did once: a narrower list takes
//     no right away,
//   - those that the source has from us, or it would give a right back that was taken
//     away here before it knows,
//   - those of a topic by its very name that is paused, stopped, or not of this mirror.
func (c aclCopies) of(img *metadata.Image, theirs []source.ACL) []controller.CopyACL {
	held := func(a metadata.ACL) bool {
		if a.ResourceType != metadata.ACLTopic || a.Pattern != metadata.ACLLiteral {
			return false
		}
		t := img.Topic(a.ResourceName)
		return t != nil && t.Attachment() != metadata.Attachment{Mirror: c.mirror, Desired: metadata.DesiredMirroring}
	}
	var copies []controller.CopyACL
	kept := make(map[metadata.ACL]bool, len(theirs))
	for _, s := range theirs {
		a := metadata.ACL{
			ResourceType: metadata.ACLResourceType(s.ResourceType), Pattern: metadata.ACLPatternType(s.Pattern), ResourceName: s.ResourceName,
			Principal: s.Principal, Host: s.Host, Operation: metadata.ACLOperation(s.Operation), Permission: metadata.ACLPermission(s.Permission),
		}
		if kept[a] {
			continue
		}
		if slices.Contains(s.Clusters, c.here) {
			continue
		}
		kept[a] = true
		if !c.rules.Match(a) || held(a) {
			continue
		}
		from := metadata.ACLSource{Mirror: c.mirror, Clusters: slices.Compact(slices.Sorted(slices.Values(append([]string{c.source}, s.Clusters...))))}
		sources := img.ACLSources(a)
		if img.HasACL(a) && (len(sources) == 0 || slices.ContainsFunc(sources, from.Equal)) {
			continue
		}
		copies = append(copies, controller.CopyACL{ACLSource: from, ACL: a})
	}
	for a := range img.ACLs() {
		ours := slices.ContainsFunc(img.ACLSources(a), func(s metadata.ACLSource) bool { return s.Mirror == c.mirror })
		if ours && !kept[a] && c.rules.Match(a) && !held(a) {
			copies = append(copies, controller.CopyACL{ACLSource: metadata.ACLSource{Mirror: c.mirror}, ACL: a, Gone: true})
		}
	}
	// Denials first, and rights are taken before any is given: a call that ends half
	// way has not opened what the source keeps closed.
	slices.SortStableFunc(copies, func(a, b controller.CopyACL) int { return cmp.Compare(opens(a), opens(b)) })
	return copies
}

func opens(c controller.CopyACL) int {
	if c.Gone == (c.ACL.Permission == metadata.ACLDeny) {
		return 1
	}
	return 0
}
