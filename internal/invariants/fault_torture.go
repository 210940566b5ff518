//go:build torture

package invariants

import (
	"fmt"
	"os"
)

// A server of a torture build does at its fault points what LOCKSTEP_FAULT says;
// see ParseFaultPlan. A plan that cannot be read ends it at once: a harness that
// believes in faults which never come proves nothing.
func init() {
	spec := os.Getenv("LOCKSTEP_FAULT")
	if spec == "" {
		return
	}
	p, err := ParseFaultPlan(spec)
	if err != nil {
		fmt.Fprintln(os.Stderr, "LOCKSTEP_FAULT:", err)
		os.Exit(2)
	}
	SetFault(p.Hit)
}
