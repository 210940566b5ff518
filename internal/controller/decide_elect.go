package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// decideElectLeader carries out what an operator asks for, or the leader balance
// (KIP-460). An unclean election that is needed for it is another command, which
// comes after the policy was asked.
func decideElectLeader(img *metadata.Image, c electLeader) ([]Change, error) {
	t := img.Topic(c.Topic)
	p := t.Partition(c.Partition)
	if p == nil {
		return nil, fmt.Errorf("elect leader: %w: %s-%d", ErrUnknownTopic, c.Topic, c.Partition)
	}
	r := replicasOf(img, c.Defaults)
	ch := r.change(t, p)
	preferred := p.Replicas[0]
	switch {
	case c.Unclean:
		if ch.keepsUp() {
			return nil, fmt.Errorf("elect leader of %s-%d: %w: %d leads", t.Name, p.Index, ErrElectionNotNeeded, p.Leader)
		}
		if ch.elect(); ch.next.Leader == metadata.NoLeader {
			return nil, fmt.Errorf("elect leader of %s-%d: %w: no replica of %v is alive and has every record", t.Name, p.Index, ErrEligibleLeadersNotAvailable, p.Replicas)
		}
	case p.Leader == preferred:
		return nil, fmt.Errorf("elect leader of %s-%d: %w: %d leads", t.Name, p.Index, ErrElectionNotNeeded, p.Leader)
	case !slices.Contains(p.ISR, preferred) || !r.eligible(preferred):
		return nil, fmt.Errorf("elect leader of %s-%d: %w: %d is not alive and in sync", t.Name, p.Index, ErrPreferredLeaderNotAvailable, preferred)
	default:
		ch.lead(preferred)
	}
	return ch.put(nil), nil
}

// uncleanChoice is a partition that only somebody can lead who may lack records.
type uncleanChoice struct {
	Topic     *metadata.Topic
	Partition *metadata.Partition
	// Live are the replicas that could be elected, those first that had every record
	// before their broker stopped uncleanly.
	Live []int32
	// Allowed is unclean.leader.election.enable.
	Allowed bool
}

// uncleanChoiceOf answers whether a partition is such a one.
func (r replicas) uncleanChoiceOf(t *metadata.Topic, p *metadata.Partition) (uncleanChoice, bool) {
	ch := r.change(t, p)
	if ch.elect(); p.Leader != metadata.NoLeader || ch.next.Leader != metadata.NoLeader {
		return uncleanChoice{}, false
	}
	u := uncleanChoice{Topic: t, Partition: p, Allowed: r.uncleanAllowed(t)}
	for _, id := range union(only(p.LastKnownELR, p.Replicas), p.Replicas) {
		if r.eligible(id) {
			u.Live = append(u.Live, id)
		}
	}
	return u, len(u.Live) > 0
}

// uncleanChoices finds all of them that a config allows.
func uncleanChoices(img *metadata.Image, def defaults, unheard []int32) []uncleanChoice {
	r := replicasOf(img, def, unheard...)
	var all []uncleanChoice
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if p.Leader != metadata.NoLeader {
				continue
			}
			if u, ok := r.uncleanChoiceOf(t, p); ok && u.Allowed {
				all = append(all, u)
			}
		}
	}
	return all
}

// decideElectUnclean makes a living replica lead that may lack records. It does
// nothing if a leader was found meanwhile.
func decideElectUnclean(img *metadata.Image, c electUnclean) ([]Change, error) {
	t := img.TopicByID(c.Topic)
	p := t.Partition(c.Partition)
	if p == nil {
		return nil, fmt.Errorf("elect unclean leader: %w: partition %d of %s", ErrUnknownTopic, c.Partition, c.Topic)
	}
	r := replicasOf(img, c.Defaults)
	u, ok := r.uncleanChoiceOf(t, p)
	switch {
	case !ok:
		return nil, nil
	case !slices.Contains(u.Live, c.Leader):
		return nil, fmt.Errorf("elect unclean leader of %s-%d: %w: %d is not a living replica", t.Name, p.Index, ErrEligibleLeadersNotAvailable, c.Leader)
	case slices.Contains(c.Unusable, c.Leader):
		return nil, fmt.Errorf("elect unclean leader of %s-%d: %w: the log of broker %d is damaged, or in a log directory that is offline", t.Name, p.Index, ErrEligibleLeadersNotAvailable, c.Leader)
	}
	ch := r.change(t, p)
	ch.next.ISR, ch.next.LastKnownELR, ch.restart = nil, nil, true
	ch.lead(c.Leader)
	return ch.put(nil), nil
}

// decideElectLongest ends the wait for the ends of logs (rule 8), if it is still on.
func decideElectLongest(img *metadata.Image, c electLongest) ([]Change, error) {
	t := img.TopicByID(c.Topic)
	p := t.Partition(c.Partition)
	r := replicasOf(img, c.Defaults)
	if p == nil || !p.WaitsForEnds() || len(minus(p.LastKnownELR, c.Reported)) > 0 || !slices.Contains(p.LastKnownELR, c.Leader) || !r.eligible(c.Leader) {
		return nil, nil
	}
	ch := r.change(t, p)
	ch.restart = true
	ch.lead(c.Leader)
	return ch.put(nil), nil
}
