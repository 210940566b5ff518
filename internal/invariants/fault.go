//go:build !release

package invariants

import "sync/atomic"

// hook is set by tests and harnesses only.
var hook atomic.Pointer[func(name string)]

// Fault names a point before or after a durable step (reliability rule 12). A
// hook may sleep there, fail by panic, or end the process. In release builds
// (tag "release") it compiles to nothing.
func Fault(name string) {
	if f := hook.Load(); f != nil {
		(*f)(name)
	}
}

// SetFault installs the hook for the duration of a test and returns the
// function that puts the one before it back.
func SetFault(f func(name string)) (restore func()) {
	old := hook.Swap(&f)
	return func() { hook.Store(old) }
}
