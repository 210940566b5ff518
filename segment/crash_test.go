package segment

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// The flags of `make crash`.
var (
	crashFull   = flag.Bool("crash.full", false, "every workload at every operation; without it a sample")
	crashFor    = flag.Duration("crash.for", 0, "how long random workloads go on after the short ones")
	crashPoints = flag.Int64("crash.points", 0, "fail if fewer power cuts than this were tried")
	crashSeed   = flag.Uint64("crash.seed", 0, "only this seed")
	crashOnly   = flag.String("crash.only", "", "only the workload with this name")
)

// TestCrash cuts the power after every operation on the file system that a
// workload does (H2), with nothing, a random half, or all of what was not synced
// reaching the disk, and recovers. What a flush had acknowledged must be there
// byte for byte, nothing may be there that was never written, and every answer
// of the log must be that of a naive model of its batches. Recovery must need no
// hand, give the same when done twice, and leave a log that goes on.
//
// Short workloads, one for each kind of operation, are tried exhaustively with
// -crash.full (make crash), after every operation with each of the three losses;
// otherwise with a sample of them.
func TestCrash(t *testing.T) {
	tally := newCrashTally()
	for _, w := range crashWorkloads {
		if *crashOnly != "" && *crashOnly != w.name {
			continue
		}
		seeds := []uint64{1}
		if *crashFull {
			seeds = []uint64{1, 2, 3, 4}
		}
		if *crashSeed != 0 {
			seeds = []uint64{*crashSeed}
		}
		for _, seed := range seeds {
			runCrash(t, w, seed, tally)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	if *crashOnly == "" || *crashOnly == crashRandom.name {
		began := time.Now()
		for seed := max(1, *crashSeed); seed == max(1, *crashSeed) || *crashSeed == 0 && time.Since(began) < *crashFor; seed++ {
			runCrash(t, crashRandom, seed, tally)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Log(tally)
	if n := tally.points.Load(); n < *crashPoints {
		t.Fatalf("%d crash points, want %d at least", n, *crashPoints)
	}
}

// crashTally counts what was tried.
type crashTally struct {
	points, right atomic.Int64
	mu            sync.Mutex
	steps         map[string]int
	ops           map[string]int
	losses        map[loss]int
}

func newCrashTally() *crashTally {
	return &crashTally{steps: map[string]int{}, ops: map[string]int{}, losses: map[loss]int{}}
}

func (c *crashTally) add(step string, op fsOp, l loss) {
	c.points.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps[step]++
	if op.ofIndex() {
		c.ops["of the index"]++
	} else {
		c.ops[string(op.kind)]++
	}
	c.losses[l]++
}

func (c *crashTally) String() string {
	var b strings.Builder
	b.WriteString("crash points by what the log was doing:\n")
	for _, k := range slices.Sorted(maps.Keys(c.steps)) {
		fmt.Fprintf(&b, "  %-16s %6d\n", k, c.steps[k])
	}
	b.WriteString("by the operation on the file system before the cut:\n")
	for _, k := range slices.Sorted(maps.Keys(c.ops)) {
		fmt.Fprintf(&b, "  %-16s %6d\n", k, c.ops[k])
	}
	b.WriteString("by what was left of the unsynced:\n")
	for l := loseAll; l <= loseNone; l++ {
		fmt.Fprintf(&b, "  %-16s %6d\n", l, c.losses[l])
	}
	fmt.Fprintf(&b, "crash points %d, recovered right %d", c.points.Load(), c.right.Load())
	return b.String()
}

// crashWorkload is something to do to a store. What prepare does is not cut short.
type crashWorkload struct {
	name    string
	logs    int
	prepare func(r *crashRun)
	run     func(r *crashRun)
}

// crashStep is one operation of a workload: the operations from from to to on
// its file system, and what each log may be if the power goes among them.
type crashStep struct {
	name     string
	fs       *crashFS
	from, to int
	expect   []expected // by log
}

// crashRun is a store that does a workload, and the model of its logs.
type crashRun struct {
	t         testing.TB
	rng       *rand.Rand
	o         Options
	c         Config
	fs        *crashFS
	copies    bool // files cannot be cut in place
	s         *Store
	logs      []*crashLog
	steps     []*crashStep
	recording bool
}

// crashLog is one log of the store and what it must hold.
type crashLog struct {
	partition int32
	l         *Log
	state     logState
	durable   int64 // acknowledged by a flush
	start     int64 // the log start that is durable
	hw        int64
	hwDurable int64
	epoch     int32
	time      int64
	sequences map[int64]int32
}

func (g *crashLog) now() bounded { return bounded{g.state, g.durable, g.start} }

func (g *crashLog) expected(states ...bounded) expected {
	if len(states) == 0 {
		states = []bounded{g.now()}
	}
	return expected{states: states, hwFloor: g.hwDurable, hwMax: g.hw}
}

func runCrash(t *testing.T, w crashWorkload, seed uint64, tally *crashTally) {
	r := &crashRun{t: t, rng: newRng(seed), fs: newCrashFS()}
	r.copies = r.rng.IntN(4) == 0
	r.o = testOptions(nil)
	r.o.IndexInterval, r.o.tail = []int64{1, 500}[r.rng.IntN(2)], 4
	r.c = Config{SegmentBytes: []int64{700, 2500}[r.rng.IntN(2)], RetentionMs: -1, RetentionBytes: -1}
	for p := range max(w.logs, 1) {
		r.logs = append(r.logs, &crashLog{partition: int32(p), epoch: 1, time: 10_000, sequences: map[int64]int32{}})
	}
	repeat := fmt.Sprintf("go test ./segment -run '^TestCrash$' -count=1 -crash.full -crash.only=%s -crash.seed=%d", w.name, seed)
	func() {
		defer func() {
			if f, ok := recover().(failed); ok {
				t.Errorf("%s seed %d, without a crash: %s\nrepeat: %s", w.name, seed, f, repeat)
			}
		}()
		r.recording = w.prepare == nil
		r.open("first open")
		if w.prepare != nil {
			w.prepare(r)
			r.recording = true
		}
		w.run(r)
	}()
	if r.s != nil {
		_ = r.s.Close()
	}
	if t.Failed() {
		return
	}
	r.cut(t, w, seed, repeat, tally)
}

// tries says which power cuts are tried: all of a short workload with
// -crash.full, a sample of a random one. Otherwise one behind every operation of
// ours, and a few among those of the index.
func (w *crashWorkload) tries(o fsOp, l loss, sample *rand.Rand) bool {
	switch one := sample.IntN(60); {
	case *crashFull && w.name == crashRandom.name:
		return one < 3
	case *crashFull:
		return true
	case o.ofIndex() || w.name == crashRandom.name:
		return one == 0
	default:
		return one < 12
	}
}

// cut tries a power cut after each operation of each step.
func (r *crashRun) cut(t *testing.T, w crashWorkload, seed uint64, repeat string, tally *crashTally) {
	var g errgroup.Group
	g.SetLimit(2)
	sample := rand.New(rand.NewPCG(seed, 11))
	for _, st := range r.steps {
		st.fs.eachPrefix(st.from, st.to, func(k int, d durableState) {
			var op fsOp
			if k > 0 {
				op = st.fs.ops[k-1]
			}
			for _, l := range []loss{loseAll, loseHalf, loseNone} {
				if k == st.to || !w.tries(op, l, sample) || t.Failed() {
					continue
				}
				fs := d.crash(l, rand.New(rand.NewPCG(seed<<32+uint64(k), uint64(l))))
				tally.add(st.name, op, l)
				g.Go(func() error {
					if err := r.check(fs, st.expect); err != nil {
						t.Errorf("%s seed %d, power cut %d in %s, after %q, with %s of the unsynced left: %v\nrepeat: %s",
							w.name, seed, k, st.name, op, l, err, repeat)
						return nil
					}
					tally.right.Add(1)
					return nil
				})
			}
		})
	}
	_ = g.Wait()
}

// check recovers and looks.
func (r *crashRun) check(fs *crashFS, expect []expected) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	var first []string
	found := make([]logState, len(expect))
	for round := range 2 {
		s, logs, err := r.openStore(fs)
		if err != nil {
			return err
		}
		// Another power cut, right behind the recovery.
		next := fs.crashNow(loseAll, nil)
		var got []string
		for i, l := range logs {
			if round == 0 {
				if found[i], err = expect[i].explain(l); err != nil {
					_ = s.Close()
					return fmt.Errorf("log %d: %w", i, err)
				}
			}
			a, err := everything(l)
			if err != nil {
				_ = s.Close()
				return err
			}
			got = append(got, a)
		}
		if err := s.Close(); err != nil {
			return err
		}
		if round == 0 {
			first, fs = got, next
			continue
		}
		if !slices.Equal(got, first) {
			return fmt.Errorf("recovering twice differs from once:\n%s---\n%s", first, got)
		}
	}
	return r.alive(fs, found)
}

// alive goes on with logs that were recovered: appends, restarts, reads, cuts.
func (r *crashRun) alive(fs *crashFS, found []logState) error {
	s, logs, err := r.openStore(fs)
	if err != nil {
		return fmt.Errorf("third opening: %w", err)
	}
	for i, l := range logs {
		b := record.Batch(testBatch{base: found[i].end, n: 2, epoch: 100, ts: 50_000, value: 400}.build())
		more := record.Batch(testBatch{base: found[i].end + 2, n: 1, epoch: 101, ts: 50_000, value: 400}.build())
		_, err := l.Append(b)
		if err == nil {
			_, err = l.Append(more)
		}
		if err == nil {
			err = flush(l)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("go on: %w", err), s.Close())
		}
		found[i] = found[i].append(b, more)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if s, logs, err = r.openStore(fs); err != nil {
		return fmt.Errorf("after a clean stop: %w", err)
	}
	defer s.Close()
	for i, l := range logs {
		e := expected{states: []bounded{{found[i], found[i].end, found[i].start}}, hwMax: found[i].end}
		if _, err := e.explain(l); err != nil {
			return fmt.Errorf("after going on and a clean stop: %w", err)
		}
		if err := l.Truncate(found[i].end - 1); err != nil {
			return err
		}
	}
	return nil
}

// openStore opens what a check looks at.
func (r *crashRun) openStore(fs *crashFS) (*Store, []*Log, error) {
	o := r.o
	o.FS = r.view(fs)
	s, err := Open(o)
	if err != nil {
		return nil, nil, err
	}
	var logs []*Log
	for _, g := range r.logs {
		l, err := s.OpenLog(topicA, g.partition, r.c)
		if err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
		logs = append(logs, l)
	}
	return s, logs, nil
}

func (r *crashRun) view(fs *crashFS) vfs.FS {
	if r.copies {
		return struct{ vfs.FS }{fs} // hides Truncate
	}
	return fs
}

func (r *crashRun) fatal(format string, args ...any) { panic(failed(fmt.Sprintf(format, args...))) }

// step does one operation. expect gives what each log may be while it runs; it
// is asked before, and may be changed until the workload ends.
func (r *crashRun) step(name string, fn func() error) *crashStep {
	st := &crashStep{name: name, fs: r.fs, from: r.fs.count()}
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
	switch k := r.rng.IntN(8); {
	case k < 2 && len(open) > 0:
		o := open[r.rng.IntN(len(open))]
		return stamped(record.Marker(record.ControlType(k), o.ProducerID, o.Epoch, 3, g.time), base, g.epoch)
	case k == 2 && len(open) == 0 && r.rng.IntN(3) == 0:
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

// replace lets every second batch of some closed segments go, as a compaction may.
func (r *crashRun) replace(g *crashLog) {
	n := len(g.l.Segments()) - 1
	if n < 1 || g.l.Segments()[0].Size == 0 {
		return
	}
	i := r.rng.IntN(n)
	j := i + 1 + r.rng.IntN(min(3, n-i))
	st := r.step("replace", func() error { return everySecond(r.t, g.l, i, j) })
	after := g.state
	if after.original == nil {
		after.original = g.state.batches
	}
	after.batches = nil
	g.l.mu.RLock()
	segments := g.l.mu.segments
	g.l.mu.RUnlock()
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
		expect[i] = g.expected()
	}
	r.open(name)
	for i, g := range r.logs {
		found, err := expect[i].explain(g.l)
		if err != nil {
			r.fatal("log %d after a power cut with %s of the unsynced: %v", i, l, err)
		}
		g.state, g.durable, g.start = found, found.end, found.start
		g.hw = g.l.HighWatermark()
		g.hwDurable = g.hw
	}
}

func newRng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }
