package segment

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/panjf2000/ants/v2"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

var logsRebuilding atomic.Int64

func init() {
	ants.Release() // the pool that ants starts for everybody; nobody here uses it
	obs.Gauge("lockstep_logs_rebuilding", func() float64 { return float64(logsRebuilding.Load()) })
}

// historian gathers the histories of a store's logs, a few at a time, those that
// somebody asks for first. It has goroutines only while there is work.
type historian struct {
	store *Store
	stop  atomic.Bool
	done  sync.WaitGroup // runners

	mu struct {
		sync.Mutex
		pool    *ants.Pool // made when first needed
		running int
		// A history may stand in both queues: its pending entry says whether it was
		// taken already.
		asked, rest []*history
		pending     map[*history]struct{}
	}
}

func (g *historian) init(s *Store) {
	g.store = s
	g.mu.pending = make(map[*history]struct{})
}

// add queues a history.
func (g *historian) add(h *history) {
	g.mu.Lock()
	if g.stop.Load() {
		g.mu.Unlock()
		h.end(fmt.Errorf("%w: %s", ErrClosed, h.l.id))
		return
	}
	logsRebuilding.Add(1)
	g.mu.pending[h] = struct{}{}
	if h.asked.Load() {
		g.mu.asked = append(g.mu.asked, h)
	} else {
		g.mu.rest = append(g.mu.rest, h)
	}
	n := g.store.o.HistoryReaders
	if g.mu.running == n {
		g.mu.Unlock()
		return
	}
	if g.mu.pool == nil {
		pool, err := ants.NewPool(n, ants.WithDisablePurge(true))
		if err != nil { // a wrong size, which Options exclude
			g.store.o.Logger.Error("pool for gathering histories", "err", err)
			g.mu.Unlock()
			return
		}
		g.mu.pool = pool
	}
	g.mu.running++
	g.done.Add(1)
	pool := g.mu.pool
	g.mu.Unlock()
	if err := pool.Submit(g.run); err != nil { // the pool was released: the store closes
		g.done.Done()
	}
}

// ask brings a history to the head of the queue.
func (g *historian) ask(h *history) {
	if h.asked.Swap(true) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.mu.pending[h]; ok {
		g.mu.asked = append(g.mu.asked, h)
	}
}

// run gathers until the queue is empty.
func (g *historian) run() {
	defer g.done.Done()
	for h := g.next(); h != nil; h = g.next() {
		g.gather(h)
	}
}

// next takes a history out of the queues. Without one the caller does not run
// any more.
func (g *historian) next() *history {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, queue := range []*[]*history{&g.mu.asked, &g.mu.rest} {
		for len(*queue) > 0 {
			h := (*queue)[0]
			(*queue)[0] = nil
			*queue = (*queue)[1:]
			if _, ok := g.mu.pending[h]; ok {
				delete(g.mu.pending, h)
				return h
			}
		}
	}
	g.mu.running--
	return nil
}

func (g *historian) gather(h *history) {
	l := h.l
	began := g.store.o.Clock.Now()
	err := h.gather(g.stop.Load)
	logsRebuilding.Add(-1)
	var d *DamageError
	switch took := g.store.o.Clock.Now().Sub(began); {
	case errors.As(err, &d):
		g.damaged(l, d)
	case err == nil:
		g.store.o.Logger.Info("history of the log was gathered from its segments", "log", l.id.String(), "end", l.EndOffset(), "seconds", took.Seconds())
	case errors.Is(err, ErrClosed):
	default:
		g.store.o.Logger.Error("history of the log cannot be gathered, it goes offline", "log", l.id.String(), "err", err)
	}
	h.end(err)
}

// damaged takes a log out of use, as the scrubber does.
func (g *historian) damaged(l *Log, d *DamageError) {
	n := noted{base: d.Offset}
	if base, ok := parseFileName(g.store.disk.PathBase(d.File)); ok {
		n.base = base
	}
	if errors.Is(d.Err, errHeads) { // reading the file alone would not show it again
		l.mu.RLock()
		if s := l.mu.segments[findSegment(l.mu.segments, n.base)]; s.base == n.base {
			n.known = known{size: s.size, heads: s.times.heads}
		}
		l.mu.RUnlock()
	}
	if l.condemn(d, n) && g.store.o.OnDamage != nil {
		g.store.o.OnDamage(l.id, d)
	}
}

// close stops what is under way and waits for it.
func (g *historian) close() {
	g.stop.Store(true)
	g.done.Wait()
	g.mu.Lock()
	pool := g.mu.pool
	g.mu.Unlock()
	if pool != nil {
		pool.Release()
	}
}
