package mirror

import (
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// gateView is everything the gate looks at, read anew at each evaluation (C8).
type gateView struct {
	leader         int32
	leaderEpoch    int32
	partitionEpoch int32   // grows with each change of the ISR
	replicas       []int32 // assigned, joining ones included
	isr            []int32
	minISR         int
	unclean        bool // mirror.support.unclean.leader.election
}

// gateVerdict is what the gate wants next.
type gateVerdict int8

const (
	gateWait     gateVerdict = iota // too few replicas in sync: cut nothing (W28)
	gateTruncate                    // enough replicas: cut the leader's log to the target (W29)
	gateConfirm                     // cut; replicas have still to show that they followed (W30)
	gatePass                        // every replica that counts is a prefix of the source
)

// gate holds a partition in PREPARING or ULE_RECOVERY until the replicas that
// could lead next have cut their logs too (9.6.4). Without it the leader could
// append the source's records while a follower holds others at the same
// offsets.
//
// Invariant: confirmed is empty until truncated.
type gate struct {
	target int64 // where the log is cut

	truncated bool
	epoch     int32 // leader epoch in which nothing but what is left was ever fetched
	logEnd    int64 // of the leader after the cut
	confirmed map[int32]bool
}

// evaluate says what is next and, while it waits, for whom.
func (g *gate) evaluate(v gateView) (verdict gateVerdict, missing []int32) {
	if g.truncated && g.epoch < v.leaderEpoch {
		*g = gate{target: g.target} // another leadership: what was confirmed to the old one is void
	}
	waitFor := v.isr
	if v.unclean {
		waitFor = v.replicas
		for _, r := range v.replicas {
			if !slices.Contains(v.isr, r) {
				missing = append(missing, r)
			}
		}
		if len(missing) > 0 {
			return gateWait, missing
		}
	} else if len(v.isr) < min(v.minISR, len(v.replicas)) {
		for _, r := range v.replicas {
			if !slices.Contains(v.isr, r) {
				missing = append(missing, r)
			}
		}
		return gateWait, missing
	}
	if !g.truncated {
		return gateTruncate, nil
	}
	for _, r := range waitFor {
		if r != v.leader && !g.confirmed[r] && !invariants.Planted("gateAsksNobody") {
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 || g.epoch > v.leaderEpoch { // the metadata that show the epoch are on their way
		return gateConfirm, missing
	}
	return gatePass, nil
}

// cut notes that the leader cut its log, also when there was nothing to cut:
// followers may be longer. Fetches in leaderEpoch count from here on.
func (g *gate) cut(leaderEpoch int32, logEnd int64) {
	g.truncated, g.epoch, g.logEnd = true, leaderEpoch, logEnd
	g.confirmed = make(map[int32]bool)
}

// passed is what the metadata remember of a gate: who went through, and hence who
// did not (O4). Nil where there is one replica.
func (g *gate) passed(v gateView) *controller.MirrorGate {
	if len(v.replicas) < 2 {
		return nil
	}
	through := &controller.MirrorGate{Target: g.logEnd, PartitionEpoch: v.partitionEpoch}
	for _, r := range v.replicas {
		if r == v.leader || g.confirmed[r] {
			through.Confirmed = append(through.Confirmed, r)
		}
	}
	return through
}

// fetched notes a follower's fetch. Only one that was sent after the cut and from within
// the leader's log proves anything. When it was sent only its leader epoch tells: one
// may arrive late, when its sender has long asked again, and got what the leader has cut
// since. So the leader that has cut something raises its epoch, and asks for the new one
// (see task.cut).
func (g *gate) fetched(replica, leaderEpoch int32, offset int64) {
	if g.truncated && leaderEpoch == g.epoch && offset <= g.logEnd {
		g.confirmed[replica] = true
	}
}
