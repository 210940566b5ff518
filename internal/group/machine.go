package group

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// machine is one group: who its members are, and what it has committed. It
// decides by step alone: time and new member ids come in with the inputs,
// answers and writes go out as effects, and nothing waits.
//
// What is stored is what the log acknowledged. Membership runs ahead of the log
// (a lost generation is only a rebalance), committed offsets never do.
type machine struct {
	id string
	o  *Options

	state State
	// since is when the state was entered. Offsets of an empty group live from
	// then on, so it is stored with the group.
	since time.Time

	protocolType string // empty: no member ever joined; committed by simple consumers
	generation   int32
	protocol     string // chosen for the generation; empty without members
	leader       string

	members map[string]*member
	// static maps instance ids to member ids, both of members (KIP-345).
	static map[string]string
	// pending are member ids that were given out and not used yet, and until
	// when they are good (KIP-394). They hold up a rebalance as members do.
	pending map[string]time.Time
	// knows counts, per protocol name, the members that know it.
	knows map[string]int
	// bytes is what the members say about their protocols.
	bytes int
	// joining counts the members that wait for the answer to a join.
	joining int

	// joinBy ends PreparingRebalance, syncBy the wait for the syncs of a
	// generation. Zero: not running.
	joinBy time.Time
	syncBy time.Time
	// grace is what may still be added to joinBy in the first rebalance of an
	// empty group, and is added while newcomers set arrived. See initial.
	initial bool
	grace   time.Duration
	arrived bool
	// storing is the generation whose assignment is on its way to the log;
	// 0: none.
	storing int32

	// subscribed are the topics of the members' subscriptions; nil: not known,
	// because the members do not speak the consumer protocol.
	subscribed map[string]struct{}

	// logged: the log holds a record of this group, which its end must erase.
	logged bool

	offsets map[TopicPartition]committed
	// unstored counts the commits of a partition on their way to the log. Those
	// partitions do not expire.
	unstored map[TopicPartition]int
	// txns are the stored offsets of open transactions, by producer id. undecided
	// counts, of each partition, those and the ones on their way to the log: while
	// there are any, its offset is not stable, and neither it nor the group expires.
	txns      map[int64]map[TopicPartition]committed
	undecided map[TopicPartition]int
	order     int64 // the last given to an offset's record
	// dying is the first error among the tombstones of a group being deleted.
	dying error

	// consumer is the group's state while it speaks the consumer protocol
	// (KIP-848); nil: it is a classic group. Of the fields above such a group
	// uses state (Empty, Stable with members, Dead), since, generation (its
	// epoch), subscribed and logged; it has no members in members.
	consumer *consumerGroup
	journal  journal
	// topics are the cluster's, as of this step: the driver sets them.
	topics topicView

	// wake is no later than the first deadline; zero: there is none. It may be
	// too early, because heartbeats move deadlines away from it without
	// looking for the new first one; a tick finds that.
	wake time.Time
}

func newMachine(id string, o *Options, now time.Time) *machine {
	return &machine{
		id: id, o: o, since: now,
		members: map[string]*member{}, static: map[string]string{}, pending: map[string]time.Time{},
		knows: map[string]int{}, offsets: map[TopicPartition]committed{}, unstored: map[TopicPartition]int{},
		txns: map[int64]map[TopicPartition]committed{}, undecided: map[TopicPartition]int{},
	}
}

// Inputs of a step, beside stored.
type (
	joinInput struct {
		to    ticket
		req   *JoinRequest
		newID string // for a member without one
	}
	syncInput struct {
		to  ticket
		req *SyncRequest
	}
	heartbeatInput struct {
		to  ticket
		req *HeartbeatRequest
	}
	leaveInput struct {
		to  ticket
		req *LeaveRequest
	}
	commitInput struct {
		to     ticket
		req    *CommitRequest
		mirror bool // from a mirror: refused by an active group, silent about what is already so
	}
	deleteOffsetsInput struct {
		to         ticket
		partitions []TopicPartition
	}
	deleteInput            struct{ to ticket }
	consumerHeartbeatInput struct {
		to    ticket
		req   *ConsumerHeartbeatRequest
		newID string // for a member without one
	}
	// tick: a deadline may have passed.
	tick struct{}
	// sweep: look for expired offsets.
	sweep struct{}
	// topicsGone: topics were deleted, and with them what was committed there.
	topicsGone struct{ topics map[string]struct{} }
)

// step is the whole life of a group.
func (m *machine) step(now time.Time, in any, fx *effects) error {
	switch in := in.(type) {
	case joinInput:
		m.onJoin(now, in, fx)
	case syncInput:
		m.onSync(now, in, fx)
	case consumerHeartbeatInput:
		m.onConsumerHeartbeat(now, in, fx)
	case heartbeatInput:
		fx.reply(in.to, m.onHeartbeat(now, in.req))
	case leaveInput:
		m.onLeave(now, in, fx)
	case commitInput:
		m.onCommit(now, in, fx)
	case txnCommitInput:
		m.onTxnCommit(now, in, fx)
	case endTxnInput:
		m.onEndTxn(in)
	case deleteOffsetsInput:
		m.onDeleteOffsets(in, fx)
	case deleteInput:
		m.onDelete(in, fx)
	case tick:
		m.onTick(now, fx)
	case sweep:
		m.onSweep(now, fx)
	case topicsGone:
		m.onTopicsGone(in, fx)
	case stored:
		m.onStored(now, in, fx)
	}
	if m.consumer != nil {
		m.bytes = m.consumer.bytes
	}
	return m.check()
}

// check holds the invariants that span fields, cheaply enough for every step.
func (m *machine) check() error {
	if m.consumer != nil {
		if err := m.consumer.check(m.id); err != nil {
			return err
		}
	}
	return invariants.Check(
		(m.consumer == nil || len(m.members) == 0 && (m.state == Stable) == (len(m.consumer.members) > 0)) &&
			m.joining >= 0 && m.joining <= len(m.members) && len(m.static) <= len(m.members) &&
			(len(m.members) > 0 || m.leader == "") &&
			(m.state != PreparingRebalance) == m.joinBy.IsZero() &&
			(m.state != CompletingRebalance || m.protocol != "") &&
			(m.state != Empty && m.state != Dead || len(m.members) == 0),
		"group %q: %s with %d members, %d joining, %d static, leader %q, protocol %q, join deadline %v",
		m.id, m.state, len(m.members), m.joining, len(m.static), m.leader, m.protocol, m.joinBy)
}

// forgettable tells whether the group need not be kept: nothing of it is in the
// log, nobody waits, and a new one would be no different.
func (m *machine) forgettable() bool {
	return (m.state == Empty || m.state == Dead) && !m.logged && len(m.members) == 0 && len(m.pending) == 0 &&
		len(m.offsets) == 0 && len(m.unstored) == 0 && len(m.undecided) == 0 && m.storing == 0 &&
		m.journal.idle()
}

func (m *machine) enter(s State, now time.Time) {
	m.state, m.since = s, now
}

// arm sees to it that a tick comes at t.
func (m *machine) arm(t time.Time) {
	if m.wake.IsZero() || t.Before(m.wake) {
		m.wake = t
	}
}

// alive restarts a member's session.
func (m *machine) alive(now time.Time, mem *member) {
	mem.deadline = now.Add(mem.sessionTimeout)
	m.arm(mem.deadline)
}

// memberIDs is sorted, so that a step's effects do not depend on map order.
func (m *machine) memberIDs() []string { return slices.Sorted(maps.Keys(m.members)) }

// member finds who a request comes from. A static member is known by both its
// ids, and a newer member with the same instance id fences it.
func (m *machine) member(memberID, instanceID string) (*member, error) {
	if instanceID != "" {
		id, ok := m.static[instanceID]
		if !ok {
			return nil, fmt.Errorf("%w: no member has instance id %q", ErrUnknownMember, instanceID)
		}
		if id != memberID {
			return nil, fmt.Errorf("%w: %q", ErrFencedInstance, instanceID)
		}
	}
	mem, ok := m.members[memberID]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownMember, memberID)
	}
	return mem, nil
}

// current finds who a request of the current generation comes from.
func (m *machine) current(memberID, instanceID string, generation int32) (*member, error) {
	if m.state == Dead {
		return nil, ErrNotAvailable
	}
	mem, err := m.member(memberID, instanceID)
	if err != nil {
		return nil, err
	}
	if generation != m.generation {
		return nil, fmt.Errorf("%w: %d, now %d", ErrIllegalGeneration, generation, m.generation)
	}
	return mem, nil
}

// onTick ends what has run out of time, in a fixed order, and finds the next
// deadline.
func (m *machine) onTick(now time.Time, fx *effects) {
	for _, id := range slices.Sorted(maps.Keys(m.pending)) {
		if !m.pending[id].After(now) {
			delete(m.pending, id)
			m.tryCompleteJoin(now, fx)
		}
	}
	for _, id := range m.memberIDs() {
		// A member that an earlier one's end has already taken along is gone.
		if mem := m.members[id]; mem != nil && mem.expired(now) {
			m.o.Logger.Info("group member lost: session timeout", "group", m.id, "member", id, "client", mem.clientID,
				"timeout", mem.sessionTimeout)
			m.remove(mem, fx)
			m.afterRemoval(now, "member "+id+" timed out", fx)
		}
	}
	if !m.joinBy.IsZero() && !m.joinBy.After(now) {
		m.onJoinDeadline(now, fx)
	}
	if !m.syncBy.IsZero() && !m.syncBy.After(now) {
		m.onSyncDeadline(now, fx)
	}

	if m.consumer != nil {
		m.onConsumerTick(now, fx)
	}

	m.wake = time.Time{}
	if m.consumer != nil {
		for _, mem := range m.consumer.members {
			mem.deadlines(m.arm)
		}
	}
	for _, t := range m.pending {
		m.arm(t)
	}
	for _, mem := range m.members {
		if mem.timed() {
			m.arm(mem.deadline)
		}
	}
	if !m.joinBy.IsZero() {
		m.arm(m.joinBy)
	}
	if !m.syncBy.IsZero() {
		m.arm(m.syncBy)
	}
}

// onStored ends a write: what the log acknowledged becomes true.
func (m *machine) onStored(now time.Time, in stored, fx *effects) {
	switch of := in.of.(type) {
	case pendingAssignment:
		m.onAssignmentStored(now, of, in.err, fx)
	case pendingEmpty:
		// Nobody waits. If the write failed, the log still has the members of
		// an older generation, and whoever loads it lets them time out.
		if in.err != nil {
			m.o.Logger.Warn("group not stored", "group", m.id, "generation", of.generation, "err", in.err)
		}
	case pendingStatic:
		m.onStaticStored(now, of, in.err, fx)
	case pendingConsumer:
		m.onConsumerStored(of, in.err, fx)
	case pendingCommit:
		m.onCommitStored(of, in.err, fx)
	case pendingTxnCommit:
		m.onTxnCommitStored(of, in.err, fx)
	case pendingRemoval:
		m.onOffsetsRemoved(of, in.err, fx)
	case pendingDeath:
		m.onDeathStored(of, in.err, fx)
	}
}
