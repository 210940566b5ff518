package partition

import (
	"slices"
	"strconv"
	"strings"
)

// Replication of single replicas can be slowed down (KIP-73): topics list which
// (leader. and follower.replication.throttled.replicas), brokers how far
// (…throttled.rate). Replicas in sync are never held back: acks=all waits for them.
// So can the leaders of mirrored partitions, by mirror.replication.throttled.replicas and
// .rate (W41): what they take from their source, not what their followers take from them.

// throttledReplicas is such a list of a topic.
type throttledReplicas struct {
	all    bool
	listed [][2]int32 // partition and broker
}

// parseThrottledReplicas reads partition:broker,… or *; the controller has checked it.
func parseThrottledReplicas(text string) (t throttledReplicas) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "*" {
			return throttledReplicas{all: true}
		}
		left, right, _ := strings.Cut(item, ":")
		partition, err := strconv.ParseInt(left, 10, 32)
		broker, err2 := strconv.ParseInt(right, 10, 32)
		if err == nil && err2 == nil {
			t.listed = append(t.listed, [2]int32{int32(partition), int32(broker)})
		}
	}
	return t
}

func (t throttledReplicas) has(partition, broker int32) bool {
	return t.all || slices.Contains(t.listed, [2]int32{partition, broker})
}

// SetThrottles sets how many bytes per second throttled replicas are given by what is
// led here, take here, and take here from sources of mirrors; quota.NoThrottle: any number.
func (m *Manager) SetThrottles(leader, follower, mirror int64) {
	m.shared.leaderThrottle.Set(leader)
	m.shared.followerThrottle.Set(follower)
	m.shared.mirrorThrottle.Set(mirror)
}

// Held implements what a mirror's pipeline asks of its Target before it fetches.
func (p *Partition) Held() bool {
	return p.view.Load().mirrorThrottled && p.shared.mirrorThrottle.Exceeded()
}

// holdsBack tells whether a follower gets nothing now.
func (p *Partition) holdsBack(replica int32) bool {
	if !p.view.Load().leaderThrottled || !p.shared.leaderThrottle.Exceeded() {
		return false
	}
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	return p.tracker != nil && !slices.Contains(p.tracker.ISR(), replica)
}
