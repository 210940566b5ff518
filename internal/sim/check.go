package sim

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// checker knows what really happened, which no broker does, and holds the state of the
// cluster against the rules of the specification after each event: what changed, and
// everything every thousand events.
type checker struct {
	w     *World
	parts map[segment.LogID]*ghost
	dirty []dirty
	err   error
	rules map[string]int // how often each was looked at
	acked int
	story string
}

type dirty struct {
	node int32
	id   segment.LogID
}

// ghost is what the checker knows of one partition.
type ghost struct {
	id         segment.LogID
	replicated bool // durability=replicated: a crash may take what was acknowledged
	// line is what was committed, in the version that counts now (TL).
	line    []committed
	version int
	told    int64 // greatest end offset that a client was given
	start   int64 // greatest log start of any replica
	acks    []acked
	// written is who wrote the batch of an epoch at an offset, and with what in front.
	written map[written]uint64
	writer  map[int32]int32 // by epoch
	leaders map[int32]int32 // by epoch, as the metadata said
	// seen is where each producer's batches are.
	seen map[sequence]int64
	// loose: every replica that had all lost some of it; the next leader decides.
	loose bool
	// allowed: the leader elected last may lack records. checked is the epoch in which
	// that was looked at.
	allowed bool
	checked int32
	// states are what the metadata said of it, newest last.
	states []string
	// m is what is known of it as part of a mirror; nil if it never was.
	m *mirrored
}

type committed struct {
	base, end int64
	epoch     int32
	chain     uint64
	from      sequence
}

type sequence struct {
	pid int64
	seq int32
}

// sender is a producer as its batches name it.
func sender(pid int64, epoch int16) int64 { return pid | int64(epoch)<<40 }

type written struct {
	epoch int32
	base  int64
}

type acked struct {
	base, end int64
	from      sequence
}

func newChecker(w *World) *checker {
	return &checker{w: w, parts: map[segment.LogID]*ghost{}, rules: map[string]int{}}
}

// fail notes the first violation; the run ends with it.
func (c *checker) fail(rule, format string, args ...any) {
	if c.err == nil {
		c.story = c.states()
		c.err = fmt.Errorf("%s violated: %s", rule, fmt.Sprintf(format, args...))
	}
}

// states is what the metadata said of each partition last.
func (c *checker) states() string {
	var b strings.Builder
	for _, t := range c.w.store.image().Topics() {
		for _, p := range t.Partitions {
			g := c.ghost(segment.LogID{Topic: t.ID, Partition: p.Index})
			fmt.Fprintf(&b, "%v (%s, %v): committed %d, version %d\n", g, t.Name, t.Configs, g.frontier(), g.version)
			for _, s := range g.states[max(0, len(g.states)-8):] {
				fmt.Fprintf(&b, "    %s\n", s)
			}
		}
	}
	return b.String()
}

func (c *checker) looked(rule string) { c.rules[rule]++ }

func (c *checker) ghost(id segment.LogID) *ghost {
	g := c.parts[id]
	if g == nil {
		g = &ghost{id: id, written: map[written]uint64{}, writer: map[int32]int32{}, leaders: map[int32]int32{}, seen: map[sequence]int64{}}
		c.parts[id] = g
	}
	return g
}

func (g *ghost) frontier() int64 {
	if n := len(g.line); n > 0 {
		return g.line[n-1].end
	}
	return 0
}

func (g *ghost) String() string {
	return fmt.Sprintf("topic %d partition %d", g.id.Topic[15], g.id.Partition)
}

// at is the committed batch that ends at offset.
func (g *ghost) endingAt(end int64) (committed, bool) {
	i := sort.Search(len(g.line), func(i int) bool { return g.line[i].end >= end })
	if i < len(g.line) && g.line[i].end == end {
		return g.line[i], true
	}
	return committed{}, false
}

// committedAt says whether a producer's batch is what was committed at an offset.
func (g *ghost) committedAt(base int64, from sequence) bool {
	i := sort.Search(len(g.line), func(i int) bool { return g.line[i].base >= base })
	return i < len(g.line) && g.line[i].base == base && g.line[i].from == from
}

// chainAt is the chain of a log's batch that ends at offset.
func (l *memLog) chainAt(end int64) (uint64, bool) {
	i := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].end >= end })
	if i < len(l.batches) && l.batches[i].end == end {
		return l.batches[i].chain, true
	}
	return 0, false
}

// has says whether a log has everything that was committed below end.
func (g *ghost) has(l *memLog, end int64) bool {
	if end <= 0 || l != nil && end <= l.start {
		return true
	}
	if l == nil {
		return false
	}
	t, ok := g.endingAt(end)
	chain, has := l.chainAt(end)
	return ok && has && chain == t.chain
}

// appended hears of each batch in any log (GI-11, GI-15).
func (c *checker) appended(node int32, l *memLog) {
	c.mark(node, l.id)
	if c.w.pair != nil {
		c.w.pair.appended(c, node, l)
		return
	}
	g := c.ghost(l.id)
	n := len(l.batches) - 1
	b := &l.batches[n]
	c.looked("GI-11")
	key := written{b.epoch, b.base}
	chain, known := g.written[key]
	if n == 0 && l.loose {
		l.loose = false
		if known {
			b.chain = chain
			return
		}
		// After an unclean election nobody may know any more what lay in front, but for
		// what the log itself has let go of.
		if t, ok := g.endingAt(b.base); ok {
			b.chain = t.chain*1099511628211 ^ b.sum
		} else if len(l.gone) == 0 && (g.version == 0 || b.base <= g.frontier()) {
			c.fail("GI-11", "%v: broker %d begins with batch %d of epoch %d, which nobody wrote", g, node, b.base, b.epoch)
		}
	}
	if known {
		if chain != b.chain {
			c.fail("GI-11", "%v: broker %d has another batch %d of epoch %d, or others in front of it, than broker %d wrote", g, node, b.base, b.epoch, g.writer[b.epoch])
		}
		return
	}
	g.written[key] = b.chain
	c.looked("GI-15")
	if first, ok := g.writer[b.epoch]; ok && first != node {
		c.fail("GI-15", "%v: brokers %d and %d both write in epoch %d", g, first, node, b.epoch)
	}
	g.writer[b.epoch] = node
	if leader, ok := g.leaders[b.epoch]; !ok || leader != node {
		c.fail("GI-15", "%v: broker %d writes in epoch %d, which by the metadata is led by %d", g, node, b.epoch, leader)
	}
}

// begins hears of a log start that moved.
func (c *checker) begins(l *memLog) {
	g := c.ghost(l.id)
	c.looked("log start")
	g.start = max(g.start, l.start)
	if g.version == 0 && l.start > g.frontier() {
		c.fail("GI-01", "%v: broker %d has log start %d, committed is %d", g, l.d.node.id, l.start, g.frontier())
	}
	c.mark(l.d.node.id, l.id)
}

func (c *checker) truncated(node int32, l *memLog) {
	c.mark(node, l.id)
	if c.w.pair != nil {
		c.w.pair.truncated(c, node, l)
	}
}

func (c *checker) removed(node int32, id segment.LogID) {
	c.w.loop.note("log removed", int64(node), int64(id.Topic[15]), int64(id.Partition))
}

// killed hears of each crash. Where durability is replicated, what no fsync confirmed
// is as safe as it is that somebody stays who has it (P1): as soon as one has lost
// some of it and nobody is up who has all, the next leader decides.
func (c *checker) killed(node int32) {
	for _, l := range c.w.brokers[node].disk.sorted() {
		g := c.ghost(l.id)
		p := c.w.store.image().Partition(l.id.Topic, l.id.Partition)
		if !g.replicated || p == nil || g.loose {
			continue
		}
		lost, safe := false, false
		for _, id := range slices.Concat(p.ISR, p.ELR, p.LastKnownELR) {
			b := c.w.brokers[id]
			has := g.has(b.log(l.id.Topic, l.id.Partition), g.frontier())
			lost, safe = lost || !has, safe || has && b.proc.up
		}
		if t := c.w.store.image().TopicByID(l.id.Topic); t.Sourced(p) {
			safe = false // nobody waits for mirrored records: the source has them
		}
		if g.loose = lost && !safe; g.loose {
			c.w.loop.note("nobody is sure to have all", int64(node), int64(l.id.Partition), g.frontier())
		}
	}
}

func (c *checker) mark(node int32, id segment.LogID) {
	for _, d := range c.dirty {
		if d.node == node && d.id == id {
			return
		}
	}
	c.dirty = append(c.dirty, dirty{node, id})
}

// applied hears of an image that reached a broker.
func (c *checker) applied(b *broker) {
	for _, l := range b.disk.sorted() {
		c.mark(b.id, l.id)
	}
}

// step looks at what changed in an event.
func (c *checker) step() {
	for _, d := range c.dirty {
		c.replica(c.w.brokers[d.node], d.id)
	}
	c.dirty = c.dirty[:0]
	if c.w.loop.steps%1000 == 0 {
		c.full()
	}
}

// replica looks at one replica.
func (c *checker) replica(b *broker, id segment.LogID) {
	if !b.proc.up {
		return
	}
	p := b.mgr.ByID(id.Topic, id.Partition)
	l := b.disk.logs[id]
	if p == nil || l == nil {
		return
	}
	g := c.ghost(id)
	i := p.Info()
	c.looked("GI-01")
	if i.LogStart > i.HighWatermark || i.HighWatermark > i.LogEnd || i.LastStable > i.HighWatermark || l.durable > l.end {
		c.fail("GI-01", "%v: broker %d has start %d, stable %d, high watermark %d, end %d, durable %d", g, b.id, i.LogStart, i.LastStable, i.HighWatermark, i.LogEnd, l.durable)
	}
	if i.Leader {
		if !p.Barred() { // or what it has may be of before a mirror's cut, and it serves nobody
			c.commit(b, g, l, i)
		}
		return
	}
	// A follower's high watermark is nothing that it made up.
	c.looked("GI-14")
	if hw := i.HighWatermark; hw <= g.frontier() && !g.has(l, hw) && hw > l.start && c.leads(g, b.id, i.LeaderEpoch) {
		c.fail("GI-14", "%v: broker %d has high watermark %d, below which it has not what was committed", g, b.id, hw)
	}
}

// leads says whether a follower's epoch is that of the metadata: before it has heard
// of the newest leader it may keep what an unclean election has taken away.
func (c *checker) leads(g *ghost, _ int32, leaderEpoch int32) bool {
	p := c.w.store.image().Partition(g.id.Topic, g.id.Partition)
	return g.version == 0 && p != nil && p.LeaderEpoch == leaderEpoch
}

// commit takes a leader's high watermark for what it says (GI-10, GI-13, GI-40).
func (c *checker) commit(b *broker, g *ghost, l *memLog, i partition.Info) {
	img := c.w.store.image()
	if c.w.pair != nil && c.w.pair.afterLife(c, b, l, i.HighWatermark) {
		return
	}
	p := img.Partition(g.id.Topic, g.id.Partition)
	if p == nil {
		return
	}
	if g.version > 0 && p.LeaderEpoch != i.LeaderEpoch {
		return // a leader of a time before a cut knows what is not any more
	}
	if g.checked < p.LeaderEpoch && p.LeaderEpoch == i.LeaderEpoch {
		c.leadsWith(g, l, p)
	}
	f, hw := g.frontier(), i.HighWatermark
	c.looked("GI-13")
	if low := min(f, hw); !g.has(l, low) && low > l.start {
		c.fail("GI-13", "%v: broker %d leads in epoch %d with high watermark %d and has not what was committed below %d", g, b.id, i.LeaderEpoch, hw, low)
		return
	}
	if hw <= f {
		return
	}
	for _, m := range l.batches[l.find(f):] {
		if m.end > hw {
			break
		}
		t := committed{base: m.base, end: m.end, epoch: m.epoch, chain: m.chain}
		batch := record.Batch(m.bytes)
		t.from = sequence{sender(batch.ProducerID(), batch.ProducerEpoch()), batch.BaseSequence()}
		if c.w.pair != nil && batch.IsControl() {
			c.w.pair.reset(c, g, batch)
		}
		// Whoever began anew behind a batch cannot tell it from its repetition, as in Kafka.
		if at, ok := g.seen[t.from]; ok && batch.HasProducerID() && !batch.IsControl() && at >= g.start && (g.m == nil || at >= g.m.reset) {
			c.fail("GI-40", "%v: batch %v of a producer is committed twice, at %d and %d", g, t.from, at, m.base)
		}
		g.seen[t.from] = m.base
		g.line = append(g.line, t)
	}
	// What an unclean election left may have been deleted already where it leads now.
	if g.frontier() != hw && (g.version == 0 || hw != l.start) {
		c.fail("GI-13", "%v: broker %d has high watermark %d, which lies in no batch's end", g, b.id, hw)
	}
	if c.w.pair != nil {
		c.w.pair.advanced(c, g, f)
	}
	c.w.loop.note("committed", int64(b.id), int64(g.id.Partition), hw, int64(i.LeaderEpoch))
	c.members(g, p, "")
}

// members holds those in the ISR to what that means (GI-10, GI-40).
func (c *checker) members(g *ghost, p *metadata.Partition, when string) {
	f := g.frontier()
	c.looked("GI-10")
	for _, id := range p.ISR {
		b := c.w.brokers[id]
		l := b.log(g.id.Topic, g.id.Partition)
		if g.has(l, f) {
			// Who was not in the ISR when it was elected had promised nothing of its disk.
			spared := g.version > 0 && id == p.Leader && g.allowed
			if !g.replicated && !spared && f > 0 && l != nil && l.durable < f {
				c.fail("GI-40", "%v%s: broker %d in the ISR has on its disk what is below %d, committed is %d", g, when, id, l.durable, f)
			}
			continue
		}
		if g.loose || g.replicated && (!c.told(id) || g.checked != p.LeaderEpoch) {
			// What a crash took, a member may lack until its registration tells; and of
			// which log the leader makes the others', until it is there to lead.
			continue
		}
		if c.w.pair != nil && c.w.pair.cutting(c.w, g.id) {
			continue
		}
		c.fail("GI-10", "%v%s: broker %d is in the ISR %v of leader %d in epoch %d and has not what was committed below %d", g, when, id, p.ISR, p.Leader, p.LeaderEpoch, f)
	}
}

// told says whether a broker's process is the one that is registered, so that what its
// disk lost is known.
func (c *checker) told(id int32) bool {
	b, r := c.w.brokers[id], c.w.store.image().Broker(id)
	return b.proc.up && r != nil && r.Incarnation == b.incarnation
}

// committed looks at a transaction of the metadata (GI-30, and the rules of elections).
func (c *checker) committed(before, after *metadata.Image, cuts []controller.Cut) {
	if c.w.pair != nil {
		c.w.pair.gone(c, before, after)
	}
	for _, t := range after.Topics() {
		old := before.TopicByID(t.ID)
		if old == t {
			continue
		}
		for _, p := range t.Partitions {
			g := c.ghost(segment.LogID{Topic: t.ID, Partition: p.Index})
			g.replicated = t.Config(metadata.DurabilityConfig) == "replicated"
			if c.w.pair != nil {
				c.w.pair.recorded(c, g, before, t, p)
			}
			var was *metadata.Partition
			if was = old.Partition(p.Index); was == p {
				continue
			}
			g.states = append(g.states, fmt.Sprintf("%.4fs revision %d: %+v mirror: %+v", c.w.loop.now.Seconds(), after.Revision, *p, p.Mirror))
			if was != nil && was.Mirror != p.Mirror && was.PartitionEpoch == p.PartitionEpoch {
				continue // nothing but a mirror's state
			}
			c.election(after, g, was, p, cuts)
		}
	}
	for _, b := range after.Brokers() {
		if was := before.Broker(b.ID); b.Fenced && was != nil && !was.Fenced {
			c.fenced(after, b.ID)
		}
	}
	for _, b := range before.Brokers() {
		if after.Broker(b.ID) == nil {
			c.unregistered(after)
		}
	}
}

// unregistered hears that a broker, as an operator says, does not come back. Where durability
// is replicated, and nobody else who counts has kept everything, the next leader decides.
func (c *checker) unregistered(img *metadata.Image) {
	for _, t := range img.Topics() {
		for _, p := range t.Partitions {
			g := c.ghost(segment.LogID{Topic: t.ID, Partition: p.Index})
			had := slices.Concat(p.ISR, p.ELR, p.LastKnownELR)
			if g.replicated && !slices.ContainsFunc(had, func(id int32) bool { return g.has(c.w.brokers[id].log(t.ID, p.Index), g.frontier()) }) {
				g.loose = true
			}
		}
	}
}

// fenced looks at the moment in which a broker is taken for gone: it leaves every ISR
// in which somebody stays of whom the controller knows that he is there. Who has not
// been heard of in its term may be gone as well.
func (c *checker) fenced(img *metadata.Image, id int32) {
	c.looked("ISR")
	for _, t := range img.Topics() {
		for _, p := range t.Partitions {
			if p.Leader == metadata.NoLeader || !slices.Contains(p.ISR, id) {
				continue
			}
			if p.Leader == id || img.Broker(p.Leader).Eligible() && c.w.heard[p.Leader] == c.w.store.elected {
				c.fail("ISR", "partition %d of %s: broker %d is fenced and stays in the ISR: %+v", p.Index, t.Name, id, *p)
			}
		}
	}
}

func (c *checker) election(img *metadata.Image, g *ghost, was, p *metadata.Partition, cuts []controller.Cut) {
	bad := func(format string, args ...any) {
		c.fail("GI-30", "%v: %s: %+v after %+v", g, fmt.Sprintf(format, args...), *p, was)
	}
	c.looked("GI-30")
	switch {
	case was == nil && g.m != nil && p.LeaderEpoch <= g.m.ended:
		bad("the leader epoch is one of the topic's life before, which ended in %d", g.m.ended)
	case p.Leader != metadata.NoLeader && !slices.Contains(p.ISR, p.Leader):
		bad("the leader is not in the ISR")
	case slices.ContainsFunc(p.ISR, func(id int32) bool { return slices.Contains(p.ELR, id) }):
		bad("ISR and ELR have a member in common")
	case slices.ContainsFunc(p.ISR, func(id int32) bool { return !slices.Contains(p.Replicas, id) }):
		bad("a member of the ISR is no replica")
	case was != nil && p.LeaderEpoch < was.LeaderEpoch:
		bad("the leader epoch falls")
	case was != nil && p.PartitionEpoch != was.PartitionEpoch+1:
		bad("the partition epoch does not grow by one")
	case was != nil && p.Leader != was.Leader && p.LeaderEpoch == was.LeaderEpoch:
		bad("another leader in the same epoch")
	}
	if p.Leader == metadata.NoLeader {
		return
	}
	if was != nil {
		for _, id := range p.ISR {
			if b := img.Broker(id); !slices.Contains(was.ISR, id) && (b == nil || b.Fenced) {
				c.fail("ISR", "%v: %d joins the ISR and is fenced: %+v after %+v", g, id, *p, *was)
			}
		}
	}
	g.leaders[p.LeaderEpoch] = p.Leader
	elected := was == nil || was.Leader != p.Leader
	if !elected {
		c.members(g, p, " after a change of the ISR")
		return
	}
	cut := g.loose
	for _, x := range cuts {
		if x.Topic == g.id.Topic && x.Partition == g.id.Partition && (!x.Longest || g.replicated) {
			cut = true
		}
	}
	c.w.loop.note("elected", int64(p.Leader), int64(g.id.Partition), int64(p.LeaderEpoch), bit(cut))
	c.looked("election")
	l := c.w.brokers[p.Leader].log(g.id.Topic, g.id.Partition)
	// The ISR that completes a reassignment may bring its own leader along.
	if was != nil && !cut && !(was.Reassigning() && !p.Reassigning()) && !slices.Contains(slices.Concat(was.ISR, was.ELR), p.Leader) {
		c.fail("election", "%v: %d leads, which was neither in the ISR nor in the ELR: %+v", g, p.Leader, *was)
	}
	g.allowed = cut || g.allowed && g.checked < 0 // the one elected before was never there to lead
	g.checked = -1
	if !g.replicated {
		c.leadsWith(g, l, p)
	}
	c.members(g, p, " after an election")
}

// leadsWith looks at a log with which somebody leads. One that a crash may have shortened
// is looked at when its broker is there to lead: until then its registration may still
// tell that something is missing.
func (c *checker) leadsWith(g *ghost, l *memLog, p *metadata.Partition) {
	g.checked = p.LeaderEpoch
	switch full := g.has(l, g.frontier()); {
	case g.allowed, !full && g.loose, !full && g.m != nil && g.m.cutAt >= 0 && g.has(l, g.m.cutAt):
		// Even if it lacks nothing: what the leader before it, alive perhaps, commits
		// from here on counts no more.
		c.cut(g, l)
	case !full:
		c.fail("GI-13", "%v: the new leader %d in epoch %d has not what was committed below %d (its end %d)", g, p.Leader, p.LeaderEpoch, g.frontier(), end(l))
	}
	g.loose = false
}

func end(l *memLog) int64 {
	if l == nil {
		return 0
	}
	return l.end
}

// cut begins another version of what was committed: a leader was elected that lacks
// some of it, as the operator allows.
func (c *checker) cut(g *ghost, l *memLog) {
	n := len(g.line)
	for n > 0 && !g.has(l, g.line[n-1].end) {
		n--
	}
	for _, t := range g.line[n:] {
		delete(g.seen, t.from)
	}
	g.line = g.line[:n:n]
	g.version++
	if c.w.pair != nil {
		c.w.pair.newVersion(c, g)
	}
	g.told = 0
	f := g.frontier()
	g.acks = slices.DeleteFunc(g.acks, func(a acked) bool { return a.end > f })
	c.w.loop.note("cut", int64(g.id.Partition), f, int64(g.version))
	c.w.cuts++
}

func (c *checker) version(topic metadata.TopicID, index int32) int {
	return c.ghost(segment.LogID{Topic: topic, Partition: index}).version
}

// full looks at everything.
func (c *checker) full() {
	for _, id := range c.w.ids {
		for _, l := range c.w.brokers[id].disk.sorted() {
			c.wellFormed(id, l)
			c.replica(c.w.brokers[id], l.id)
		}
	}
	img := c.w.store.image()
	for _, t := range img.Topics() {
		for _, p := range t.Partitions {
			g := c.ghost(segment.LogID{Topic: t.ID, Partition: p.Index})
			if p.Leader != metadata.NoLeader {
				c.members(g, p, "")
			}
			for _, a := range g.acks {
				if a.base >= g.start && !g.committedAt(a.base, a.from) {
					c.fail("GI-40", "%v: acknowledged batch %v at %d is gone", g, a.from, a.base)
				}
			}
		}
	}
}

// wellFormed reads a log from end to end (GI-01, GI-02, GI-03, GI-52).
func (c *checker) wellFormed(node int32, l *memLog) {
	g := c.ghost(l.id)
	c.looked("GI-02")
	var epochs epoch.Cache
	last := committed{epoch: -1, end: l.start}
	for i, m := range l.batches {
		b := record.Batch(m.bytes)
		if b.VerifyCRC() != nil || m.base < last.end && i > 0 || m.epoch < last.epoch {
			c.fail("GI-01", "%v: broker %d has batch %d of epoch %d behind %d of epoch %d", g, node, m.base, m.epoch, last.end, last.epoch)
			return
		}
		epochs.Assign(m.epoch, m.base)
		last = committed{epoch: m.epoch, end: m.end}
	}
	for _, e := range epochs.Entries() {
		a, x := epochs.End(e.Epoch, l.end)
		if y, z := l.EpochEnd(e.Epoch); y != a || z != x {
			c.fail("GI-03", "%v: broker %d answers %d, %d for epoch %d, a scan gives %d, %d", g, node, y, z, e.Epoch, a, x)
		}
	}
	if l.start <= last.end && len(l.batches) > 0 && last.end != l.end {
		c.fail("GI-01", "%v: broker %d has log end %d, its last batch ends at %d", g, node, l.end, last.end)
	}
}
