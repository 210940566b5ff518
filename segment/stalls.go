package segment

import (
	"sync/atomic"
	"time"
)

// stalls knows since when operations of the disk are outstanding. An operation
// takes a slot, writes the watcher's time into it, and clears it when it ends:
// no clock is read and nothing is allocated, so that also appends can be
// watched. Where all slots that are tried are taken, the operation goes
// unwatched; those that hold them are not.
type stalls struct {
	start time.Time    // times are counted from here: a wall clock that is set proves nothing
	now   atomic.Int64 // of the watcher's last look
	slots [stallSlots]stallSlot
}

type stallSlot struct {
	began atomic.Int64 // 0: free
	_     [56]byte     // a cache line of its own
}

const (
	stallSlots = 64
	stallTries = 4
)

func newStalls(start time.Time) *stalls {
	w := &stalls{start: start}
	w.now.Store(w.since(start))
	return w
}

// since is a time as slots hold it, never 0.
func (w *stalls) since(t time.Time) int64 { return int64(t.Sub(w.start)) + 1 }

// begin notes an operation. Different hints make it unlikely that two meet. The
// result is for end; nil means that it is not watched.
func (w *stalls) begin(hint uint32) *stallSlot {
	if w == nil {
		return nil // a file that is only read, without a store
	}
	now := w.now.Load()
	for i := range uint32(stallTries) {
		if s := &w.slots[(hint+i)%stallSlots]; s.began.CompareAndSwap(0, now) {
			return s
		}
	}
	return nil
}

func (s *stallSlot) end() {
	if s != nil {
		s.began.Store(0)
	}
}

// look moves the time on and tells the age of the oldest operation. One that
// began since the last look counts from there.
func (w *stalls) look(now time.Time) time.Duration {
	age := w.age(now)
	w.now.Store(w.since(now))
	return age
}

func (w *stalls) age(now time.Time) time.Duration {
	oldest := w.since(now)
	for i := range w.slots {
		if began := w.slots[i].began.Load(); began != 0 {
			oldest = min(oldest, began)
		}
	}
	return time.Duration(w.since(now) - oldest)
}
