package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The records are Apache Kafka's own, in the newest versions that every broker
// since 2.1 can read. The first two bytes of a key say what it is.
const (
	offsetKeyVersion   = 1 // 0 too when reading
	groupKeyVersion    = 2
	offsetValueVersion = 3
	groupValueVersion  = 3
	// offsetExpiryVersion is written for an offset that has a life of its own:
	// the only version with a field for that (OffsetCommit v2 to v4).
	offsetExpiryVersion = 1
)

func offsetEntry(group string, tp TopicPartition, c *committed) entry {
	key := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: group, Topic: tp.Topic, Partition: tp.Partition}
	e := entry{key: key.AppendTo(nil)}
	if c == nil {
		return e
	}
	v := kmsg.OffsetCommitValue{
		Version: offsetValueVersion, Offset: c.offset, LeaderEpoch: c.leaderEpoch,
		Metadata: c.metadata, CommitTimestamp: c.at.UnixMilli(),
	}
	if !c.until.IsZero() {
		v.Version, v.ExpireTimestamp = offsetExpiryVersion, c.until.UnixMilli()
	}
	e.value = v.AppendTo(nil)
	return e
}

func groupTombstone(group string) entry {
	key := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: group}
	return entry{key: key.AppendTo(nil)}
}

// groupTombstones erase all that the log has of the group but its offsets.
func (m *machine) groupTombstones() []entry {
	switch {
	case m.consumer == nil && m.journal.idle():
		return []entry{groupTombstone(m.id)}
	case m.journal.idle():
		return m.consumerTombstones()
	}
	return append(m.consumerTombstones(), groupTombstone(m.id)) // of before a change of protocol
}

// entry is the group's record; with byMember, those assignments are in it
// instead of the members' present ones.
func (m *machine) entry(byMember map[string][]byte) entry {
	v := kmsg.GroupMetadataValue{
		Version: groupValueVersion, ProtocolType: m.protocolType, Generation: m.generation,
		CurrentStateTimestamp: m.since.UnixMilli(),
	}
	if len(m.members) > 0 {
		protocol, leader := m.protocol, m.leader
		v.Protocol, v.Leader = &protocol, &leader
	}
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		rec := kmsg.GroupMetadataValueMember{
			MemberID: id, ClientID: mem.clientID, ClientHost: mem.clientHost,
			SessionTimeoutMillis:   int32(mem.sessionTimeout.Milliseconds()),
			RebalanceTimeoutMillis: int32(mem.rebalanceTimeout.Milliseconds()),
			Subscription:           mem.metadata(m.protocol), Assignment: mem.assignment,
		}
		if mem.instanceID != "" {
			instance := mem.instanceID
			rec.InstanceID = &instance
		}
		if byMember != nil {
			rec.Assignment = byMember[id]
		}
		v.Members = append(v.Members, rec)
	}
	e := groupTombstone(m.id)
	e.value = v.AppendTo(nil)
	return e
}

// errForeignRecord marks records that are not ours to read: those of protocols
// that this version does not serve.
var errForeignRecord = errors.New("record of another protocol")

// decoded is what one record says. group is always set; one of the rest, and
// with none of offset, members and consumer it is a tombstone.
type decoded struct {
	group   string
	isGroup bool // else of one partition's offset
	tp      TopicPartition
	offset  *committed
	members *kmsg.GroupMetadataValue
	// consumer is a record of a consumer group.
	consumer *consumerRecord
}

func decode(key, value []byte) (d decoded, err error) {
	if len(key) < 2 {
		return d, fmt.Errorf("key of %d bytes", len(key))
	}
	switch version := int16(binary.BigEndian.Uint16(key)); version {
	case 0, offsetKeyVersion:
		var k kmsg.OffsetCommitKey
		if err := k.ReadFrom(key); err != nil {
			return d, fmt.Errorf("offset key: %w", err)
		}
		d.group, d.tp = k.Group, TopicPartition{k.Topic, k.Partition}
		if value == nil {
			return d, nil
		}
		var v kmsg.OffsetCommitValue
		if err := v.ReadFrom(value); err != nil {
			return d, fmt.Errorf("offset value: %w", err)
		}
		c := committed{offset: v.Offset, leaderEpoch: -1, metadata: v.Metadata, at: time.UnixMilli(v.CommitTimestamp)}
		if v.Version >= 3 {
			c.leaderEpoch = v.LeaderEpoch
		}
		if v.Version == offsetExpiryVersion && v.ExpireTimestamp >= 0 {
			c.until = time.UnixMilli(v.ExpireTimestamp)
		}
		d.offset = &c
		return d, nil
	case groupKeyVersion:
		var k kmsg.GroupMetadataKey
		if err := k.ReadFrom(key); err != nil {
			return d, fmt.Errorf("group key: %w", err)
		}
		d.group, d.isGroup = k.Group, true
		if value == nil {
			return d, nil
		}
		v := kmsg.NewGroupMetadataValue()
		if err := v.ReadFrom(value); err != nil {
			return d, fmt.Errorf("group value: %w", err)
		}
		for i := range v.Members { // strings are copies, bytes lie in the batch
			r := &v.Members[i]
			r.Subscription, r.Assignment = slices.Clone(r.Subscription), slices.Clone(r.Assignment)
		}
		d.members = &v
		return d, nil
	default:
		if isConsumerKey(version) {
			group, r, err := decodeConsumer(key, value)
			d.group, d.consumer = group, &r
			return d, err
		}
		return d, fmt.Errorf("%w: key version %d", errForeignRecord, version)
	}
}

// restore makes the group what its record says, as far as a later leader of the
// partition can go on from there: sessions begin anew.
func (m *machine) restore(now time.Time, v *kmsg.GroupMetadataValue) {
	m.logged = true
	m.protocolType, m.generation = v.ProtocolType, v.Generation
	m.since = now
	if v.CurrentStateTimestamp >= 0 {
		m.since = time.UnixMilli(v.CurrentStateTimestamp)
	}
	if len(v.Members) == 0 || v.Protocol == nil || *v.Protocol == "" {
		m.subscribe()
		return
	}
	m.state, m.protocol = Stable, *v.Protocol
	for i := range v.Members {
		r := &v.Members[i]
		mem := &member{
			id: r.MemberID, clientID: r.ClientID, clientHost: r.ClientHost,
			sessionTimeout:   time.Duration(r.SessionTimeoutMillis) * time.Millisecond,
			rebalanceTimeout: time.Duration(r.RebalanceTimeoutMillis) * time.Millisecond,
			protocols:        []Protocol{{m.protocol, r.Subscription}},
			assignment:       r.Assignment, synced: true,
		}
		if r.RebalanceTimeoutMillis < 0 { // version 0 had none
			mem.rebalanceTimeout = mem.sessionTimeout
		}
		if r.InstanceID != nil && *r.InstanceID != "" {
			mem.instanceID = *r.InstanceID
			m.static[mem.instanceID] = mem.id
		}
		if m.members[mem.id] == nil {
			m.knows[m.protocol]++
		}
		m.bytes += mem.size() - m.members[mem.id].size()
		m.members[mem.id] = mem
		m.alive(now, mem)
	}
	if v.Leader != nil && m.members[*v.Leader] != nil {
		m.leader = *v.Leader
	} else {
		m.leader = m.memberIDs()[0]
	}
	m.subscribe()
}

// consumerProtocol is the type of groups whose metadata we understand.
const consumerProtocol = "consumer"

// subscribe learns what topics the group reads, where the members say so in the
// consumer protocol.
func (m *machine) subscribe() {
	m.subscribed = nil
	if m.protocolType != consumerProtocol {
		return
	}
	topics := map[string]struct{}{}
	for _, mem := range m.members {
		s := kmsg.NewConsumerMemberMetadata()
		if err := s.ReadFrom(mem.metadata(m.protocol)); err != nil {
			return // a client of its own kind: nothing expires under it
		}
		for _, t := range s.Topics {
			topics[t] = struct{}{}
		}
	}
	m.subscribed = topics
}
