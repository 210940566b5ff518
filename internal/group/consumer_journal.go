package group

import (
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
)

// journal is what of a consumer group must still be written, and who waits for
// what has been. Records are made from the group as it is when they are written,
// so a write that failed is made good by noting the same members again.
//
// It belongs to the machine and not to its consumerGroup: answers are still
// awaited when a group turns classic.
type journal struct {
	changed
	// first are records that stand before the others: those of the other
	// protocol, which a group that changes it erases.
	first []entry

	// written numbers the writes, acked is the last that the log has answered.
	// Those up to failed count as failed, also where the log took them: they
	// build on one that it did not.
	written, acked, failed uint64
	held                   []heldReply // in the order of their seq
}

// changed names what is to be written. Of a member or target that is no more
// that is a tombstone.
type changed struct {
	epoch, assignmentEpoch     bool
	members, targets, currents map[string]struct{}
}

// heldReply waits for the write number seq.
type heldReply struct {
	seq uint64
	to  ticket
	// member must still be there when the answer is given, or it would be told
	// that it has partitions that are another's by now; empty: nobody need be.
	member string
	result any
	refuse func(error) any // what to answer if the write fails
}

// pendingConsumer: a part of the group's state; what to write again if it fails.
type pendingConsumer struct {
	seq     uint64
	changed changed
	first   []entry
}

func note(set *map[string]struct{}, id string) {
	if *set == nil {
		*set = map[string]struct{}{}
	}
	(*set)[id] = struct{}{}
}

func (c *changed) member(id string)  { note(&c.members, id) }
func (c *changed) target(id string)  { note(&c.targets, id) }
func (c *changed) current(id string) { note(&c.currents, id) }

// all notes everything that there is, or was, of a member.
func (c *changed) all(id string) {
	c.member(id)
	c.target(id)
	c.current(id)
}

func (c *changed) merge(o changed) {
	c.epoch = c.epoch || o.epoch
	c.assignmentEpoch = c.assignmentEpoch || o.assignmentEpoch
	for id := range o.members {
		c.member(id)
	}
	for id := range o.targets {
		c.target(id)
	}
	for id := range o.currents {
		c.current(id)
	}
}

// answerStored writes what has changed, and answers when the log has that and
// all that was written before.
func (m *machine) answerStored(to ticket, member string, result any, refuse func(error) any, fx *effects) {
	j := &m.journal
	if records := m.changedEntries(); len(records) > 0 {
		p := pendingConsumer{changed: j.changed, first: j.first}
		j.changed, j.first = changed{}, nil
		m.logged = m.logged || m.consumer != nil
		for len(records) > 0 {
			n := m.fit(records)
			j.written++
			p.seq = j.written
			fx.write(p, records[:n]...)
			records = records[n:]
		}
	}
	if to == 0 {
		return
	}
	if j.acked == j.written {
		fx.reply(to, result)
		return
	}
	j.held = append(j.held, heldReply{j.written, to, member, result, refuse})
}

// fit is how many records, one at least, go into one write. A part that is
// written without the rest is no harm: the epochs come last, and a group whose
// target is older than its epoch makes a new one.
func (m *machine) fit(records []entry) int {
	size := 0
	for i, e := range records {
		if size += coordinator.RecordSize(e.key, e.value); size > m.o.MaxWriteBytes/2 && i > 0 {
			return i
		}
	}
	return len(records)
}

func (m *machine) onConsumerStored(of pendingConsumer, err error, fx *effects) {
	j := &m.journal
	j.acked = of.seq
	if err != nil {
		m.o.Logger.Warn("consumer group not stored", "group", m.id, "err", err)
		j.failed = j.written
		if m.consumer != nil {
			j.merge(of.changed)
		}
		j.first = append(slices.Clone(of.first), j.first...)
	}
	for len(j.held) > 0 && j.held[0].seq <= j.acked {
		h := j.held[0]
		j.held = j.held[1:]
		gone := h.member != "" && (m.consumer == nil || m.consumer.members[h.member] == nil)
		switch {
		case h.seq > j.failed && gone:
			fx.reply(h.to, h.refuse(ErrUnknownMember))
		case h.seq > j.failed:
			fx.reply(h.to, h.result)
		case err != nil:
			fx.reply(h.to, h.refuse(err))
		default:
			fx.reply(h.to, h.refuse(ErrNotAvailable))
		}
	}
}

// changedEntries are the records of what has changed: what is gone first, then
// members, epochs and targets, and what members hold.
func (m *machine) changedEntries() []entry {
	j := &m.journal
	out := j.first
	c := m.consumer
	if c == nil {
		return out
	}
	live := func(set map[string]struct{}, exists func(string) bool, tombstone func(string) entry) []string {
		var ids []string
		for _, id := range slices.Sorted(maps.Keys(set)) {
			if exists(id) {
				ids = append(ids, id)
			} else {
				out = append(out, tombstone(id))
			}
		}
		return ids
	}
	isMember := func(id string) bool { return c.members[id] != nil }
	hasTarget := func(id string) bool { _, ok := c.target[id]; return ok }
	currents := live(j.currents, isMember, func(id string) entry { return memberTombstone(keyCurrent, m.id, id) })
	targets := live(j.targets, hasTarget, func(id string) entry { return memberTombstone(keyTarget, m.id, id) })
	members := live(j.members, isMember, func(id string) entry { return memberTombstone(keyMember, m.id, id) })

	for _, id := range members {
		out = append(out, memberEntry(m.id, c.members[id]))
	}
	if j.epoch {
		out = append(out, epochEntry(m.id, c.epoch, c.hash))
	}
	for _, id := range targets {
		out = append(out, targetEntry(m.id, id, c.target[id]))
	}
	if j.assignmentEpoch {
		out = append(out, targetEpochEntry(m.id, c.assignmentEpoch))
	}
	for _, id := range currents {
		out = append(out, currentEntry(m.id, c.members[id]))
	}
	return out
}

// consumerTombstones erase all that the log may hold of a consumer group.
func (m *machine) consumerTombstones() []entry {
	ids := map[string]struct{}{}
	for id := range m.consumer.members {
		ids[id] = struct{}{}
	}
	for _, set := range []map[string]struct{}{m.journal.members, m.journal.targets, m.journal.currents} {
		for id := range set { // gone, and their tombstones not written yet
			ids[id] = struct{}{}
		}
	}
	var out []entry
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		for _, key := range []int16{keyCurrent, keyTarget, keyMember} {
			out = append(out, memberTombstone(key, m.id, id))
		}
	}
	return append(out, groupKeyTombstone(keyTargetEpoch, m.id), groupKeyTombstone(keyEpoch, m.id))
}
