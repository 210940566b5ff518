//go:build release

package invariants

// Fault compiles to nothing here.
func Fault(string) {}

// SetFault does nothing: a release build has no fault points.
func SetFault(func(name string)) (restore func()) { return func() {} }
