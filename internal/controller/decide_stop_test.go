package controller

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A partition had failed for good, here of a mirror loop, and the operator failed it
// over. One call of the stop was not answered in time: the partition was FAILED again,
// and still for good, so that nobody went on with the failover. -1 stays until recover
// or stop (S13). (Simulation of two clusters, seed 199.)
func TestStopOfWhatFailedForGood(t *testing.T) {
	s := noState("m")
	write := func(c writeState) {
		t.Helper()
		c.Mirror, c.LeaderEpoch, c.StateEpoch = "m", 1, -1
		next, err := nextState(&s, c)
		if err != nil {
			t.Fatal(err)
		}
		s = *next
	}
	to := func(state metadata.MirrorState) writeState {
		return writeState{MirrorStateWrite: MirrorStateWrite{State: state}}
	}
	write(to(metadata.StatePreparing))
	loop := to(metadata.StateFailed)
	loop.ErrorMessage, loop.NonRetryable = "mirror loop", true
	write(loop)
	write(to(metadata.StateStopping))
	slow := to(metadata.StateFailed)
	slow.ErrorMessage, slow.RetryAttempt = "no answer in time", 1
	write(slow)
	if s.RetryAttempt != 1 || s.PreviousState != metadata.StateStopping {
		t.Errorf("attempt %d, previous state %s: the stop is not retried", s.RetryAttempt, s.PreviousState)
	}
	// Another failure of the stop counts on.
	write(to(metadata.StateStopping))
	slow.RetryAttempt = 2
	write(slow)
	if s.RetryAttempt != 2 {
		t.Errorf("attempt %d after two failures of the stop", s.RetryAttempt)
	}
}
