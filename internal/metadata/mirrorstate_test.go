package metadata

import "testing"

// TestTransitions tries every pair of states against the table of spec 8.2,
// written down here a second time, as a matrix: a row per origin.
func TestTransitions(t *testing.T) {
	const (
		p = "PREPARING"
		e = "EPOCH_FENCING"
		u = "ULE_RECOVERY"
		m = "MIRRORING"
		x = "PAUSING"
		y = "PAUSED"
		s = "STOPPING"
		z = "STOPPED"
		f = "FAILED"
	)
	want := map[string][]string{
		"UNKNOWN": {p, s, f},
		p:         {p, m, s, f},
		e:         {e, m, x, s, f},
		u:         {u, m, x, s, f},
		m:         {m, e, u, x, s, f},
		x:         {x, y, s, f},
		y:         {y, m, s, f},
		s:         {s, z, f},
		z:         {z, p}, // never FAILED: what was failed over stays writable (S2)
		f:         {f, p, e, u, m, x, s},
	}
	for _, from := range MirrorStates() {
		allowed := make(map[string]bool)
		for _, to := range want[from.String()] {
			allowed[to] = true
		}
		for _, to := range MirrorStates() {
			if got := Allowed(from, to); got != allowed[to.String()] {
				t.Errorf("Allowed(%s, %s) = %v", from, to, got)
			}
		}
		if Allowed(from, 9) || Allowed(from, -2) {
			t.Errorf("from %s: a state that does not exist is allowed", from)
		}
	}
}

func TestRetryTarget(t *testing.T) {
	for _, c := range []struct{ prev, want MirrorState }{
		{StateUnknown, StatePreparing},
		{StatePreparing, StatePreparing},
		{StateEpochFencing, StateEpochFencing},
		{StateULERecovery, StateULERecovery},
		{StateMirroring, StateMirroring},
		{StatePausing, StatePausing},
		{StatePaused, StatePausing},
		{StateStopping, StateStopping},
		{StateFailed, StatePreparing},
	} {
		m := &MirrorPartition{State: StateFailed, PreviousState: c.prev}
		if got := m.RetryTarget(); got != c.want {
			t.Errorf("failed in %s: retry to %s, want %s", c.prev, got, c.want)
		}
		if !Allowed(StateFailed, m.RetryTarget()) {
			t.Errorf("failed in %s: the retry is not allowed", c.prev)
		}
	}
	if got := (*MirrorPartition)(nil).RetryTarget(); got != StatePreparing {
		t.Errorf("nothing recorded: retry to %s", got)
	}
}

// TestNeedBump is spec A.6.
func TestNeedBump(t *testing.T) {
	for _, c := range []struct {
		sle, dle int32
		need     bool
		newDLE   int32
	}{
		{0, 0, true, 11},
		{7, 11, false, 11},
		{8, 11, false, 11},
		{9, 11, true, 20},
		{30, 11, true, 41},
		{-1, 0, true, 10},
		{maxLeaderEpoch - 5, 7, true, maxLeaderEpoch},
		{maxLeaderEpoch, 7, false, 7}, // nothing is above it
		{maxLeaderEpoch - 1, maxLeaderEpoch, false, maxLeaderEpoch},
	} {
		minimum, need := NeedBump(c.sle, c.dle)
		got := c.dle
		if need {
			got = minimum + 1
		}
		if need != c.need || got != c.newDLE {
			t.Errorf("NeedBump(%d, %d): need %v, new epoch %d; want %v, %d", c.sle, c.dle, need, got, c.need, c.newDLE)
		}
	}
}
