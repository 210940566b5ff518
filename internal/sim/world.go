package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// loop is the queue of events, ordered by time and, at one moment, by the order in
// which they were made. Everything that happens is an event of it, so that the seed
// says all.
type loop struct {
	rng    *rand.Rand
	now    time.Duration
	seq    uint64
	steps  int
	events eventHeap

	hash  uint64
	trail [trailLen]trace
	trace int // events traced
}

const trailLen = 200

// trace is one line of the trail, formatted only when somebody reads it.
type trace struct {
	at   time.Duration
	step int
	what string
	args [6]int64
	n    int
}

type event struct {
	at   time.Duration
	seq  uint64
	proc *proc // nil: of the world itself
	gen  int   // of the process: an event of a process that ended does not happen
	over *bool // if true by then, nothing happens
	fn   func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	n := len(old) - 1
	e := old[n]
	old[n] = event{}
	*h = old[:n]
	return e
}

func newLoop(seed uint64) *loop {
	return &loop{rng: rand.New(rand.NewPCG(seed, 0x10c557e9)), hash: 14695981039346656037}
}

// after has fn happen d from now, on p if that is not nil.
func (l *loop) after(d time.Duration, p *proc, fn func()) {
	l.push(event{at: l.now + d, proc: p, fn: fn})
}

func (l *loop) push(e event) {
	e.seq = l.seq
	if e.proc != nil {
		e.gen = e.proc.gen
	}
	l.seq++
	heap.Push(&l.events, e)
}

// unless has fn happen d from now unless over is true by then.
func (l *loop) unless(over *bool, d time.Duration, p *proc, fn func()) {
	l.push(event{at: l.now + d, proc: p, over: over, fn: fn})
}

// step lets the next event happen; false: there is none.
func (l *loop) step() bool {
	for len(l.events) > 0 {
		e := heap.Pop(&l.events).(event)
		if e.over != nil && *e.over {
			continue
		}
		l.now = max(l.now, e.at)
		if e.proc != nil {
			if e.proc.gen != e.gen || !e.proc.up {
				continue
			}
			if e.proc.pausedUntil > l.now {
				e.at, e.seq = e.proc.pausedUntil, l.seq
				l.seq++
				heap.Push(&l.events, e)
				continue
			}
		}
		l.steps++
		e.fn()
		if e.proc != nil && e.proc.up && e.proc.gen == e.gen && e.proc.settle != nil {
			e.proc.settle()
		}
		return true
	}
	return false
}

// note writes into the trail, and into the hash that says whether two runs are one.
func (l *loop) note(what string, args ...int64) {
	t := &l.trail[l.trace%trailLen]
	l.trace++
	t.at, t.step, t.what, t.n = l.now, l.steps, what, len(args)
	copy(t.args[:], args)
	h := l.hash
	h = (h ^ uint64(l.now)) * 1099511628211
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 1099511628211
	}
	for _, a := range args {
		h = (h ^ uint64(a)) * 1099511628211
	}
	l.hash = h
}

// story is the end of the trail.
func (l *loop) story() string {
	var b strings.Builder
	for i := max(0, l.trace-trailLen); i < l.trace; i++ {
		t := &l.trail[i%trailLen]
		fmt.Fprintf(&b, "%10.4fs #%-6d %s %v\n", t.at.Seconds(), t.step, t.what, t.args[:min(t.n, len(t.args))])
	}
	return b.String()
}

func (l *loop) chance(p float64) bool { return p > 0 && l.rng.Float64() < p }

// between draws a time.
func (l *loop) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(l.rng.Int64N(int64(b-a)))
}

// proc is one process of a node. It is up from its start to its end, and may be stopped
// for a while as by SIGSTOP: what is for it then waits.
type proc struct {
	node        int32
	up          bool
	gen         int
	pausedUntil time.Duration
	skew        time.Duration // of its wall clock
	settle      func()        // after each event of the process: what its goroutines would do
}

// epochOfTime is when simulations begin.
var epochOfTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (l *loop) time() time.Time { return epochOfTime.Add(l.now) }

// procClock is the clock of one process.
type procClock struct {
	l *loop
	p *proc
}

var _ clock.Clock = procClock{}

func (c procClock) Now() time.Time { return c.l.time().Add(c.p.skew) }

func (c procClock) NewTimer(time.Duration) clock.Timer {
	panic("sim: nothing may wait for a channel: there is one goroutine")
}

func (c procClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &simTimer{c: c, f: f}
	t.Reset(d)
	return t
}

type simTimer struct {
	c       procClock
	f       func()
	over    *bool // of what is pending
	pending bool
}

func (t *simTimer) C() <-chan time.Time { return nil }

func (t *simTimer) Stop() bool {
	was := t.pending
	t.pending = false
	if t.over != nil {
		*t.over = true
	}
	return was
}

func (t *simTimer) Reset(d time.Duration) bool {
	was := t.Stop()
	t.pending, t.over = true, new(bool)
	t.c.l.unless(t.over, d, t.c.p, func() {
		t.pending = false
		t.f()
	})
	return was
}
