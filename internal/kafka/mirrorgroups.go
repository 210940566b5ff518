package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Mirrors commit offsets of their source's groups, and rewrite those that lie above
// a cut. The groups' coordinators are spread over the cluster: requests that
// clients know, with a private tagged field that makes them a broker's and needs
// ClusterAction, reach those on other brokers.
const (
	// tagFromMirror, without a value, makes an OffsetCommit one of a mirror: a group
	// with members is left alone, and what is committed already is not written again.
	tagFromMirror = 10002
	// tagGroupsAbove makes ListGroups name the groups whose committed offset in one
	// partition lies above an end: partition (int32), end (int64), topic.
	tagGroupsAbove = 10003
)

// MirrorGroups reaches the groups of the cluster wherever they are coordinated.
type MirrorGroups struct {
	NodeID int32
	Groups *group.Coordinator
	Image  func() *metadata.Image
	Peers  Peers // nil: all groups are here
}

// groupErrors are the codes of a group's coordinator that a mirror tells apart.
var groupErrors = []error{
	group.ErrActive, group.ErrNotCoordinator, group.ErrLoading, group.ErrNotAvailable, group.ErrMetadataTooLarge, group.ErrOffsetsFull,
	controller.ErrTopicNotInMirror,
}

// failedOver tells whether a topic's stop is recorded. From then on its offsets are
// its consumers' own: what a mirror computed before must not arrive after theirs
// (GI-71, MIR-107), so the coordinator looks once more.
func failedOver(t *metadata.Topic) bool {
	return t != nil && t.Attachment().Desired == metadata.DesiredStopped
}

// Commit stores offsets for a group, as group.Coordinator.CommitFromMirror does. Those
// of a topic that is being failed over, or was, are refused.
func (g *MirrorGroups) Commit(ctx context.Context, id string, offsets []group.Offset) ([]error, error) {
	img := g.Image()
	errs := make([]error, len(offsets))
	var at []int
	var open []group.Offset
	for i, o := range offsets {
		if failedOver(img.Topic(o.Topic)) {
			errs[i] = fmt.Errorf("%w: %s is failed over", controller.ErrTopicNotInMirror, o.Topic)
			continue
		}
		at, open = append(at, i), append(open, o)
	}
	if len(open) == 0 {
		return errs, nil
	}
	answers, err := g.commit(ctx, id, open)
	if err != nil {
		return answers, err
	}
	for i, answer := range answers {
		errs[at[i]] = answer
	}
	return errs, nil
}

func (g *MirrorGroups) commit(ctx context.Context, id string, offsets []group.Offset) ([]error, error) {
	errs, err := g.Groups.CommitFromMirror(ctx, id, offsets)
	if !errors.Is(err, group.ErrNotCoordinator) || g.Peers == nil {
		return errs, err
	}
	img := g.Image()
	t := img.Topic(group.TopicName)
	if t == nil {
		return nil, fmt.Errorf("%w: %s does not exist", group.ErrNotAvailable, group.TopicName)
	}
	p := t.Partition(group.PartitionFor(id, int32(len(t.Partitions))))
	if p == nil || p.Leader < 0 || p.Leader == g.NodeID { // the leadership is on its way
		return nil, fmt.Errorf("%w: group %s", group.ErrNotAvailable, id)
	}
	resp, err := g.Peers.Request(ctx, p.Leader, mirrorCommit(img, id, offsets))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", group.ErrNotAvailable, err)
	}
	return mirrorCommitted(img, resp, offsets)
}

// mirrorCommit is the request for a coordinator on another broker.
func mirrorCommit(img *metadata.Image, id string, offsets []group.Offset) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = id, -1
	req.UnknownTags.Set(tagFromMirror, nil)
	at := make(map[string]int)
	for _, o := range offsets {
		i, ok := at[o.Topic]
		if !ok {
			rt := kmsg.NewOffsetCommitRequestTopic()
			rt.Topic = o.Topic
			if t := img.Topic(o.Topic); t != nil {
				rt.TopicID = t.ID
			}
			i = len(req.Topics)
			at[o.Topic] = i
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	return req
}

// mirrorCommitted finds the answer for each offset. One without an answer was not
// stored, as far as we know.
func mirrorCommitted(img *metadata.Image, resp kmsg.Response, offsets []group.Offset) ([]error, error) {
	answer, ok := resp.(*kmsg.OffsetCommitResponse)
	if !ok {
		return nil, fmt.Errorf("%w: the answer is %T", group.ErrNotAvailable, resp)
	}
	codes := make(map[group.TopicPartition]int16)
	for _, t := range answer.Topics {
		name := t.Topic
		if known := img.TopicByID(t.TopicID); name == "" && known != nil {
			name = known.Name
		}
		for _, p := range t.Partitions {
			codes[group.TopicPartition{Topic: name, Partition: p.Partition}] = p.ErrorCode
		}
	}
	errs := make([]error, len(offsets))
	for i, o := range offsets {
		code, told := codes[group.TopicPartition{Topic: o.Topic, Partition: o.Partition}]
		switch {
		case !told:
			errs[i] = fmt.Errorf("%w: no answer about %s-%d", group.ErrNotAvailable, o.Topic, o.Partition)
		case code == kerr.NonEmptyGroup.Code:
			return nil, fmt.Errorf("%w, says the other broker", group.ErrActive)
		default:
			errs[i] = peerError(code, groupErrors)
		}
	}
	return errs, nil
}

// Above names the groups of the whole cluster whose committed offset in a partition
// lies above end, sorted. An error means that some may be missing.
func (g *MirrorGroups) Above(ctx context.Context, tp group.TopicPartition, end int64) ([]string, error) {
	all, err := g.Groups.GroupsAbove(ctx, tp, end)
	if err != nil || g.Peers == nil {
		return all, err
	}
	leaders, err := g.leaders()
	if err != nil {
		return nil, err
	}
	for _, leader := range leaders {
		if leader == g.NodeID {
			continue
		}
		req := kmsg.NewPtrListGroupsRequest()
		value := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(tp.Partition)), uint64(end))
		req.UnknownTags.Set(tagGroupsAbove, append(value, tp.Topic...))
		resp, err := g.Peers.Request(ctx, leader, req)
		if err != nil {
			return nil, err
		}
		answer, ok := resp.(*kmsg.ListGroupsResponse)
		if !ok {
			return nil, fmt.Errorf("broker %d answered with %T", leader, resp)
		}
		if err := peerError(answer.ErrorCode, groupErrors); err != nil {
			return nil, fmt.Errorf("broker %d: %w", leader, err)
		}
		for i := range answer.Groups {
			all = append(all, answer.Groups[i].Group)
		}
	}
	if now, err := g.leaders(); err != nil || !slices.Equal(now, leaders) {
		return nil, fmt.Errorf("%w: coordinators moved meanwhile", group.ErrNotAvailable)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// leaders are the brokers that coordinate groups, ascending.
func (g *MirrorGroups) leaders() ([]int32, error) {
	t := g.Image().Topic(group.TopicName)
	if t == nil {
		return nil, nil // nobody has ever committed anything
	}
	var leaders []int32
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			return nil, fmt.Errorf("%w: %s-%d has no leader", group.ErrNotAvailable, t.Name, p.Index)
		}
		leaders = append(leaders, p.Leader)
	}
	slices.Sort(leaders)
	return slices.Compact(leaders), nil
}

// tagOf is the value of a private tagged field; ok tells whether it is there.
func tagOf(tags *kmsg.Tags, key uint32) (value []byte, ok bool) {
	if tags.Len() > 0 {
		tags.Each(func(tag uint32, b []byte) {
			if tag == key {
				value, ok = b, true
			}
		})
	}
	return value, ok
}

// groupsAboveOf reads the value of tagGroupsAbove.
func groupsAboveOf(b []byte) (tp group.TopicPartition, end int64, ok bool) {
	if len(b) < 12 {
		return tp, 0, false
	}
	tp.Partition = int32(binary.BigEndian.Uint32(b))
	tp.Topic = string(b[12:])
	return tp, int64(binary.BigEndian.Uint64(b[4:])), true
}
