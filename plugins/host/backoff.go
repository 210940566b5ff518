package host

import "time"

// backoff decides when a plugin that failed is started again. It is a function
// of what it is told: no clock inside.
type backoff struct {
	initial, max time.Duration
	breaker      int // failures in a row that open the breaker
	breakerWait  time.Duration
	stableAfter  time.Duration

	failures int // in a row
}

// failed takes how long the process ran (0 if it did not start) and answers how
// long to wait, and whether the breaker is open.
func (b *backoff) failed(ran time.Duration) (wait time.Duration, open bool) {
	if ran >= b.stableAfter {
		b.failures = 0
	}
	b.failures++
	if b.failures >= b.breaker {
		return b.breakerWait, true
	}
	wait = b.initial
	for i := 1; i < b.failures && wait < b.max; i++ {
		wait *= 2
	}
	return min(wait, b.max), false
}
