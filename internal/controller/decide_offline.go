package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// OfflineReplica is a replica whose log its broker cannot use: it is damaged, or its
// log directory is lost. PartitionEpoch is that of the image by which the broker asks:
// with another one in force nothing happens, and it looks again.
type OfflineReplica struct {
	Topic          metadata.TopicID
	Partition      int32
	PartitionEpoch int32
}

// MaxOffline bounds the replicas that one heartbeat names, some 100 KB of it. The next
// one names the next.
const MaxOffline = 1000

// Resignable are those of a broker's offline replicas that an image has others for,
// with their partition epochs, at most MaxOffline. The rest stay what they are: nobody
// else has every record.
func Resignable(img *metadata.Image, broker int32, offline []OfflineReplica) []OfflineReplica {
	r := replicasOf(img, defaults{})
	var out []OfflineReplica
	for _, o := range offline {
		t := img.TopicByID(o.Topic)
		p := t.Partition(o.Partition)
		if p == nil || !r.change(t, p).resign(broker) {
			continue
		}
		o.PartitionEpoch = p.PartitionEpoch
		if out = append(out, o); len(out) == MaxOffline {
			break
		}
	}
	return out
}

// MaxUnusable bounds the partitions of Heartbeat.Unusable, some 140 KB of it.
const MaxUnusable = 20_000

// UnusableReplicas are a broker's of one topic.
type UnusableReplicas struct {
	Topic      metadata.TopicID
	Partitions []int32
}

// Unusable puts offline replicas in the form of a heartbeat, the first MaxUnusable of
// them. Those of a topic stand behind each other.
func Unusable(offline []OfflineReplica) []UnusableReplicas {
	var all []UnusableReplicas
	for _, o := range offline[:min(len(offline), MaxUnusable)] {
		if len(all) == 0 || all[len(all)-1].Topic != o.Topic {
			all = append(all, UnusableReplicas{Topic: o.Topic})
		}
		t := &all[len(all)-1]
		t.Partitions = append(t.Partitions, o.Partition)
	}
	return all
}

// unusable is what a heartbeat says of logs that cannot be used.
type unusable struct {
	replicas map[partitionKey]struct{}
	all      bool // there may be more
}

// newUnusable refuses more than MaxUnusable.
func newUnusable(named []UnusableReplicas) (u unusable, err error) {
	for _, t := range named {
		for _, p := range t.Partitions {
			if u.replicas == nil {
				u.replicas = make(map[partitionKey]struct{})
			}
			if u.replicas[partitionKey{t.Topic, p}] = struct{}{}; len(u.replicas) > MaxUnusable {
				return unusable{}, fmt.Errorf("%w: more than %d replicas that cannot be used", ErrInvalidRequest, MaxUnusable)
			}
		}
	}
	u.all = len(u.replicas) == MaxUnusable
	return u, nil
}

func (u unusable) has(k partitionKey) bool {
	_, ok := u.replicas[k]
	return ok || u.all
}

// decideResignReplicas has others lead, and be in sync, in place of replicas that their
// broker cannot use (reliability rule 7: damage on the leader: resign first).
func decideResignReplicas(img *metadata.Image, c resignReplicas) ([]Change, error) {
	if _, err := checkBrokerEpoch(img, c.BrokerEpoch); err != nil {
		return nil, fmt.Errorf("resign replicas: %w", err)
	}
	r := replicasOf(img, c.Defaults, c.Unheard...)
	seen := make(map[partitionKey]bool, len(c.Replicas))
	var changes []Change
	for _, o := range c.Replicas {
		t := img.TopicByID(o.Topic)
		p := t.Partition(o.Partition)
		k := partitionKey{o.Topic, o.Partition}
		if p == nil || p.PartitionEpoch != o.PartitionEpoch || seen[k] {
			continue
		}
		seen[k] = true
		if ch := r.change(t, p); ch.resign(c.ID) {
			changes = ch.put(changes)
		}
	}
	return changes, nil
}

// resign takes a replica out of ISR and ELR that its broker cannot use, and tells
// whether it could: the last one that has every record stays, leads where it led, and
// its clients are told KAFKA_STORAGE_ERROR. A leader stays as well until somebody is
// there who can replace it. Where nobody leads, those who are gone are waited for.
//
// The leader epoch rises though another leads: what the replica fetched before it knew
// of its damage proves nothing any more, and must not bring it back (isr.Tracker.Forget).
func (c *change) resign(id int32) bool {
	n := &c.next
	others := minus(union(n.ISR, n.ELR), []int32{id})
	switch {
	case !slices.Contains(n.ISR, id) && !slices.Contains(n.ELR, id), len(others) == 0:
		return false
	case n.Leader == id && !slices.ContainsFunc(others, c.eligible):
		return false
	}
	c.unusable, c.bump = []int32{id}, true
	n.ISR, n.ELR = minus(n.ISR, c.unusable), minus(n.ELR, c.unusable)
	c.elect()
	return true
}
