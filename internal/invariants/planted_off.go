//go:build !planted

package invariants

// Planted is false: this build has no planted bugs, and the code behind the
// switch is compiled away.
func Planted(string) bool { return false }
