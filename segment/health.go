package segment

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// State is how a log directory is. Greater is worse.
type State int8

const (
	Healthy State = iota
	Slow          // an operation of the disk is outstanding for longer than Options.StallTimeout
	Full          // no room for records: appends answer ErrFull, the rest goes on
	Failed        // an fsync failed: nothing is acknowledged any more (ErrFailed)
)

var stateNames = [...]string{Healthy: "healthy", Slow: "slow", Full: "full", Failed: "failed"}

// String is the state as events and checks print it.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "state-" + strconv.Itoa(int(s))
	}
	return stateNames[s]
}

// Health is the state of a log directory.
type Health struct {
	State State
	Err   error     // why; nil while it is Healthy
	Since time.Time // when the directory came into this state
}

// lookInterval is how often the watcher looks at the disk. It bounds how long
// somebody else's full disk goes unnoticed; a look costs two system calls' time.
const lookInterval = 250 * time.Millisecond

// repeatAfter is how long an event about a log directory is not said again.
const repeatAfter = time.Minute

// health watches one log directory: whether its disk has room (space), whether
// it answers (stalls), and whether an fsync failed. Only its goroutine, the
// watcher, tells others, one change after the other, without any lock held;
// anybody may note a condition.
type health struct {
	store *Store
	wake  chan struct{} // capacity 1: a condition changed
	stop  chan struct{}
	done  chan struct{}

	current atomic.Pointer[Health] // written under mu

	mu struct {
		sync.Mutex // a leaf
		full, slow error
	}

	// The watcher's own.
	told State                 // what Options.OnHealth heard last
	said State                 // what the log heard last
	when [Failed + 1]time.Time // and when it heard of each state
	calm time.Time             // since when a slow directory looks well again
}

func newHealth(s *Store) *health {
	h := &health{store: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	h.current.Store(&Health{Since: s.o.Clock.Now()})
	return h
}

// Health tells how the log directory is, at once and without asking the disk.
func (s *Store) Health() Health { return *s.health.current.Load() }

// Err is the error that took the store out of use, nil while it is in use.
func (s *Store) Err() error { return s.failure() }

// full notes that there is no room for records, or with nil that there is again.
func (h *health) full(err error) { h.note(func() { h.mu.full = err }) }

// slow notes that the disk does not answer, or with nil that it does again.
func (h *health) slow(err error) { h.note(func() { h.mu.slow = err }) }

// note changes a condition and publishes the state that follows from all.
func (h *health) note(change func()) {
	h.mu.Lock()
	change()
	next := Health{}
	switch failed := h.store.failure(); {
	case failed != nil:
		next.State, next.Err = Failed, failed
	case h.mu.full != nil:
		next.State, next.Err = Full, h.mu.full
	case h.mu.slow != nil:
		next.State, next.Err = Slow, h.mu.slow
	}
	changed := next.State != h.current.Load().State
	if changed {
		next.Since = h.store.o.Clock.Now()
		h.current.Store(&next)
	}
	h.mu.Unlock()
	if changed {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

// run is the watcher. It is not the flusher, which may hang in the very fsync
// that it has to notice.
func (h *health) run() {
	defer close(h.done)
	timer := h.store.o.Clock.NewTimer(lookInterval)
	defer timer.Stop()
	for {
		select {
		case <-h.wake:
			h.tell()
		case <-timer.C():
			h.look()
			h.tell()
			timer.Reset(lookInterval)
		case <-h.stop:
			return
		}
	}
}

func (h *health) close() {
	close(h.stop)
	<-h.done
	h.tell() // what the last flush found
}

// look asks the disk for its room, and the outstanding operations for their age.
func (h *health) look() {
	s := h.store
	now := s.o.Clock.Now()
	s.space.look()
	age := s.disk.stalls.look(now)
	limit := s.o.StallTimeout
	switch slow := h.isSlow(); {
	case limit <= 0:
	case age > limit:
		h.calm = time.Time{}
		if !slow {
			h.slow(fmt.Errorf("segment: disk of %s has not answered for %s (limit %s)", s.o.Dir, age.Round(time.Millisecond), limit))
		}
	case !slow:
	case age > limit/2:
		h.calm = time.Time{}
	case h.calm.IsZero():
		h.calm = now
	case now.Sub(h.calm) >= limit/2:
		// A disk that stalls again and again must not be announced well in between.
		h.calm = time.Time{}
		h.slow(nil)
	}
}

func (h *health) isSlow() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.slow != nil
}

// tell passes a change on: to the log of events, where nothing is repeated
// within a minute but the last word is always the truth in the end, and to the
// owner's hook.
func (h *health) tell() {
	now, cur := h.store.o.Clock.Now(), *h.current.Load()
	if cur.State != h.said && (h.when[cur.State].IsZero() || now.Sub(h.when[cur.State]) >= repeatAfter) {
		h.said, h.when[cur.State] = cur.State, now
		h.event(cur)
	}
	if cur.State == h.told {
		return
	}
	h.told = cur.State
	if h.store.o.OnHealth != nil {
		h.store.o.OnHealth(cur)
	}
}

func (h *health) event(cur Health) {
	s := h.store
	room := s.space.room()
	log := s.o.Logger.With("dir", s.o.Dir, "state", cur.State.String(), "free_bytes", room.free, "reserve_bytes", room.reserve)
	switch cur.State {
	case Healthy:
		log.Info("log directory is healthy again: records are taken")
	case Slow:
		log.Error("log directory is slow: acknowledgements wait for its disk", "err", cur.Err)
	case Full:
		log.Error("log directory is full: no records are taken until there is room; reading goes on", "err", cur.Err)
	case Failed:
		log.Error("log directory failed, nothing in it is acknowledged any more; restart when the disk is well", "err", cur.Err)
	}
}

// seldom logs an error that may come with each operation, once a minute.
func (s *Store) seldom(what string, err error) {
	now := s.disk.stalls.since(s.o.Clock.Now())
	next := s.quietUntil.Load()
	if now >= next && s.quietUntil.CompareAndSwap(next, now+int64(repeatAfter)) {
		s.o.Logger.Error(what, "dir", s.o.Dir, "err", err)
	}
}

// healthGauges are the metrics of one log directory.
var healthGauges = map[string]func(*Store) float64{
	"lockstep_log_dir_state":                    func(s *Store) float64 { return float64(s.Health().State) },
	"lockstep_log_dir_free_bytes":               func(s *Store) float64 { return float64(s.space.room().free) },
	"lockstep_log_dir_reserve_bytes":            func(s *Store) float64 { return float64(s.space.room().reserve) },
	"lockstep_log_dir_ballast_bytes":            func(s *Store) float64 { return float64(s.space.room().ballast) },
	"lockstep_log_dir_oldest_operation_seconds": func(s *Store) float64 { return s.disk.stalls.age(s.o.Clock.Now()).Seconds() },
}

func (h *health) register() {
	for name, of := range healthGauges {
		obs.Gauge(name, func() float64 { return of(h.store) }, "dir", h.store.o.Dir)
	}
}

func (h *health) unregister() {
	for name := range healthGauges {
		obs.Unregister(name, "dir", h.store.o.Dir)
	}
}
