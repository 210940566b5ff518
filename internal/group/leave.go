package group

import (
	"fmt"
	"time"
)

// onHeartbeat keeps a session, and tells the member when to rejoin.
func (m *machine) onHeartbeat(now time.Time, r *HeartbeatRequest) error {
	if m.consumer != nil && m.state != Dead {
		return m.onClassicHeartbeat(now, r)
	}
	mem, err := m.current(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		return err
	}
	m.alive(now, mem)
	if m.state == PreparingRebalance {
		return ErrRebalancing
	}
	return nil
}

// onLeave takes members out at their own wish, or an administrator's.
func (m *machine) onLeave(now time.Time, in leaveInput, fx *effects) {
	if m.state == Dead {
		fx.reply(in.to, LeaveResult{Err: ErrNotAvailable})
		return
	}
	if m.consumer != nil {
		m.onClassicLeave(now, in, fx)
		return
	}
	errs := make([]error, len(in.req.Members))
	left := 0
	for i, l := range in.req.Members {
		mem, err := m.leaving(l)
		errs[i] = err
		if mem != nil {
			m.o.Logger.Info("group member left", "group", m.id, "member", mem.id, "client", mem.clientID, "reason", l.Reason)
			m.remove(mem, fx)
			left++
		}
	}
	fx.reply(in.to, LeaveResult{Members: errs})
	if left > 0 {
		m.afterRemoval(now, "members left", fx)
	} else {
		m.tryCompleteJoin(now, fx) // an unused id may have been what it waited for
	}
}

// leaving finds the member a leave names. Both nil: a given id that was never
// used, now withdrawn.
func (m *machine) leaving(l LeaveMember) (*member, error) {
	if l.MemberID == "" {
		id, ok := m.static[l.InstanceID]
		if !ok || l.InstanceID == "" {
			return nil, fmt.Errorf("%w: instance id %q", ErrUnknownMember, l.InstanceID)
		}
		return m.members[id], nil
	}
	if _, ok := m.pending[l.MemberID]; ok {
		delete(m.pending, l.MemberID)
		return nil, nil
	}
	return m.member(l.MemberID, l.InstanceID)
}

// remove forgets a member. The caller then calls afterRemoval, once for all.
func (m *machine) remove(mem *member, fx *effects) {
	m.answerJoin(mem, JoinResult{Err: ErrUnknownMember, MemberID: mem.id, Generation: -1}, fx)
	m.answerSync(mem, SyncResult{Err: ErrUnknownMember}, fx)
	for _, p := range mem.protocols {
		m.unlearn(p.Name)
	}
	m.bytes -= mem.size()
	if m.static[mem.instanceID] == mem.id {
		delete(m.static, mem.instanceID)
	}
	delete(m.members, mem.id)
	if m.leader == mem.id {
		m.leader = ""
		if ids := m.memberIDs(); len(ids) > 0 {
			m.leader = ids[0]
		}
	}
}

// afterRemoval shares out anew what the gone members had.
func (m *machine) afterRemoval(now time.Time, why string, fx *effects) {
	switch m.state {
	case Stable, CompletingRebalance:
		m.rebalance(now, why, fx)
	case PreparingRebalance:
		m.tryCompleteJoin(now, fx)
	}
}
