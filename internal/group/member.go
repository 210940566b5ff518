package group

import (
	"bytes"
	"time"
)

// member is one member of a group. Its group's machine owns it.
type member struct {
	id         string
	instanceID string // empty: dynamic
	clientID   string
	clientHost string

	sessionTimeout   time.Duration
	rebalanceTimeout time.Duration
	protocols        []Protocol // in order of preference
	assignment       []byte

	// isNew until the member has completed one join. A new member that waits
	// for a join may be forgotten (NewMemberTimeout); an old one may wait as
	// long as the rebalance takes.
	isNew bool
	// deadline ends the session, unless an old member waits for an answer.
	deadline time.Time
	// join and sync are the answers this member waits for. Invariant: the
	// machine's joining counts the members with a join.
	join ticket
	sync ticket
	// synced: the member has asked for its assignment in this generation, or
	// need not (no generation is being completed).
	synced bool
}

// size is what the member says about its protocols, in bytes; of none it is 0.
func (m *member) size() int {
	if m == nil {
		return 0
	}
	return sizeOf(m.protocols)
}

func sizeOf(protocols []Protocol) (n int) {
	for i := range protocols {
		n += len(protocols[i].Name) + len(protocols[i].Metadata)
	}
	return n
}

func (m *member) metadata(protocol string) []byte {
	for i := range m.protocols {
		if m.protocols[i].Name == protocol {
			return m.protocols[i].Metadata
		}
	}
	return nil
}

// same tells whether a rejoin brings nothing new, so that it needs no rebalance.
func (m *member) same(protocols []Protocol) bool {
	if len(m.protocols) != len(protocols) {
		return false
	}
	for i := range protocols {
		if m.protocols[i].Name != protocols[i].Name || !bytes.Equal(m.protocols[i].Metadata, protocols[i].Metadata) {
			return false
		}
	}
	return true
}

// expired tells whether the session is over.
func (m *member) expired(now time.Time) bool {
	return m.timed() && !m.deadline.After(now)
}

// timed tells whether the deadline counts: an old member that waits for our
// answer cannot send heartbeats (its connection answers in order).
func (m *member) timed() bool { return m.isNew || m.join == 0 && m.sync == 0 }
