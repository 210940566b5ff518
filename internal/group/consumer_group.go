package group

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// consumerGroup is what a machine keeps beside its offsets while its group
// speaks the consumer protocol (KIP-848). The coordinator shares out partitions;
// each member is led to its share by its own heartbeats, so that nobody stops
// reading what it keeps:
//
//	a member or a topic changes     → a new group epoch
//	the next heartbeat of anybody   → the target of that epoch, by the assignor
//	each heartbeat of a member      → the member gives up what is not its own, then
//	                                  gets what others have given up (reconcile)
//
// Membership runs ahead of the log here as it does in classic groups, but no
// answer does: a member hears of an epoch or a partition when the log has what
// led to it (journal).
//
// Invariant: a partition is with one member at most, from when the member may
// hear of it until it says that it has let go, or is out of the group.
type consumerGroup struct {
	epoch           int32 // grows with each change of members, subscriptions and topics
	assignmentEpoch int32 // of the target; at most epoch

	members map[string]*consumerMember
	static  map[string]string // instance id → member id
	target  map[string]share  // by member id, as of assignmentEpoch
	owner   map[partitionID]holding
	// targetAt is when the target was made; zero: not known, as after a load.
	targetAt time.Time

	// names and patterns count the members by what they are subscribed to.
	names    map[string]int
	patterns map[string]*pattern
	// classics counts the members of the classic protocol, bytes what all say
	// about subscriptions and protocols.
	classics int
	bytes    int

	// hash is that of the topics read, as of epoch; 0: they are not known, and
	// whatever they are is no reason for another epoch.
	hash uint64
	// seen is the version of the topics that hash was made from; 0: none.
	seen int64
}

// holding is who has a partition, and since which member epoch without a break. The
// log has no field for the second: after a load it is the member's epoch of then.
type holding struct {
	member string
	since  int32
}

// topicView is what machines know of the cluster's topics: an image, and a number
// that grows when topics come, go or grow, and only then.
type topicView struct {
	image   *metadata.Image
	version int64
}

func newConsumerGroup() *consumerGroup {
	return &consumerGroup{
		members: map[string]*consumerMember{}, static: map[string]string{}, target: map[string]share{},
		owner: map[partitionID]holding{}, names: map[string]int{}, patterns: map[string]*pattern{},
	}
}

// memberIDs is sorted, so that a step's effects do not depend on map order.
func (c *consumerGroup) memberIDs() []string { return slices.Sorted(maps.Keys(c.members)) }

// shown is the group's state as tools see it.
func (c *consumerGroup) shown() State {
	switch {
	case len(c.members) == 0:
		return Empty
	case c.epoch > c.assignmentEpoch:
		return Assigning
	}
	for _, mem := range c.members {
		if !mem.reconciled(c.assignmentEpoch) {
			return Reconciling
		}
	}
	return Stable
}

// admit puts a member into the group's books.
func (c *consumerGroup) admit(mem *consumerMember) {
	c.members[mem.id] = mem
	if mem.instanceID != "" {
		c.static[mem.instanceID] = mem.id
	}
	c.count(mem, 1)
	c.countPattern(mem.regex, 1)
	c.own(mem, nil)
}

// count adds a member to, or takes it off, what is counted by names and protocol.
// When these change it is called before and after.
func (c *consumerGroup) count(mem *consumerMember, by int) {
	c.bytes += by * mem.size()
	if mem.classic != nil {
		c.classics += by
	}
	for _, n := range mem.names {
		if c.names[n] += by; c.names[n] == 0 {
			delete(c.names, n)
		}
	}
}

// countPattern does the same for patterns, and forgets what was found by one that
// nobody has any more.
func (c *consumerGroup) countPattern(regex string, by int) {
	if regex == "" {
		return
	}
	p := c.patterns[regex]
	if p == nil {
		p = &pattern{}
		c.patterns[regex] = p
	}
	if p.members += by; p.members == 0 {
		delete(c.patterns, regex)
	}
}

// own books what a member has, since the epochs given or, of what is not among them,
// since its present one.
func (c *consumerGroup) own(mem *consumerMember, since map[partitionID]int32) {
	for _, s := range []share{mem.assigned, mem.revoking} {
		for topic, list := range s {
			for _, i := range list {
				p := partitionID{topic, i}
				epoch, kept := since[p]
				if !kept {
					epoch = mem.epoch
				}
				c.owner[p] = holding{mem.id, epoch}
			}
		}
	}
}

// disown is own's opposite, and tells since when the member had what it had.
func (c *consumerGroup) disown(mem *consumerMember) map[partitionID]int32 {
	since := make(map[partitionID]int32, mem.assigned.count()+mem.revoking.count())
	for _, s := range []share{mem.assigned, mem.revoking} {
		for topic, list := range s {
			for _, i := range list {
				p := partitionID{topic, i}
				if h := c.owner[p]; h.member == mem.id {
					since[p] = h.since
					delete(c.owner, p)
				}
			}
		}
	}
	return since
}

// freeFor tells what a member may take: nobody else holds it.
func (c *consumerGroup) freeFor(id string) func(partitionID) bool {
	return func(p partitionID) bool {
		h, owned := c.owner[p]
		return !owned || h.member == id
	}
}

// move sets what a member holds.
func (c *consumerGroup) move(mem *consumerMember, to progress) {
	since := c.disown(mem)
	if to.epoch != mem.epoch {
		mem.previous = mem.epoch
	}
	mem.epoch, mem.state, mem.assigned, mem.revoking = to.epoch, to.state, to.assigned, to.revoking
	c.own(mem, since)
}

// remove forgets a member. What it held is free.
func (c *consumerGroup) remove(mem *consumerMember) {
	c.disown(mem)
	c.count(mem, -1)
	c.countPattern(mem.regex, -1)
	delete(c.members, mem.id)
	delete(c.target, mem.id)
	if c.static[mem.instanceID] == mem.id {
		delete(c.static, mem.instanceID)
	}
}

// rename gives a static member that came back its new id; its share stays.
func (c *consumerGroup) rename(mem *consumerMember, id string) {
	since := c.disown(mem)
	delete(c.members, mem.id)
	if t, ok := c.target[mem.id]; ok {
		delete(c.target, mem.id)
		c.target[id] = t
	}
	mem.id = id
	c.members[id] = mem
	c.static[mem.instanceID] = id
	c.own(mem, since)
}

// check holds the invariants that span fields, cheaply enough for every step.
func (c *consumerGroup) check(id string) error {
	return invariants.Check(
		c.assignmentEpoch <= c.epoch && len(c.static) <= len(c.members) && c.classics >= 0 &&
			c.classics <= len(c.members) && len(c.target) <= len(c.members) && len(c.patterns) <= len(c.members),
		"consumer group %q: epoch %d, target of %d; %d members, %d static, %d classic, %d targets, %d patterns",
		id, c.epoch, c.assignmentEpoch, len(c.members), len(c.static), c.classics, len(c.target), len(c.patterns))
}

// member finds who a request comes from.
func (c *consumerGroup) member(memberID, instanceID string) (*consumerMember, error) {
	if instanceID != "" {
		id, ok := c.static[instanceID]
		if !ok {
			return nil, fmt.Errorf("%w: no member has instance id %q", ErrUnknownMember, instanceID)
		}
		if id != memberID {
			return nil, fmt.Errorf("%w: %q", ErrFencedInstance, instanceID)
		}
	}
	mem := c.members[memberID]
	if mem == nil {
		return nil, fmt.Errorf("%w: %q", ErrUnknownMember, memberID)
	}
	return mem, nil
}

// deadlines calls fn for each time at which something of a member ends.
func (m *consumerMember) deadlines(fn func(time.Time)) {
	for _, t := range []time.Time{m.deadline, m.revokeBy, m.joinBy, m.syncBy} {
		if !t.IsZero() {
			fn(t)
		}
	}
}

// overdue names the first thing that a member did not do in time.
func (m *consumerMember) overdue(now time.Time) string {
	for _, d := range []struct {
		t   time.Time
		why string
	}{
		{m.deadline, "session timeout"},
		{m.revokeBy, "did not give up its partitions within the rebalance timeout"},
		{m.joinBy, "did not rejoin within the rebalance timeout"},
		{m.syncBy, "did not sync within the rebalance timeout"},
	} {
		if !d.t.IsZero() && !d.t.After(now) {
			return d.why
		}
	}
	return ""
}
