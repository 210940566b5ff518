package source

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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
	control, done := c.use()
	defer done()
	listed, err := control.admin.ListGroups(ctx)
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
// be read are left out and reported by the error, beside the others. (The
// request is built by hand because kadm answers one topic without a right with
// an error for the whole group.)
func (c *Cluster) GroupOffsets(ctx context.Context, group string) ([]GroupOffset, error) {
	op := "offsets of group " + group
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group // franz-go asks the coordinator, and spells it as Groups from v8 on
	control, done := c.use()
	defer done()
	resp, err := req.RequestWith(ctx, control.client)
	if err != nil {
		return nil, c.adminFailed(ctx, op, err)
	}
	code := resp.ErrorCode
	topics := resp.Topics
	if len(resp.Groups) > 0 {
		code = resp.Groups[0].ErrorCode
		topics = beforeGroups(resp.Groups[0].Topics)
	}
	if code == kerr.GroupIDNotFound.Code {
		return nil, nil // gone since it was listed
	}
	if code != 0 {
		return nil, fail("", op, codeError(code, nil))
	}
	var offsets []GroupOffset
	for _, t := range topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				err = fmt.Errorf("%s-%d: %w", t.Topic, p.Partition, codeError(p.ErrorCode, nil))
			} else if p.Offset >= 0 {
				offsets = append(offsets, GroupOffset{
					Topic: t.Topic, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: noted(p.Metadata),
				})
			}
		}
	}
	slices.SortFunc(offsets, func(a, b GroupOffset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return offsets, fail("", op, err)
}

// beforeGroups gives the answer of v8 and newer the older form.
func beforeGroups(topics []kmsg.OffsetFetchResponseGroupTopic) (out []kmsg.OffsetFetchResponseTopic) {
	for _, t := range topics {
		o := kmsg.OffsetFetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			o.Partitions = append(o.Partitions, kmsg.OffsetFetchResponseTopicPartition{
				Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode,
			})
		}
		out = append(out, o)
	}
	return out
}

// noted is a commit's metadata; brokers answer none as an empty string.
func noted(metadata *string) *string {
	if metadata == nil || *metadata == "" {
		return nil
	}
	return metadata
}
