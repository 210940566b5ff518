// Package invariants holds the assertions on our own state. A broken one is
// our bug: in production it becomes an error that takes the one partition or
// request out of service, in tests it panics so that nobody can overlook it.
package invariants

import (
	"fmt"
	"testing"
)

// Error says that our own state contradicts itself.
type Error struct{ Message string }

func (e *Error) Error() string { return "broken invariant: " + e.Message }

// Check returns an *Error when ok is false; under `go test` it panics instead.
// The format is only evaluated on failure.
func Check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	err := &Error{Message: fmt.Sprintf(format, args...)}
	if testing.Testing() {
		panic(err)
	}
	return err
}

// Poison overwrites a buffer that was given back, so that a use after release
// shows as damaged bytes in a test. It does nothing in production.
func Poison(b []byte) {
	if !testing.Testing() {
		return
	}
	if len(b) == 0 {
		return
	}
	b[0] = 0xDB
	for n := 1; n < len(b); n *= 2 { // copying is as fast as memory is
		copy(b[n:], b[:n])
	}
}
