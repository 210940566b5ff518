// Package cores tells how many processors there are, which is less than what the Go
// scheduler is told.
package cores

import (
	"os"
	"runtime"
)

// count is taken before anybody changes what the scheduler is told: the machine's
// processors, or what its container is limited to.
var count = runtime.GOMAXPROCS(0)

// Count is how many goroutines can work at the same time: what work that only computes
// is spread over.
func Count() int { return count }

// AddSpare lets the Go scheduler run more goroutines at a time than there are
// processors, unless the operator has set GOMAXPROCS. The scheduler gives a goroutine
// that computes 10 ms, and asks nobody who has just woken up; the kernel gives those who
// wake up their turn at once. With spare places a goroutine that wakes up always finds a
// thread, and which of the threads run is the kernel's choice. Who computes long must
// not take the spare places as well: their number stays bound to [Count].
//
// A container whose limit is changed while the process runs keeps what it began with.
func AddSpare() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(withSpare(count))
	}
}

// withSpare adds two, or a quarter. More make nothing faster, and each costs the
// allocator and the collector memory.
func withSpare(n int) int { return n + max(2, n/4) }
