package clock

import (
	"sort"
	"sync"
	"time"
)

// Manual is a clock that stands still until Advance moves it.
type Manual struct {
	mu struct {
		sync.Mutex
		now    time.Time
		timers []*manualTimer // pending only
		seq    int
	}
}

// NewManual starts a clock at the given time.
func NewManual(start time.Time) *Manual {
	m := &Manual{}
	m.mu.now = start
	return m
}

func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.now
}

func (m *Manual) NewTimer(d time.Duration) Timer {
	t := &manualTimer{m: m, c: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

func (m *Manual) AfterFunc(d time.Duration, f func()) Timer {
	t := &manualTimer{m: m, f: f}
	t.Reset(d)
	return t
}

// Advance moves the clock by d and fires what became due, in order of time.
// Functions given to AfterFunc run on the caller's goroutine before Advance
// returns, which makes tests deterministic.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	end := m.mu.now.Add(d)
	for {
		sort.SliceStable(m.mu.timers, func(i, j int) bool {
			a, b := m.mu.timers[i], m.mu.timers[j]
			if a.due.Equal(b.due) {
				return a.seq < b.seq
			}
			return a.due.Before(b.due)
		})
		if len(m.mu.timers) == 0 || m.mu.timers[0].due.After(end) {
			break
		}
		t := m.mu.timers[0]
		m.mu.timers = m.mu.timers[1:]
		t.pending = false
		m.mu.now = t.due
		m.mu.Unlock()
		t.fire()
		m.mu.Lock()
	}
	m.mu.now = end
	m.mu.Unlock()
}

// Timers counts the pending timers: a test that moves the clock for somebody
// has to know that they wait.
func (m *Manual) Timers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.timers)
}

type manualTimer struct {
	m *Manual
	c chan time.Time
	f func()

	// Guarded by m.mu.
	due     time.Time
	seq     int
	pending bool
}

func (t *manualTimer) fire() {
	if t.f != nil {
		t.f()
		return
	}
	select {
	case t.c <- t.m.Now():
	default:
	}
}

func (t *manualTimer) C() <-chan time.Time { return t.c }

func (t *manualTimer) Stop() bool {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.stopLocked()
}

func (t *manualTimer) stopLocked() bool {
	if !t.pending {
		return false
	}
	t.pending = false
	for i, o := range t.m.mu.timers {
		if o == t {
			t.m.mu.timers = append(t.m.mu.timers[:i], t.m.mu.timers[i+1:]...)
			break
		}
	}
	return true
}

func (t *manualTimer) Reset(d time.Duration) bool {
	t.m.mu.Lock()
	was := t.stopLocked()
	t.m.mu.seq++
	t.due, t.seq, t.pending = t.m.mu.now.Add(d), t.m.mu.seq, true
	t.m.mu.timers = append(t.m.mu.timers, t)
	t.m.mu.Unlock()
	if d <= 0 {
		t.m.Advance(0)
	}
	return was
}
