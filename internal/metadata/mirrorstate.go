package metadata

import "fmt"

// MirrorState is where one mirror partition stands (spec 8.1). Numbers are
// stored, and never cross a cluster boundary; names do (P10).
type MirrorState int8

const (
	StatePreparing    MirrorState = 0
	StateEpochFencing MirrorState = 1
	StateULERecovery  MirrorState = 2
	StateMirroring    MirrorState = 3
	StatePausing      MirrorState = 4
	StatePaused       MirrorState = 5
	StateStopping     MirrorState = 6
	StateStopped      MirrorState = 7
	StateFailed       MirrorState = 8
	StateUnknown      MirrorState = -1 // nothing recorded yet; never stored
)

var mirrorStateNames = [...]string{
	StatePreparing:    "PREPARING",
	StateEpochFencing: "EPOCH_FENCING",
	StateULERecovery:  "ULE_RECOVERY",
	StateMirroring:    "MIRRORING",
	StatePausing:      "PAUSING",
	StatePaused:       "PAUSED",
	StateStopping:     "STOPPING",
	StateStopped:      "STOPPED",
	StateFailed:       "FAILED",
}

// MirrorStates lists every state, UNKNOWN first.
func MirrorStates() []MirrorState {
	states := []MirrorState{StateUnknown}
	for s := range mirrorStateNames {
		states = append(states, MirrorState(s))
	}
	return states
}

// String is the upper-case name that describe answers carry (P10).
func (s MirrorState) String() string {
	switch {
	case s == StateUnknown:
		return "UNKNOWN"
	case s.Valid():
		return mirrorStateNames[s]
	}
	return fmt.Sprintf("INVALID(%d)", int8(s))
}

// Valid reports a state that can be stored.
func (s MirrorState) Valid() bool { return s >= 0 && int(s) < len(mirrorStateNames) }

// transition is one row of the table: to is reached from each of from.
type transition struct {
	to   MirrorState
	from []MirrorState
}

// transitions is the whole life of a mirror partition (spec 8.2), one row per
// target. What is not listed cannot happen: the writer has a bug or an old view
// (S1). The same state again is always allowed: a new leader re-asserts it and
// repeats the action.
//
// Two rows are choices. STOPPED to FAILED is missing, so that a topic that was
// failed over never turns read-only by itself (S2). FAILED may go wherever a
// retry must be able to return to (S3).
var transitions = [...]transition{
	// start; leadership gained with nothing done yet; retry; recover
	{StatePreparing, []MirrorState{StateUnknown, StateStopped, StateFailed}},
	// a fetched batch's epoch passed ours: raise ours first
	{StateEpochFencing, []MirrorState{StateMirroring, StateFailed}},
	// the source lost records and the option allows to follow it
	{StateULERecovery, []MirrorState{StateMirroring, StateFailed}},
	// gate passed; epoch raised; resume; retry
	{StateMirroring, []MirrorState{StatePreparing, StateEpochFencing, StateULERecovery, StatePaused, StateFailed}},
	{StatePausing, []MirrorState{StateMirroring, StateEpochFencing, StateULERecovery, StateFailed}},
	// the fetcher is gone
	{StatePaused, []MirrorState{StatePausing}},
	// failover, from wherever the disaster found us (O1)
	{StateStopping, []MirrorState{StateUnknown, StatePreparing, StateEpochFencing, StateULERecovery,
		StateMirroring, StatePausing, StatePaused, StateFailed}},
	// LME stored, epoch raised, transactions ended, producer ids reset: writable
	{StateStopped, []MirrorState{StateStopping}},
	{StateFailed, []MirrorState{StateUnknown, StatePreparing, StateEpochFencing, StateULERecovery,
		StateMirroring, StatePausing, StatePaused, StateStopping}},
}

// Allowed reports whether a partition in state from may be written to state to.
func Allowed(from, to MirrorState) bool {
	if !to.Valid() {
		return false // UNKNOWN is the absence of a record, reached only by deletion
	}
	if from == to {
		return true
	}
	for _, t := range transitions {
		if t.to != to {
			continue
		}
		for _, f := range t.from {
			if f == from {
				return true
			}
		}
	}
	return false
}

// RetryTarget is the state that a retry or a recover of a FAILED partition goes
// to (S17, S20): where it failed, or PREPARING when that is unknown. PAUSED is
// re-entered through PAUSING, because only an action done leads into it.
func (m *MirrorPartition) RetryTarget() MirrorState {
	switch {
	case m == nil:
		return StatePreparing
	case m.PreviousState == StatePaused:
		return StatePausing
	case m.PreviousState != StateFailed && Allowed(StateFailed, m.PreviousState):
		return m.PreviousState
	}
	return StatePreparing
}
