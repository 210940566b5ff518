package group

import (
	"fmt"
	"math"
	"time"
)

// onJoin takes a member in, or keeps it, and starts or goes on with a
// rebalance where that changes something.
func (m *machine) onJoin(now time.Time, in joinInput, fx *effects) {
	r := in.req
	refuse := func(err error) {
		fx.reply(in.to, JoinResult{Err: err, MemberID: r.MemberID, Generation: -1})
	}
	if m.state == Dead {
		refuse(ErrNotAvailable)
		return
	}
	if m.consumer != nil {
		if len(m.consumer.members) > 0 {
			m.onClassicJoin(now, in, fx)
			return
		}
		m.endConsumer(fx)
	}
	if !m.compatible(r.ProtocolType, r.Protocols) {
		refuse(fmt.Errorf("%w: type %q", ErrInconsistentProtocol, r.ProtocolType))
		return
	}

	if old := m.members[r.MemberID]; m.bytes+sizeOf(r.Protocols)-old.size() > m.o.MaxGroupBytes {
		refuse(fmt.Errorf("%w: its members' protocols take %d bytes, at most %d are allowed", ErrGroupFull, m.bytes, m.o.MaxGroupBytes))
		return
	}
	_, wasGiven := m.pending[r.MemberID]
	switch {
	case r.MemberID == "" && r.InstanceID != "":
		if old, ok := m.static[r.InstanceID]; ok {
			m.replaceStatic(now, m.members[old], in, fx)
			return
		}
		fallthrough
	case r.MemberID == "":
		if len(m.members)+len(m.pending) >= m.o.MaxGroupSize {
			refuse(fmt.Errorf("%w: %d", ErrGroupFull, m.o.MaxGroupSize))
			return
		}
		if r.RequireKnownID && r.InstanceID == "" {
			m.pending[in.newID] = now.Add(r.SessionTimeout)
			m.arm(m.pending[in.newID])
			fx.reply(in.to, JoinResult{Err: ErrMemberIDRequired, MemberID: in.newID, Generation: -1})
			return
		}
		m.admit(now, in.newID, in, fx)
	case wasGiven:
		if r.InstanceID != "" { // ids are only given out to dynamic members
			refuse(ErrUnknownMember)
			return
		}
		delete(m.pending, r.MemberID)
		m.admit(now, r.MemberID, in, fx)
	default:
		mem, err := m.member(r.MemberID, r.InstanceID)
		if err != nil {
			refuse(err)
			return
		}
		m.rejoin(now, mem, in, fx)
	}
}

// rejoin: a member comes again. That is a reason to rebalance if it has changed,
// or if it is the leader, who so asks for a new assignment. Otherwise it has
// missed our answer, and gets it again.
func (m *machine) rejoin(now time.Time, mem *member, in joinInput, fx *effects) {
	if !mem.isNew {
		m.alive(now, mem)
	}
	again := mem.same(in.req.Protocols) &&
		(m.state == CompletingRebalance || m.state == Stable && mem.id != m.leader)
	if again {
		fx.reply(in.to, m.joinResult(mem))
		return
	}
	m.update(mem, in.req)
	m.wait(mem, in.to, fx)
	m.rebalance(now, "member "+mem.id+" rejoined: "+in.req.Reason, fx)
}

// admit makes a new member, and so a rebalance.
func (m *machine) admit(now time.Time, id string, in joinInput, fx *effects) {
	r := in.req
	mem := &member{
		id: id, instanceID: r.InstanceID, clientID: r.ClientID, clientHost: r.ClientHost,
		isNew: true, synced: true, deadline: now.Add(m.o.NewMemberTimeout),
	}
	m.arm(mem.deadline)
	if len(m.members) == 0 {
		m.protocolType = r.ProtocolType
	}
	m.members[id] = mem
	if r.InstanceID != "" {
		m.static[r.InstanceID] = id
	}
	if m.leader == "" {
		m.leader = id
	}
	m.update(mem, r)
	m.wait(mem, in.to, fx)
	m.arrived = true
	m.rebalance(now, "new member "+id+": "+r.Reason, fx)
}

// replaceStatic gives a returning static member a new id (KIP-345). While the
// group is stable and the protocol stays, that is all: no rebalance.
func (m *machine) replaceStatic(now time.Time, old *member, in joinInput, fx *effects) {
	r := in.req
	m.answerJoin(old, JoinResult{Err: ErrFencedInstance, MemberID: old.id, Generation: -1}, fx)
	m.answerSync(old, SyncResult{Err: ErrFencedInstance}, fx)
	mem := *old
	mem.id, mem.clientID, mem.clientHost = in.newID, r.ClientID, r.ClientHost
	delete(m.members, old.id)
	m.members[mem.id] = &mem
	m.static[mem.instanceID] = mem.id
	if m.leader == old.id {
		m.leader = mem.id
	}
	m.update(&mem, r)
	m.subscribe()
	m.alive(now, &mem)

	if m.state == Stable && m.choose() == m.protocol {
		m.logged = true
		fx.write(pendingStatic{
			to: in.to, generation: m.generation, memberID: mem.id, oldMemberID: old.id,
			canSkipAssignment: r.CanSkipAssignment,
		}, m.entry(nil))
		return
	}
	m.wait(&mem, in.to, fx)
	m.rebalance(now, "static member "+r.InstanceID+" returned: "+r.Reason, fx)
}

// onStaticStored answers a returned static member. If the group has moved on
// meanwhile, the member moves with it.
func (m *machine) onStaticStored(now time.Time, of pendingStatic, err error, fx *effects) {
	mem := m.members[of.memberID]
	switch {
	case mem == nil:
		fx.reply(of.to, JoinResult{Err: ErrUnknownMember, MemberID: of.memberID, Generation: -1})
	case err != nil:
		// The log has the old id. The client comes again with none and is
		// given another, so nothing need be put back.
		fx.reply(of.to, JoinResult{Err: err, MemberID: of.memberID, Generation: -1})
	case m.state == Stable && m.generation == of.generation:
		r := m.joinResult(mem)
		if m.leader == mem.id {
			if of.canSkipAssignment {
				r.SkipAssignment = true // it still learns of the members, to watch their topics (KIP-814)
			} else {
				// A client that believes itself leader would compute an
				// assignment; the old id keeps it from that.
				r.Leader, r.Members = of.oldMemberID, nil
			}
		}
		fx.reply(of.to, r)
	case m.state == PreparingRebalance && mem.join == 0:
		m.wait(mem, of.to, fx)
		m.tryCompleteJoin(now, fx)
	default:
		fx.reply(of.to, JoinResult{Err: ErrRebalancing, MemberID: of.memberID, Generation: -1})
	}
}

// update takes over what a join says of its member.
func (m *machine) update(mem *member, r *JoinRequest) {
	for _, p := range mem.protocols {
		m.unlearn(p.Name)
	}
	m.bytes += sizeOf(r.Protocols) - sizeOf(mem.protocols)
	mem.protocols = r.Protocols
	mem.sessionTimeout, mem.rebalanceTimeout = r.SessionTimeout, r.RebalanceTimeout
	for _, p := range mem.protocols {
		m.knows[p.Name]++
	}
}

func (m *machine) unlearn(protocol string) {
	if m.knows[protocol]--; m.knows[protocol] == 0 {
		delete(m.knows, protocol)
	}
}

// compatible tells whether a member with these protocols leaves the group one
// that all know.
func (m *machine) compatible(protocolType string, protocols []Protocol) bool {
	if len(m.members) == 0 {
		return true
	}
	if protocolType != m.protocolType {
		return false
	}
	for _, p := range protocols {
		if m.knows[p.Name] == len(m.members) {
			return true
		}
	}
	return false
}

// choose is the vote on the protocol: each member votes for the first of its
// own that all know. Of equal ones the leader's favourite wins.
func (m *machine) choose() string {
	votes := map[string]int{}
	for _, mem := range m.members {
		for _, p := range mem.protocols {
			if m.knows[p.Name] == len(m.members) {
				votes[p.Name]++
				break
			}
		}
	}
	best, most := "", 0
	if lead := m.members[m.leader]; lead != nil {
		for _, p := range lead.protocols {
			if votes[p.Name] > most {
				best, most = p.Name, votes[p.Name]
			}
		}
	}
	return best
}

// wait parks a member until the join phase ends. An older join of the same
// member is answered: its client has given it up.
func (m *machine) wait(mem *member, to ticket, fx *effects) {
	m.answerJoin(mem, JoinResult{Err: ErrRebalancing, MemberID: mem.id, Generation: -1}, fx)
	mem.join = to
	m.joining++
}

func (m *machine) answerJoin(mem *member, r JoinResult, fx *effects) {
	if mem.join != 0 {
		fx.reply(mem.join, r)
		mem.join = 0
		m.joining--
	}
}

func (m *machine) joinResult(mem *member) JoinResult {
	r := JoinResult{
		MemberID: mem.id, Generation: m.generation,
		ProtocolType: m.protocolType, Protocol: m.protocol, Leader: m.leader,
	}
	if mem.id == m.leader {
		r.Members = make([]JoinMember, 0, len(m.members))
		for _, id := range m.memberIDs() {
			other := m.members[id]
			r.Members = append(r.Members, JoinMember{id, other.instanceID, other.metadata(m.protocol)})
		}
	}
	return r
}

// rebalance begins the next generation, or goes on with the one begun.
func (m *machine) rebalance(now time.Time, why string, fx *effects) {
	if m.state == PreparingRebalance {
		m.tryCompleteJoin(now, fx)
		return
	}
	m.o.Logger.Info("group rebalances", "group", m.id, "state", m.state.String(), "generation", m.generation, "reason", why)
	if m.state == CompletingRebalance {
		m.dropAssignment(now, ErrRebalancing, fx)
	}
	first := m.state == Empty
	m.enter(PreparingRebalance, now)
	m.syncBy, m.storing = time.Time{}, 0
	for _, mem := range m.members {
		mem.synced = true
	}
	timeout := m.rebalanceTimeout()
	if first && m.o.InitialRebalanceDelay > 0 {
		// The first member of an empty group rarely comes alone.
		delay := min(m.o.InitialRebalanceDelay, timeout)
		m.initial, m.grace, m.arrived = true, timeout-delay, false
		m.joinBy = now.Add(delay)
	} else {
		m.initial = false
		m.joinBy = now.Add(timeout)
	}
	m.arm(m.joinBy)
	m.tryCompleteJoin(now, fx)
}

// rebalanceTimeout is how long the slowest member may take to rejoin.
func (m *machine) rebalanceTimeout() time.Duration {
	var t time.Duration
	for _, mem := range m.members {
		t = max(t, mem.rebalanceTimeout)
	}
	return t
}

// tryCompleteJoin ends the join phase once nobody is missing.
func (m *machine) tryCompleteJoin(now time.Time, fx *effects) {
	if m.state == PreparingRebalance && !m.initial && m.joining == len(m.members) && len(m.pending) == 0 {
		m.completeJoin(now, fx)
	}
}

// onJoinDeadline ends the join phase without those who are missing; an initial
// delay is prolonged while newcomers keep arriving.
func (m *machine) onJoinDeadline(now time.Time, fx *effects) {
	if m.initial && m.arrived && m.grace > 0 {
		delay := min(m.o.InitialRebalanceDelay, m.grace)
		m.arrived = false
		m.grace -= delay
		m.joinBy = now.Add(delay)
		return
	}
	m.initial = false
	m.completeJoin(now, fx)
}

// completeJoin fixes the members of the next generation and tells them.
func (m *machine) completeJoin(now time.Time, fx *effects) {
	for _, id := range m.memberIDs() {
		// Static members are waited for until their session ends.
		if mem := m.members[id]; mem.join == 0 && mem.instanceID == "" {
			m.o.Logger.Info("group member lost: did not rejoin", "group", m.id, "member", id, "client", mem.clientID)
			m.remove(mem, fx)
		}
	}
	if len(m.members) > 0 && !m.electLeader() {
		m.joinBy = now.Add(m.rebalanceTimeout())
		m.arm(m.joinBy)
		return
	}

	m.joinBy = time.Time{}
	if m.generation++; m.generation == math.MaxInt32 {
		m.generation = 1 // 0 and below mean "no generation" to clients
	}
	if len(m.members) == 0 {
		m.protocol = ""
		m.enter(Empty, now)
		m.subscribe()
		m.logged = true
		fx.write(pendingEmpty{m.generation}, m.entry(nil))
		return
	}
	m.protocol = m.choose()
	m.enter(CompletingRebalance, now)
	m.subscribe()
	m.syncBy = now.Add(m.rebalanceTimeout())
	m.arm(m.syncBy)
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		mem.isNew, mem.synced = false, false
		m.answerJoin(mem, m.joinResult(mem), fx)
		m.alive(now, mem)
	}
	m.o.Logger.Info("group generation", "group", m.id, "generation", m.generation, "members", len(m.members),
		"protocol", m.protocol, "leader", m.leader)
}

// electLeader keeps the leader if it has rejoined and takes another who has
// otherwise. A leader who is away would leave all without assignment.
func (m *machine) electLeader() bool {
	if lead := m.members[m.leader]; lead != nil && lead.join != 0 {
		return true
	}
	for _, id := range m.memberIDs() {
		if m.members[id].join != 0 {
			m.leader = id
			return true
		}
	}
	return false
}
