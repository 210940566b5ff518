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
	// underWay are the writes that the log has not answered, oldest first. What they
	// were to erase may still be there when the group ends.
	underWay []pendingConsumer
	// parts follow those, one after another.
	parts []part
	// asked: what has changed is to be written once nothing is under way; waiting
	// are answered then.
	asked   bool
	waiting []heldReply

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
	// group is the record of classic groups, which a change of protocol writes or
	// erases; nil: it is as it should be.
	group *entry
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
}

// part is one write of several that together are a change.
type part struct {
	of      pendingConsumer
	records []entry
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

// empty: the log has, or is about to have, all.
func (c *changed) empty() bool {
	return !c.epoch && !c.assignmentEpoch && len(c.members)+len(c.targets)+len(c.currents) == 0 && c.group == nil
}

// settled: nothing is under way.
func (j *journal) settled() bool { return len(j.underWay)+len(j.parts) == 0 }

// idle: the log has all.
func (j *journal) idle() bool { return j.empty() && j.settled() }

// answerStored writes what has changed, and answers when the log has that and
// all that was written before. Writes build on each other: were two under way, the
// log could refuse the first and take the second, and who loads it then would find a
// partition with the member that let go of it and with the one that got it. So
// what changes while one is under way is taken together by the next.
func (m *machine) answerStored(to ticket, member string, result any, refuse func(error) any, fx *effects) {
	j := &m.journal
	held := heldReply{j.written, to, member, result, refuse}
	switch {
	case !j.empty():
		j.asked = true
		if to != 0 {
			j.waiting = append(j.waiting, held)
		}
		m.writeChanged(fx)
	case to == 0:
	case j.acked == j.written:
		fx.reply(to, result)
	default:
		j.held = append(j.held, held)
	}
}

// writeChanged writes what has changed, unless something is under way. Only the end
// of a consumer group does not wait: the records of the classic one come after it.
func (m *machine) writeChanged(fx *effects) {
	j := &m.journal
	ends := m.consumer == nil
	if !j.asked || !j.settled() && !ends {
		return
	}
	p := pendingConsumer{changed: j.changed}
	records := m.changedEntries()
	j.changed, j.asked = changed{}, false
	m.logged = m.logged || !ends
	for len(records) > 0 {
		n := m.fit(records)
		j.written++
		p.seq = j.written
		j.parts = append(j.parts, part{p, records[:n]})
		records = records[n:]
	}
	for _, h := range j.waiting {
		h.seq = j.written
		j.held = append(j.held, h)
	}
	j.waiting = nil
	m.sendParts(ends, fx)
}

// sendParts sends the next part of a write, or all.
func (m *machine) sendParts(all bool, fx *effects) {
	j := &m.journal
	for len(j.parts) > 0 && (all || len(j.underWay) == 0) {
		p := j.parts[0]
		j.parts = j.parts[1:]
		j.underWay = append(j.underWay, p.of)
		fx.write(p.of, p.records...)
	}
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
	j.acked, j.underWay = of.seq, j.underWay[1:]
	if err != nil {
		m.o.Logger.Warn("consumer group not stored", "group", m.id, "err", err)
		j.failed = j.written
		// Also of a group that has ended, or changed its protocol: records of
		// members that nobody knows any more would come to life when a later group
		// of this name is loaded, with partitions that are another's by then.
		j.merge(of.changed)
		if of.changed.group != nil && m.consumer != nil {
			tombstone := groupTombstone(m.id)
			j.group = &tombstone
		}
		m.logged = true
		if j.parts = nil; len(j.underWay) == 0 {
			j.acked = j.written // the other parts are not written
		}
	} else {
		m.sendParts(false, fx)
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
	if m.consumer != nil {
		m.writeChanged(fx)
	}
}

// changedEntries are the records of what has changed: what is gone first, then
// members, epochs and targets, and what members hold.
func (m *machine) changedEntries() []entry {
	j := &m.journal
	c := m.consumer
	var out []entry
	if c == nil {
		if !j.empty() {
			out = m.consumerTombstones()
		}
		if j.group != nil {
			out = append(out, *j.group)
		}
		return out
	}
	if j.group != nil {
		out = append(out, *j.group)
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

// consumerTombstones erase all that the log may hold of a consumer group, also of
// members that are gone and whose own tombstones it has not acknowledged.
func (m *machine) consumerTombstones() []entry {
	ids := map[string]struct{}{}
	if m.consumer != nil {
		for id := range m.consumer.members {
			ids[id] = struct{}{}
		}
	}
	add := func(c *changed) {
		for _, set := range []map[string]struct{}{c.members, c.targets, c.currents} {
			maps.Copy(ids, set)
		}
	}
	add(&m.journal.changed)
	for i := range m.journal.underWay {
		add(&m.journal.underWay[i].changed)
	}
	var out []entry
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		for _, key := range []int16{keyCurrent, keyTarget, keyMember} {
			out = append(out, memberTombstone(key, m.id, id))
		}
	}
	return append(out, groupKeyTombstone(keyTargetEpoch, m.id), groupKeyTombstone(keyEpoch, m.id))
}
