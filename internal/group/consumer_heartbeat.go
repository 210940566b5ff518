package group

import (
	"fmt"
	"slices"
	"time"
)

// onConsumerHeartbeat is the whole of the consumer protocol. All that can be
// refused is refused before anything changes.
func (m *machine) onConsumerHeartbeat(now time.Time, in consumerHeartbeatInput, fx *effects) {
	r := in.req
	refuse := func(err error) any { return ConsumerHeartbeatResult{Err: err} }
	if m.state == Dead {
		fx.reply(in.to, refuse(ErrNotAvailable))
		return
	}
	if r.Epoch < EpochJoin {
		m.onConsumerLeave(now, in, fx)
		return
	}
	if err := m.mayBecomeConsumer(r); err != nil {
		fx.reply(in.to, refuse(err))
		return
	}
	c := m.consumer
	if c == nil {
		m.upgrade(now, fx)
		c = m.consumer
	}
	mem, err := m.heartbeatFrom(now, in)
	if err != nil {
		fx.reply(in.to, refuse(err))
		return
	}

	before := mem.assigned
	m.refreshTopics(m.tell(mem, r))
	m.retarget(now)
	var owned *share
	if r.Owned != nil {
		s := newShare(r.Owned)
		owned = &s
	}
	m.progress(now, mem, owned)
	m.consumerAlive(now, mem)

	res := ConsumerHeartbeatResult{MemberID: mem.id, Epoch: mem.epoch, HeartbeatInterval: m.o.consumerSettings(m.id).HeartbeatInterval}
	// A request that says all asks for all: its client has lost an answer.
	full := r.Epoch == EpochJoin || r.RebalanceTimeout >= 0 && (r.Names != nil || r.Regex != nil) && r.Owned != nil
	if full || !mem.assigned.equal(before) {
		res.HasAssignment, res.Assignment = true, mem.assigned.public()
	}
	m.answerStored(in.to, mem.id, res, refuse, fx)
}

// mayBecomeConsumer tells whether the request can be served, as far as it takes
// a consumer group with room for it.
func (m *machine) mayBecomeConsumer(r *ConsumerHeartbeatRequest) error {
	c := m.consumer
	if c == nil {
		if r.Epoch != EpochJoin {
			return fmt.Errorf("%w: group %q is not a consumer group", ErrNotFound, m.id)
		}
		return m.mayUpgrade()
	}
	if size := c.bytes + sizeOfNames(r.Names); size > m.o.MaxGroupBytes && len(r.Names) > 0 {
		return fmt.Errorf("%w: its members' subscriptions take %d bytes, at most %d are allowed", ErrGroupFull, size, m.o.MaxGroupBytes)
	}
	if r.Epoch != EpochJoin {
		return nil
	}
	_, known := c.members[r.MemberID]
	if r.InstanceID != nil && !known {
		_, known = c.static[*r.InstanceID]
	}
	if !known && len(c.members) >= m.o.ConsumerMaxSize {
		return fmt.Errorf("%w: %d", ErrGroupFull, m.o.ConsumerMaxSize)
	}
	return nil
}

// heartbeatFrom finds who a heartbeat comes from, or makes a new member.
func (m *machine) heartbeatFrom(now time.Time, in consumerHeartbeatInput) (*consumerMember, error) {
	c, r := m.consumer, in.req
	id := r.MemberID
	if id == "" {
		id = in.newID
	}
	if err := m.mayBring(id, r.Regex); err != nil {
		return nil, err
	}
	var mem *consumerMember
	if r.InstanceID != nil {
		old := c.members[c.static[*r.InstanceID]]
		switch {
		case r.Epoch != EpochJoin && old == nil:
			return nil, fmt.Errorf("%w: no member has instance id %q", ErrUnknownMember, *r.InstanceID)
		case r.Epoch != EpochJoin && old.id != id:
			return nil, fmt.Errorf("%w: instance id %q is with member %q", ErrFencedInstance, *r.InstanceID, old.id)
		case old != nil && old.id != id:
			if old.epoch != EpochLeaveStatic && old.classic == nil {
				return nil, fmt.Errorf("%w: %q is with member %q", ErrUnreleasedInstance, *r.InstanceID, old.id)
			}
			m.takeOver(old, id)
			return old, nil
		}
		mem = old
	}
	if mem == nil {
		mem = c.members[id]
	}
	switch {
	case mem == nil && r.Epoch != EpochJoin:
		return nil, fmt.Errorf("%w: %q", ErrUnknownMember, id)
	case mem == nil:
		mem = &consumerMember{id: id, assigned: share{}, revoking: share{}}
		if r.InstanceID != nil {
			mem.instanceID = *r.InstanceID
		}
		m.admitConsumer(now, mem)
		m.o.Logger.Info("consumer group member joins", "group", m.id, "member", id, "instance", mem.instanceID, "client", r.ClientID)
		return mem, nil
	case r.Epoch == EpochJoin:
		// It begins anew and says that it has nothing.
		c.move(mem, progress{assigned: share{}, revoking: share{}})
		mem.previous, mem.revokeBy = 0, time.Time{}
		m.journal.current(id)
		return mem, nil
	}
	return mem, mem.fence(r)
}

// admitConsumer puts a new member into the group.
func (m *machine) admitConsumer(now time.Time, mem *consumerMember) {
	if m.state == Empty {
		m.enter(Stable, now)
	}
	m.consumer.admit(mem)
	m.journal.all(mem.id)
}

// fence refuses a client that is not where its member is. One that comes with
// the epoch before the present one has missed an answer, if it has nothing that
// the member has not.
func (m *consumerMember) fence(r *ConsumerHeartbeatRequest) error {
	switch {
	case r.Epoch == m.epoch:
		return nil
	case r.Epoch < m.epoch && r.Epoch == m.previous && r.Owned != nil && len(newShare(r.Owned).minus(m.assigned)) == 0:
		return nil
	}
	return fmt.Errorf("%w: %d, the member is at %d; it must give up its partitions and rejoin", ErrFencedMemberEpoch, r.Epoch, m.epoch)
}

// takeOver lets a client go on as a static member, under its new member id.
func (m *machine) takeOver(mem *consumerMember, id string) {
	m.o.Logger.Info("consumer group member returns", "group", m.id, "instance", mem.instanceID, "member", id, "was", mem.id)
	m.journal.all(mem.id)
	m.consumer.rename(mem, id)
	m.journal.all(id)
	mem.epoch, mem.previous, mem.state = 0, 0, memberStable
	// What it had been told to revoke went with the client that had it.
	m.consumer.move(mem, progress{assigned: mem.assigned, revoking: share{}})
	mem.revokeBy, mem.joinBy, mem.syncBy = time.Time{}, time.Time{}, time.Time{}
}

// mayBring bounds the patterns of a group: each is held against every topic.
func (m *machine) mayBring(id string, regex *string) error {
	c := m.consumer
	if regex == nil || *regex == "" || c.patterns[*regex] != nil {
		return nil
	}
	n := len(c.patterns)
	if mem := c.members[id]; mem != nil && mem.regex != "" && c.patterns[mem.regex].members == 1 {
		n-- // the one that it replaces
	}
	if n >= m.o.MaxPatterns {
		return fmt.Errorf("%w: the group has its maximum of %d different patterns", ErrInvalidRequest, m.o.MaxPatterns)
	}
	return nil
}

// tell takes over what a heartbeat says of its member, and tells whether its
// subscription has changed.
func (m *machine) tell(mem *consumerMember, r *ConsumerHeartbeatRequest) (subscription bool) {
	c := m.consumer
	was := *mem
	c.count(mem, -1)
	set := func(field *string, said *string) {
		if said != nil {
			*field = *said
		}
	}
	set(&mem.rack, r.Rack)
	set(&mem.assignor, r.Assignor)
	mem.clientID, mem.clientHost = r.ClientID, r.ClientHost
	if r.RebalanceTimeout >= 0 {
		mem.rebalanceTimeout = r.RebalanceTimeout
	}
	if r.Names != nil {
		mem.names = sortedSet(r.Names)
	}
	mem.classic = nil
	c.count(mem, 1)
	if r.Regex != nil && *r.Regex != mem.regex {
		c.countPattern(*r.Regex, 1)
		c.countPattern(mem.regex, -1)
		mem.regex = *r.Regex
	}
	if p := c.patterns[mem.regex]; p != nil && r.pattern != nil {
		p.bring(r.pattern, r.Visible)
	}
	subscription = mem.regex != was.regex || !slices.Equal(mem.names, was.names)
	if subscription || mem.rack != was.rack || mem.assignor != was.assignor || mem.clientID != was.clientID ||
		mem.clientHost != was.clientHost || mem.rebalanceTimeout != was.rebalanceTimeout || was.classic != nil {
		m.journal.member(mem.id)
	}
	return subscription
}

// progress leads a member towards its target.
func (m *machine) progress(now time.Time, mem *consumerMember, owned *share) {
	c := m.consumer
	next := reconcile(mem, c.assignmentEpoch, c.target[mem.id], owned, c.freeFor(mem.id))
	if next.epoch == mem.epoch && next.state == mem.state && next.assigned.equal(mem.assigned) && next.revoking.equal(mem.revoking) {
		return
	}
	started := next.state == memberUnrevoked && (mem.state != memberUnrevoked || next.epoch != mem.epoch)
	c.move(mem, next)
	m.journal.current(mem.id)
	switch {
	case next.state != memberUnrevoked || mem.classic != nil: // of a classic member joinBy and syncBy take care
		mem.revokeBy = time.Time{}
	case started:
		mem.revokeBy = now.Add(mem.rebalanceTimeout)
		m.arm(mem.revokeBy)
	}
}

// consumerAlive restarts a member's session.
func (m *machine) consumerAlive(now time.Time, mem *consumerMember) {
	timeout := m.o.consumerSettings(m.id).SessionTimeout
	if mem.classic != nil {
		timeout = mem.classic.sessionTimeout
	}
	mem.deadline = now.Add(timeout)
	m.arm(mem.deadline)
}

// onConsumerLeave takes a member out, or lets a static one go for a while.
func (m *machine) onConsumerLeave(now time.Time, in consumerHeartbeatInput, fx *effects) {
	r := in.req
	refuse := func(err error) any { return ConsumerHeartbeatResult{Err: err} }
	c := m.consumer
	if c == nil {
		fx.reply(in.to, refuse(fmt.Errorf("%w: group %q is not a consumer group", ErrNotFound, m.id)))
		return
	}
	instance := ""
	if r.InstanceID != nil {
		instance = *r.InstanceID
	}
	mem, err := c.member(r.MemberID, instance)
	if err != nil {
		fx.reply(in.to, refuse(err))
		return
	}
	if r.Epoch == EpochLeaveStatic {
		// What it was told to revoke it has given up with leaving.
		c.move(mem, progress{epoch: EpochLeaveStatic, assigned: mem.assigned, revoking: share{}})
		mem.revokeBy = time.Time{}
		m.journal.current(mem.id)
		m.o.Logger.Info("consumer group member left for a while", "group", m.id, "member", mem.id, "instance", instance)
	} else {
		m.o.Logger.Info("consumer group member left", "group", m.id, "member", mem.id, "client", mem.clientID)
		m.removeConsumer(mem)
		m.afterConsumerRemoval(now, fx)
	}
	m.answerStored(in.to, "", ConsumerHeartbeatResult{MemberID: r.MemberID, Epoch: r.Epoch}, refuse, fx)
}

// removeConsumer forgets a member. The caller then calls afterConsumerRemoval,
// once for all.
func (m *machine) removeConsumer(mem *consumerMember) {
	m.journal.all(mem.id)
	m.consumer.remove(mem)
}

// afterConsumerRemoval: what the gone members had is shared out anew, by the
// coordinator or, if only classic members are left, by them.
func (m *machine) afterConsumerRemoval(now time.Time, fx *effects) {
	m.bumpEpoch()
	if len(m.consumer.members) == 0 {
		m.enter(Empty, now)
		m.subscribed = map[string]struct{}{}
		return
	}
	if m.mayDowngrade() {
		m.downgrade(now, fx)
	}
}

// onConsumerTick takes out the members that have run out of time.
func (m *machine) onConsumerTick(now time.Time, fx *effects) {
	lost := 0
	for _, id := range m.consumer.memberIDs() {
		mem := m.consumer.members[id]
		if why := mem.overdue(now); why != "" {
			m.o.Logger.Info("consumer group member lost: "+why, "group", m.id, "member", id, "client", mem.clientID)
			m.removeConsumer(mem)
			lost++
		}
	}
	if lost > 0 {
		m.afterConsumerRemoval(now, fx)
		m.answerStored(0, "", nil, nil, fx)
	}
}
