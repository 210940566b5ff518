package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// decideReassign moves a partition to other replicas, replaces a move under way, or
// takes it back (KIP-455). New replicas join the old ones at once, behind the wanted
// order; old ones leave when all new ones are in sync.
func decideReassign(img *metadata.Image, c reassign) ([]Change, error) {
	t := img.Topic(c.Topic)
	p := t.Partition(c.Partition)
	if p == nil {
		return nil, fmt.Errorf("reassign: %w: %s-%d", ErrUnknownTopic, c.Topic, c.Partition)
	}
	ch := replicasOf(img, c.Defaults).change(t, p)
	var err error
	if c.Replicas == nil {
		err = ch.cancelReassignment()
	} else {
		err = ch.reassign(c)
	}
	if err != nil {
		return nil, fmt.Errorf("reassign %s-%d: %w", t.Name, p.Index, err)
	}
	return ch.put(nil), nil
}

// original are the replicas before the reassignment under way, which is what a
// cancellation goes back to, however often the target was changed. Those of a target
// before that have to wait until they may go are none of them.
func (c *change) original() []int32 { return minus(c.old.Replicas, c.old.AddingReplicas) }

func (c *change) reassign(r reassign) error {
	target := slices.Clone(r.Replicas)
	if len(target) == 0 {
		return fmt.Errorf("%w: no replicas", ErrInvalidReplicaAssignment)
	}
	original := c.original()
	for i, id := range target {
		switch {
		case slices.Contains(target[:i], id):
			return fmt.Errorf("%w: %v: broker %d stands twice", ErrInvalidReplicaAssignment, target, id)
		case c.img.Broker(id) == nil && !slices.Contains(original, id):
			return fmt.Errorf("%w: %v: broker %d is not registered", ErrInvalidReplicaAssignment, target, id)
		}
	}
	if !r.AllowRFChange && len(target) != len(original) {
		return fmt.Errorf("%w: %d replicas instead of %d, and the request does not allow another replication factor (KIP-860)",
			ErrInvalidReplicationFactor, len(target), len(original))
	}
	n := &c.next
	n.Replicas = union(target, original)
	n.AddingReplicas, n.RemovingReplicas = minus(target, original), minus(original, target)
	c.strangers(minus(n.Replicas, c.old.Replicas))
	if err := c.shrinkTo(n.Replicas); err != nil {
		return err
	}
	c.completeReassignment()
	return nil
}

// strangers are new replicas. Where a mirror has cut, one that had a replica once and was
// away when it lost it may come back with what the others cut: it begins anew. One that
// has the last barrier behind it goes on with what it has.
func (c *change) strangers(ids []int32) {
	n := &c.next
	if n.Barrier == 0 || len(ids) == 0 {
		return
	}
	n.Stale = slices.DeleteFunc(slices.Clone(n.Stale), func(s metadata.StaleReplica) bool { return slices.Contains(ids, s.ID) })
	for _, id := range ids {
		n.Stale = append(n.Stale, metadata.StaleReplica{ID: id, Barrier: n.Barrier})
	}
}

func (c *change) cancelReassignment() error {
	if !c.old.Reassigning() {
		return ErrNoReassignment
	}
	n := &c.next
	n.AddingReplicas, n.RemovingReplicas = nil, nil
	return c.shrinkTo(c.original())
}

// shrinkTo leaves a partition to some of its replicas; the others go at once, but for
// those that have to wait (mayGo): they are being added and removed until then. What
// would leave nobody behind who has every record is refused.
func (c *change) shrinkTo(keep []int32) error {
	n := &c.next
	if isr := only(n.ISR, keep); len(isr) < len(n.ISR) {
		if len(isr) == 0 || n.Leader != metadata.NoLeader && !slices.ContainsFunc(isr, c.eligible) {
			return fmt.Errorf("%w: only %v are in sync, none of which would stay", ErrInvalidReplicaAssignment, n.ISR)
		}
	}
	if known := c.known(); len(n.ISR) == 0 && len(known) > 0 && len(only(known, keep)) == 0 {
		return fmt.Errorf("%w: nobody is in sync, and of %v, who had every record once, none would stay", ErrInvalidReplicaAssignment, known)
	}
	if gone := minus(c.old.Replicas, keep); !c.mayGo(gone) {
		leaving := only(gone, c.known())
		keep = union(keep, leaving)
		n.AddingReplicas, n.RemovingReplicas = union(n.AddingReplicas, leaving), union(n.RemovingReplicas, leaving)
	}
	n.Replicas = keep
	if isr := only(n.ISR, keep); len(isr) < len(n.ISR) {
		n.ISR = isr
	}
	n.ELR, n.LastKnownELR = only(n.ELR, keep), only(n.LastKnownELR, keep)
	c.removed()
	return nil
}

// completeReassignment ends the move under way if every new replica is in sync,
// somebody is there to lead, and who is to go may.
func (c *change) completeReassignment() {
	n := &c.next
	if !joined(n) || !c.mayGo(n.RemovingReplicas) {
		return
	}
	isr := minus(n.ISR, n.RemovingReplicas)
	if len(isr) == 0 || n.Leader != metadata.NoLeader && !slices.ContainsFunc(isr, c.eligible) {
		return
	}
	n.Replicas, n.ISR = minus(n.Replicas, n.RemovingReplicas), isr
	n.AddingReplicas, n.RemovingReplicas = nil, nil
	c.removed()
}

// joined reports whether a move is under way in which nobody is waited for to get in sync.
func joined(p *metadata.Partition) bool {
	return p.Reassigning() && len(minus(minus(p.AddingReplicas, p.RemovingReplicas), p.ISR)) == 0
}

// mayGo reports whether replicas may be removed, and their logs with them. Where a
// member of the ISR loses with its power what it has in memory only, and nobody knows
// yet, one of those that go may be the last who has it: then they stay until somebody
// else of the ISR is heard of who has seen that they are to go (decideUnfenceBroker).
func (c *change) mayGo(gone []int32) bool {
	n := &c.next
	if len(only(gone, c.known())) == 0 || c.t.Sourced(c.old) {
		return true
	}
	return slices.ContainsFunc(minus(n.ISR, gone), func(id int32) bool {
		b := c.img.Broker(id)
		return id == c.there || b != nil && c.durable(c.t, b)
	})
}

// known are those that had every record once, as far as anybody knows.
func (c *change) known() []int32 { return union(c.next.ISR, c.next.ELR, c.next.LastKnownELR) }

// removed elects another leader if the old one is no replica any more, and fences
// those that are none.
func (c *change) removed() {
	if len(minus(c.old.Replicas, c.next.Replicas)) == 0 {
		return
	}
	c.bump = true
	if c.next.Leader != metadata.NoLeader && !slices.Contains(c.next.ISR, c.next.Leader) {
		c.elect()
	}
}
