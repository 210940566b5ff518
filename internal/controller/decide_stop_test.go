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

// MIR-345: a partition's state and its last mirrored epoch go one without the other: a new
// run takes over the state and leaves the epoch until it has mirrored something, one that is
// forgotten leaves the state, and only with the mirror both go.
func TestStateAndLastEpochAreApart(t *testing.T) {
	stopped := metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopped, StateEpoch: 5, LeaderEpoch: 1, HasLME: true, LME: 3, LMO: 40, PreviousState: metadata.StateUnknown}
	after := func(s metadata.MirrorPartition, steps ...writeState) metadata.MirrorPartition {
		t.Helper()
		for _, c := range steps {
			c.Mirror, c.LeaderEpoch, c.StateEpoch = "m", 1, -1
			next, err := nextState(&s, c)
			if err != nil {
				t.Fatal(err)
			}
			s = *next
		}
		return s
	}
	to := func(state metadata.MirrorState) writeState {
		return writeState{MirrorStateWrite: MirrorStateWrite{State: state}}
	}
	for name, steps := range map[string][]writeState{
		"started again":                  {to(metadata.StatePreparing)},
		"failed before anything came":    {to(metadata.StatePreparing), to(metadata.StateFailed)},
		"stopped before anything came":   {to(metadata.StatePreparing), to(metadata.StateStopping)},
		"and that stop is through":       {to(metadata.StatePreparing), to(metadata.StateStopping), to(metadata.StateStopped)},
		"an epoch of its own is refused": {to(metadata.StatePreparing), to(metadata.StateStopping), {MirrorStateWrite: MirrorStateWrite{State: metadata.StateStopping, SetLME: true, LME: 9, LMO: 90}}},
	} {
		if s := after(stopped, steps...); !s.HasLME || s.LME != 3 || s.LMO != 40 || s.State != steps[len(steps)-1].State {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := after(stopped, to(metadata.StatePreparing), to(metadata.StateMirroring)); s.HasLME {
		t.Errorf("mirrored anew: %+v", s)
	}
	forget := writeState{MirrorStateWrite: MirrorStateWrite{State: metadata.StateUnknown, DeleteLME: true}}
	if s := after(stopped, to(metadata.StatePreparing), forget); s.HasLME || s.State != metadata.StatePreparing {
		t.Errorf("without its last epoch: %+v", s)
	}
	forget.Mirror, forget.LeaderEpoch, forget.StateEpoch = "m", 1, -1
	if s, err := nextState(&stopped, forget); err == nil {
		t.Errorf("STOPPED without a last epoch: %+v", s)
	}
}
