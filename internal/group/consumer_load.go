package group

import (
	"maps"
	"slices"
	"time"
)

// replayedConsumer is what the log says of a consumer group.
type replayedConsumer struct {
	hasEpoch        bool
	epoch           int32
	hash            uint64
	assignmentEpoch int32
	members         map[string]*consumerMember // of keyMember
	currents        map[string]*consumerMember // of keyCurrent
	targets         map[string]share
}

func newReplayedConsumer() *replayedConsumer {
	return &replayedConsumer{
		members: map[string]*consumerMember{}, currents: map[string]*consumerMember{}, targets: map[string]share{},
	}
}

// apply takes one record over; of each key the last counts.
func (c *replayedConsumer) apply(r *consumerRecord) {
	switch r.key {
	case keyEpoch:
		c.hasEpoch, c.epoch, c.hash = !r.gone, r.epoch, r.hash
	case keyTargetEpoch:
		c.assignmentEpoch = r.epoch
	case keyTarget:
		if delete(c.targets, r.member); !r.gone {
			c.targets[r.member] = r.share
		}
	case keyMember:
		if delete(c.members, r.member); !r.gone {
			c.members[r.member] = r.state
		}
	case keyCurrent:
		if delete(c.currents, r.member); !r.gone {
			c.currents[r.member] = r.state
		}
	}
}

func (c *replayedConsumer) empty() bool {
	return !c.hasEpoch && len(c.members) == 0 && len(c.currents) == 0 && len(c.targets) == 0
}

// exists tells whether there is a consumer group. Members without a group are
// what a write that was cut short has left.
func (c *replayedConsumer) exists() bool { return c != nil && c.hasEpoch }

// restoreFrom makes the group what the log says. Should it say two things,
// because a change of protocol was cut short, the members decide.
func (m *machine) restoreFrom(now time.Time, g *replayed) {
	switch {
	case g.consumer.exists() && (g.members == nil || len(g.consumer.members) > 0):
		m.restoreConsumer(now, g.consumer)
	case g.members != nil:
		m.restore(now, g.members)
	}
	if g.consumer != nil {
		m.noteLeftovers(g)
	}
}

// noteLeftovers sees to it that what the log has of members and groups that are no
// more is erased with the next write: a later group of this name would find it.
func (m *machine) noteLeftovers(g *replayed) {
	j, from := &m.journal, g.consumer
	if m.consumer == nil {
		j.epoch, j.assignmentEpoch, m.logged = true, true, true
	} else if g.members != nil {
		tombstone := groupTombstone(m.id)
		j.group = &tombstone
	}
	isMember := func(id string) bool { return m.consumer != nil && m.consumer.members[id] != nil }
	for _, id := range slices.Sorted(maps.Keys(from.members)) {
		if !isMember(id) {
			j.member(id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(from.currents)) {
		if !isMember(id) {
			j.current(id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(from.targets)) {
		if !isMember(id) {
			j.target(id)
		}
	}
}

// restoreConsumer makes the group what its records say. Sessions begin anew, and
// so does the wait for revocations.
func (m *machine) restoreConsumer(now time.Time, from *replayedConsumer) {
	c := newConsumerGroup()
	m.consumer, m.logged = c, true
	m.protocolType, m.generation = consumerProtocol, from.epoch
	c.epoch, c.hash = from.epoch, from.hash
	c.assignmentEpoch = min(from.assignmentEpoch, from.epoch)
	for _, id := range slices.Sorted(maps.Keys(from.members)) {
		mem := from.members[id]
		mem.assigned, mem.revoking = share{}, share{}
		if cur := from.currents[id]; cur != nil {
			mem.epoch, mem.previous, mem.state = cur.epoch, cur.previous, cur.state
			mem.assigned, mem.revoking = cur.assigned, cur.revoking
		}
		if mem.classic != nil && len(mem.classic.protocols) == 0 {
			mem.classic = nil // a classic member without a protocol cannot be served; it will be fenced
		}
		c.admit(mem)
		if p := c.patterns[mem.regex]; p != nil && p.re == nil {
			// A pattern that cannot be read (another version took it) finds nothing.
			p.re, _ = compilePattern(mem.regex)
		}
		m.consumerAlive(now, mem)
		if mem.state == memberUnrevoked && mem.classic == nil {
			mem.revokeBy = now.Add(mem.rebalanceTimeout)
			m.arm(mem.revokeBy)
		}
	}
	for id, s := range from.targets {
		if c.members[id] != nil {
			c.target[id] = s
		}
	}
	m.bytes = c.bytes
	m.state = Empty
	if len(c.members) > 0 {
		m.state = Stable
	}
}
