package txn

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// List returns the transactional ids of all partitions led here that pass a
// filter, sorted by name, and the filter's states that do not exist. With
// ErrLoading some are missing.
func (c *Coordinator) List(ctx context.Context, f Filter) (all []Listing, unknown []string, err error) {
	pass, unknown, err := f.compile()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range c.led.All() {
		some, failed := ask[[]Listing](ctx, s, func(now time.Time, to ticket) {
			out := make([]Listing, 0, s.ids.Len())
			for m := range s.ids.All() {
				if m.logged && pass(m, now) {
					out = append(out, Listing{m.id, m.producerID, m.state})
				}
			}
			s.Answer(to, out)
		})
		if failed != nil {
			err = failed
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b Listing) int { return cmp.Compare(a.ID, b.ID) })
	return all, unknown, err
}

func (f *Filter) compile() (pass func(m *machine, now time.Time) bool, unknown []string, err error) {
	var wanted []State
	for _, name := range f.States {
		if s, ok := ParseState(name); ok {
			wanted = append(wanted, s)
		} else {
			unknown = append(unknown, name)
		}
	}
	var pattern *regexp.Regexp
	if f.Pattern != "" {
		if pattern, err = regexp.Compile(`^(?:` + f.Pattern + `)$`); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrInvalidPattern, err)
		}
	}
	return func(m *machine, now time.Time) bool {
		return (len(f.States) == 0 || slices.Contains(wanted, m.state)) &&
			(len(f.ProducerIDs) == 0 || slices.Contains(f.ProducerIDs, m.producerID)) &&
			(f.LongerThan < 0 || now.Sub(m.started) > f.LongerThan) &&
			(pattern == nil || pattern.MatchString(m.id))
	}, unknown, nil
}

// Describe tells a transactional id's state and the partitions of its
// transaction: while that is being ended, those without a marker.
func (c *Coordinator) Describe(ctx context.Context, id string) Description {
	fail := func(err error) Description { return Description{ID: id, Err: err, ProducerID: -1, Epoch: -1} }
	s, err := c.shard(id)
	if err != nil {
		return fail(err)
	}
	missing := fail(fmt.Errorf("%w: %q", ErrNotFound, id))
	d, err := onID(ctx, s, id, func(sl *slot, _ time.Time, to ticket) {
		if !sl.M.logged {
			s.Answer(to, missing)
			return
		}
		s.Answer(to, sl.M.describe())
	}, missing)
	if err != nil {
		return fail(err)
	}
	return d
}

func (m *machine) describe() Description {
	return Description{
		ID: m.id, State: m.state, ProducerID: m.producerID, Epoch: m.epoch, Timeout: m.timeout,
		Started: m.started, Partitions: sorted(m.partitions),
	}
}
