// Package clock is the time that decisions are given. Production code passes
// System; tests pass a Manual clock and move it by hand, so that no test has
// to sleep and every timeout can be tried at its exact edge.
package clock

import "time"

// Clock tells the time and wakes its caller. Implementations are safe for use
// by several goroutines.
type Clock interface {
	// Now is the wall time with Go's monotonic reading where there is one.
	Now() time.Time
	// NewTimer fires once on its channel after d.
	NewTimer(d time.Duration) Timer
	// AfterFunc runs f on its own goroutine after d. The timer's channel is nil.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is one pending wake-up; its methods mean what they mean on time.Timer.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// System is the machine's own clock.
func System() Clock { return system{} }

type system struct{}

func (system) Now() time.Time { return time.Now() }

func (system) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

func (system) AfterFunc(d time.Duration, f func()) Timer {
	return systemTimer{time.AfterFunc(d, f)}
}

type systemTimer struct{ t *time.Timer }

func (t systemTimer) C() <-chan time.Time        { return t.t.C }
func (t systemTimer) Stop() bool                 { return t.t.Stop() }
func (t systemTimer) Reset(d time.Duration) bool { return t.t.Reset(d) }
