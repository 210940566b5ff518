package group

import (
	"context"
	"slices"
	"time"
)

// Commit stores offsets; the errors match r.Offsets. It answers once the log
// has acknowledged them. A group that does not exist is made, unless the
// request speaks of a generation.
func (c *Coordinator) Commit(ctx context.Context, r *CommitRequest) ([]error, error) {
	return c.commit(ctx, r, false)
}

// CommitFromMirror stores offsets that a source cluster's group has reached, in
// one write for the group. A group with members here is left alone: ErrActive
// (W51), decided at the moment of the write, so local progress is never
// overwritten. What is committed already is not written again. Clamping to what
// has been mirrored (W52) is the caller's.
func (c *Coordinator) CommitFromMirror(ctx context.Context, group string, offsets []Offset) ([]error, error) {
	return c.commit(ctx, &CommitRequest{Group: group, Generation: -1, Retention: -1, Offsets: offsets}, true)
}

func (c *Coordinator) commit(ctx context.Context, r *CommitRequest, mirror bool) ([]error, error) {
	// An empty group id is allowed here: very old simple consumers have none.
	s, err := c.shard(r.Group)
	if err != nil {
		return nil, err
	}
	res, err := ask[commitResult](ctx, s, func(now time.Time, to ticket) {
		if s.groups.Get(r.Group) == nil && r.Generation >= 0 {
			err := ErrNotFound // since versions with member epochs
			if r.NoMemberEpochs {
				err = ErrIllegalGeneration
			}
			s.Answer(to, commitResult{err: err})
			return
		}
		sl, err := s.group(r.Group, true, now)
		if err != nil {
			s.Answer(to, commitResult{err: err})
			return
		}
		s.step(sl, now, commitInput{to, r, mirror})
	})
	if err != nil {
		return nil, err
	}
	return res.errs, res.err
}

// Committed returns all committed offsets of a group, sorted by topic and
// partition; none for a group that does not exist.
func (c *Coordinator) Committed(ctx context.Context, group string) ([]Offset, error) {
	return query(ctx, c, group, nil, (*machine).sortedOffsets)
}

// CommittedIn returns what a group has committed in the partitions asked for,
// in their order; nothing committed is offset -1.
func (c *Coordinator) CommittedIn(ctx context.Context, group string, partitions []TopicPartition) ([]Offset, error) {
	find := func(offsets map[TopicPartition]committed) []Offset {
		out := make([]Offset, len(partitions))
		for i, tp := range partitions {
			out[i] = Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: -1, LeaderEpoch: -1}
			if p, ok := offsets[tp]; ok {
				out[i] = p.public(tp)
			}
		}
		return out
	}
	return query(ctx, c, group, find(nil), func(m *machine) []Offset { return find(m.offsets) })
}

// StableIn is CommittedIn for a consumer that must not start at an offset that a
// transaction may replace (KIP-447): such a partition is Unstable, with offset -1.
func (c *Coordinator) StableIn(ctx context.Context, group string, partitions []TopicPartition) ([]Offset, error) {
	find := func(m *machine) []Offset {
		out := make([]Offset, len(partitions))
		for i, tp := range partitions {
			out[i] = m.stable(tp)
		}
		return out
	}
	return query(ctx, c, group, find(&machine{}), find)
}

// Stable is Committed with the same care. Partitions in which only transactions
// have committed are not among them.
func (c *Coordinator) Stable(ctx context.Context, group string) ([]Offset, error) {
	return query(ctx, c, group, nil, func(m *machine) []Offset {
		all := m.sortedOffsets()
		for i, o := range all {
			all[i] = m.stable(TopicPartition{o.Topic, o.Partition})
		}
		return all
	})
}

// GroupsAbove names the groups whose committed offset in a partition lies above
// end, sorted: those that a truncation to end leaves behind (W55).
func (c *Coordinator) GroupsAbove(ctx context.Context, tp TopicPartition, end int64) ([]string, error) {
	var all []string
	for _, s := range c.led.All() {
		some, err := ask[[]string](ctx, s, func(_ time.Time, to ticket) {
			var out []string
			for m := range s.groups.All() {
				if o, ok := m.offsets[tp]; ok && o.offset > end {
					out = append(out, m.id)
				}
			}
			s.Answer(to, out)
		})
		if err != nil {
			return nil, err // one that is missing would be left above the cut
		}
		all = append(all, some...)
	}
	slices.Sort(all)
	return all, nil
}

// DeleteOffsets deletes committed offsets, except of topics that members read.
func (c *Coordinator) DeleteOffsets(ctx context.Context, group string, partitions []TopicPartition) DeleteOffsetsResult {
	if group == "" {
		return DeleteOffsetsResult{Err: ErrInvalidGroupID}
	}
	res, err := onGroup(ctx, c, group, func(s *shard, sl *slot, now time.Time, to ticket) {
		s.step(sl, now, deleteOffsetsInput{to, partitions})
	}, DeleteOffsetsResult{Err: ErrNotFound})
	if err != nil {
		return DeleteOffsetsResult{Err: err}
	}
	return res
}

// query reads a group on its shard's goroutine.
func query[T any](ctx context.Context, c *Coordinator, group string, unknown T, fn func(*machine) T) (T, error) {
	return onGroup(ctx, c, group, func(s *shard, sl *slot, _ time.Time, to ticket) {
		s.Answer(to, fn(sl.M))
	}, unknown)
}
