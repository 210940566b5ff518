package group

import (
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// MigrationPolicy tells in which direction a group with members may change its
// protocol (group.consumer.migration.policy). One without members always may.
type MigrationPolicy string

// The policies, by Kafka's names.
const (
	MigrateBoth      MigrationPolicy = "bidirectional"
	MigrateUpgrade   MigrationPolicy = "upgrade"
	MigrateDowngrade MigrationPolicy = "downgrade"
	MigrateNever     MigrationPolicy = "disabled"
)

func (p MigrationPolicy) upgrades() bool   { return p == MigrateBoth || p == MigrateUpgrade }
func (p MigrationPolicy) downgrades() bool { return p == MigrateBoth || p == MigrateDowngrade }

// mayUpgrade tells whether a classic group can become a consumer group.
func (m *machine) mayUpgrade() error {
	switch {
	case m.state == Empty:
		return nil
	case !m.o.ConsumerMigration.upgrades():
		return fmt.Errorf("%w: group %q is a classic group with members, and group.consumer.migration.policy is %s",
			ErrNotFound, m.id, m.o.ConsumerMigration)
	case m.protocolType != consumerProtocol:
		return fmt.Errorf("%w: group %q is a classic group of type %q", ErrNotFound, m.id, m.protocolType)
	case len(m.members) >= m.o.ConsumerMaxSize:
		return fmt.Errorf("%w: %d", ErrGroupFull, m.o.ConsumerMaxSize)
	}
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		if _, err := mem.subscription(m.protocol); err != nil {
			return fmt.Errorf("%w: group %q cannot become a consumer group, the subscription of member %q is malformed: %v",
				ErrNotFound, m.id, mem.id, err)
		}
	}
	return nil
}

// subscription is what a classic member says in the consumer's embedded
// protocol.
func (m *member) subscription(protocol string) (kmsg.ConsumerMemberMetadata, error) {
	data := m.metadata(protocol)
	if data == nil && len(m.protocols) > 0 { // no generation yet
		data = m.protocols[0].Metadata
	}
	s := kmsg.NewConsumerMemberMetadata()
	err := s.ReadFrom(data)
	return s, err
}

// upgrade makes a consumer group of the classic one. Its members go on with what
// they have; the caller begins an epoch, so they are told to rejoin.
func (m *machine) upgrade(now time.Time, fx *effects) {
	c := newConsumerGroup()
	if m.state != Empty {
		c.epoch, c.assignmentEpoch = m.generation, m.generation
	}
	for _, id := range m.memberIDs() {
		old := m.members[id]
		m.answerJoin(old, JoinResult{Err: ErrRebalancing, MemberID: id, Generation: -1}, fx)
		m.answerSync(old, SyncResult{Err: ErrRebalancing}, fx)
		sub, err := old.subscription(m.protocol)
		if err != nil {
			continue // mayUpgrade has seen that they are not
		}
		mem := &consumerMember{
			id: id, instanceID: old.instanceID, clientID: old.clientID, clientHost: old.clientHost,
			rebalanceTimeout: old.rebalanceTimeout,
			classic:          &classicPart{old.sessionTimeout, old.protocols},
			epoch:            m.generation, previous: m.generation,
			assigned: share{}, revoking: share{},
		}
		mem.subscribeTo(&sub)
		mem.assigned = m.ofClassic(old.assignment).keep(func(p partitionID) bool { _, taken := c.owner[p]; return !taken })
		c.admit(mem)
		c.target[id] = mem.assigned
		m.journal.all(id)
		m.consumerAlive(now, mem)
	}
	if m.logged {
		tombstone := groupTombstone(m.id)
		m.journal.group = &tombstone
	}
	m.o.Logger.Info("classic group becomes a consumer group", "group", m.id, "members", len(c.members), "generation", m.generation)
	m.consumer = c
	m.journal.epoch, m.journal.assignmentEpoch = true, true
	m.forgetClassic()
	m.protocolType, m.generation = consumerProtocol, c.epoch
	m.enter(Stable, now) // with the member that is about to join
}

// forgetClassic empties what only classic groups have.
func (m *machine) forgetClassic() {
	clear(m.members)
	clear(m.static)
	clear(m.pending)
	clear(m.knows)
	m.joining, m.bytes, m.leader, m.protocol = 0, 0, "", ""
	m.joinBy, m.syncBy, m.storing, m.initial = time.Time{}, time.Time{}, 0, false
}

// ofClassic reads a classic member's assignment. Topics that are gone are left
// out.
func (m *machine) ofClassic(data []byte) share {
	a := kmsg.NewConsumerMemberAssignment()
	if a.ReadFrom(data) != nil {
		return share{} // none yet
	}
	s := share{}
	for _, t := range a.Topics {
		if known := m.topics.image.Topic(t.Topic); known != nil {
			s.add(known.ID, t.Partitions...)
		}
	}
	return s.sorted()
}

// toClassic writes a share as a classic member's assignment, in the version of
// its subscription.
func (m *machine) toClassic(s share, version int16) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	a.Version = version
	for _, id := range s.topics() {
		if t := m.topics.image.TopicByID(id); t != nil {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t.Name, Partitions: s[id]})
		}
	}
	return a.AppendTo(nil)
}

// mayDowngrade tells whether only classic members are left, and may go on as a
// classic group.
func (m *machine) mayDowngrade() bool {
	c := m.consumer
	return len(c.members) > 0 && c.classics == len(c.members) && len(c.members) <= m.o.MaxGroupSize &&
		m.o.ConsumerMigration.downgrades()
}

// downgrade makes a classic group of a consumer group whose members all are, and
// lets them rebalance.
func (m *machine) downgrade(now time.Time, fx *effects) {
	c := m.consumer
	m.leaveConsumer()
	m.protocolType, m.generation = consumerProtocol, c.epoch
	for _, id := range c.memberIDs() {
		old := c.members[id]
		mem := &member{
			id: id, instanceID: old.instanceID, clientID: old.clientID, clientHost: old.clientHost,
			sessionTimeout: old.classic.sessionTimeout, rebalanceTimeout: old.rebalanceTimeout,
			protocols: old.classic.protocols, synced: true,
			assignment: m.toClassic(c.target[id], old.classicVersion()),
		}
		m.members[id] = mem
		if mem.instanceID != "" {
			m.static[mem.instanceID] = id
		}
		for _, p := range mem.protocols {
			m.knows[p.Name]++
		}
		if m.leader == "" {
			m.leader = id
		}
		m.bytes += mem.size()
		m.alive(now, mem)
	}
	m.enter(Stable, now)
	m.protocol = m.choose()
	m.subscribe()
	record := m.entry(nil)
	m.journal.group = &record
	m.logged = true
	m.o.Logger.Info("consumer group becomes a classic group", "group", m.id, "members", len(m.members), "generation", m.generation)
	m.rebalance(now, "the last member of the consumer protocol left", fx)
}

// leaveConsumer ends a consumer group; its offsets stay.
func (m *machine) leaveConsumer() {
	for _, id := range m.consumer.memberIDs() {
		m.journal.all(id)
	}
	m.journal.epoch, m.journal.assignmentEpoch, m.journal.group = true, true, nil
	m.consumer, m.subscribed, m.bytes = nil, nil, 0
}

// endConsumer makes an empty consumer group a classic one.
func (m *machine) endConsumer(fx *effects) {
	m.leaveConsumer()
	m.protocolType, m.generation = "", 0
	m.answerStored(0, "", nil, nil, fx)
	m.logged = false
}

// subscribeTo takes over a classic member's subscription.
func (m *consumerMember) subscribeTo(s *kmsg.ConsumerMemberMetadata) {
	m.names = sortedSet(s.Topics)
	m.rack = ""
	if s.Rack != nil {
		m.rack = *s.Rack
	}
}

// classicVersion is the version in which a classic member speaks.
func (m *consumerMember) classicVersion() int16 {
	if m.classic == nil || len(m.classic.protocols) == 0 || len(m.classic.protocols[0].Metadata) < 2 {
		return 0
	}
	data := m.classic.protocols[0].Metadata
	return min(int16(data[0])<<8|int16(data[1])&math.MaxUint8, maxAssignmentVersion)
}

// maxAssignmentVersion is the newest version of the embedded protocol that is
// the same in all that an assignment has.
const maxAssignmentVersion = 3

// ownedBy reads what a classic member says it has.
func (m *machine) ownedBy(s *kmsg.ConsumerMemberMetadata) share {
	out := share{}
	for _, t := range s.OwnedPartitions {
		if known := m.topics.image.Topic(t.Topic); known != nil {
			out.add(known.ID, t.Partitions...)
		}
	}
	return out.sorted()
}
