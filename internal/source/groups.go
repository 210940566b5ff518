package source

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Group is one group of the source.
type Group struct {
	ID       string
	State    string // empty before Kafka 2.6
	Protocol string // "consumer" for consumer groups
}

// Groups lists the groups of all brokers, sorted by id. If some brokers do not
// answer, the groups of the others are returned together with the error.
func (c *Cluster) Groups(ctx context.Context) ([]Group, error) {
	listed, err := c.admin.ListGroups(ctx)
	var groups []Group
	for _, g := range listed.Sorted() {
		groups = append(groups, Group{ID: g.Group, State: g.State, Protocol: g.ProtocolType})
	}
	return groups, c.adminFailed(ctx, "list groups", err)
}

// GroupOffset is one committed offset.
type GroupOffset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1: the source does not say
	Metadata    *string
}

// GroupOffsets reads what a group has committed. Partitions whose offset cannot
// be read are left out and reported by the error, beside the others.
func (c *Cluster) GroupOffsets(ctx context.Context, group string) ([]GroupOffset, error) {
	fetched, err := c.admin.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil // gone since it was listed
	}
	if err != nil {
		return nil, c.adminFailed(ctx, "offsets of group "+group, err)
	}
	var offsets []GroupOffset
	for _, o := range fetched.Sorted() {
		switch {
		case o.Err != nil:
			err = o.Err
		case o.At >= 0:
			g := GroupOffset{Topic: o.Topic, Partition: o.Partition, Offset: o.At, LeaderEpoch: o.LeaderEpoch}
			if o.Metadata != "" {
				g.Metadata = kmsg.StringPtr(o.Metadata)
			}
			offsets = append(offsets, g)
		}
	}
	return offsets, fail("", "offsets of group "+group, err)
}
