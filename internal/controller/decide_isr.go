package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// decideAlterISR changes an ISR as the leader wishes (KIP-497), if the leader's view is
// that of the image, and every member may be in an ISR: it is alive (KIP-841), in the
// registration that the leader saw (KIP-903). A reassignment whose new replicas are
// all in sync then is complete.
func decideAlterISR(img *metadata.Image, c alterISR) ([]Change, error) {
	if _, err := checkBrokerEpoch(img, c.Broker); err != nil {
		return nil, fmt.Errorf("alter ISR: %w", err)
	}
	t := img.TopicByID(c.Topic)
	if t == nil {
		return nil, fmt.Errorf("alter ISR: %w: %s", ErrUnknownTopicID, c.Topic)
	}
	p := t.Partition(c.Partition)
	if p == nil {
		return nil, fmt.Errorf("alter ISR: %w: %s-%d", ErrUnknownTopic, t.Name, c.Partition)
	}
	if err := checkAlterISR(img, p, c); err != nil {
		return nil, fmt.Errorf("alter ISR of %s-%d: %w", t.Name, p.Index, err)
	}
	isr := make([]int32, len(c.ISR))
	for i, m := range c.ISR {
		isr[i] = m.ID
	}
	ch := replicasOf(img, c.Defaults).change(t, p)
	if ch.next.ISR = only(isr, p.Replicas); slices.Equal(ch.next.ISR, only(p.ISR, p.Replicas)) {
		ch.next.ISR = p.ISR
	}
	ch.wished = true
	ch.alive()
	ch.completeReassignment()
	return ch.put(nil), nil
}

func checkAlterISR(img *metadata.Image, p *metadata.Partition, c alterISR) error {
	switch {
	case c.LeaderEpoch > p.LeaderEpoch || c.PartitionEpoch > p.PartitionEpoch:
		return fmt.Errorf("%w: the leader has seen a newer image than this controller", ErrNotController)
	case c.LeaderEpoch < p.LeaderEpoch:
		return fmt.Errorf("%w: %d is below %d", ErrFencedLeaderEpoch, c.LeaderEpoch, p.LeaderEpoch)
	case c.Broker.ID != p.Leader:
		return fmt.Errorf("%w: broker %d does not lead it, %d does", ErrInvalidRequest, c.Broker.ID, p.Leader)
	case c.PartitionEpoch < p.PartitionEpoch && !invariants.Planted("partitionEpochNotChecked"):
		return fmt.Errorf("%w: %d is below %d", ErrInvalidUpdateVersion, c.PartitionEpoch, p.PartitionEpoch)
	}
	leads := false
	for i, m := range c.ISR {
		switch {
		case !slices.Contains(p.Replicas, m.ID):
			return fmt.Errorf("%w: %d is no replica", ErrInvalidRequest, m.ID)
		case slices.ContainsFunc(c.ISR[:i], func(o ISRMember) bool { return o.ID == m.ID }):
			return fmt.Errorf("%w: %d stands twice", ErrInvalidRequest, m.ID)
		}
		leads = leads || m.ID == p.Leader
	}
	if !leads {
		return fmt.Errorf("%w: the leader is not in it", ErrInvalidRequest)
	}
	for _, m := range c.ISR {
		b := img.Broker(m.ID)
		switch {
		// A leader in controlled shutdown that nobody could replace goes on.
		case m.ID == p.Leader && b != nil && !b.Fenced:
		case !b.Eligible():
			return fmt.Errorf("%w: %d is not alive", ErrIneligibleReplica, m.ID)
		}
		if m.Epoch >= 0 && b.Epoch != m.Epoch && !invariants.Planted("brokerEpochNotChecked") {
			return fmt.Errorf("%w: %d has registered anew, with epoch %d and not %d", ErrIneligibleReplica, m.ID, b.Epoch, m.Epoch)
		}
	}
	return nil
}

// shrinkELR forgets ELRs of a topic's partitions whose high watermarks move from now
// on, because min.insync.replicas was lowered: who is in one would miss records. It
// is written before the config or with it, never after.
func (r replicas) shrinkELR(changes []Change, before, after *metadata.Topic) []Change {
	if before.Configs[metadata.MinISRConfig] == after.Configs[metadata.MinISRConfig] {
		return changes
	}
	return r.recheckELR(changes, after)
}

func (r replicas) recheckELR(changes []Change, t *metadata.Topic) []Change {
	for _, p := range t.Partitions {
		if len(p.ELR) > 0 && len(p.ISR) >= r.minISR(t, p) {
			changes = r.change(t, p).put(changes)
		}
	}
	return changes
}

// minISRChange is shrinkELR for the default of all topics.
func minISRChange(img *metadata.Image, def defaults, broker int32, configs map[string]string) []Change {
	if broker != metadata.DefaultBroker || img.BrokerConfigs(broker)[metadata.MinISRConfig] == configs[metadata.MinISRConfig] {
		return nil
	}
	r := replicasOf(img, def)
	r.defaultConfigs = configs
	var changes []Change
	for t := range img.AllTopics() {
		changes = r.recheckELR(changes, t)
	}
	return changes
}
