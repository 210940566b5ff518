package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Members of the classic protocol in a consumer group, while its clients are
// being moved from one to the other. They are led by what they know: a heartbeat
// that answers "rebalancing" makes them join, the answer to the join is their new
// epoch (as a generation, with another as leader), and the sync gives them what
// is assigned. What they still have they tell with the join.

// onClassicJoin takes a classic member in, or on to its next epoch.
func (m *machine) onClassicJoin(now time.Time, in joinInput, fx *effects) {
	r, c := in.req, m.consumer
	refuse := func(err error) any { return JoinResult{Err: err, MemberID: r.MemberID, Generation: -1} }
	fail := func(err error) { fx.reply(in.to, refuse(err)) }

	id := r.MemberID
	if id == "" {
		id = in.newID
	}
	if c.members[id] == nil && c.static[r.InstanceID] == "" && len(c.members) >= m.o.ConsumerMaxSize {
		fail(fmt.Errorf("%w: %d", ErrGroupFull, m.o.ConsumerMaxSize))
		return
	}
	if size := c.bytes + sizeOf(r.Protocols); size > m.o.MaxGroupBytes {
		fail(fmt.Errorf("%w: its members' subscriptions take %d bytes, at most %d are allowed", ErrGroupFull, size, m.o.MaxGroupBytes))
		return
	}
	if !c.classicCompatible(r) {
		fail(fmt.Errorf("%w: type %q", ErrInconsistentProtocol, r.ProtocolType))
		return
	}
	sub := kmsg.NewConsumerMemberMetadata()
	if err := sub.ReadFrom(r.Protocols[0].Metadata); err != nil {
		fail(fmt.Errorf("%w: the subscription is malformed: %v", ErrInconsistentProtocol, err))
		return
	}
	if r.MemberID == "" && r.InstanceID == "" && r.RequireKnownID {
		fx.reply(in.to, JoinResult{Err: ErrMemberIDRequired, MemberID: id, Generation: -1})
		return
	}
	mem, err := m.classicFrom(now, r, id)
	if err != nil {
		fail(err)
		return
	}

	m.refreshTopics(m.tellClassic(mem, r, &sub))
	m.retarget(now)
	owned := m.ownedBy(&sub)
	m.progress(now, mem, &owned)
	mem.joinBy, mem.revokeBy = time.Time{}, time.Time{}
	if m.mayDowngrade() {
		// It came for the last static member of the consumer protocol.
		m.downgrade(now, fx)
		m.answerStored(0, "", nil, nil, fx)
		m.wait(m.members[mem.id], in.to, fx)
		m.tryCompleteJoin(now, fx)
		return
	}
	mem.syncBy = now.Add(mem.rebalanceTimeout)
	m.arm(mem.syncBy)
	m.consumerAlive(now, mem)
	m.answerStored(in.to, mem.id, JoinResult{
		MemberID: mem.id, Generation: mem.epoch, ProtocolType: consumerProtocol, Protocol: mem.classic.protocols[0].Name,
	}, refuse, fx)
}

// classicFrom finds who a join comes from, or makes a new member.
func (m *machine) classicFrom(now time.Time, r *JoinRequest, id string) (*consumerMember, error) {
	c := m.consumer
	if r.InstanceID != "" {
		old := c.members[c.static[r.InstanceID]]
		switch {
		case r.MemberID != "" && old == nil:
			return nil, fmt.Errorf("%w: no member has instance id %q", ErrUnknownMember, r.InstanceID)
		case r.MemberID != "" && old.id != id:
			return nil, fmt.Errorf("%w: instance id %q is with member %q", ErrFencedInstance, r.InstanceID, old.id)
		case old != nil:
			if old.id != id {
				m.takeOver(old, id)
			}
			return old, nil
		}
	}
	if mem := c.members[id]; mem != nil {
		return mem, nil
	}
	mem := &consumerMember{id: id, instanceID: r.InstanceID, assigned: share{}, revoking: share{}}
	m.admitConsumer(now, mem)
	m.o.Logger.Info("classic member joins a consumer group", "group", m.id, "member", id, "instance", r.InstanceID, "client", r.ClientID)
	return mem, nil
}

// classicCompatible tells whether all classic members know one of the protocols.
func (c *consumerGroup) classicCompatible(r *JoinRequest) bool {
	if r.ProtocolType != consumerProtocol {
		return false
	}
	return slices.ContainsFunc(r.Protocols, func(p Protocol) bool {
		for _, mem := range c.members {
			if mem.classic != nil && !slices.ContainsFunc(mem.classic.protocols, func(q Protocol) bool { return p.Name == q.Name }) {
				return false
			}
		}
		return true
	})
}

// tellClassic takes over what a join says of its member, and tells whether its
// subscription has changed.
func (m *machine) tellClassic(mem *consumerMember, r *JoinRequest, sub *kmsg.ConsumerMemberMetadata) (subscription bool) {
	was := *mem
	m.consumer.count(mem, -1)
	mem.subscribeTo(sub)
	mem.assignor = ""
	mem.clientID, mem.clientHost, mem.rebalanceTimeout = r.ClientID, r.ClientHost, r.RebalanceTimeout
	mem.classic = &classicPart{r.SessionTimeout, r.Protocols}
	m.consumer.count(mem, 1)
	m.consumer.countPattern(mem.regex, -1)
	mem.regex = ""
	m.journal.member(mem.id)
	return mem.regex != was.regex || !slices.Equal(mem.names, was.names)
}

// classicMember finds who a classic request comes from.
func (m *machine) classicMember(memberID, instanceID string, generation int32) (*consumerMember, error) {
	mem, err := m.consumer.member(memberID, instanceID)
	switch {
	case err != nil:
		return nil, err
	case mem.classic == nil:
		return nil, fmt.Errorf("%w: member %q does not use the classic protocol", ErrUnknownMember, memberID)
	case generation != mem.epoch:
		return nil, fmt.Errorf("%w: %d, now %d", ErrIllegalGeneration, generation, mem.epoch)
	}
	return mem, nil
}

func (m *machine) onClassicSync(now time.Time, in syncInput, fx *effects) {
	r := in.req
	refuse := func(err error) any { return SyncResult{Err: err} }
	mem, err := m.classicMember(r.MemberID, r.InstanceID, r.Generation)
	if err == nil {
		name := mem.classic.protocols[0].Name
		switch {
		case r.ProtocolType != "" && r.ProtocolType != consumerProtocol || r.Protocol != "" && r.Protocol != name:
			err = fmt.Errorf("%w: %s %s, the join said %s %s", ErrInconsistentProtocol, r.ProtocolType, r.Protocol, consumerProtocol, name)
		case m.consumer.epoch > mem.epoch && mem.state != memberUnrevoked:
			m.expectJoin(now, mem)
			err = ErrRebalancing
		}
	}
	if err != nil {
		fx.reply(in.to, refuse(err))
		return
	}
	mem.syncBy = time.Time{}
	m.consumerAlive(now, mem)
	m.answerStored(in.to, mem.id, SyncResult{
		ProtocolType: consumerProtocol, Protocol: mem.classic.protocols[0].Name,
		Assignment: m.toClassic(mem.assigned, mem.classicVersion()),
	}, refuse, fx)
}

// onClassicHeartbeat keeps the session, and tells the member when to rejoin: for
// a new epoch, to say that it has revoked, and to get what has become free.
func (m *machine) onClassicHeartbeat(now time.Time, r *HeartbeatRequest) error {
	mem, err := m.classicMember(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		return err
	}
	m.consumerAlive(now, mem)
	m.refreshTopics(false) // perhaps nobody is left who heartbeats in the other protocol
	c := m.consumer
	if mem.epoch < c.epoch || mem.state == memberUnrevoked || mem.state == memberUnreleased && !c.waits(mem) {
		m.expectJoin(now, mem)
		return ErrRebalancing
	}
	return nil
}

// waits tells whether part of a member's target is still with others.
func (c *consumerGroup) waits(mem *consumerMember) bool {
	free := c.freeFor(mem.id)
	for p := range c.target[mem.id].all() {
		if !mem.assigned.has(p) && !free(p) {
			return true
		}
	}
	return false
}

func (m *machine) expectJoin(now time.Time, mem *consumerMember) {
	if mem.joinBy.IsZero() {
		mem.joinBy = now.Add(mem.rebalanceTimeout)
		m.arm(mem.joinBy)
	}
}

func (m *machine) onClassicLeave(now time.Time, in leaveInput, fx *effects) {
	errs := make([]error, len(in.req.Members))
	left := 0
	for i, l := range in.req.Members {
		id := l.MemberID
		if id == "" && l.InstanceID != "" { // an administrator names static members so
			id = m.consumer.static[l.InstanceID]
		}
		mem, err := m.consumer.member(id, l.InstanceID)
		if err == nil && mem.classic == nil {
			err = fmt.Errorf("%w: member %q does not use the classic protocol", ErrUnknownMember, id)
		}
		if errs[i] = err; err == nil {
			m.o.Logger.Info("classic member left a consumer group", "group", m.id, "member", mem.id, "reason", l.Reason)
			m.removeConsumer(mem)
			left++
		}
	}
	if left > 0 {
		m.afterConsumerRemoval(now, fx)
	}
	m.answerStored(in.to, "", LeaveResult{Members: errs}, func(err error) any { return LeaveResult{Err: err} }, fx)
}
