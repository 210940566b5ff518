package group

import (
	"fmt"
	"time"
)

// onSync hands a member its assignment, once the leader's has been stored.
func (m *machine) onSync(now time.Time, in syncInput, fx *effects) {
	if m.consumer != nil && m.state != Dead {
		m.onClassicSync(now, in, fx)
		return
	}
	r := in.req
	mem, err := m.current(r.MemberID, r.InstanceID, r.Generation)
	if err == nil && (r.ProtocolType != "" && r.ProtocolType != m.protocolType || r.Protocol != "" && r.Protocol != m.protocol) {
		err = fmt.Errorf("%w: %s %s, the generation has %s %s", ErrInconsistentProtocol,
			r.ProtocolType, r.Protocol, m.protocolType, m.protocol)
	}
	if err == nil && m.state == PreparingRebalance {
		err = ErrRebalancing
	}
	if err != nil {
		fx.reply(in.to, SyncResult{Err: err})
		return
	}
	// Empty and Dead have no members, so current refused them.
	m.alive(now, mem)
	mem.synced = true
	if m.state == Stable {
		fx.reply(in.to, m.syncResult(mem))
		m.allSynced()
		return
	}

	m.answerSync(mem, SyncResult{Err: ErrRebalancing}, fx) // an older one, given up by its client
	mem.sync = in.to
	if mem.id == m.leader && m.storing != m.generation {
		byMember := make(map[string][]byte, len(r.Assignments))
		for _, a := range r.Assignments {
			if _, ok := m.members[a.MemberID]; ok {
				byMember[a.MemberID] = a.Data
			}
		}
		m.storing, m.logged = m.generation, true
		fx.write(pendingAssignment{m.generation, byMember}, m.entry(byMember))
	}
}

// onAssignmentStored makes the group stable, unless it has begun to rebalance
// again meanwhile.
func (m *machine) onAssignmentStored(now time.Time, of pendingAssignment, err error, fx *effects) {
	if m.state != CompletingRebalance || m.generation != of.generation {
		return
	}
	m.storing = 0
	if err != nil {
		m.o.Logger.Warn("group assignment not stored", "group", m.id, "generation", m.generation, "err", err)
		m.dropAssignment(now, err, fx)
		m.rebalance(now, "assignment not stored", fx)
		return
	}
	m.enter(Stable, now)
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		mem.assignment = of.byMember[id]
		if mem.sync != 0 {
			m.answerSync(mem, m.syncResult(mem), fx)
			m.alive(now, mem)
		}
	}
	m.allSynced()
}

// allSynced stops the wait for syncs once there is no one to wait for.
func (m *machine) allSynced() {
	if m.syncBy.IsZero() {
		return
	}
	for _, mem := range m.members {
		if !mem.synced {
			return
		}
	}
	m.syncBy = time.Time{}
}

// onSyncDeadline takes out the members that joined a generation and never came
// for their assignment.
func (m *machine) onSyncDeadline(now time.Time, fx *effects) {
	m.syncBy = time.Time{}
	lost := 0
	for _, id := range m.memberIDs() {
		if mem := m.members[id]; !mem.synced {
			m.o.Logger.Info("group member lost: did not sync", "group", m.id, "member", id, "client", mem.clientID)
			m.remove(mem, fx)
			lost++
		}
	}
	if lost > 0 {
		m.afterRemoval(now, "members did not sync", fx)
	}
}

func (m *machine) syncResult(mem *member) SyncResult {
	return SyncResult{ProtocolType: m.protocolType, Protocol: m.protocol, Assignment: mem.assignment}
}

func (m *machine) answerSync(mem *member, r SyncResult, fx *effects) {
	if mem.sync != 0 {
		fx.reply(mem.sync, r)
		mem.sync = 0
	}
}

// dropAssignment: the generation ends before it was complete.
func (m *machine) dropAssignment(now time.Time, err error, fx *effects) {
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		mem.assignment = nil
		if mem.sync != 0 {
			m.answerSync(mem, SyncResult{Err: err}, fx)
			m.alive(now, mem) // its wait was ours, not its silence
		}
	}
}
