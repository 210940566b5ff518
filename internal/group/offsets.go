package group

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
)

// committed is what a group has committed in one partition.
type committed struct {
	offset      int64
	leaderEpoch int32
	metadata    string
	at          time.Time // when
	until       time.Time // when it expires, whatever the group does; zero: by the group's rules
	order       int64     // of its record in the log, among those of the group
}

// onCommit stores offsets of a member of the current generation, or of a
// consumer without membership while the group has no members.
func (m *machine) onCommit(now time.Time, in commitInput, fx *effects) {
	r := in.req
	if err := m.mayCommit(now, in); err != nil {
		fx.reply(in.to, commitResult{err: err})
		return
	}
	p := pendingCommit{to: in.to, errs: make([]error, len(r.Offsets))}
	var records []entry
	for i := range r.Offsets {
		o := &r.Offsets[i]
		tp := TopicPartition{o.Topic, o.Partition}
		old, known := m.offsets[tp]
		c := committed{offset: o.Offset, leaderEpoch: o.LeaderEpoch, metadata: o.Metadata, at: now}
		if r.Retention >= 0 {
			c.until = now.Add(r.Retention)
		}
		if err := m.roomFor(tp, o.Metadata); err != nil {
			p.errs[i] = err
			continue
		}
		if in.mirror && known && m.unstored[tp] == 0 && old.says(&c) && now.Sub(old.at) < m.o.OffsetsRetention/2 {
			// Refreshes come every few seconds, and mostly bring nothing new.
			// Now and then it is written all the same, or it would expire here
			// while the source still keeps it.
			continue
		}
		c.order = m.nextOrder()
		p.keys, p.positions, p.index = append(p.keys, tp), append(p.positions, c), append(p.index, i)
		records = append(records, offsetEntry(m.id, tp, &c))
	}
	if len(records) == 0 {
		fx.reply(in.to, commitResult{errs: p.errs})
		return
	}
	for _, tp := range p.keys {
		m.unstored[tp]++
	}
	fx.write(p, records...)
}

// roomFor says whether one more offset may be stored.
func (m *machine) roomFor(tp TopicPartition, metadata string) error {
	if len(metadata) > m.o.MaxOffsetMetadataBytes {
		return fmt.Errorf("%w: %d > %d bytes", ErrMetadataTooLarge, len(metadata), m.o.MaxOffsetMetadataBytes)
	}
	if _, known := m.offsets[tp]; !known && len(m.offsets)+len(m.unstored)+len(m.undecided) >= m.o.MaxOffsetsPerGroup {
		return fmt.Errorf("%w: %d", ErrOffsetsFull, m.o.MaxOffsetsPerGroup)
	}
	return nil
}

// commitResult answers a commit: err for the whole, errs one for each offset.
type commitResult struct {
	err  error
	errs []error
}

func (c *committed) says(o *committed) bool {
	return c.offset == o.offset && c.leaderEpoch == o.leaderEpoch && c.metadata == o.metadata
}

// mayCommit fences a commit.
func (m *machine) mayCommit(now time.Time, in commitInput) error {
	r := in.req
	if m.state == Dead {
		return ErrNotAvailable
	}
	if in.mirror {
		if m.state != Empty {
			return fmt.Errorf("%w: %s", ErrActive, m.state)
		}
		if len(m.undecided) > 0 { // a consumer without membership, in a transaction
			return fmt.Errorf("%w: offsets in an open transaction", ErrActive)
		}
		return nil
	}
	if r.Generation < 0 && m.state == Empty {
		return nil
	}
	if r.Generation < 0 && r.MemberID == "" && r.InstanceID == "" {
		return fmt.Errorf("%w: a consumer without membership cannot commit while the group is %s", ErrUnknownMember, m.state)
	}
	if m.consumer != nil {
		return m.consumer.mayCommit(r, m.topics.image)
	}
	mem, err := m.current(r.MemberID, r.InstanceID, r.Generation)
	if err != nil {
		if m.state == Empty && r.Generation >= 0 {
			return fmt.Errorf("%w: the group has no members", ErrIllegalGeneration)
		}
		return err
	}
	m.alive(now, mem)
	if m.state == CompletingRebalance {
		// The member's new assignment is being made; what it had may no longer
		// be its own.
		return ErrRebalancing
	}
	return nil
}

func (m *machine) onCommitStored(of pendingCommit, err error, fx *effects) {
	for i, tp := range of.keys {
		if m.unstored[tp]--; m.unstored[tp] <= 0 {
			delete(m.unstored, tp)
		}
		if err != nil {
			of.errs[of.index[i]] = err
			continue
		}
		// Also of a group that is dying: its tombstones come behind, here as in
		// the log, and if they fail these offsets are still there.
		m.offsets[tp] = of.positions[i]
	}
	fx.reply(of.to, commitResult{errs: of.errs})
}

// onDeleteOffsets deletes offsets of partitions that no member reads.
func (m *machine) onDeleteOffsets(in deleteOffsetsInput, fx *effects) {
	switch {
	case m.state == Dead:
		fx.reply(in.to, DeleteOffsetsResult{Err: ErrNotFound})
		return
	case m.state != Empty && m.protocolType != consumerProtocol:
		fx.reply(in.to, DeleteOffsetsResult{Err: fmt.Errorf("%w: %s", ErrNonEmpty, m.state)})
		return
	}
	errs := make([]error, len(in.partitions))
	var keys []TopicPartition
	for i, tp := range in.partitions {
		if _, reads := m.subscribed[tp.Topic]; m.state != Empty && (reads || m.subscribed == nil) {
			errs[i] = fmt.Errorf("%w: %q", ErrSubscribed, tp.Topic)
			continue
		}
		if _, ok := m.offsets[tp]; ok || m.unstored[tp] > 0 || m.undecided[tp] > 0 {
			keys = append(keys, tp)
		}
	}
	m.removeOffsets(pendingRemoval{to: in.to, errs: errs}, keys, fx)
}

// removeOffsets writes tombstones, in as many writes as they need. Only the
// last is answered; what is asked is that they are gone, so an error among the
// earlier ones is answered with it.
func (m *machine) removeOffsets(of pendingRemoval, keys []TopicPartition, fx *effects) {
	chunks := m.tombstones(keys)
	if len(chunks) == 0 {
		fx.reply(of.to, DeleteOffsetsResult{Partitions: of.errs})
		return
	}
	for i, c := range chunks {
		of := pendingRemoval{to: of.to, errs: of.errs, keys: c.keys, last: i == len(chunks)-1}
		fx.write(of, c.records...)
	}
}

func (m *machine) onOffsetsRemoved(of pendingRemoval, err error, fx *effects) {
	if err == nil {
		m.forgetOffsets(of.keys)
	} else {
		for i := range of.errs {
			if of.errs[i] == nil {
				of.errs[i] = err
			}
		}
	}
	if of.last {
		fx.reply(of.to, DeleteOffsetsResult{Partitions: of.errs})
	}
}

func (m *machine) forgetOffsets(keys []TopicPartition) {
	for _, tp := range keys {
		delete(m.offsets, tp)
		m.dropPending(tp)
	}
}

type tombstoneChunk struct {
	keys    []TopicPartition
	records []entry
}

// tombstones are cut so that each write fits a batch.
func (m *machine) tombstones(keys []TopicPartition) (chunks []tombstoneChunk) {
	slices.SortFunc(keys, compareTopicPartitions)
	keys = slices.Compact(keys)
	size := 0
	for _, tp := range keys {
		e := offsetEntry(m.id, tp, nil)
		n := coordinator.RecordSize(e.key, nil)
		if len(chunks) == 0 || size+n > m.o.MaxWriteBytes/2 {
			chunks, size = append(chunks, tombstoneChunk{}), 0
		}
		size += n
		c := &chunks[len(chunks)-1]
		c.keys, c.records = append(c.keys, tp), append(c.records, e)
	}
	return chunks
}

func compareTopicPartitions(a, b TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// onDelete begins the end of an empty group. From here it is dead to everyone;
// if the tombstones cannot be stored, it is empty again.
func (m *machine) onDelete(in deleteInput, fx *effects) {
	switch m.state {
	case Dead:
		fx.reply(in.to, fmt.Errorf("%w: being deleted", ErrNotFound))
	case Empty:
		m.die(in.to, fx)
	default:
		fx.reply(in.to, fmt.Errorf("%w: %s with %d members", ErrNonEmpty, m.state, len(m.members)))
	}
}

func (m *machine) die(to ticket, fx *effects) {
	// Not through enter: since belongs to the empty group it may be again.
	m.state, m.dying = Dead, nil
	clear(m.pending)
	var keys []TopicPartition
	for tp := range m.offsets {
		keys = append(keys, tp)
	}
	for tp := range m.unstored { // their records lie before the tombstones
		keys = append(keys, tp)
	}
	keys = append(keys, m.pendingKeys()...)
	chunks := m.tombstones(keys)
	for i, c := range chunks {
		last := i == len(chunks)-1
		if last && m.logged {
			c.records = append(c.records, m.groupTombstones()...)
		}
		fx.write(pendingDeath{to: to, keys: c.keys, last: last}, c.records...)
	}
	if len(chunks) == 0 {
		if m.logged {
			fx.write(pendingDeath{to: to, last: true}, m.groupTombstones()...)
		} else {
			fx.reply(to, error(nil))
		}
	}
}

func (m *machine) onDeathStored(of pendingDeath, err error, fx *effects) {
	if err == nil {
		m.forgetOffsets(of.keys)
	} else if m.dying == nil {
		m.dying = err
	}
	if !of.last {
		return
	}
	if m.dying != nil {
		m.state = Empty
	} else {
		m.logged, m.journal.changed = false, changed{}
	}
	fx.reply(of.to, m.dying)
}

// onSweep drops expired offsets, and the group with its last one (KIP-211):
//
//   - of an empty group, after the retention since it became empty;
//   - of a group that never had members, after the retention since the commit;
//   - of a stable group of consumers, likewise, for topics it does not read;
//   - one with a life of its own, at its end.
func (m *machine) onSweep(now time.Time, fx *effects) {
	if m.state == Dead {
		return
	}
	var keys []TopicPartition
	for tp, c := range m.offsets {
		if m.unstored[tp] == 0 && m.undecided[tp] == 0 && m.outlived(now, tp, &c) {
			keys = append(keys, tp)
		}
	}
	if m.state == Empty && len(keys) == len(m.offsets) && len(m.unstored) == 0 && len(m.undecided) == 0 && len(m.pending) == 0 &&
		(len(keys) > 0 || m.logged) {
		m.o.Logger.Info("group expired", "group", m.id, "offsets", len(keys))
		m.die(0, fx)
		return
	}
	if len(keys) > 0 {
		m.o.Logger.Info("group offsets expired", "group", m.id, "offsets", len(keys))
		m.removeOffsets(pendingRemoval{}, keys, fx)
	}
}

func (m *machine) outlived(now time.Time, tp TopicPartition, c *committed) bool {
	if !c.until.IsZero() {
		return !now.Before(c.until)
	}
	from := c.at
	switch {
	case m.protocolType == "":
	case m.state == Empty:
		// A simple consumer may have committed since the members left.
		if m.since.After(from) {
			from = m.since
		}
	case m.state == Stable && m.subscribed != nil:
		if _, reads := m.subscribed[tp.Topic]; reads {
			return false
		}
	default:
		return false
	}
	return now.Sub(from) >= m.o.OffsetsRetention
}

func (m *machine) onTopicsGone(in topicsGone, fx *effects) {
	if m.state == Dead {
		return
	}
	var keys []TopicPartition
	for tp := range m.offsets {
		if _, gone := in.topics[tp.Topic]; gone {
			keys = append(keys, tp)
		}
	}
	for _, tp := range m.pendingKeys() {
		if _, gone := in.topics[tp.Topic]; gone {
			keys = append(keys, tp)
		}
	}
	m.removeOffsets(pendingRemoval{}, keys, fx)
}

// sortedOffsets is what Committed tells.
func (m *machine) sortedOffsets() []Offset {
	out := make([]Offset, 0, len(m.offsets))
	for tp, c := range m.offsets {
		out = append(out, c.public(tp))
	}
	slices.SortFunc(out, func(a, b Offset) int {
		return compareTopicPartitions(TopicPartition{a.Topic, a.Partition}, TopicPartition{b.Topic, b.Partition})
	})
	return out
}

func (c *committed) public(tp TopicPartition) Offset {
	return Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: c.offset, LeaderEpoch: c.leaderEpoch, Metadata: c.metadata}
}
