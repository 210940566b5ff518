package group

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Types of groups.
const (
	// TypeClassic: members agree among themselves by JoinGroup and SyncGroup.
	TypeClassic = "Classic"
	// TypeConsumer: the coordinator shares out partitions (KIP-848).
	TypeConsumer = "Consumer"
)

// List returns the groups of all partitions led here, sorted by name. With
// ErrLoading some are missing.
func (c *Coordinator) List(ctx context.Context) ([]Listing, error) {
	var all []Listing
	var missing error
	for _, s := range c.led.All() {
		some, err := ask[[]Listing](ctx, s, func(_ time.Time, to ticket) {
			out := make([]Listing, 0, s.groups.Len())
			for m := range s.groups.All() {
				out = append(out, m.listing())
			}
			s.Answer(to, out)
		})
		if err != nil {
			missing = err
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b Listing) int { return cmp.Compare(a.Group, b.Group) })
	return all, missing
}

// Describe tells a group's state and members. A group that does not exist is
// Dead, with ErrNotFound.
func (c *Coordinator) Describe(ctx context.Context, group string) Description {
	dead := Description{Group: group, State: Dead, Err: fmt.Errorf("%w: %q", ErrNotFound, group)}
	d, err := query(ctx, c, group, dead, (*machine).describe)
	if err != nil {
		dead.Err = err
		return dead
	}
	return d
}

func (m *machine) describe() Description {
	if m.consumer != nil && m.state != Dead {
		return Description{Group: m.id, State: Dead, Err: fmt.Errorf("%w: group %q is not a classic group", ErrNotFound, m.id)}
	}
	d := Description{Group: m.id, State: m.state, ProtocolType: m.protocolType}
	if m.state == Dead {
		d.Err = ErrNotFound
	}
	if m.state == Stable {
		d.Protocol = m.protocol
	}
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		md := MemberDescription{MemberID: id, InstanceID: mem.instanceID, ClientID: mem.clientID, ClientHost: mem.clientHost}
		if m.state == Stable {
			md.Metadata, md.Assignment = mem.metadata(m.protocol), mem.assignment
		}
		d.Members = append(d.Members, md)
	}
	return d
}
