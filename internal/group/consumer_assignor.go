package group

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// assignor shares out partitions among the members of a consumer group. It is a
// pure function: of equal inputs come equal shares, whatever the order of maps.
// Each partition of a topic that somebody reads is in exactly one of the
// answers, and with a member who reads it.
type assignor func(members []assignee, topics topicSizes) map[string]share

// assignee is one member as an assignor sees it.
type assignee struct {
	id       string
	instance string
	reads    []metadata.TopicID // sorted; only topics that exist
	had      share              // the last target; what is in it should stay
}

// topicSizes tells the number of partitions of each topic that is read.
type topicSizes map[metadata.TopicID]int32

// assignors are those that a broker can be told to offer
// (group.consumer.assignors), by Kafka's names.
var assignors = map[string]assignor{"uniform": uniform, "range": byRange}

// Assignors names the assignors there are, sorted.
func Assignors() []string { return slices.Sorted(maps.Keys(assignors)) }

// sortAssignees puts static members first, in the order of their instance ids, so
// that one that comes back under another member id takes its old place.
func sortAssignees(members []assignee) []assignee {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b assignee) int {
		if (a.instance == "") != (b.instance == "") {
			return cmp.Compare(b.instance, a.instance)
		}
		return cmp.Or(cmp.Compare(a.instance, b.instance), cmp.Compare(a.id, b.id))
	})
	return members
}

// byRange gives each member of a topic's readers one run of its partitions, in
// the order of the members, the longer runs first. Topics with equally many
// partitions and the same readers are shared out alike, so that what joins them
// by partition number works. That is all it knows: it moves whatever the runs
// demand.
func byRange(members []assignee, topics topicSizes) map[string]share {
	members = sortAssignees(members)
	readers := map[metadata.TopicID][]int{}
	out := make(map[string]share, len(members))
	for i, m := range members {
		out[m.id] = share{}
		for _, topic := range m.reads {
			readers[topic] = append(readers[topic], i)
		}
	}
	for _, topic := range slices.SortedFunc(maps.Keys(readers), metadata.TopicID.Compare) {
		of := readers[topic]
		size, n := topics[topic], int32(len(of))
		next := int32(0)
		for k, i := range of {
			run := size / n
			if int32(k) < size%n {
				run++
			}
			for range run {
				out[members[i].id].add(topic, next)
				next++
			}
		}
	}
	return out
}

// uniform gives all members equally many partitions, as far as their
// subscriptions allow, and moves no more than that takes.
func uniform(members []assignee, topics topicSizes) map[string]share {
	u := newUniform(sortAssignees(members), topics)
	if u.alike() {
		u.keepUpToQuota()
		u.dealToQuota()
	} else {
		u.keepAll()
		u.dealToSmallest()
		u.balance()
	}
	out := make(map[string]share, len(u.members))
	for i, m := range u.members {
		s := share{}
		for p := range u.has[i] {
			s.add(p.topic, p.index)
		}
		out[m.id] = s.sorted()
	}
	return out
}

// uniformState is an assignment in the making: who has what, by the member's
// place.
type uniformState struct {
	members []assignee
	topics  topicSizes
	readers map[metadata.TopicID][]int
	has     []map[partitionID]struct{}
	owner   map[partitionID]int
	quota   []int // alike members only
}

func newUniform(members []assignee, topics topicSizes) *uniformState {
	u := &uniformState{
		members: members, topics: topics, readers: map[metadata.TopicID][]int{},
		has: make([]map[partitionID]struct{}, len(members)), owner: map[partitionID]int{},
	}
	for i, m := range members {
		u.has[i] = map[partitionID]struct{}{}
		for _, topic := range m.reads {
			u.readers[topic] = append(u.readers[topic], i)
		}
	}
	return u
}

// alike tells whether all members read the same topics.
func (u *uniformState) alike() bool {
	for _, of := range u.readers {
		if len(of) != len(u.members) {
			return false
		}
	}
	return true
}

func (u *uniformState) give(i int, p partitionID) {
	u.has[i][p] = struct{}{}
	u.owner[p] = i
}

// staying are the partitions of member i's last target that it may keep.
func (u *uniformState) staying(i int) []partitionID {
	var out []partitionID
	for p := range u.members[i].had.all() {
		_, reads := slices.BinarySearchFunc(u.members[i].reads, p.topic, metadata.TopicID.Compare)
		if _, taken := u.owner[p]; reads && !taken && p.index < u.topics[p.topic] {
			out = append(out, p)
		}
	}
	return out
}

// unowned are the partitions nobody has yet. Topics with few readers come
// first: the others can still go anywhere.
func (u *uniformState) unowned() []partitionID {
	var out []partitionID
	for topic := range u.readers {
		for i := range u.topics[topic] {
			if _, owned := u.owner[partitionID{topic, i}]; !owned {
				out = append(out, partitionID{topic, i})
			}
		}
	}
	slices.SortFunc(out, func(a, b partitionID) int {
		return cmp.Or(cmp.Compare(len(u.readers[a.topic]), len(u.readers[b.topic])), comparePartitionIDs(a, b))
	})
	return out
}

// keepUpToQuota leaves each of alike members what it had, up to its quota. The
// quotas that are larger by one go first to members that would lose a partition
// without.
func (u *uniformState) keepUpToQuota() {
	n := len(u.members)
	if n == 0 {
		return
	}
	total := 0
	for topic := range u.readers {
		total += int(u.topics[topic])
	}
	u.quota = make([]int, n)
	larger := total % n
	for i := range u.members {
		u.quota[i] = total / n
		stays := u.staying(i)
		if len(stays) > u.quota[i] && larger > 0 {
			u.quota[i]++
			larger--
		}
		for _, p := range stays[:min(len(stays), u.quota[i])] {
			u.give(i, p)
		}
	}
	for i := 0; larger > 0; i++ {
		if u.quota[i] == total/n {
			u.quota[i]++
			larger--
		}
	}
}

// dealToQuota deals out the rest one by one in turn, so that one topic's
// partitions spread over the members.
func (u *uniformState) dealToQuota() {
	i := 0
	for _, p := range u.unowned() {
		for len(u.has[i]) >= u.quota[i] {
			i = (i + 1) % len(u.members)
		}
		u.give(i, p)
		i = (i + 1) % len(u.members)
	}
}

func (u *uniformState) keepAll() {
	for i := range u.members {
		for _, p := range u.staying(i) {
			u.give(i, p)
		}
	}
}

func (u *uniformState) dealToSmallest() {
	for _, p := range u.unowned() {
		u.give(u.smallest(u.readers[p.topic]), p)
	}
}

func (u *uniformState) smallest(of []int) int {
	return slices.MinFunc(of, func(a, b int) int { return cmp.Compare(len(u.has[a]), len(u.has[b])) })
}

// balance moves single partitions from a topic's reader with the most to the one
// with the least until no move helps. Each move lowers the sum of the squares of
// the members' counts, so it ends.
func (u *uniformState) balance() {
	topics := slices.SortedFunc(maps.Keys(u.readers), metadata.TopicID.Compare)
	for moved := true; moved; {
		moved = false
		for _, topic := range topics {
			for u.moveOne(topic) {
				moved = true
			}
		}
	}
}

func (u *uniformState) moveOne(topic metadata.TopicID) bool {
	from, what := -1, partitionID{}
	for i := range u.topics[topic] {
		p := partitionID{topic, i}
		at := u.owner[p]
		switch {
		case from < 0 || len(u.has[at]) > len(u.has[from]):
			from, what = at, p
		case at == from && u.members[at].had.has(what) && !u.members[at].had.has(p):
			what = p // a partition that moves anyway
		}
	}
	if from < 0 {
		return false
	}
	to := u.smallest(u.readers[topic])
	if len(u.has[from])-len(u.has[to]) < 2 {
		return false
	}
	delete(u.has[from], what)
	u.give(to, what)
	return true
}
