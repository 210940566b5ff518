package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ConsumerHeartbeat serves the consumer protocol (KIP-848). It answers once the
// log has what the answer tells.
func (c *Coordinator) ConsumerHeartbeat(ctx context.Context, r *ConsumerHeartbeatRequest) ConsumerHeartbeatResult {
	fail := func(err error) ConsumerHeartbeatResult { return ConsumerHeartbeatResult{Err: err} }
	if err := c.checkConsumerHeartbeat(r); err != nil {
		return fail(err)
	}
	s, err := c.shard(r.Group)
	if err != nil {
		return fail(err)
	}
	var newID string
	if r.MemberID == "" {
		newID = c.o.NewID()
	}
	res, err := ask[ConsumerHeartbeatResult](ctx, s, func(now time.Time, to ticket) {
		sl, err := s.group(r.Group, r.Epoch == EpochJoin, now)
		if err != nil {
			s.Answer(to, fail(err))
			return
		}
		s.step(sl, now, consumerHeartbeatInput{to, r, newID})
	})
	if err != nil {
		return fail(err)
	}
	return res
}

// checkConsumerHeartbeat refuses what contradicts itself or passes a bound, and
// reads the pattern.
func (c *Coordinator) checkConsumerHeartbeat(r *ConsumerHeartbeatRequest) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalidRequest}, args...)...)
	}
	switch {
	case r.Group == "":
		return invalid("the group id is empty")
	case r.InstanceID != nil && *r.InstanceID == "":
		return invalid("the instance id is empty")
	case r.Rack != nil && *r.Rack == "":
		return invalid("the rack id is empty")
	case r.MemberID == "" && (r.OwnMemberID || r.Epoch != EpochJoin):
		return invalid("the member id is empty")
	case r.Epoch < EpochLeaveStatic:
		return invalid("member epoch %d", r.Epoch)
	case r.Epoch == EpochLeaveStatic && r.InstanceID == nil:
		return invalid("member epoch %d without an instance id", r.Epoch)
	case r.Epoch == EpochJoin && r.RebalanceTimeout < 0:
		return invalid("the first request has no rebalance timeout")
	case r.Epoch == EpochJoin && (r.Owned == nil || len(r.Owned) > 0):
		return invalid("who joins owns no partitions, and must say so")
	case r.Epoch == EpochJoin && r.Names == nil && r.Regex == nil:
		return invalid("the first request has no subscription")
	case len(r.MemberID) > maxName || len(r.ClientID) > maxName || r.Rack != nil && len(*r.Rack) > maxName:
		return invalid("member id, client id or rack id is longer than %d bytes", maxName)
	case r.InstanceID != nil && len(*r.InstanceID) > 249: // as for classic members
		return invalid("the instance id is longer than 249 bytes")
	}
	if size := sizeOfNames(r.Names); size > c.o.MaxProtocolBytes {
		return invalid("a subscription of %d bytes, at most %d are allowed", size, c.o.MaxProtocolBytes)
	} else if err := c.roomForMember(size); err != nil && size > 0 {
		return err
	}
	if r.Assignor != nil && !slices.Contains(c.o.Assignors, *r.Assignor) {
		return fmt.Errorf("%w: %q; there are %s", ErrUnsupportedAssignor, *r.Assignor, strings.Join(c.o.Assignors, ", "))
	}
	if r.Regex == nil || *r.Regex == "" {
		return nil
	}
	if len(*r.Regex) > c.o.MaxPatternBytes {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalidRegex, len(*r.Regex), c.o.MaxPatternBytes)
	}
	re, err := compilePattern(*r.Regex)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrInvalidRegex, err)
	}
	r.pattern = re
	return nil
}

// topics are what groups know of the cluster's now.
func (c *Coordinator) topics() topicView { return *c.view.Load() }

// see takes over an image. Only Apply calls it, one at a time.
func (c *Coordinator) see(next *metadata.Image) {
	old := c.topics()
	version := old.version
	if !sameTopics(old.image, next) {
		version++
	}
	c.view.Store(&topicView{next, version})
}

func sameTopics(a, b *metadata.Image) bool {
	return slices.EqualFunc(a.Topics(), b.Topics(), func(x, y *metadata.Topic) bool {
		return x == y || x.ID == y.ID && x.Name == y.Name && len(x.Partitions) == len(y.Partitions)
	})
}

// DescribeConsumer tells a consumer group's state and members. One that does not
// exist is Dead, with ErrNotFound; so is a classic group.
func (c *Coordinator) DescribeConsumer(ctx context.Context, group string) ConsumerDescription {
	dead := ConsumerDescription{Group: group, State: Dead, Err: fmt.Errorf("%w: %q", ErrNotFound, group)}
	if group == "" {
		dead.Err = ErrInvalidGroupID
		return dead
	}
	d, err := query(ctx, c, group, dead, (*machine).describeConsumer)
	if err != nil {
		dead.Err = err
		return dead
	}
	return d
}

// MayFetch checks who asks for committed offsets, where the request says that
// (OffsetFetch v9): a member of the consumer protocol must have the member's
// present epoch.
func (c *Coordinator) MayFetch(ctx context.Context, group, memberID string, epoch int32) error {
	res, err := onGroup(ctx, c, group, func(s *shard, sl *slot, _ time.Time, to ticket) {
		var err error
		if g := sl.M.consumer; g != nil && sl.M.state != Dead {
			err = g.mayFetch(memberID, epoch)
		}
		s.Answer(to, err)
	}, error(nil))
	if err != nil {
		return err
	}
	return res
}

// mayCommit fences a commit by a member.
func (c *consumerGroup) mayCommit(r *CommitRequest, img *metadata.Image) error {
	mem, err := c.member(r.MemberID, "")
	if err != nil {
		return err
	}
	if r.NoMemberEpochs && mem.classic == nil {
		return fmt.Errorf("%w: OffsetCommit version 9 or newer is needed", ErrNeedsMemberEpochs)
	}
	return c.mayCommitAt(mem, r.Generation, r.Offsets, img)
}

// mayCommitInTxn fences a commit in a transaction: its request has a generation
// and knows no stale epochs.
func (c *consumerGroup) mayCommitInTxn(r *TxnCommitRequest, img *metadata.Image) error {
	mem, err := c.member(r.MemberID, "")
	if err != nil {
		return err
	}
	err = c.mayCommitAt(mem, r.Generation, r.Offsets, img)
	if err != nil && !errors.Is(err, ErrIllegalGeneration) {
		err = fmt.Errorf("%w: %v", ErrIllegalGeneration, err)
	}
	return err
}

// mayCommitAt tells whether a member that has heard of an epoch may commit these
// offsets: it is at that epoch, or it has had every one of the partitions ever since,
// so that nobody else can have committed for them (KIP-1251). Without the second,
// commits that are under way would fail at each rebalance.
func (c *consumerGroup) mayCommitAt(mem *consumerMember, epoch int32, offsets []Offset, img *metadata.Image) error {
	stale := mem.at(epoch)
	if stale == nil || epoch > mem.epoch {
		return stale
	}
	for i := range offsets {
		o := &offsets[i]
		t := img.Topic(o.Topic)
		if t == nil {
			return fmt.Errorf("%w; there is no topic %q", stale, o.Topic)
		}
		if h, ok := c.owner[partitionID{t.ID, o.Partition}]; !ok || h.member != mem.id || epoch < h.since {
			return fmt.Errorf("%w; then it had not got %s-%d", stale, o.Topic, o.Partition)
		}
	}
	return nil
}

func (c *consumerGroup) mayFetch(memberID string, epoch int32) error {
	mem, err := c.member(memberID, "")
	if err != nil {
		return err
	}
	return mem.at(epoch)
}

// at tells whether a client knows where its member is.
func (m *consumerMember) at(epoch int32) error {
	switch {
	case epoch == m.epoch:
		return nil
	case m.classic != nil:
		return fmt.Errorf("%w: %d, now %d", ErrIllegalGeneration, epoch, m.epoch)
	}
	return fmt.Errorf("%w: %d, now %d", ErrStaleMemberEpoch, epoch, m.epoch)
}

func (m *machine) listing() Listing {
	l := Listing{Group: m.id, ProtocolType: m.protocolType, State: m.state, Type: TypeClassic}
	if m.consumer != nil {
		l.Type = TypeConsumer
		if m.state != Dead {
			l.State = m.consumer.shown()
		}
	}
	return l
}

func (m *machine) describeConsumer() ConsumerDescription {
	c := m.consumer
	if c == nil || m.state == Dead {
		return ConsumerDescription{Group: m.id, State: Dead, Err: fmt.Errorf("%w: group %q is not a consumer group", ErrNotFound, m.id)}
	}
	d := ConsumerDescription{Group: m.id, State: c.shown(), Epoch: c.epoch, AssignmentEpoch: c.assignmentEpoch, Assignor: m.assignorName()}
	for _, id := range c.memberIDs() {
		mem := c.members[id]
		d.Members = append(d.Members, ConsumerMemberDescription{
			MemberID: id, InstanceID: mem.instanceID, Rack: mem.rack, ClientID: mem.clientID, ClientHost: mem.clientHost,
			Epoch: mem.epoch, Names: mem.names, Regex: mem.regex,
			Assignment: m.named(mem.assigned), Target: m.named(c.target[id]), Classic: mem.classic != nil,
		})
	}
	return d
}

// named adds the topics' names. Those that are gone have none, and are left out.
func (m *machine) named(s share) []TopicPartitions {
	out := make([]TopicPartitions, 0, len(s))
	for _, id := range s.topics() {
		if t := m.topics.image.TopicByID(id); t != nil {
			out = append(out, TopicPartitions{TopicID: id, Topic: t.Name, Partitions: s[id]})
		}
	}
	return out
}
