package mirror

import "github.com/lockstep-kafka/lockstep/internal/metadata"

// situation is what a leader knows when it takes a mirror partition over, or
// when the operator's wish changes.
type situation struct {
	desired metadata.Desired
	actual  metadata.MirrorState
	tiered  bool // the destination partition has tiered storage on (N8)
}

// duty is what has to happen.
type duty int8

const (
	dutyNone     duty = iota // the actual state is what is wanted
	dutyGo                   // transition to the state, or re-assert it
	dutyFail                 // FAILED, non-retryable
	dutySchedule             // stay FAILED and wait for the retry
)

// dutyRule is one row of S9; the first whose condition holds decides.
type dutyRule struct {
	number int
	when   func(situation) bool
	duty   duty
	to     metadata.MirrorState // with dutyGo; StateUnknown re-asserts the actual state
}

// dutyRules is S9. Rules 1 and 2 stand first, so that a stop gets a partition
// out of any state, FAILED included: failover is for disasters.
var dutyRules = []dutyRule{
	{1, func(s situation) bool {
		return s.desired == metadata.DesiredStopped && s.actual != metadata.StateStopped
	}, dutyGo, metadata.StateStopping},
	{2, func(s situation) bool { return s.desired == metadata.DesiredStopped }, dutyNone, 0},
	{3, func(s situation) bool { return s.tiered }, dutyFail, 0},
	{4, func(s situation) bool { return s.actual == metadata.StateFailed }, dutySchedule, 0},
	{5, func(s situation) bool {
		return s.desired == metadata.DesiredPaused && metadata.Allowed(s.actual, metadata.StatePausing)
	}, dutyGo, metadata.StatePausing},
	// PAUSING is not reached from PREPARING (8.2): it goes on to MIRRORING, where
	// rule 5 holds. A partition that grew while its topic is paused waits for
	// the resume.
	{5, func(s situation) bool {
		return s.desired == metadata.DesiredPaused && s.actual == metadata.StatePreparing
	}, dutyGo, metadata.StatePreparing},
	{6, func(s situation) bool { return s.desired == metadata.DesiredPaused }, dutyNone, 0},
	{7, func(s situation) bool { return s.actual == metadata.StatePaused }, dutyGo, metadata.StateMirroring},
	{8, func(s situation) bool {
		return s.actual == metadata.StateUnknown || s.actual == metadata.StateStopped
	}, dutyGo, metadata.StatePreparing},
	{9, func(situation) bool { return true }, dutyGo, metadata.StateUnknown},
}

// decideDuty applies S9.
func decideDuty(s situation) (d duty, to metadata.MirrorState) {
	for _, rule := range dutyRules {
		if !rule.when(s) {
			continue
		}
		to := rule.to
		if rule.duty == dutyGo && to == metadata.StateUnknown {
			to = s.actual
		}
		return rule.duty, to
	}
	return dutyNone, 0
}
