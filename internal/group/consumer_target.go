package group

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// pattern is a regular expression that members are subscribed to.
type pattern struct {
	members int
	re      *regexp.Regexp
	// visible tells which topics it may find; nil: all. It is the right of the
	// member that brought it last.
	visible func(string) bool
	// topics are those found, sorted by name, at the version found; 0: not yet.
	topics []*metadata.Topic
	found  int64
}

// bring is called by each member that brings the pattern.
func (p *pattern) bring(re *regexp.Regexp, visible func(string) bool) {
	if p.re == nil {
		p.found = 0
	}
	p.re, p.visible = re, visible
}

// compilePattern reads a pattern as Kafka does: RE2's language, held against the
// whole name of a topic.
func compilePattern(expr string) (*regexp.Regexp, error) { return regexp.Compile("^(?:" + expr + ")$") }

func sortedSet(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

func (p *pattern) find(view topicView) []*metadata.Topic {
	if p.found == view.version && p.found != 0 {
		return p.topics
	}
	p.topics, p.found = nil, view.version
	for _, t := range view.image.Topics() {
		// Internal topics too, as with Kafka: rights alone keep them from a member.
		if p.re != nil && p.re.MatchString(t.Name) && (p.visible == nil || p.visible(t.Name)) {
			p.topics = append(p.topics, t)
		}
	}
	return p.topics
}

// refreshTopics looks at the topics that the group reads, if they or the
// subscriptions may have changed, and begins a new epoch if they have.
func (m *machine) refreshTopics(subscriptionChanged bool) {
	c := m.consumer
	if !subscriptionChanged && c.seen == m.topics.version {
		return
	}
	read := map[string]*metadata.Topic{}
	m.subscribed = make(map[string]struct{}, len(c.names))
	for n := range c.names {
		m.subscribed[n] = struct{}{}
		if t := m.topics.image.Topic(n); t != nil {
			read[n] = t
		}
	}
	for _, p := range c.patterns {
		for _, t := range p.find(m.topics) {
			m.subscribed[t.Name] = struct{}{}
			read[t.Name] = t
		}
	}
	hash := hashTopics(read)
	known := c.hash
	c.seen, c.hash = m.topics.version, hash
	switch {
	case subscriptionChanged || known != 0 && known != hash:
		m.bumpEpoch()
		c.hash = hash
	case known == 0:
		m.journal.epoch = true
	}
}

// bumpEpoch: the target is out of date. The topics are looked at anew with the
// next heartbeat, which is no reason for yet another epoch.
func (m *machine) bumpEpoch() {
	c := m.consumer
	c.epoch++
	c.hash, c.seen = 0, 0
	m.generation = c.epoch
	m.journal.epoch = true
	m.logged = true
}

// hashTopics is never 0.
func hashTopics(topics map[string]*metadata.Topic) uint64 {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		_, _ = h.Write(t.ID[:])
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(t.Partitions))))
		_, _ = h.Write([]byte(name))
	}
	if sum := h.Sum64(); sum != 0 {
		return sum
	}
	return 1
}

// retarget makes the target of the present epoch, if it is not made yet and the
// last one is old enough: what changes meanwhile is taken together, with the first
// heartbeat after that.
func (m *machine) retarget(now time.Time) {
	c := m.consumer
	if c.epoch == c.assignmentEpoch {
		return
	}
	// A clock that was set back must not hold it up.
	since := now.Sub(c.targetAt)
	if !c.targetAt.IsZero() && since >= 0 && since < m.o.consumerSettings(m.id).AssignmentInterval {
		return
	}
	c.targetAt = now
	sizes := topicSizes{}
	bySubscription := map[string][]metadata.TopicID{}
	members := make([]assignee, 0, len(c.members))
	for _, id := range c.memberIDs() {
		mem := c.members[id]
		key := mem.subscription()
		reads, known := bySubscription[key]
		if !known {
			reads = m.reads(mem, sizes)
			bySubscription[key] = reads
		}
		members = append(members, assignee{id: id, instance: mem.instanceID, reads: reads, had: c.target[id]})
	}
	name := m.assignorName()
	next := assignors[name](members, sizes)
	for _, id := range c.memberIDs() {
		s := next[id]
		if old, ok := c.target[id]; !ok || !old.equal(s) {
			c.target[id] = s
			m.journal.target(id)
		}
	}
	c.assignmentEpoch = c.epoch
	m.journal.assignmentEpoch = true
	m.o.Logger.Info("consumer group target", "group", m.id, "epoch", c.epoch, "members", len(members), "assignor", name)
}

// reads are the topics that a member is subscribed to and that exist, sorted.
func (m *machine) reads(mem *consumerMember, sizes topicSizes) []metadata.TopicID {
	var ids []metadata.TopicID
	add := func(t *metadata.Topic) {
		ids = append(ids, t.ID)
		sizes[t.ID] = int32(len(t.Partitions))
	}
	for _, n := range mem.names {
		if t := m.topics.image.Topic(n); t != nil {
			add(t)
		}
	}
	if p := m.consumer.patterns[mem.regex]; p != nil {
		for _, t := range p.find(m.topics) {
			add(t)
		}
	}
	slices.SortFunc(ids, metadata.TopicID.Compare)
	return slices.Compact(ids)
}

// assignorName is the assignor that most members wish for, the first of the
// broker's where none does.
func (m *machine) assignorName() string {
	votes := map[string]int{}
	for _, mem := range m.consumer.members {
		if mem.assignor != "" {
			votes[mem.assignor]++
		}
	}
	// MaxFunc takes the first of equals.
	return slices.MaxFunc(m.o.Assignors, func(a, b string) int { return cmp.Compare(votes[a], votes[b]) })
}
