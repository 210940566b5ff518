package group

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// partitionID names one partition for good: a topic that is deleted and made
// again is another one.
type partitionID struct {
	topic metadata.TopicID
	index int32
}

// share is what one member has, or is to have: partitions by topic, each list
// sorted and not empty. A share never changes once it is made, so members,
// targets and answers may hold the same one.
type share map[metadata.TopicID][]int32

// newShare sorts out what a peer listed.
func newShare(topics []TopicIDPartitions) share {
	s := share{}
	for _, t := range topics {
		s.add(metadata.TopicID(t.TopicID), t.Partitions...)
	}
	return s.sorted()
}

// add is for a share in the making; sorted ends that.
func (s share) add(topic metadata.TopicID, partitions ...int32) {
	if len(partitions) > 0 {
		s[topic] = append(s[topic], partitions...)
	}
}

func (s share) sorted() share {
	for topic, list := range s {
		slices.Sort(list)
		s[topic] = slices.Compact(list)
	}
	return s
}

func (s share) has(p partitionID) bool {
	_, found := slices.BinarySearch(s[p.topic], p.index)
	return found
}

// keep is the part of s for which fn is true.
func (s share) keep(fn func(partitionID) bool) share {
	out := share{}
	for topic, list := range s {
		var kept []int32
		for _, i := range list {
			if fn(partitionID{topic, i}) {
				kept = append(kept, i)
			}
		}
		if len(kept) > 0 {
			out[topic] = kept
		}
	}
	return out
}

func (s share) and(o share) share   { return s.keep(o.has) }
func (s share) minus(o share) share { return s.keep(func(p partitionID) bool { return !o.has(p) }) }

func (s share) plus(o share) share {
	out := make(share, len(s)+len(o))
	for topic, list := range s {
		out[topic] = slices.Clone(list)
	}
	for topic, list := range o {
		out.add(topic, list...)
	}
	return out.sorted()
}

func (s share) equal(o share) bool { return maps.EqualFunc(s, o, slices.Equal[[]int32]) }

func (s share) count() int {
	n := 0
	for _, list := range s {
		n += len(list)
	}
	return n
}

// topics are sorted by id, so that what is written and answered does not depend
// on map order.
func (s share) topics() []metadata.TopicID {
	return slices.SortedFunc(maps.Keys(s), metadata.TopicID.Compare)
}

// all goes through the partitions by topic id and index.
func (s share) all() iter.Seq[partitionID] {
	return func(yield func(partitionID) bool) {
		for _, topic := range s.topics() {
			for _, i := range s[topic] {
				if !yield(partitionID{topic, i}) {
					return
				}
			}
		}
	}
}

func (s share) public() []TopicIDPartitions {
	out := make([]TopicIDPartitions, 0, len(s))
	for _, topic := range s.topics() {
		out = append(out, TopicIDPartitions{TopicID: topic, Partitions: s[topic]})
	}
	return out
}

func comparePartitionIDs(a, b partitionID) int {
	return cmp.Or(a.topic.Compare(b.topic), cmp.Compare(a.index, b.index))
}
