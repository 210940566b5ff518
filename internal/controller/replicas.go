package controller

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// replicas decides who of a partition's replicas is in sync and who leads. All
// decisions about partitions go through it, so that these hold after each:
//
//   - the ISR is a part of the replicas, and has nobody in common with the ELR;
//   - the leader is eligible and in the ISR, or there is none;
//   - who is not eligible is in no ISR of a partition that has a leader, but for a
//     broker in controlled shutdown that nobody can replace. A partition without a
//     leader keeps the ISR that it had last: those have every committed record;
//   - leader epochs never fall, and grow with every change of the leader;
//   - partition epochs grow by one with every change.
type replicas struct {
	img *metadata.Image
	def defaults
	// eligible tells who may lead and be in an ISR, as it is after the command.
	eligible func(id int32) bool
	// defaultConfigs are the configs of all brokers, as they are after the command.
	defaultConfigs map[string]string
}

// replicasOf takes the brokers as the image has them, without some.
func replicasOf(img *metadata.Image, def defaults, without ...int32) replicas {
	eligible := func(id int32) bool { return !slices.Contains(without, id) && img.Broker(id).Eligible() }
	return replicas{img, def, eligible, img.BrokerConfigs(metadata.DefaultBroker)}
}

// topicConfig is a config in force: of the topic, for all brokers, by the file, or by
// the table. Configs of single brokers do not count: they would make it a question
// who is asked.
func (r replicas) topicConfig(t *metadata.Topic, name, file string) string {
	if v, ok := t.Configs[name]; ok {
		return v
	}
	if v, ok := r.defaultConfigs[metadata.TopicDefaultKey(name)]; ok {
		return v
	}
	if file != "" {
		return file
	}
	return t.Config(name)
}

// minISR is the number of ISR members below which the high watermark stands still:
// a partition with fewer replicas than min.insync.replicas moves it with all of them.
// That of a mirror never stands still, so that it has no ELR: who is out of the ISR
// lacks records, and those that it leads without are gone if the source is.
func (r replicas) minISR(t *metadata.Topic, p *metadata.Partition) int {
	if t.ReadOnly(p) {
		return 0
	}
	file := ""
	if r.def.MinISR > 0 {
		file = strconv.Itoa(int(r.def.MinISR))
	}
	n, err := strconv.Atoi(strings.TrimSpace(r.topicConfig(t, metadata.MinISRConfig, file)))
	if err != nil {
		n = 1
	}
	return min(n, len(p.Replicas))
}

// uncleanAllowed is unclean.leader.election.enable.
func (r replicas) uncleanAllowed(t *metadata.Topic) bool {
	return strings.EqualFold(strings.TrimSpace(r.topicConfig(t, metadata.UncleanElectionConfig, strconv.FormatBool(r.def.Unclean))), "true")
}

// durable reports whether a replica on b has kept everything below the high
// watermark through an unclean stop.
func (r replicas) durable(t *metadata.Topic, b *metadata.Broker) bool {
	own, ok := r.img.BrokerConfigs(b.ID)[metadata.TopicDefaultKey(metadata.DurabilityConfig)]
	if _, topic := t.Configs[metadata.DurabilityConfig]; ok && !topic {
		return own == "fsync"
	}
	return r.topicConfig(t, metadata.DurabilityConfig, b.Durability) == "fsync"
}

// change is one partition on its way from old to next.
type change struct {
	replicas
	t    *metadata.Topic
	old  *metadata.Partition
	next metadata.Partition
	// lost left ISR or ELR because they may lack records: they are not taken into
	// the ELR.
	lost []int32
	// unusable are not taken into the ELR either: nothing can be read from them. They
	// may have all records still.
	unusable []int32
	// restart forgets the ELR: the leader begins with what it has, and others who
	// had every record may have some that it does not.
	restart bool
	// bump raises the leader epoch though the leader stays.
	bump bool
	// wished says that the leader asks for this ISR.
	wished bool
	// there is a broker that has just been heard of and has seen the partition as it was;
	// -1: none has.
	there int32
}

func (r replicas) change(t *metadata.Topic, p *metadata.Partition) *change {
	return &change{replicas: r, t: t, old: p, next: *p, there: -1}
}

// leave takes brokers out of the ISR if somebody stays there who is eligible. If not,
// all of them stay: whoever is the last, or goes together with the last, has every
// committed record and will lead when it is back.
func (c *change) leave(ids ...int32) {
	if isr := minus(c.next.ISR, ids); slices.ContainsFunc(isr, c.eligible) && !invariants.Planted("fencedKeptInISR") {
		c.next.ISR = isr
	}
}

// keepsUp reports whether the leader is one who may go on.
func (c *change) keepsUp() bool {
	return c.next.Leader != metadata.NoLeader && c.eligible(c.next.Leader) && slices.Contains(c.next.ISR, c.next.Leader)
}

// elect keeps the leader if it can go on. Otherwise the first eligible replica of the
// ISR leads, in order of assignment, else of the ELR, else nobody.
func (c *change) elect() {
	if c.keepsUp() {
		return
	}
	c.next.Leader = metadata.NoLeader
	for _, from := range [][]int32{c.next.ISR, c.next.ELR} {
		for _, id := range c.next.Replicas {
			if (slices.Contains(from, id) || invariants.Planted("electOutsideISR")) && c.eligible(id) {
				c.lead(id)
				return
			}
		}
	}
}

// lead makes id the leader. The ISR that goes on with it are those of its members
// that are there; a leader from outside begins alone. LastKnownELR stays: the image
// takes id for alive, which is no proof that it is.
func (c *change) lead(id int32) {
	isr := slices.DeleteFunc(slices.Clone(c.next.ISR), func(id int32) bool { return !c.eligible(id) })
	if !slices.Contains(isr, id) {
		isr = []int32{id}
	}
	c.next.ISR, c.next.Leader = isr, id
}

// done answers the partition as it is to be written, or nil if nothing changed.
func (c *change) done() *metadata.Partition {
	n := &c.next
	c.keepELR()
	if n.Leader != c.old.Leader || c.bump {
		// An epoch at its end can only come from a hostile source (W43). Then
		// elections go on without fencing.
		if n.LeaderEpoch < math.MaxInt32 && !invariants.Planted("epochNotRaised") {
			n.LeaderEpoch++
		}
	}
	if samePartition(c.old, n) {
		return nil
	}
	n.PartitionEpoch++
	next := *n
	return &next
}

// keepELR maintains the ELR (KIP-966): who leaves an ISR that is then too small for
// the high watermark to move has every committed record until it is large enough
// again.
func (c *change) keepELR() {
	n := &c.next
	if c.restart || len(n.ISR) >= c.minISR(c.t, n) {
		n.ELR = nil
	} else {
		elr := union(c.next.ELR, c.old.ELR, c.old.ISR)
		elr = minus(elr, n.ISR)
		elr = minus(elr, union(c.lost, c.unusable))
		n.ELR = only(elr, n.Replicas)
	}
	if had := union(c.old.ISR, c.old.ELR); c.lastOne(had) {
		n.LastKnownELR = union(n.LastKnownELR, minus(had, c.lost))
	}
	n.LastKnownELR = only(minus(minus(n.LastKnownELR, n.ISR), n.ELR), n.Replicas)
}

// lastOne reports whether one member is left of an ISR that the controller, and not
// the leader, made smaller, or of one with an ELR, and may have stopped uncleanly
// without anybody knowing yet. The others of those that had every record have what it
// lost, until it is known to have gone on without them. In a mirror that is past its gate the
// source has it.
func (c *change) lastOne(had []int32) bool {
	n := &c.next
	if c.wished || c.restart || len(n.ISR) != 1 || len(minus(had, n.ISR)) == 0 || c.t.Sourced(c.old) {
		return false
	}
	b := c.img.Broker(n.ISR[0])
	return b != nil && !c.durable(c.t, b)
}

// put answers the change that writes the partition, if there is one.
func (c *change) put(changes []Change) []Change {
	if p := c.done(); p != nil {
		return append(changes, putPartition{ID: c.t.ID, Partition: p})
	}
	return changes
}

func samePartition(a, b *metadata.Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR) &&
		slices.Equal(a.AddingReplicas, b.AddingReplicas) && slices.Equal(a.RemovingReplicas, b.RemovingReplicas) &&
		slices.Equal(a.ELR, b.ELR) && slices.Equal(a.LastKnownELR, b.LastKnownELR)
}

// minus, union and only make sets of replicas, none of which shares its array with an
// argument; nil if empty.

func minus(from, ids []int32) []int32 {
	var left []int32
	for _, id := range from {
		if !slices.Contains(ids, id) {
			left = append(left, id)
		}
	}
	return left
}

func union(lists ...[]int32) []int32 {
	var all []int32
	for _, l := range lists {
		for _, id := range l {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// only is the part of a set that is in another, in the order of that one.
func only(set, of []int32) []int32 {
	var part []int32
	for _, id := range of {
		if slices.Contains(set, id) {
			part = append(part, id)
		}
	}
	return part
}
