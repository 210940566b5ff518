//go:build planted

package invariants

import "os"

// bug is the one that LOCKSTEP_PLANT names.
var bug = os.Getenv("LOCKSTEP_PLANT")

// Planted says that the named bug is switched on. Each is one that a peer once
// had or that a reviewer fears; a harness that does not find it is broken
// (H10, `make planted`). Only builds with the tag "planted" have any.
func Planted(name string) bool { return name == bug }
