package group

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The records of consumer groups are Apache Kafka's too. kmsg does not have
// them, so they are written and read here; all values are flexible, in version 0.
// In a key the first two bytes say which record it is:
const (
	keyEpoch       = 3  // group            → group epoch, hash of the topics (tag 0)
	keyTopics      = 4  // group            → sizes of the topics; 4.1 has the hash instead, so do we
	keyMember      = 5  // group, member    → client, subscription, timeouts; tag 0: classic protocols
	keyTargetEpoch = 6  // group            → epoch of the target
	keyTarget      = 7  // group, member    → partitions
	keyCurrent     = 8  // group, member    → epochs, state, partitions assigned and to revoke
	keyPattern     = 16 // group, pattern   → topics found; we find them again in the metadata
)

// groupKeyTombstone erases a record that there is one of in a group.
func groupKeyTombstone(key int16, group string) entry {
	return entry{key: kbin.AppendString(kbin.AppendInt16(nil, key), group)}
}

// memberTombstone erases one of a member's records.
func memberTombstone(key int16, group, member string) entry {
	return entry{key: kbin.AppendString(kbin.AppendString(kbin.AppendInt16(nil, key), group), member)}
}

// noTags ends a flexible structure; valueVersion begins a value.
const (
	noTags       = 0
	valueVersion = 0
)

func epochEntry(group string, epoch int32, hash uint64) entry {
	e := groupKeyTombstone(keyEpoch, group)
	e.value = kbin.AppendInt32(kbin.AppendInt16(nil, valueVersion), epoch)
	if hash == 0 {
		e.value = append(e.value, noTags)
		return e
	}
	e.value = append(e.value, 1, 0, 8) // one tag, number 0, of 8 bytes
	e.value = binary.BigEndian.AppendUint64(e.value, hash)
	return e
}

func targetEpochEntry(group string, epoch int32) entry {
	e := groupKeyTombstone(keyTargetEpoch, group)
	e.value = append(kbin.AppendInt32(kbin.AppendInt16(nil, valueVersion), epoch), noTags)
	return e
}

func targetEntry(group, member string, s share) entry {
	e := memberTombstone(keyTarget, group, member)
	e.value = append(appendShare(kbin.AppendInt16(nil, valueVersion), s), noTags)
	return e
}

func currentEntry(group string, m *consumerMember) entry {
	e := memberTombstone(keyCurrent, group, m.id)
	v := kbin.AppendInt32(kbin.AppendInt16(nil, valueVersion), m.epoch)
	v = kbin.AppendInt8(kbin.AppendInt32(v, m.previous), int8(m.state))
	e.value = append(appendShare(appendShare(v, m.assigned), m.revoking), noTags)
	return e
}

func memberEntry(group string, m *consumerMember) entry {
	e := memberTombstone(keyMember, group, m.id)
	v := kbin.AppendInt16(nil, valueVersion)
	v = appendNullable(appendNullable(v, m.instanceID), m.rack)
	v = kbin.AppendCompactString(kbin.AppendCompactString(v, m.clientID), m.clientHost)
	v = kbin.AppendCompactArrayLen(v, len(m.names))
	for _, n := range m.names {
		v = kbin.AppendCompactString(v, n)
	}
	v = appendNullable(v, m.regex)
	v = kbin.AppendInt32(v, int32(m.rebalanceTimeout.Milliseconds()))
	v = appendNullable(v, m.assignor)
	if m.classic == nil {
		e.value = append(v, noTags)
		return e
	}
	// A nullable structure begins with a 1 where it is there.
	c := kbin.AppendInt32([]byte{1}, int32(m.classic.sessionTimeout.Milliseconds()))
	c = kbin.AppendCompactArrayLen(c, len(m.classic.protocols))
	for _, p := range m.classic.protocols {
		c = append(kbin.AppendCompactBytes(kbin.AppendCompactString(c, p.Name), p.Metadata), noTags)
	}
	c = append(c, noTags)
	v = kbin.AppendUvarint(append(v, 1, 0), uint32(len(c)))
	e.value = append(v, c...)
	return e
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return kbin.AppendCompactNullableString(dst, nil)
	}
	return kbin.AppendCompactString(dst, s)
}

func appendShare(dst []byte, s share) []byte {
	dst = kbin.AppendCompactArrayLen(dst, len(s))
	for _, topic := range s.topics() {
		dst = append(dst, topic[:]...)
		dst = kbin.AppendCompactArrayLen(dst, len(s[topic]))
		for _, i := range s[topic] {
			dst = kbin.AppendInt32(dst, i)
		}
		dst = append(dst, noTags)
	}
	return dst
}

// consumerRecord is what one record says of a consumer group.
type consumerRecord struct {
	key    int16
	member string
	gone   bool // a tombstone

	epoch int32 // of keyEpoch and keyTargetEpoch
	hash  uint64
	share share           // of keyTarget
	state *consumerMember // of keyMember or keyCurrent: the fields of that record
}

// decodeConsumer reads a record whose key begins with one of the keys above.
func decodeConsumer(key, value []byte) (group string, r consumerRecord, err error) {
	k := reader{kbin.Reader{Src: key}}
	r.key = k.Int16()
	group = k.String()
	switch r.key {
	case keyMember, keyTarget, keyCurrent, keyPattern:
		r.member = k.String()
	}
	if err := k.Complete(); err != nil {
		return "", r, fmt.Errorf("key %d of a consumer group: %w", r.key, err)
	}
	if r.gone = value == nil; r.gone || r.key == keyTopics || r.key == keyPattern {
		return group, r, nil
	}
	v := reader{kbin.Reader{Src: value}}
	if version := v.Int16(); version != valueVersion {
		return "", r, fmt.Errorf("record %d of a consumer group has version %d", r.key, version)
	}
	switch r.key {
	case keyEpoch:
		r.epoch = v.Int32()
		v.tags(func(tag uint32, t *reader) {
			if tag == 0 {
				r.hash = uint64(t.Int64())
			}
		})
	case keyTargetEpoch:
		r.epoch = v.Int32()
		v.tags(nil)
	case keyTarget:
		r.share = v.share()
		v.tags(nil)
	case keyCurrent:
		r.state = &consumerMember{epoch: v.Int32(), previous: v.Int32(), state: memberState(v.Int8())}
		r.state.assigned, r.state.revoking = v.share(), v.share()
		v.tags(nil)
	case keyMember:
		r.state = v.member(r.member)
	}
	if err := v.Complete(); err != nil {
		return "", r, fmt.Errorf("record %d of a consumer group: %w", r.key, err)
	}
	return group, r, nil
}

// reader adds what these records are made of to kbin's. Once it has met
// something wrong, all that it reads is empty.
type reader struct{ kbin.Reader }

func (r *reader) nullable() string {
	if s := r.CompactNullableString(); s != nil {
		return *s
	}
	return ""
}

// tags reads the tagged fields that end a structure; fn may be nil.
func (r *reader) tags(fn func(tag uint32, t *reader)) {
	for n := r.Uvarint(); n > 0 && r.Ok(); n-- {
		tag, size := r.Uvarint(), r.Uvarint()
		t := reader{kbin.Reader{Src: r.Span(int(size))}}
		if fn != nil && r.Ok() {
			fn(tag, &t)
			if !t.Ok() {
				r.Span(len(r.Src) + 1) // the whole is as broken as its part
			}
		}
	}
}

func (r *reader) share() share {
	s := share{}
	for n := r.CompactArrayLen(); n > 0 && r.Ok(); n-- {
		topic := metadata.TopicID(r.Uuid())
		for k := r.CompactArrayLen(); k > 0 && r.Ok(); k-- {
			s.add(topic, r.Int32())
		}
		r.tags(nil)
	}
	return s.sorted()
}

func (r *reader) member(id string) *consumerMember {
	m := &consumerMember{id: id, instanceID: r.nullable(), rack: r.nullable(), clientID: r.CompactString(), clientHost: r.CompactString()}
	for n := r.CompactArrayLen(); n > 0 && r.Ok(); n-- {
		m.names = append(m.names, r.CompactString())
	}
	m.names = sortedSet(m.names)
	m.regex = r.nullable()
	m.rebalanceTimeout = time.Duration(r.Int32()) * time.Millisecond
	m.assignor = r.nullable()
	r.tags(func(tag uint32, t *reader) {
		if tag != 0 || t.Int8() < 0 {
			return
		}
		m.classic = &classicPart{sessionTimeout: time.Duration(t.Int32()) * time.Millisecond}
		for n := t.CompactArrayLen(); n > 0 && t.Ok(); n-- {
			p := Protocol{Name: t.CompactString(), Metadata: slices.Clone(t.CompactBytes())}
			t.tags(nil)
			m.classic.protocols = append(m.classic.protocols, p)
		}
		t.tags(nil)
	})
	return m
}

// isConsumerKey tells whether a record is one of a consumer group's.
func isConsumerKey(key int16) bool { return key >= keyEpoch && key <= keyCurrent || key == keyPattern }
