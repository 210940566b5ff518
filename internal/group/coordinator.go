package group

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// TopicName is the internal topic that holds groups and offsets.
const TopicName = "__consumer_offsets"

// Coordinator coordinates the groups whose partitions of __consumer_offsets
// this broker leads. Its methods are safe for use by several goroutines; those
// with a context wait for their answer, and a context that ends gives up the
// answer, not what was asked.
type Coordinator struct {
	o     Options
	count atomic.Int64 // groups of all shards
	// memberBytes is what the members of all groups say about their protocols.
	memberBytes atomic.Int64
	loads       *metrics.PrometheusHistogram
	// rebalances counts generations, refusals batches that the log did not take.
	rebalances, refusals *metrics.Counter

	led   *coordinator.Shards[*shard]
	topic *coordinator.Topic

	// view is what the groups know of topics.
	view atomic.Pointer[topicView]
}

// New makes a coordinator that leads nothing yet.
func New(o Options) (*Coordinator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{
		o:          o,
		loads:      obs.Histogram("lockstep_group_load_seconds"),
		rebalances: obs.Counter("lockstep_group_rebalances_total"),
		refusals:   obs.Counter("lockstep_group_write_errors_total"),
	}
	c.led = coordinator.NewShards(TopicName, o.NodeID, func(p, epoch int32) *shard { return newShard(c, p, epoch) })
	c.topic = coordinator.NewTopic(o.Clock, TopicName, c.o.offsetsTopic)
	c.view.Store(&topicView{metadata.NewImage(), 1})
	obs.Gauge("lockstep_groups", func() float64 { return float64(c.count.Load()) })
	return c, nil
}

// Close drops every partition and waits for their goroutines. What waits is
// answered with ErrNotCoordinator.
func (c *Coordinator) Close() { c.led.Close() }

// BecomeLeader takes over a partition of __consumer_offsets: its groups answer
// ErrLoading until the log has been replayed. An epoch that is not newer than
// the one already led changes nothing.
func (c *Coordinator) BecomeLeader(partition, leaderEpoch int32) {
	c.led.BecomeLeader(partition, leaderEpoch)
}

// Resign drops a partition; those who wait find the new coordinator.
func (c *Coordinator) Resign(partition int32) { c.led.Resign(partition) }

// Apply follows the metadata from prev (nil at first) to next: it takes and
// drops partitions of __consumer_offsets with their leadership, and forgets
// what was committed in topics that are gone. The partitions themselves must
// have seen next before.
func (c *Coordinator) Apply(prev, next *metadata.Image) {
	c.see(next)
	c.led.Follow(next)
	if prev == nil {
		return
	}
	gone := map[string]struct{}{}
	for _, t := range prev.Topics() {
		if next.TopicByID(t.ID) == nil {
			gone[t.Name] = struct{}{}
		}
	}
	if len(gone) > 0 {
		for _, s := range c.led.All() {
			_ = s.Post(func(now time.Time) { s.each(now, topicsGone{gone}) }) // refused: it has ended
		}
	}
}

// PartitionFor is the partition of __consumer_offsets that holds a group.
func PartitionFor(group string, partitions int32) int32 {
	return coordinator.PartitionFor(group, partitions)
}

// shard finds who coordinates a group.
func (c *Coordinator) shard(group string) (*shard, error) {
	if len(group) > math.MaxInt16 {
		return nil, fmt.Errorf("%w: %d bytes", ErrInvalidGroupID, len(group))
	}
	return c.led.For(group, c.o.Partitions())
}

// Join waits until the group's next generation is fixed, or tells at once why
// not.
func (c *Coordinator) Join(ctx context.Context, r *JoinRequest) JoinResult {
	fail := func(err error) JoinResult {
		return JoinResult{Err: err, MemberID: r.MemberID, Generation: -1}
	}
	if err := c.checkJoin(r); err != nil {
		return fail(err)
	}
	s, err := c.shard(r.Group)
	if err != nil {
		return fail(err)
	}
	var newID string
	if r.MemberID == "" {
		if newID = r.ClientID; r.InstanceID != "" {
			newID = r.InstanceID
		}
		newID += "-" + c.o.NewID()
	}
	res, err := coordinator.Ask[JoinResult](ctx, s.Shard, untilMembersCome, func(now time.Time, to ticket) {
		sl, err := s.group(r.Group, r.MemberID == "", now)
		if err != nil {
			if errors.Is(err, ErrNotFound) {
				err = ErrUnknownMember
			}
			s.Answer(to, fail(err))
			return
		}
		s.step(sl, now, joinInput{to, r, newID})
	})
	if err != nil {
		return fail(err)
	}
	return res
}

// maxName bounds the names a join brings; each is stored with a 16 bit length,
// and the client id becomes a part of the member id.
const maxName = 4096

func (c *Coordinator) checkJoin(r *JoinRequest) error {
	if r.Group == "" {
		return ErrInvalidGroupID
	}
	if r.SessionTimeout < c.o.MinSessionTimeout || r.SessionTimeout > c.o.MaxSessionTimeout {
		return fmt.Errorf("%w: %s is not in [%s, %s]", ErrInvalidSessionTimeout, r.SessionTimeout,
			c.o.MinSessionTimeout, c.o.MaxSessionTimeout)
	}
	if r.ProtocolType == "" || len(r.Protocols) == 0 {
		return fmt.Errorf("%w: none given", ErrInconsistentProtocol)
	}
	if len(r.ClientID) > maxName || len(r.MemberID) > 2*maxName || len(r.ProtocolType) > maxName {
		return fmt.Errorf("%w: client id, member id or protocol type is too long", ErrInvalidRequest)
	}
	if len(r.InstanceID) > 249 { // as Kafka, which checks it like a topic name
		return fmt.Errorf("%w: group instance id is longer than 249 bytes", ErrInvalidRequest)
	}
	bytes, seen := 0, make(map[string]struct{}, len(r.Protocols))
	for _, p := range r.Protocols {
		if bytes += len(p.Name) + len(p.Metadata); len(p.Name) > maxName {
			return fmt.Errorf("%w: protocol name is too long", ErrInvalidRequest)
		}
		if _, twice := seen[p.Name]; twice || p.Name == "" {
			return fmt.Errorf("%w: protocol %q is empty or given twice", ErrInconsistentProtocol, p.Name)
		}
		seen[p.Name] = struct{}{}
	}
	// A join that waits longer than any session may last waits for nobody.
	r.RebalanceTimeout = min(r.RebalanceTimeout, c.o.MaxSessionTimeout)
	if err := c.roomForMember(bytes); err != nil {
		return err
	}
	if bytes > c.o.MaxProtocolBytes {
		return fmt.Errorf("%w: protocols of %d bytes, at most %d are allowed", ErrInvalidRequest, bytes, c.o.MaxProtocolBytes)
	}
	return nil
}

// roomForMember refuses what would be too much beside all that members of all
// groups say; small members for longer than large ones.
func (c *Coordinator) roomForMember(bytes int) error {
	const small = 4 << 10
	if held := c.memberBytes.Load() + int64(bytes); held > 2*int64(c.o.MaxMemberBytes) || bytes > small && held > int64(c.o.MaxMemberBytes) {
		return fmt.Errorf("%w: the members of all groups take %d bytes, at most %d are allowed", ErrNotAvailable, held, c.o.MaxMemberBytes)
	}
	return nil
}

// Sync waits for the member's assignment. The request's bytes are kept.
func (c *Coordinator) Sync(ctx context.Context, r *SyncRequest) SyncResult {
	if r.Group == "" {
		return SyncResult{Err: ErrInvalidGroupID}
	}
	res, err := onGroupWithin(ctx, c, untilMembersCome, r.Group, func(s *shard, sl *slot, now time.Time, to ticket) {
		s.step(sl, now, syncInput{to, r})
	}, SyncResult{Err: ErrUnknownMember})
	if err != nil {
		return SyncResult{Err: err}
	}
	return res
}

// Heartbeat keeps a session. ErrRebalancing tells the member to rejoin.
func (c *Coordinator) Heartbeat(ctx context.Context, r *HeartbeatRequest) error {
	if r.Group == "" {
		return ErrInvalidGroupID
	}
	res, err := onGroup(ctx, c, r.Group, func(s *shard, sl *slot, now time.Time, to ticket) {
		s.step(sl, now, heartbeatInput{to, r})
	}, error(ErrUnknownMember))
	return first(err, res)
}

// Leave takes members out of a group.
func (c *Coordinator) Leave(ctx context.Context, r *LeaveRequest) LeaveResult {
	if r.Group == "" {
		return LeaveResult{Err: ErrInvalidGroupID}
	}
	unknown := LeaveResult{Members: make([]error, len(r.Members))}
	for i := range unknown.Members {
		unknown.Members[i] = ErrUnknownMember
	}
	res, err := onGroup(ctx, c, r.Group, func(s *shard, sl *slot, now time.Time, to ticket) {
		s.step(sl, now, leaveInput{to, r})
	}, unknown)
	if err != nil {
		return LeaveResult{Err: err}
	}
	return res
}

// Delete removes an empty group with its offsets.
func (c *Coordinator) Delete(ctx context.Context, group string) error {
	if group == "" {
		return ErrInvalidGroupID
	}
	res, err := onGroup(ctx, c, group, func(s *shard, sl *slot, now time.Time, to ticket) {
		s.step(sl, now, deleteInput{to})
	}, error(ErrNotFound))
	return first(err, res)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// onGroup asks a group that exists; unknown is the answer if it does not.
func onGroup[T any](ctx context.Context, c *Coordinator, group string,
	fn func(s *shard, sl *slot, now time.Time, to ticket), unknown T) (T, error) {
	return onGroupWithin(ctx, c, c.o.WriteTimeout, group, fn, unknown)
}

// untilMembersCome in the place of a time limit: joins and syncs wait for other
// members, and the group knows for how long.
const untilMembersCome = 0

// onGroupWithin is onGroup with a time limit of its own.
func onGroupWithin[T any](ctx context.Context, c *Coordinator, limit time.Duration, group string,
	fn func(s *shard, sl *slot, now time.Time, to ticket), unknown T) (T, error) {
	s, err := c.shard(group)
	if err != nil {
		var none T
		return none, err
	}
	return coordinator.Ask[T](ctx, s.Shard, limit, func(now time.Time, to ticket) {
		sl, err := s.group(group, false, now)
		if err != nil {
			s.Answer(to, unknown)
			return
		}
		fn(s, sl, now, to)
	})
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
