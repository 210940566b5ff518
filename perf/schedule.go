package perf

import "time"

// schedule says when each record is due. It is fixed by start and rate, and
// does not move when the sender falls behind: that is what makes the loop open.
type schedule struct {
	start time.Time
	rate  float64 // records per second; 0 is "now", a closed loop
}

// due is the planned time of record n, counted from 0.
func (s schedule) due(n int64) time.Time {
	return s.start.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
}

// ready is how many records are due at now.
func (s schedule) ready(now time.Time) int64 {
	if now.Before(s.start) {
		return 0
	}
	return int64(now.Sub(s.start).Seconds()*s.rate) + 1
}
