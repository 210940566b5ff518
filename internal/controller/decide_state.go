package controller

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// nonRetryable is the attempt of a failure that no retry can mend (S13, S18).
const nonRetryable = -1

// decideWriteState writes one mirror partition's state (8.3). Order of the
// checks: is it the partition the writer means; is the writer current (S5, S6,
// A.5); may this state follow (S1).
func decideWriteState(img *metadata.Image, c writeState) ([]Change, error) {
	t := img.TopicByID(c.Topic)
	if t == nil {
		return nil, fmt.Errorf("mirror %s: write state: %w: %s", c.Mirror, ErrUnknownTopicID, c.Topic)
	}
	p := t.Partition(c.Partition)
	if p == nil {
		return nil, fmt.Errorf("mirror %s: write state: %w: %s-%d", c.Mirror, ErrUnknownTopic, t.Name, c.Partition)
	}
	if t.Attachment().Mirror != c.Mirror {
		return nil, fmt.Errorf("mirror %s: write state: %w: %s", c.Mirror, ErrTopicNotInMirror, t.Name)
	}
	// A leader that was replaced is fenced from the moment on, not only when its
	// successor has written (S6).
	if c.LeaderEpoch >= 0 && c.LeaderEpoch < p.LeaderEpoch && !invariants.Planted("deposedStateWrite") {
		return nil, fmt.Errorf("mirror %s: write state of %s-%d: %w: %d is below %d", c.Mirror, t.Name, p.Index, ErrFencedLeaderEpoch, c.LeaderEpoch, p.LeaderEpoch)
	}
	next, err := nextState(t.MirrorPartition(p), c)
	if err != nil {
		return nil, fmt.Errorf("mirror %s: write state of %s-%d: %w", c.Mirror, t.Name, p.Index, err)
	}
	if err := stopWanted(t, p, c.State); err != nil {
		return nil, fmt.Errorf("mirror %s: write state of %s-%d: %w", c.Mirror, t.Name, p.Index, err)
	}
	changes := []Change{putState{t.ID, p.Index, next}}
	if c.Gate != nil {
		gated, err := passGate(p, c.Gate)
		if err == nil {
			err = enoughForGate(t, p)
		}
		if err != nil {
			return nil, fmt.Errorf("mirror %s: write state of %s-%d: %w", c.Mirror, t.Name, p.Index, err)
		}
		if gated != nil {
			changes = append(changes, putPartition{ID: t.ID, Partition: gated})
		}
	}
	return changes, nil
}

// stopWanted refuses PREPARING where the operator has stopped the topic again since the
// leader asked for it: clients may write there, and have been told so (GI-25).
func stopWanted(t *metadata.Topic, p *metadata.Partition, to metadata.MirrorState) error {
	if to == metadata.StatePreparing && !t.ReadOnly(p) && !invariants.Planted("latePreparing") {
		return fmt.Errorf("%w: it is asked to be STOPPED, and is", ErrMirrorStates)
	}
	return nil
}

// enoughForGate refuses a gate that was passed under configs that are not the topic's any
// more: it opens to no fewer replicas than they ask for now (GI-65, W28). The leader looks
// again when it has heard of them.
func enoughForGate(t *metadata.Topic, p *metadata.Partition) error {
	r := t.MirrorPartition(p)
	all := t.ConfigBool(metadata.MirrorULEConfig) || r != nil && r.State == metadata.StateULERecovery
	need := min(int(t.ConfigInt("min.insync.replicas")), len(p.Replicas))
	if all {
		need = len(p.Replicas)
	}
	if len(p.ISR) < need && !invariants.Planted("gateOfOldConfigs") {
		return fmt.Errorf("%w: the gate was passed by %d replicas in sync, it takes %d", ErrInvalidUpdateVersion, len(p.ISR), need)
	}
	return nil
}

// passGate remembers the replicas that a gate left out (O4); nil if there is nothing
// to remember. It raises the partition epoch, so that no ISR is taken that was
// proposed for what a replica had before.
//
// One that was left out before and has not shown up since may have to go further back
// than this gate did.
//
// Where there is such a one the leader epoch is raised too: whoever follows in it has
// seen that it is barred. In the old one it could follow without knowing, be taken into
// the ISR for what it got, and cut that when it learns of the barrier.
func passGate(p *metadata.Partition, g *MirrorGate) (*metadata.Partition, error) {
	if g.Target < 0 {
		return nil, fmt.Errorf("%w: a gate at %d", ErrInvalidRequest, g.Target)
	}
	if g.PartitionEpoch != p.PartitionEpoch {
		return nil, fmt.Errorf("%w: the gate was passed in %d, it is %d", ErrInvalidUpdateVersion, g.PartitionEpoch, p.PartitionEpoch)
	}
	next := *p
	next.Stale = nil
	for _, id := range p.Replicas {
		if slices.Contains(g.Confirmed, id) {
			continue
		}
		s := metadata.StaleReplica{ID: id, Barrier: p.Barrier + 1, Offset: g.Target}
		if before := p.StaleReplica(id); before != nil {
			s.Offset = min(s.Offset, before.Offset)
		}
		next.Stale = append(next.Stale, s)
	}
	if len(next.Stale) == 0 && len(p.Stale) == 0 || invariants.Planted("gateForgets") {
		return nil, nil
	}
	if len(next.Stale) > 0 {
		if p.Barrier == math.MaxInt32 {
			return nil, fmt.Errorf("%w: barriers are used up", ErrInvalidRequest)
		}
		if p.LeaderEpoch == math.MaxInt32 {
			return nil, fmt.Errorf("%w: leader epochs are used up", ErrInvalidRequest)
		}
		next.Barrier++
		next.LeaderEpoch++
	}
	next.PartitionEpoch++
	return &next, nil
}

func nextState(cur *metadata.MirrorPartition, c writeState) (*metadata.MirrorPartition, error) {
	next := noState(c.Mirror)
	if cur != nil {
		next = *cur
	}
	if c.LeaderEpoch >= 0 && c.LeaderEpoch < next.LeaderEpoch && !invariants.Planted("deposedStateWrite") {
		return nil, fmt.Errorf("%w: %d is below %d", ErrFencedLeaderEpoch, c.LeaderEpoch, next.LeaderEpoch)
	}
	if c.StateEpoch >= 0 && c.StateEpoch < next.StateEpoch {
		return nil, fmt.Errorf("%w: %d is below %d", ErrFencedStateEpoch, c.StateEpoch, next.StateEpoch)
	}
	if next.StateEpoch == math.MaxInt32 {
		return nil, fmt.Errorf("%w: state epochs are used up; delete the mirror", ErrInvalidRequest)
	}
	if c.State != metadata.StateUnknown {
		if !metadata.Allowed(next.State, c.State) {
			return nil, fmt.Errorf("%w: %s cannot follow %s", ErrMirrorStates, c.State, next.State)
		}
		enter(&next, c.State)
	}
	if err := setLME(&next, c); err != nil {
		return nil, err
	}
	if next.State == metadata.StateStopped && !next.HasLME {
		return nil, fmt.Errorf("%w: STOPPED needs the last mirrored epoch recorded first (9.14)", ErrMirrorStates)
	}
	setFailure(&next, c)
	next.LeaderEpoch = max(next.LeaderEpoch, c.LeaderEpoch)
	next.StateEpoch++
	return &next, nil
}

// noState is a partition of which nothing is recorded.
func noState(mirror string) metadata.MirrorPartition {
	return metadata.MirrorPartition{
		Mirror: mirror, State: metadata.StateUnknown, LeaderEpoch: -1,
		LME: -1, LMO: -1, PreviousState: metadata.StateUnknown,
	}
}

// enter moves s to a state, with what every entry into it brings along.
func enter(s *metadata.MirrorPartition, to metadata.MirrorState) {
	from := s.State
	s.State = to
	if from == to {
		return
	}
	switch to {
	case metadata.StatePreparing:
		// From here until MIRRORING nothing is mirrored. Should a stop come
		// in between, an older record is the right answer, and with none the
		// local log was never mirrored, whatever it holds (W66).
		recordLME(s, -1, -1)
	case metadata.StateMirroring:
		s.HasLME, s.LME, s.LMO = false, -1, -1
	case metadata.StateStopping:
		// Never got as far as PREPARING: what the log holds was not mirrored
		// (9.14 step 2).
		if from == metadata.StateUnknown || from == metadata.StateFailed && s.PreviousState == metadata.StateUnknown {
			recordLME(s, -1, -1)
		}
		if s.RetryAttempt == nonRetryable {
			clearFailure(s) // -1 stays until recover or stop (S13): a stop is retried
		}
	case metadata.StateFailed:
		s.PreviousState = from
	case metadata.StatePaused, metadata.StateStopped:
		clearFailure(s)
	}
}

// recordLME writes an LME record unless there is one.
func recordLME(s *metadata.MirrorPartition, lme int32, lmo int64) {
	if !s.HasLME {
		s.HasLME, s.LME, s.LMO = true, lme, lmo
	}
}

// setLME records where mirroring ended (9.14 step 2). A record that exists is
// kept: the log may hold batches of our own by now, so only the first attempt saw
// the source's last one (B8). It is lowered if the log has become shorter.
func setLME(s *metadata.MirrorPartition, c writeState) error {
	if c.DeleteLME {
		s.HasLME, s.LME, s.LMO = false, -1, -1
	}
	if !c.SetLME {
		return nil
	}
	if s.State != metadata.StateStopping && s.State != metadata.StateStopped {
		return fmt.Errorf("%w: the last mirrored epoch is recorded in STOPPING, this is %s", ErrMirrorStates, s.State)
	}
	if c.LME < -1 || c.LMO < -1 {
		return fmt.Errorf("%w: last mirrored epoch %d, offset %d", ErrInvalidRequest, c.LME, c.LMO)
	}
	if !s.HasLME || c.LMO >= 0 && c.LMO < s.LMO {
		s.HasLME, s.LME, s.LMO = true, c.LME, c.LMO
	}
	return nil
}

// setFailure keeps the failure info (S13, S14).
func setFailure(s *metadata.MirrorPartition, c writeState) {
	if c.State != metadata.StateFailed {
		if c.ClearFailure && s.State != metadata.StateFailed {
			clearFailure(s)
		}
		return
	}
	s.ErrorMessage = clipMessage(c.ErrorMessage)
	switch {
	case c.NonRetryable || s.RetryAttempt == nonRetryable:
		s.RetryAttempt = nonRetryable
	case c.RetryAttempt > 0:
		s.RetryAttempt = int16(min(c.RetryAttempt, math.MaxInt16))
	case s.RetryAttempt < math.MaxInt16:
		s.RetryAttempt++
	}
}

func clearFailure(s *metadata.MirrorPartition) {
	s.ErrorMessage, s.RetryAttempt, s.PreviousState = "", 0, metadata.StateUnknown
}
