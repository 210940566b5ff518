package sim

import (
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/segment"
)

// mirrored is what the checker knows of a partition because there is another cluster:
// the same topic id and index there is the same partition.
type mirrored struct {
	// hist are the batches that were ever committed here, by their end: with all that
	// lies in front of them (the chain), and in which versions of the timeline.
	hist map[int64][]committedIn
	// known are the chains that a leader here has appended.
	known map[uint64]bool
	// heard is the newest version of the source's timeline that a broker has heard of.
	heard map[int32]int
	ever  bool // it was in a mirror once
	// none: the source told in this run that it knows no last mirrored epoch.
	none bool
	lme  source.LastMirrored // what it told
	// reset is where producer ids were reset last: a client that should have left this
	// cluster, and sends once more behind it, writes twice (W60).
	reset int64
	// own: since the last run something of our own was appended. low: an unclean election
	// has since then left less than that run had brought (2.11, ULE(B)); -1: none has.
	own bool
	low int64
	// cutAt is where the leader of this run cut what was committed, -1: it did not. Until
	// the gate has opened, or the stop has heard all, who leads may have cut it too (2.11,
	// GATE(A)), or may not.
	cutAt int64
	// ended is the leader epoch in which the life before ended, -1: there was none. lives
	// are the versions in which earlier lives of the topic ended, by life.
	ended int32
	lives map[int32]int
	// safe: since the end of the last run every member of the ISR had all of it on disk.
	safe bool
}

// committedIn is a batch with all in front of it, and the versions that have it.
type committedIn struct {
	chain    uint64
	from, to int // to -1: it is there still
}

func (c *checker) mirrored(id segment.LogID) *mirrored {
	g := c.ghost(id)
	if g.m == nil {
		g.m = &mirrored{hist: map[int64][]committedIn{}, known: map[uint64]bool{}, heard: map[int32]int{}, low: -1, cutAt: -1, ended: -1, lives: map[int32]int{}}
	}
	return g.m
}

// newest is the newest version of the timeline that has a chain at an offset; false:
// none ever had.
func (m *mirrored) newest(end int64, chain uint64) (version int, ok bool) {
	for _, x := range m.hist[end] {
		if x.chain != chain {
			continue
		}
		if ok = true; x.to < 0 {
			return int(^uint(0) >> 1), true
		}
		version = max(version, x.to)
	}
	return version, ok
}

// advanced hears of batches that were committed from offset on.
func (p *pair) advanced(c *checker, g *ghost, from int64) {
	m := c.mirrored(g.id)
	for i := len(g.line) - 1; i >= 0 && g.line[i].base >= from; i-- {
		t := g.line[i]
		m.hist[t.end] = append(m.hist[t.end], committedIn{t.chain, g.version, -1})
	}
}

// gone forgets a topic that was deleted: one with its id is another. What was committed
// in it may still be on its way to the other cluster, and its leader epochs go on.
func (p *pair) gone(c *checker, before, after *metadata.Image) {
	for _, t := range before.Topics() {
		if after.TopicByID(t.ID) != nil {
			continue
		}
		for i := range t.Partitions {
			id := segment.LogID{Topic: t.ID, Partition: int32(i)}
			was := c.mirrored(id)
			version := c.ghost(id).version
			delete(c.parts, id)
			g, m := c.ghost(id), c.mirrored(id)
			g.version = version + 1
			m.lives = was.lives
			m.lives[t.Life] = version
			m.hist, m.heard, m.ended = was.hist, was.heard, max(was.ended, t.Partitions[i].LeaderEpoch)
			p.newVersion(c, g)
			m.low = -1
		}
	}
}

// lifeOver says that a broker of w does not know yet that the topic it has was deleted, and
// in which version that was. What it does with it comes to nothing.
func (p *pair) lifeOver(b *broker, id segment.LogID) (version int, over bool) {
	if b.img == nil {
		return 0, false
	}
	own, now := b.img.TopicByID(id.Topic), b.w.store.image().TopicByID(id.Topic)
	if own == nil || now != nil && now.Life == own.Life {
		return 0, false
	}
	return b.w.check.mirrored(id).lives[own.Life], true
}

// afterLife notes what a leader commits that does not know yet that its topic was deleted,
// and says whether it is one. To the other cluster it serves that as the end of the
// topic's life: nobody was told of another.
func (p *pair) afterLife(c *checker, b *broker, l *memLog, highWatermark int64) bool {
	version, over := p.lifeOver(b, l.id)
	if !over {
		return false
	}
	m := c.mirrored(l.id)
	for _, x := range l.batches {
		if _, known := m.newest(x.end, x.chain); !known && x.end <= highWatermark {
			m.hist[x.end] = append(m.hist[x.end], committedIn{x.chain, version, version})
		}
	}
	return true
}

// version is that of the timeline in which a broker of w answers.
func (p *pair) version(b *broker, id segment.LogID) int {
	if v, over := p.lifeOver(b, id); over {
		return v
	}
	if p.deposed(b, id) {
		return 0
	}
	return b.w.check.version(id.Topic, id.Partition)
}

// deposed says that a broker has not heard of the newest leader epoch. What it answers was
// true in a version before, if an unclean election came with one; to whom it is the newest
// that was heard, it may be answered.
func (p *pair) deposed(b *broker, id segment.LogID) bool {
	if b.img == nil {
		return true
	}
	own, now := b.img.TopicByID(id.Topic), b.w.store.image().TopicByID(id.Topic)
	if own == nil || now == nil {
		return own == nil
	}
	was, is := own.Partition(id.Partition), now.Partition(id.Partition)
	return was == nil || is != nil && was.LeaderEpoch < is.LeaderEpoch
}

// cutting says that a mirror's leader may have cut what another member of the ISR, which
// leads by now, still has and takes for committed: until a gate has opened, or the
// failover has waited for all.
func (p *pair) cutting(w *World, id segment.LogID) bool {
	t, _, r := p.record(w, id)
	if t == nil || t.Attachment().Desired == metadata.DesiredNone {
		return false
	}
	switch stateOf(r) {
	case metadata.StatePreparing, metadata.StateULERecovery, metadata.StateFailed, metadata.StateStopping:
		return true
	}
	return false
}

// reset notes a reset of producer ids.
func (p *pair) reset(c *checker, g *ghost, b record.Batch) {
	if kind, _, err := b.Control(); err == nil && kind == record.MirrorPIDReset {
		c.mirrored(g.id).reset = b.BaseOffset()
	}
}

// newVersion closes what the version before had and this one has not.
func (p *pair) newVersion(c *checker, g *ghost) {
	m := c.mirrored(g.id)
	f := g.frontier()
	if m.low < 0 || f < m.low {
		m.low = f
	}
	for end, list := range m.hist { // each by itself
		if end <= f {
			continue
		}
		for i := range list {
			if list[i].to < 0 {
				list[i].to = g.version - 1
			}
		}
	}
}

// heard is called when a broker of w takes in an answer of the source that was true in
// a version of its timeline.
func (p *pair) heard(w *World, node int32, id segment.LogID, version int) {
	m := w.check.mirrored(id)
	m.heard[node] = max(m.heard[node], version)
}

// told hears of a last mirrored epoch that the source told.
func (p *pair) told(w *World, _ int32, id segment.LogID, lme source.LastMirrored) {
	m := w.check.mirrored(id)
	m.none, m.lme = lme.Epoch < 0, lme
}

// asks hears of each question to the source about a partition (W59).
func (p *pair) asks(b *broker, id segment.LogID) {
	b.w.check.looked("W59")
	if b.mirrors.m.Doing(id.Topic, id.Partition) == "stop" {
		b.w.check.fail("W59", "%v: broker %d asks the source in a failover", b.w.check.ghost(id), b.id)
	}
}

// record is what the metadata store has of a partition of w.
func (p *pair) record(w *World, id segment.LogID) (*metadata.Topic, *metadata.Partition, *metadata.MirrorPartition) {
	t := w.store.image().TopicByID(id.Topic)
	mp := t.Partition(id.Partition)
	if mp == nil {
		return nil, nil, nil
	}
	return t, mp, t.MirrorPartition(mp)
}

// appended hears of each batch in any log of a pair.
func (p *pair) appended(c *checker, node int32, l *memLog) {
	l.syncSoon()
	g, m := c.ghost(l.id), c.mirrored(l.id)
	w := c.w
	x := &l.batches[len(l.batches)-1]
	b := record.Batch(x.bytes)
	part := w.brokers[node].mgr.ByID(l.id.Topic, l.id.Partition)
	if part == nil {
		return
	}
	i := part.Info()
	if _, over := p.lifeOver(w.brokers[node], l.id); over {
		return
	}
	if len(l.batches) == 1 && x.base > g.start { // where retention has begun the log, in some replica
		c.fail("GI-11", "%v: broker %d begins at %d, and nothing was removed", g, node, x.base)
		return
	}
	if !i.Leader {
		c.looked("GI-11")
		if !m.known[x.chain] {
			c.fail("GI-11", "%v: broker %d follows with batch %d of epoch %d, which with what is in front of it no leader wrote", g, node, x.base, x.epoch)
		}
		return
	}
	m.known[x.chain] = true
	c.looked("GI-15")
	if leader, ok := g.leaders[i.LeaderEpoch]; !ok || leader != node {
		c.fail("GI-15", "%v: broker %d writes as leader in epoch %d, which by the metadata is led by %d", g, node, i.LeaderEpoch, leader)
	}
	t, mp, r := p.record(w, l.id)
	if mp == nil {
		return
	}
	current := mp.Leader == node && mp.LeaderEpoch == i.LeaderEpoch // or it is deposed, and what it writes comes to nothing
	if w.cause == "mirror" {
		p.mirrorAppend(c, g, m, node, x, i.LeaderEpoch, current, r)
		return
	}
	c.looked("GI-24")
	if x.epoch != i.LeaderEpoch {
		c.fail("GI-15", "%v: broker %d writes batch %d of epoch %d as leader in epoch %d", g, node, x.base, x.epoch, i.LeaderEpoch)
	}
	state := metadata.StateUnknown
	if r != nil {
		state = r.State
	}
	if w.cause == "task" {
		if !b.IsControl() || current && state != metadata.StateStopping {
			c.fail("GI-24", "%v: broker %d's mirror writes batch %d (control %v) of its own in state %s", g, node, x.base, b.IsControl(), state)
		}
	} else {
		c.looked("GI-25")
		own := w.brokers[node].img.TopicByID(l.id.Topic)
		if own.ReadOnly(own.Partition(l.id.Partition)) || current && state != metadata.StateUnknown && state != metadata.StateStopped {
			c.fail("GI-25", "%v: a client writes batch %d on broker %d in state %s, wanted is %s", g, x.base, node, state, t.Attachment().Desired)
		}
	}
	if r == nil || !current {
		return
	}
	c.looked("GI-32")
	if !r.HasLME {
		c.fail("GI-33", "%v: broker %d writes batch %d of its own before the last mirrored epoch is recorded (%s)", g, node, x.base, state)
		return
	}
	first := r.LMO
	if m.low >= 0 {
		first = min(first, m.low)
	}
	if x.epoch <= r.LME || r.LMO >= 0 && x.base < first || !m.own && r.LMO >= 0 && x.base != first {
		c.fail("GI-32", "%v: broker %d writes batch %d of epoch %d of its own; the last mirrored epoch is %d, offset %d (first: %v)", g, node, x.base, x.epoch, r.LME, r.LMO, !m.own)
	}
	m.own = true
}

// mirrorAppend looks at a batch that came from the source.
func (p *pair) mirrorAppend(c *checker, g *ghost, m *mirrored, node int32, x *memBatch, leaderEpoch int32, current bool, r *metadata.MirrorPartition) {
	there := c.w.other().check.mirrored(g.id)
	c.looked("GI-21")
	switch version, ok := there.newest(x.end, x.chain); {
	case !ok:
		c.fail("GI-21", "%v: broker %d mirrors batch %d to %d of epoch %d, which with what is in front of it was never committed on the source", g, node, x.base, x.end, x.epoch)
	case version < m.heard[node]:
		c.fail("GI-21", "%v: broker %d mirrors batch %d to %d, which the source has not had since version %d, and version %d has answered", g, node, x.base, x.end, version, m.heard[node])
	}
	c.looked("GI-31")
	if x.epoch > leaderEpoch {
		c.fail("GI-31", "%v: broker %d mirrors batch %d of epoch %d in leader epoch %d", g, node, x.base, x.epoch, leaderEpoch)
	}
	if !current {
		return
	}
	c.looked("GI-66")
	switch {
	case r == nil, r.State == metadata.StatePreparing, r.State == metadata.StateULERecovery, r.State == metadata.StatePaused, r.State == metadata.StateStopped:
		c.fail("GI-66", "%v: broker %d mirrors batch %d in state %v", g, node, x.base, stateOf(r))
	case r.HasLME && r.State == metadata.StateStopping:
		c.fail("GI-32", "%v: broker %d mirrors batch %d after the last mirrored epoch was recorded (%d, %d)", g, node, x.base, r.LME, r.LMO)
	}
}

func stateOf(r *metadata.MirrorPartition) metadata.MirrorState {
	if r == nil {
		return metadata.StateUnknown
	}
	return r.State
}

// truncated hears of each cut. A mirror's leader cuts what was committed only for a
// cause, and only what its source has not.
func (p *pair) truncated(c *checker, node int32, l *memLog) {
	w := c.w
	if w.cause != "task" {
		return
	}
	g, m := c.ghost(l.id), c.mirrored(l.id)
	_, mp, r := p.record(w, l.id)
	part := w.brokers[node].mgr.ByID(l.id.Topic, l.id.Partition)
	if s := stateOf(r); part != nil && part.Info().Leader && (s == metadata.StatePreparing || s == metadata.StateULERecovery) && (m.cutAt < 0 || l.end < m.cutAt) {
		m.cutAt = l.end // also by one that was deposed and does not know: who was elected may follow it still
	}
	if mp == nil || part == nil || mp.Leader != node || mp.LeaderEpoch != part.Info().LeaderEpoch {
		return
	}
	i := slices.IndexFunc(g.line, func(t committed) bool { return t.end > l.end })
	if i < 0 {
		return // nothing that was committed
	}
	lost := g.line[i]
	state := stateOf(r)
	reset := m.none && l.end == 0
	w.loop.note("mirror cuts", int64(node), int64(l.id.Topic[15]), int64(l.id.Partition), l.end, int64(state))
	c.looked("GI-35")
	there := w.other().check.ghost(l.id)
	t, has := there.endingAt(lost.end)
	switch {
	case state != metadata.StatePreparing && state != metadata.StateULERecovery && state != metadata.StateMirroring:
		c.fail("GI-13", "%v: broker %d cuts to %d what was committed below %d, in state %s", g, node, l.end, g.frontier(), state)
	case has && t.chain == lost.chain && !reset && (m.none || lost.base < m.lme.Offset || m.lme.Offset < 0):
		c.fail("GI-35", "%v: broker %d cuts to %d (%s), and the source has batch %d to %d, and all in front of it, as it was here; it told the last mirrored epoch %+v", g, node, l.end, state, lost.base, lost.end, m.lme)
	}
	c.cut(g, l)
}

// recorded looks at a partition in a new image: what a mirror's state may do (GI-60,
// 61), and what has to be true of the logs where it does.
func (p *pair) recorded(c *checker, g *ghost, before *metadata.Image, t *metadata.Topic, mp *metadata.Partition) {
	m := c.mirrored(g.id)
	old := before.TopicByID(t.ID)
	was, is := (*metadata.MirrorPartition)(nil), t.MirrorPartition(mp)
	if op := old.Partition(mp.Index); op != nil {
		was = old.MirrorPartition(op)
	}
	if t.Attachment().Desired != metadata.DesiredNone {
		m.ever = true
	}
	if t.ReadOnly(mp) {
		m.safe = false
	}
	// Mirrored records count when they are in the logs, because the source has them:
	// a crash may take them (D11), until the end of the run is on every disk.
	g.replicated = g.replicated || m.ever && !m.safe
	if is == nil || was == is || was != nil && *was == *is {
		return
	}
	from, to := stateOf(was), is.State
	if was == nil || is.HasLME != was.HasLME || is.LMO != was.LMO {
		m.low = -1
	}
	p.moves[move{from, to}]++
	c.looked("GI-60")
	if from != to && !legal(from, to) {
		c.fail("GI-60", "%v: %s follows %s", g, to, from)
	}
	if was != nil && is.StateEpoch != was.StateEpoch+1 {
		c.fail("GI-61", "%v: state epoch %d follows %d", g, is.StateEpoch, was.StateEpoch)
	}
	byOperator := from == metadata.StateFailed && is.RetryAttempt == 0 && to != metadata.StateStopping
	if op := old.Partition(mp.Index); op != nil && !byOperator && is.LeaderEpoch < op.LeaderEpoch {
		c.fail("GI-61", "%v: %s is written in leader epoch %d, and %d has begun", g, to, is.LeaderEpoch, op.LeaderEpoch)
	}
	c.w.loop.note("mirror "+to.String(), int64(g.id.Topic[15]), int64(g.id.Partition), int64(mp.Leader), int64(is.StateEpoch), bit(c.w == p.w[1]))
	if from == to {
		return
	}
	p.ambush(c.w, g.id, mp.Leader, to)
	switch {
	case to == metadata.StatePreparing:
		m.none, m.lme = false, source.LastMirrored{Epoch: -1, Offset: -1}
	case to == metadata.StateMirroring && (from == metadata.StatePreparing || from == metadata.StateULERecovery):
		m.own, m.cutAt = false, -1
		p.gate(c, g, old, t, mp, from)
	case to == metadata.StateStopped:
		p.runs++
		m.cutAt = -1
		p.stopped(c, g, mp, is)
	}
}

// legal is the table of the specification (8.2), read once more.
func legal(from, to metadata.MirrorState) bool {
	const (
		unknown, preparing, fencing, recovery = metadata.StateUnknown, metadata.StatePreparing, metadata.StateEpochFencing, metadata.StateULERecovery
		mirroring, pausing, paused            = metadata.StateMirroring, metadata.StatePausing, metadata.StatePaused
		stopping, stopped, failed             = metadata.StateStopping, metadata.StateStopped, metadata.StateFailed
	)
	switch to {
	case preparing:
		return slices.Contains([]metadata.MirrorState{unknown, stopped, failed}, from)
	case fencing, recovery:
		return slices.Contains([]metadata.MirrorState{mirroring, failed}, from)
	case mirroring:
		return slices.Contains([]metadata.MirrorState{preparing, fencing, recovery, paused, failed}, from)
	case pausing:
		return slices.Contains([]metadata.MirrorState{mirroring, fencing, recovery, failed}, from)
	case paused:
		return from == pausing
	case stopping:
		return from != stopped
	case stopped:
		return from == stopping
	case failed:
		return from != stopped
	}
	return false
}

// gateNeeds is how many replicas have to be in the ISR for a gate to open.
func gateNeeds(t *metadata.Topic, mp *metadata.Partition, from metadata.MirrorState) int {
	if from == metadata.StateULERecovery || t.ConfigBool(metadata.MirrorULEConfig) {
		return len(mp.Replicas)
	}
	return min(int(t.ConfigInt("min.insync.replicas")), len(mp.Replicas))
}

// gate looks at the logs at the moment in which a gate opens (GI-12, 34, 65). old is the
// topic before, nil if there was none.
func (p *pair) gate(c *checker, g *ghost, old, t *metadata.Topic, mp *metadata.Partition, from metadata.MirrorState) {
	c.looked("GI-65")
	leader := c.w.brokers[mp.Leader].log(t.ID, mp.Index)
	need := gateNeeds(t, mp, from)
	if old != nil { // of two commands in one transaction the gate may be the first, and the configs the second
		need = min(need, gateNeeds(old, mp, from))
	}
	if len(mp.ISR) < need {
		c.fail("GI-65", "%v: the gate opens with the ISR %v of %v, and needs %d", g, mp.ISR, mp.Replicas, need)
	}
	for _, id := range mp.Replicas {
		l := c.w.brokers[id].log(t.ID, mp.Index)
		if l == nil || prefix(l, leader) {
			continue
		}
		stale := mp.StaleReplica(id)
		switch {
		case slices.Contains(mp.ISR, id):
			c.fail("GI-65", "%v: the gate opens at %d, and broker %d in the ISR has what the leader %d has not: its end is %d", g, end(leader), id, mp.Leader, l.end)
		case stale == nil:
			c.fail("GI-12", "%v: the gate opens at %d without broker %d, which has what the leader has not (end %d), and nobody remembers", g, end(leader), id, l.end)
		}
	}
	if m := g.m; m.lme.Offset >= 0 && !m.none && from == metadata.StatePreparing && end(leader) > m.lme.Offset {
		c.fail("GI-34", "%v: the gate opens at %d, and the source mirrored only up to %+v", g, end(leader), m.lme)
	}
}

// prefix says that l has nothing that leader has not.
func prefix(l, leader *memLog) bool {
	if l.end <= 0 || l.end == l.start {
		return true
	}
	if leader == nil {
		return false
	}
	a, ok := l.chainAt(l.end)
	b, has := leader.chainAt(l.end)
	return ok && has && a == b
}

// stopped looks at a partition that clients may write to from here on (GI-32, 33, 50,
// 51).
func (p *pair) stopped(c *checker, g *ghost, mp *metadata.Partition, r *metadata.MirrorPartition) {
	c.looked("GI-50")
	if !r.HasLME {
		c.fail("GI-33", "%v: STOPPED without a last mirrored epoch", g)
	}
	l := c.w.brokers[mp.Leader].log(g.id.Topic, g.id.Partition)
	if l == nil || len(l.batches) == 0 {
		c.fail("GI-50", "%v: STOPPED without a reset of producer ids", g)
		return
	}
	last := record.Batch(l.batches[len(l.batches)-1].bytes)
	kind, _, err := last.Control()
	if !last.IsControl() || err != nil || kind != record.MirrorPIDReset || len(l.producers.Producers()) > 0 {
		c.fail("GI-50", "%v: STOPPED, and the log of broker %d, which ends at %d, does not end in a reset of producer ids, or knows producers: %v", g, mp.Leader, l.end, l.producers.Producers())
	}
	if open := l.producers.Open(); len(open) > 0 {
		c.fail("GI-51", "%v: STOPPED with open transactions: %v", g, open)
	}
	// D11: what was not flushed because the source had it is on every disk now.
	c.looked("D11")
	for _, id := range mp.ISR {
		if c.w.store.image().TopicByID(g.id.Topic).Config(metadata.DurabilityConfig) == "replicated" {
			break // nobody waits for disks
		}
		if x := c.w.brokers[id].log(g.id.Topic, g.id.Partition); x == nil || x.durable < l.end {
			c.fail("D11", "%v: STOPPED, and broker %d in the ISR has on its disk what is below %d of %d", g, id, durable(x), l.end)
		}
	}
	for _, x := range l.batches {
		if r.LMO >= 0 && (x.base >= r.LMO) != (x.epoch > r.LME) {
			c.fail("GI-32", "%v: STOPPED with last mirrored epoch %d, offset %d; batch %d is of epoch %d", g, r.LME, r.LMO, x.base, x.epoch)
			return
		}
	}
}

func durable(l *memLog) int64 {
	if l == nil {
		return 0
	}
	return l.durable
}

// epochsFrom are the epochs of a log, the first of them from an offset on: what lies below
// is gone in the other log.
func epochsFrom(l *memLog, from int64) []epoch.Entry {
	all := slices.Clone(l.Epochs())
	for len(all) > 1 && all[1].Start <= from {
		all = all[1:]
	}
	if len(all) > 0 {
		all[0].Start = max(all[0].Start, from)
	}
	return all
}

// equal holds the logs of both clusters against each other when all is quiet (GI-46).
func (p *pair) equal() {
	for _, w := range p.w {
		for _, t := range w.store.image().Topics() {
			if t.Attachment().Desired != metadata.DesiredMirroring {
				continue
			}
			for _, mp := range t.Partitions {
				id := segment.LogID{Topic: t.ID, Partition: mp.Index}
				far := w.other().store.image().Partition(t.ID, mp.Index)
				if far == nil {
					continue
				}
				w.check.looked("GI-46")
				there := w.other().brokers[far.Leader].log(t.ID, mp.Index)
				for _, r := range mp.Replicas {
					if here := w.brokers[r].log(t.ID, mp.Index); here.end != there.end || !prefix(here, there) || !slices.Equal(epochsFrom(here, there.start), epochsFrom(there, here.start)) {
						w.check.fail("GI-46", "%v: broker %d has not what broker %d of the source has: ends %d and %d, epochs %v and %v", w.check.ghost(id), r, far.Leader, here.end, there.end, here.Epochs(), there.Epochs())
					}
				}
			}
		}
	}
}
