package segment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

func (r *crashRun) fatal(format string, args ...any) { panic(failed(fmt.Sprintf(format, args...))) }

// step does one operation. expect gives what each log may be while it runs; it
// is asked before, and may be changed until the workload ends.
func (r *crashRun) step(name string, fn func() error) *crashStep {
	st := &crashStep{name: name, fs: r.fs, from: r.fs.count(), usage: r.fs.usage}
	for _, g := range r.logs {
		st.expect = append(st.expect, g.expected())
	}
	if err := fn(); err != nil {
		r.fatal("%s: %v", name, err)
	}
	st.to = r.fs.count()
	if r.recording {
		r.steps = append(r.steps, st)
	}
	return st
}

// verify compares the living log with the model.
func (r *crashRun) verify() {
	for _, g := range r.logs {
		if g.l == nil {
			continue
		}
		e := expected{states: []bounded{{g.state, g.state.end, g.state.start}}, hwFloor: g.hw, hwMax: g.hw, live: true}
		if _, err := e.explain(g.l); err != nil {
			last := "opening"
			if len(r.steps) > 0 {
				last = r.steps[len(r.steps)-1].name
			}
			r.fatal("log %d after %s: %v", g.partition, last, err)
		}
	}
}

func (r *crashRun) anyLog() *crashLog { return r.logs[r.rng.IntN(len(r.logs))] }

func (r *crashRun) open(name string) {
	r.step(name, func() (err error) {
		var logs []*Log
		if r.s, logs, err = r.openStore(r.fs); err != nil {
			return err
		}
		for i, g := range r.logs {
			g.l = logs[i]
		}
		return nil
	})
}

func (r *crashRun) append(g *crashLog) {
	batches := r.batches(g)
	var all []byte
	for _, b := range batches {
		all = append(all, b...)
	}
	rolls := len(g.l.Segments())
	after := g.state.append(batches...)
	st := r.step("append", func() error { _, err := g.l.Append(all); return err })
	if len(g.l.Segments()) > rolls {
		st.name = "roll"
	}
	st.expect[g.partition] = g.expected(bounded{after, g.durable, g.start})
	g.state = after
	r.verify()
}

// batches makes what is appended at once: plain, idempotent, transactional
// batches, markers and resets, with gaps, a few larger than a block.
func (r *crashRun) batches(g *crashLog) (list []record.Batch) {
	known := replay(g.state.batches)
	end := g.state.end
	for range 1 + r.rng.IntN(3) {
		if r.rng.IntN(6) == 0 {
			g.epoch += int32(1 + r.rng.IntN(2))
		}
		base := end + int64([]int{0, 0, 0, 0, 1, 5}[r.rng.IntN(6)])
		g.time += int64(r.rng.IntN(90) - 30)
		b := r.batch(g, known.Open(), base)
		known.Apply(b)
		list, end = append(list, b), b.NextOffset()
	}
	return list
}

func (r *crashRun) batch(g *crashLog, open []producerTxn, base int64) record.Batch {
	x := testBatch{base: base, n: 1 + r.rng.IntN(3), epoch: g.epoch, ts: g.time, value: []int{0, 40, 40, 300, 300, 5000}[r.rng.IntN(6)],
		gapLast: []int32{0, 0, 3}[r.rng.IntN(3)]}
	pid := int64(1 + r.rng.IntN(3))
	if r.keyed {
		x.keys = r.keys
	}
	switch k := r.rng.IntN(8); {
	case k < 2 && len(open) > 0:
		o := open[r.rng.IntN(len(open))]
		return stamped(record.Marker(record.ControlType(k), o.ProducerID, o.Epoch, 3, g.time), base, g.epoch)
	case k == 2 && len(open) == 0 && !r.keyed && r.rng.IntN(3) == 0:
		clear(g.sequences)
		return stamped(record.PIDReset("source", g.time), base, g.epoch)
	case k < 6:
		x.txn = k < 5
		if x.txn {
			pid += 10
		}
		x.pid, x.seq = pid, g.sequences[pid]
		b := record.Batch(x.build())
		g.sequences[pid] = record.AddSequence(b.LastSequence(), 1)
		return b
	}
	return x.build()
}

func (r *crashRun) flush(g *crashLog) {
	r.step("flush", func() error { return flush(g.l) })
	if g.l.DurableEnd() != g.state.end {
		r.fatal("durable end %d after a flush, log ends at %d", g.l.DurableEnd(), g.state.end)
	}
	g.durable = g.state.end
}

// checkpoint writes the marks and the index' memory.
func (r *crashRun) checkpoint() {
	r.step("checkpoint", func() error {
		r.s.flusher.checkpoint()
		return r.s.index.db.Flush()
	})
	for _, g := range r.logs {
		g.start, g.hwDurable = g.state.start, g.hw
	}
}

func (r *crashRun) watermark(g *crashLog) {
	g.hw += r.rng.Int64N(g.state.end - g.hw + 1)
	g.l.SetHighWatermark(g.hw)
}

func (r *crashRun) truncate(g *crashLog, end int64) {
	after, restarted := g.state.truncate(end, g.l.Segments()[0].Base)
	st := r.step("truncate", func() error { return g.l.Truncate(end) })
	if restarted {
		r.restarted(st, g, after)
		return
	}
	before := g.now()
	before.floor, before.startFloor = min(before.floor, after.end), min(before.startFloor, after.start)
	st.expect[g.partition] = g.expected(before)
	st.expect[g.partition].hwFloor = min(g.hwDurable, after.end)
	if after.end < g.state.end {
		g.start = after.start // its marks were synced
	}
	g.state, g.durable = after, min(g.durable, after.end)
	g.hw = min(g.hw, after.end)
	g.hwDurable = min(g.hwDurable, g.hw)
	r.verify()
}

func (r *crashRun) truncateFully(g *crashLog, start int64) {
	st := r.step("truncate fully", func() error { return g.l.TruncateFully(start) })
	r.restarted(st, g, logState{start: start, end: start, origin: start})
}

func (r *crashRun) restarted(st *crashStep, g *crashLog, after logState) {
	st.name = "truncate fully"
	st.expect[g.partition] = g.expected(g.now(), bounded{after, after.end, after.start})
	st.expect[g.partition].hwFloor = 0
	st.expect[g.partition].hwMax = max(g.hw, after.end)
	g.state, g.durable, g.start, g.hw, g.hwDurable = after, after.end, after.start, after.start, after.start
	clear(g.sequences)
	r.verify()
}

// setStart is a log start that moves for another reason than retention.
func (r *crashRun) setStart(g *crashLog, start int64) {
	r.moves("log start", g, func() error { return g.l.SetStartOffset(start) })
}

func (r *crashRun) retain(g *crashLog) {
	r.moves("retain", g, func() error {
		c := r.c
		c.RetentionBytes = g.l.Size() / 3
		g.l.SetConfig(c)
		defer g.l.SetConfig(r.c)
		_, err := g.l.Retain(time.UnixMilli(20_000), g.state.end)
		return err
	})
}

func (r *crashRun) moves(name string, g *crashLog, fn func() error) {
	first := g.l.Segments()[0].Base
	g.hw = g.state.end // nothing above it is ever given up
	g.l.SetHighWatermark(g.hw)
	st := r.step(name, fn)
	after := g.state
	after.start = g.l.StartOffset()
	st.expect[g.partition] = g.expected(bounded{after, g.durable, g.start})
	if g.state = after; g.l.Segments()[0].Base > first {
		g.start = after.start
		g.hwDurable = g.hw
	}
	r.verify()
}

// replace lets every second batch of some closed segments go, as a compaction may: none
// that says something about a producer, so that whoever reads the log knows of those
// what a snapshot knows.
func (r *crashRun) replace(g *crashLog) {
	n := len(g.l.Segments()) - 1
	if n < 1 || g.l.Segments()[0].Size == 0 {
		return
	}
	i := r.rng.IntN(n)
	j := i + 1 + r.rng.IntN(min(3, n-i))
	k := 0
	st := r.step("replace", func() error {
		return thinOut(r.t, g.l, i, j, func(b record.Batch) bool {
			if b.IsControl() || b.HasProducerID() {
				return true
			}
			k++
			return k%2 == 1
		})
	})
	after := g.state
	if after.original == nil {
		after.original = g.state.batches
	}
	g.l.mu.RLock()
	segments := g.l.mu.segments
	g.l.mu.RUnlock()
	after.batches = g.state.upTo(segments[0].base).batches // of deleted segments: their producers are known
	for _, s := range segments {
		if err := eachBatch(g.l, s, func(b record.Batch) error {
			after.batches = append(after.batches, slices.Clone(b))
			return nil
		}); err != nil {
			r.fatal("replace: %v", err)
		}
	}
	st.expect[g.partition] = g.expected(g.now(), bounded{after, g.durable, g.start})
	g.state = after
	r.verify()
}

func (r *crashRun) remove(g *crashLog) {
	st := r.step("delete", func() error { return r.s.Delete(topicA, g.partition) })
	e := g.expected(g.now(), bounded{})
	e.hwFloor = 0
	st.expect[g.partition] = e
	*g = crashLog{partition: g.partition, epoch: g.epoch, time: g.time, sequences: map[int64]int32{}}
	r.step("create", func() (err error) {
		g.l, err = r.s.OpenLog(topicA, g.partition, r.c)
		return err
	})
	r.verify()
}

// stop is a clean stop and the start after it.
func (r *crashRun) stop() {
	r.step("stop", func() error { return r.s.Close() })
	for _, g := range r.logs {
		g.durable, g.start, g.hwDurable = g.state.end, g.state.start, g.hw
	}
	r.open("start")
	r.verify()
}

// crash is a power cut inside a workload; what it leaves is where it goes on.
func (r *crashRun) crash(l loss, noIndex bool) {
	old := r.s
	r.fs = r.fs.crashNow(l, r.rng)
	if err := old.Close(); err != nil {
		r.fatal("close: %v", err)
	}
	name := "recover"
	if noIndex {
		name = "rebuild"
		if err := r.view(r.fs).RemoveAll("data/" + indexDir); err != nil {
			r.fatal("%v", err)
		}
	}
	expect := make([]expected, len(r.logs))
	for i, g := range r.logs {
		g.noIndex = noIndex
		expect[i] = g.expected()
	}
	r.open(name)
	for i, g := range r.logs {
		found, err := expect[i].explain(g.l)
		if err != nil {
			r.fatal("log %d after a power cut with %s of the unsynced: %v", i, l, err)
		}
		g.noIndex = false
		g.state, g.durable, g.start = r.forget(found, g.l), found.end, found.start
		g.hw = g.l.HighWatermark()
		g.hwDurable = g.hw
	}
}

// forget lets go of what compaction took, where a recovery that had lost the
// index was left with nothing to know it from: what comes later builds on that.
func (r *crashRun) forget(s logState, l *Log) logState {
	for _, b := range s.batches { // nor is anything left of some deleted segments
		if b.NextOffset() > l.Segments()[0].Base || s.checkProducers(l, nil, expected{hwMax: s.end}) == nil {
			break
		}
		s = s.from(b.NextOffset())
	}
	bare := s
	bare.original = nil
	e := expected{hwMax: s.end}
	if s.original == nil || s.compacted || bare.checkProducers(l, nil, e) != nil || bare.checkEpochs(l, bare.visible(), e) != nil {
		return s
	}
	return bare
}

func newRng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }
