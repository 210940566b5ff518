package kafka

import (
	"container/list"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// answers bounds the memory of large answers that their peers are slow to
// read. A small one fits the connection's own buffer and is not counted.
//
// An answer that finds no room waits for one to leave. When none has moved for
// stalled, the one that stands still longest is given up and its connection
// closed: it is the peer that reads least who goes, not who came last.
type answers struct {
	limit int64
	clock clock.Clock

	mu struct {
		sync.Mutex
		held    int64
		writing *list.List // of *writing, the one that moved longest ago in front
		freed   chan struct{}
	}
}

// writing is one answer on its way out.
type writing struct {
	size    int64
	moved   time.Time
	abort   func()
	element *list.Element
}

const (
	// answerBudget lets 64 slow readers have an answer of 1 MiB each.
	answerBudget = 64 << 20
	// stalled is how long an answer may stand still while others need its room.
	stalled = time.Second
)

func newAnswers(limit int64, c clock.Clock) *answers {
	a := &answers{limit: limit, clock: c}
	a.mu.writing = list.New()
	a.mu.freed = make(chan struct{})
	return a
}

// enter makes room for an answer of size bytes. abort closes its connection;
// it is called at most once and without a lock. nil: gone ended first.
func (a *answers) enter(size int, abort func(), gone <-chan struct{}) *writing {
	w := &writing{size: min(int64(size), a.limit), abort: abort}
	for {
		a.mu.Lock()
		if a.mu.held+w.size <= a.limit {
			a.mu.held += w.size
			w.moved = a.clock.Now()
			w.element = a.mu.writing.PushBack(w)
			a.mu.Unlock()
			return w
		}
		slowest := a.mu.writing.Front().Value.(*writing)
		freed, idle := a.mu.freed, a.clock.Now().Sub(slowest.moved)
		if idle < stalled {
			slowest = nil
		} else {
			a.removeLocked(slowest)
		}
		a.mu.Unlock()
		if slowest != nil {
			slowest.abort()
			continue
		}
		timer := a.clock.NewTimer(stalled - idle)
		select {
		case <-freed:
		case <-timer.C():
		case <-gone:
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// advance notes that the peer has read some. Answers that are not counted are
// nil, here and in leave.
func (a *answers) advance(w *writing) {
	if w == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.element != nil {
		w.moved = a.clock.Now()
		a.mu.writing.MoveToBack(w.element)
	}
}

// leave gives the room back.
func (a *answers) leave(w *writing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.removeLocked(w)
}

func (a *answers) removeLocked(w *writing) {
	if w.element == nil {
		return // given up already
	}
	a.mu.writing.Remove(w.element)
	w.element = nil
	a.mu.held -= w.size
	close(a.mu.freed)
	a.mu.freed = make(chan struct{})
}
