package metadata

import "testing"

// Until a run's gate was passed the records of a mirror partition are those that clients
// wrote here, and the source does not have them: brokers that stop uncleanly have to be
// as careful about them as about any. (Simulation of two clusters, seed 20724: a topic
// whose mirror could not begin lost what was acknowledged before.) From the moment in which
// a mirror is asked to stop on nothing is fetched again. (Seed 400453: one who had lost its
// tail led beside another who had all.)
func TestSourced(t *testing.T) {
	for name, c := range map[string]struct {
		attachment string
		m          *MirrorPartition
		want       bool
	}{
		"in no mirror":                     {"", nil, false},
		"just started":                     {"m", nil, false},
		"started again":                    {"m", &MirrorPartition{State: StateStopped, HasLME: true, LMO: 7}, false},
		"before the gate":                  {"m", &MirrorPartition{State: StatePreparing, HasLME: true, LME: -1, LMO: -1}, false},
		"failed before the gate":           {"m", &MirrorPartition{State: StateFailed, PreviousState: StatePreparing, HasLME: true, LMO: 7}, false},
		"failed before anything":           {"m", &MirrorPartition{State: StateFailed, PreviousState: StateUnknown}, false},
		"mirroring":                        {"m", &MirrorPartition{State: StateMirroring}, true},
		"failed while mirroring":           {"m", &MirrorPartition{State: StateFailed, PreviousState: StateMirroring}, true},
		"paused":                           {"m.paused", &MirrorPartition{State: StatePaused}, true},
		"asked to stop":                    {"m.removed", &MirrorPartition{State: StateMirroring}, false},
		"being stopped":                    {"m.removed", &MirrorPartition{State: StateStopping}, false},
		"being stopped, recorded":          {"m.removed", &MirrorPartition{State: StateStopping, HasLME: true, LMO: 7}, false},
		"being stopped before the gate":    {"m.removed", &MirrorPartition{State: StateStopping, HasLME: true, LME: -1, LMO: -1}, false},
		"stopped":                          {"m.removed", &MirrorPartition{State: StateStopped, HasLME: true, LMO: 7}, false},
		"recorded while in another mirror": {"n", &MirrorPartition{State: StateMirroring}, false},
	} {
		if c.m != nil {
			c.m.Mirror = "m"
		}
		topic := &Topic{MirrorName: c.attachment}
		if got := topic.Sourced(&Partition{Mirror: c.m}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
