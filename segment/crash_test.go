package segment

import (
	"bytes"
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
	setup   func(r *crashRun) // changes options, before anything is opened
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
	usage    vfs.DiskUsage
	heal     *healing          // the log was damaged on purpose
	kept     map[string][]byte // files that must be there, by path
}

// crashRun is a store that does a workload, and the model of its logs.
type crashRun struct {
	t         testing.TB
	rng       *rand.Rand
	o         Options
	c         Config
	fs        *crashFS
	copies    bool // files cannot be cut in place
	keyed     bool // records have keys, some are tombstones
	now       int64
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
	noIndex   bool // it was taken away in the step under way
}

func (g *crashLog) now() bounded { return bounded{g.state, g.durable, g.start} }

func (g *crashLog) expected(states ...bounded) expected {
	if len(states) == 0 {
		states = []bounded{g.now()}
	}
	return expected{states: states, hwFloor: g.hwDurable, hwMax: g.hw, noIndex: g.noIndex}
}

func runCrash(t *testing.T, w crashWorkload, seed uint64, tally *crashTally) {
	r := &crashRun{t: t, rng: newRng(seed), fs: newCrashFS(), now: 1_000_000}
	r.copies = r.rng.IntN(4) == 0
	r.o = testOptions(nil)
	if seed%2 == 0 {
		r.o.together = 1 // as in a crowd
	}
	r.o.IndexInterval, r.o.tail = []int64{1, 500}[r.rng.IntN(2)], 4
	r.c = Config{SegmentBytes: []int64{700, 2500}[r.rng.IntN(2)], RetentionMs: -1, RetentionBytes: -1}
	if w.setup != nil {
		w.setup(r)
	}
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
				fs.usage = st.usage
				tally.add(st.name, op, l)
				g.Go(func() error {
					if err := r.check(fs, st); err != nil {
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
func (r *crashRun) check(fs *crashFS, st *crashStep) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := st.keptIn(fs); err != nil {
		return err
	}
	var first []string
	found := make([]logState, len(st.expect))
	for round := range 2 {
		s, logs, err := r.healed(fs, st.heal)
		if err != nil {
			return err
		}
		// Another power cut, right behind the recovery.
		next := fs.crashNow(loseAll, nil)
		var got []string
		for i, l := range logs {
			e := st.expect[i]
			if round > 0 {
				e.states = []bounded{{found[i], found[i].end, found[i].start}}
			}
			if found[i], err = e.explain(l); err != nil {
				_ = s.Close()
				return fmt.Errorf("log %d, recovered %d times: %w", i, round+1, err)
			}
			a, err := found[i].everything(l)
			if err != nil {
				_ = s.Close()
				return err
			}
			got = append(got, a)
		}
		if err := s.Close(); err != nil {
			return err
		}
		fs = next
		if round == 0 {
			first = got
			continue
		}
		if !slices.Equal(got, first) {
			return fmt.Errorf("recovering twice differs from once:\n%s---\n%s", first, got)
		}
	}
	if fs.setUsage(plenty); r.o.ReserveBytes >= 0 {
		fs.setUsage(roomy)
	}
	return r.alive(fs, found, st)
}

// keptIn looks for what a step must not lose.
func (st *crashStep) keptIn(fs *crashFS) error {
	for path, want := range st.kept {
		got, err := readFile(newDisk(fs), path)
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%s: %d bytes, %d were kept, or others: %v", path, len(got), len(want), err)
		}
	}
	return nil
}

// alive goes on with logs that were recovered: appends, restarts, reads, cuts.
func (r *crashRun) alive(fs *crashFS, found []logState, st *crashStep) error {
	s, logs, err := r.openStore(fs)
	if err != nil {
		return fmt.Errorf("third opening: %w", err)
	}
	replicated := make([]int64, len(logs))
	for i, l := range logs {
		replicated[i] = l.HighWatermark()
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
	cut := fs.crashNow(loseAll, nil)
	if err := s.Close(); err != nil {
		return err
	}
	if err := r.survives(cut, found, replicated, st); err != nil {
		return fmt.Errorf("after going on and a power cut: %w", err)
	}
	if s, logs, err = r.openStore(fs); err != nil {
		return fmt.Errorf("after a clean stop: %w", err)
	}
	defer s.Close()
	for i, l := range logs {
		e := expected{states: []bounded{{found[i], found[i].end, found[i].start}}, hwMax: found[i].end, noIndex: st.expect[i].noIndex}
		if _, err := e.explain(l); err != nil {
			return fmt.Errorf("after going on and a clean stop: %w", err)
		}
		if err := l.Truncate(found[i].end - 1); err != nil {
			return err
		}
	}
	return nil
}

// survives is for what was flushed behind a recovery: the marks from before it say
// nothing about that.
func (r *crashRun) survives(fs *crashFS, found []logState, replicated []int64, st *crashStep) error {
	s, logs, err := r.openStore(fs)
	if err != nil {
		return err
	}
	for i, l := range logs {
		e := expected{states: []bounded{{found[i], found[i].end, found[i].start}}, hwMax: replicated[i], noIndex: st.expect[i].noIndex}
		if _, explained := e.explain(l); explained != nil {
			err = errors.Join(err, fmt.Errorf("log %d: %w", i, explained))
		}
	}
	return errors.Join(err, s.Close())
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
