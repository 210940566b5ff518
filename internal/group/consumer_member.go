package group

import "time"

// memberState is where a member of a consumer group is on its way to its
// target. The numbers are those of the records.
type memberState int8

const (
	// memberStable: it has what the target of its epoch gives it.
	memberStable memberState = 0
	// memberUnrevoked: it has been told to let go of partitions, and has not
	// said yet that it did. Its epoch stays until then.
	memberUnrevoked memberState = 1
	// memberUnreleased: at the target's epoch, but some of its partitions are
	// still with others.
	memberUnreleased memberState = 2
)

// consumerMember is one member of a consumer group. Its machine owns it.
type consumerMember struct {
	id         string
	instanceID string // empty: dynamic
	rack       string
	clientID   string
	clientHost string

	names    []string // sorted
	regex    string
	assignor string // empty: no wish

	rebalanceTimeout time.Duration

	// classic is what a member brought that speaks the classic protocol (it
	// joins and syncs); nil: it speaks the consumer protocol.
	classic *classicPart

	// epoch is the target that the member has reached, previous the one before:
	// a client that has not heard of a new epoch comes again with the old one.
	epoch    int32
	previous int32
	state    memberState
	// assigned are the partitions that the member has or may take, revoking
	// those that it must let go of and perhaps still reads. Invariant: both are
	// the member's in consumerGroup.owner, and no partition is in two of them.
	assigned share
	revoking share

	deadline time.Time // ends the session
	// revokeBy ends the wait for a revocation. Zero: none is awaited.
	revokeBy time.Time
	// joinBy and syncBy bound what a classic member is expected to do next.
	joinBy, syncBy time.Time
}

// classicPart belongs to members of the classic protocol.
type classicPart struct {
	sessionTimeout time.Duration
	protocols      []Protocol
}

// size is what the member says about topic names and protocols. A pattern is
// bounded by itself.
func (m *consumerMember) size() int {
	n := sizeOfNames(m.names)
	if m.classic != nil {
		n += sizeOf(m.classic.protocols)
	}
	return n
}

func sizeOfNames(names []string) int {
	n := len(names)
	for _, s := range names {
		n += len(s)
	}
	return n
}

// reconciled tells whether the member is done with the target of an epoch.
func (m *consumerMember) reconciled(epoch int32) bool {
	return m.state == memberStable && m.epoch == epoch
}

// holds tells whether the member has a partition, or has not let go of it.
func (m *consumerMember) holds(p partitionID) bool { return m.assigned.has(p) || m.revoking.has(p) }

// subscription is the key under which members with the same one share the
// topics that it stands for.
func (m *consumerMember) subscription() string {
	var b []byte
	for _, n := range m.names {
		b = append(append(b, n...), 0)
	}
	return string(b) + "\x00" + m.regex
}

// progress is what reconcile decides of a member.
type progress struct {
	epoch    int32
	state    memberState
	assigned share
	revoking share
}

// reconcile brings a member as far towards its target as it may go now:
//
//	Stable, a new target ─▶ Unrevoked   it has partitions that are another's now
//	                     ─▶ Unreleased  some of its new ones are not free yet
//	                     ─▶ Stable      it has all
//	Unrevoked ─▶ (as above)             once it no longer lists what it was told to revoke
//	Unreleased ─▶ (as above)            at each heartbeat
//
// owned is what the member says it has, nil if it did not say; free tells
// whether nobody else holds a partition.
func reconcile(m *consumerMember, targetEpoch int32, target share, owned *share, free func(partitionID) bool) progress {
	now := progress{m.epoch, m.state, m.assigned, m.revoking}
	epoch := m.epoch
	switch m.state {
	case memberStable:
		if m.epoch == targetEpoch {
			return now
		}
	case memberUnrevoked:
		if owns(owned, m.revoking) {
			return now
		}
		// Let go: on to the next epoch, so that an answer that is late is not
		// taken for one to what comes now.
		epoch++
	}

	next := progress{epoch: targetEpoch, assigned: m.assigned.and(target), revoking: share{}}
	if gone := m.assigned.minus(target); len(gone) > 0 && owns(owned, gone) {
		next.epoch, next.state, next.revoking = epoch, memberUnrevoked, gone
		return next
	}
	wanted := target.minus(next.assigned)
	ready := wanted.keep(free)
	if len(ready) > 0 {
		next.assigned = next.assigned.plus(ready)
	}
	if ready.count() < wanted.count() {
		next.state = memberUnreleased
	}
	return next
}

// owns tells whether a member may still have some of what it was to give up: if
// it says so, and if it does not say.
func owns(owned *share, given share) bool {
	return owned == nil || len(owned.and(given)) > 0
}
