package segment

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// keyedLogs makes the workload's logs compacted ones.
func keyedLogs(r *crashRun) {
	r.keyed = true
	r.c.Compact, r.c.DeleteRetentionMs = true, 1000
	r.c.SegmentBytes = 2500
}

func (r *crashRun) keys() (key []byte, tombstone bool) {
	return []byte{byte('a' + r.rng.IntN(6))}, r.rng.IntN(4) == 0
}

// compact does one round. The log may be what any finished group of segments
// leaves; each of these must show a reader the state that it had.
func (r *crashRun) compact(g *crashLog) {
	r.flush(g)
	g.hw = g.state.end
	g.l.SetHighWatermark(g.hw)
	r.now += g.l.mu.config.DeleteRetentionMs + 1 // what was stamped last time may go
	before := readCommitted(panicker{}, g.l, g.hw)
	states := []bounded{g.now()}
	st := r.step("compact", func() error {
		defer invariants.SetFault(func(at string) {
			if at == "segment.compactGroup" {
				states = append(states, bounded{r.compacted(g, before), g.durable, g.start})
			}
		})()
		memory := slotSize * []int64{3, 1000}[r.rng.IntN(2)]
		_, err := g.l.Compact(context.Background(), ms(r.now), g.hw, CompactOptions{Memory: memory})
		return err
	})
	st.expect[g.partition] = g.expected(states...)
	g.state = states[len(states)-1].logState
	r.verify()
}

// compacted is the state between two groups of a round: for a reader, nothing
// has changed but that there is less to read.
func (r *crashRun) compacted(g *crashLog, before []found) logState {
	after := readCommitted(panicker{}, g.l, g.hw)
	if got, want := fmt.Sprint(state(after)), fmt.Sprint(state(before)); got != want {
		r.fatal("compaction made %s of %s", got, want)
	}
	for _, f := range after {
		if !slices.Contains(before, f) {
			r.fatal("compaction made a record %v", f)
		}
	}
	s := g.state
	if s.original == nil {
		s.original = s.batches
	}
	s.compacted, s.batches = true, nil
	for _, b := range fileBatches(panicker{}, g.l) {
		s.batches = append(s.batches, slices.Clone(b))
	}
	return s
}

var compactWorkloads = []crashWorkload{
	{name: "compact", setup: keyedLogs, prepare: appends(12), run: func(r *crashRun) {
		g := r.logs[0]
		r.compact(g)
		r.append(g)
		r.compact(g)
	}},
	{name: "compact-again", setup: keyedLogs, prepare: func(r *crashRun) {
		appends(8)(r)
		r.compact(r.logs[0])
		appends(4)(r)
	}, run: func(r *crashRun) {
		g := r.logs[0]
		r.compact(g)
		end := g.state.end
		r.append(g)
		r.truncate(g, end)
		r.append(g)
		r.compact(g)
		r.crash(loseHalf, false)
		r.compact(g)
		r.stop()
	}},
}
