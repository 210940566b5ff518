package controller

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// candidate is a broker that replicas are placed on.
type candidate struct {
	id    int32
	rack  int // index of its rack
	alive bool
	// leads and holds count the topic's partitions that it leads, and has.
	leads, holds int
	// turn orders equals: by it a topic begins somewhere else than the next.
	turn int
}

// living counts the brokers that may lead.
func living(img *metadata.Image) int {
	n := 0
	for _, b := range img.Brokers() {
		if b.Eligible() {
			n++
		}
	}
	return n
}

// place answers the replicas of n more partitions of a topic, which has the given
// ones already. Every partition is spread over as many racks as there are, then over
// brokers, such that all lead and hold as many partitions of the topic as that
// allows. Brokers that are not alive get what the others are too few for, and lead
// nothing, as in Kafka. Brokers that name no rack are in one together.
func place(img *metadata.Image, topic string, have []*metadata.Partition, n int32, rf int16) ([][]int32, error) {
	brokers := candidates(img, topic, have)
	alive := living(img)
	switch {
	case rf < 1 || int(rf) > len(brokers):
		return nil, fmt.Errorf("%w: %d, there are %d living brokers, %d in all", ErrInvalidReplicationFactor, rf, alive, len(brokers))
	case alive == 0:
		return nil, fmt.Errorf("%w: %d, no broker is alive", ErrInvalidReplicationFactor, rf)
	}
	p := placement{brokers: brokers, racks: make([]int, len(brokers))}
	replicas := make([][]int32, n)
	for i := range replicas {
		replicas[i] = p.next(len(have)+i, int(rf))
	}
	return replicas, nil
}

func candidates(img *metadata.Image, topic string, have []*metadata.Partition) []*candidate {
	var brokers []*candidate
	racks := make(map[string]int)
	byID := make(map[int32]*candidate)
	for _, b := range img.Brokers() {
		rack, ok := racks[b.Rack]
		if !ok {
			rack = len(racks)
			racks[b.Rack] = rack
		}
		c := &candidate{id: b.ID, rack: rack, alive: b.Eligible()}
		brokers = append(brokers, c)
		byID[b.ID] = c
	}
	for _, p := range have {
		for i, id := range p.Replicas {
			if c := byID[id]; c != nil {
				c.holds++
				if i == 0 {
					c.leads++
				}
			}
		}
	}
	// Neighbours are of different racks: one of each rack, then the next of each.
	nth := make(map[int]int)
	for _, c := range brokers {
		c.turn = nth[c.rack]
		nth[c.rack]++
	}
	slices.SortStableFunc(brokers, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.rack, b.rack))
	})
	if len(brokers) == 0 {
		return nil
	}
	h := fnv.New32a()
	h.Write([]byte(topic))
	start := int(h.Sum32() % uint32(len(brokers)))
	slices.Reverse(brokers[:start])
	slices.Reverse(brokers[start:])
	slices.Reverse(brokers)
	for i, c := range brokers {
		c.turn = i
	}
	return brokers
}

// placement places one partition after the other.
type placement struct {
	brokers []*candidate
	racks   []int // replicas of the partition at hand per rack
}

// next places one partition. Who follows a leader changes from one round of leaders
// to the next, so that the partitions of a broker that fails are taken over by all.
func (p *placement) next(index, rf int) []int32 {
	clear(p.racks)
	size := len(p.brokers)
	replicas := make([]int32, 0, rf)
	used := make(map[*candidate]bool, rf)
	first := 0
	for len(replicas) < rf {
		var best *candidate
		var bestKey [5]int
		for _, c := range p.brokers {
			if used[c] {
				continue
			}
			key := [5]int{0, p.racks[c.rack], c.holds, 0, 0}
			if !c.alive {
				key[0] = 1
			}
			if len(replicas) == 0 {
				key[1], key[3] = c.leads, (c.turn-index%size+size)%size
			} else {
				// Kafka's shift: the second replica is one further in each round.
				key[3] = (c.turn - first - 1 - index/size%max(size-1, 1) + 2*size) % size
			}
			if best == nil || slices.Compare(key[:], bestKey[:]) < 0 {
				best, bestKey = c, key
			}
		}
		if len(replicas) == 0 {
			best.leads++
			first = best.turn
		}
		best.holds++
		p.racks[best.rack]++
		used[best] = true
		replicas = append(replicas, best.id)
	}
	return replicas
}
