package coordinator

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Slots keeps the machines of one shard by name. Only the shard's goroutine uses
// it.
type Slots[M any] struct {
	shard  *Shard
	tick   func(sl *Slot[M], now time.Time)
	byName map[string]*Slot[M]
}

// Slot is one machine with its alarm.
type Slot[M any] struct {
	M     M
	name  string
	timer clock.Timer
	armed time.Time // when the timer fires; zero: not set
}

// NewSlots makes an empty set. tick is called when a machine's alarm rings.
func NewSlots[M any](s *Shard, tick func(sl *Slot[M], now time.Time)) *Slots[M] {
	return &Slots[M]{shard: s, tick: tick, byName: map[string]*Slot[M]{}}
}

// Len is how many there are.
func (x *Slots[M]) Len() int { return len(x.byName) }

// Get is nil for a name that is not there.
func (x *Slots[M]) Get(name string) *Slot[M] { return x.byName[name] }

// Add puts a machine in the place of a name that is free.
func (x *Slots[M]) Add(name string, m M) *Slot[M] {
	sl := &Slot[M]{M: m, name: name}
	x.byName[name] = sl
	return sl
}

// Drop forgets a machine and tells whether it was there.
func (x *Slots[M]) Drop(sl *Slot[M]) bool {
	if x.byName[sl.name] != sl {
		return false
	}
	sl.stop()
	delete(x.byName, sl.name)
	return true
}

func (sl *Slot[M]) stop() {
	if sl.timer != nil {
		sl.timer.Stop()
	}
}

// Stop stops all alarms.
func (x *Slots[M]) Stop() {
	for _, sl := range x.byName {
		sl.stop()
	}
}

// All goes through the machines in no order.
func (x *Slots[M]) All() iter.Seq[M] {
	return func(yield func(M) bool) {
		for _, sl := range x.byName {
			if !yield(sl.M) {
				return
			}
		}
	}
}

// Sorted goes through the slots by name. Those that are dropped meanwhile are
// left out.
func (x *Slots[M]) Sorted() iter.Seq[*Slot[M]] {
	return func(yield func(*Slot[M]) bool) {
		for _, name := range slices.Sorted(maps.Keys(x.byName)) {
			if sl := x.byName[name]; sl != nil && !yield(sl) {
				return
			}
		}
	}
}

// Arm moves a machine's alarm forward to wake, if that is sooner; zero is never.
// Too early an alarm is left alone: its tick finds the right time.
func (x *Slots[M]) Arm(sl *Slot[M], wake, now time.Time) {
	if wake.IsZero() || !sl.armed.IsZero() && !wake.Before(sl.armed) {
		return
	}
	sl.armed = wake
	if sl.timer != nil {
		sl.timer.Reset(wake.Sub(now))
		return
	}
	sl.timer = x.shard.o.Clock.AfterFunc(wake.Sub(now), func() {
		_ = x.shard.Post(func(now time.Time) { // refused: the shard has ended
			if x.byName[sl.name] != sl {
				return
			}
			sl.armed = time.Time{}
			x.tick(sl, now)
		})
	})
}
