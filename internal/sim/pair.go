package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// pair is two clusters, A and B, with mirrors in both directions, the link between
// them, and operators who start, pause, stop and turn mirrors.
type pair struct {
	loop *loop
	link *network
	w    [2]*World
	o    PairOptions
	on   map[string]bool // link faults and operators' doings that this seed has
	over bool            // the faults have ended
	// stormy, ambushing: what this seed has, see ambush.go.
	stormy, ambushing bool
	// provoking is until when an unclean election is under way, of a partition of which topic:
	// operators leave that alone, or no mirror would live to see it.
	provoking  time.Duration
	provokedIn metadata.TopicID

	topics     []metadata.TopicID
	names      map[metadata.TopicID]string
	made       int // topics so far
	sessions   int // of producers
	counts     map[string]int
	moves      map[move]int
	runs       int // ended in STOPPED
	pause      time.Duration
	asking     func(b *broker, call any)          // hears what mirrors ask of a controller; nil: nobody does
	fetching   func(b *broker, r []mirrorFetched) // may change what the source answers a fetch
	telling    func(*source.LastMirrored)         // may change what the source tells of a last mirrored epoch
	epochAsked func(b *broker)                    // hears of each question where an epoch ends
	old        bool                               // sources tell nothing of diverging epochs when they are fetched from
}

// move is a transition of a mirror partition's state.
type move struct{ from, to metadata.MirrorState }

// PairOptions are the options of a run of two clusters.
type PairOptions struct {
	Options
	NoFaults bool
	Retries  int // of a partition that FAILED; 0: more than a run can have
}

// PairResult is what a run of two clusters came to.
type PairResult struct {
	Result
	Moves map[move]int
	Runs  int
	Does  map[string]int
}

// mirrorName is that of the mirrors on both sides.
const mirrorName = "m"

// linkFaults are what befalls the link, and the other cluster as a whole.
var linkFaults = []string{"link cut", "link one way", "link slow", "link loss", "cluster dead"}

// doings are what operators do to mirrors.
var doings = []string{"start", "pause", "resume", "stop", "recover", "grow", "delete mirror", "delete topic", "both ways"}

// pairFaults are the faults of each cluster in a pair.
var pairFaults = []string{
	"kill", "power", "power all", "pause", "shutdown", "kill controller", "pause controller", "loss", "slow net",
	"cut broker", "cut pair", "cut one way", "cut controller", "cut store", "reset", "slow disk", "elect", "reassign", "config",
}

// RunPair is one seed.
func RunPair(o PairOptions) PairResult {
	p := newPair(o)
	for p.loop.steps < o.Steps && p.err() == nil && p.loop.step() {
		p.check()
	}
	if p.err() == nil {
		p.converge()
	}
	r := PairResult{Moves: p.moves, Runs: p.runs, Does: p.counts}
	r.Result = Result{Seed: o.Seed, Steps: p.loop.steps, Faults: map[string]int{}, Hash: p.loop.hash, Looked: map[string]int{}, Elapsed: p.loop.now, Err: p.err(), Lost: p.link.lost}
	for _, w := range p.w {
		r.Acked, r.Read, r.Cuts = r.Acked+w.acked, r.Read+w.read, r.Cuts+w.cuts
		for k, n := range w.faults.counts {
			r.Faults[k] += n
		}
		for k, n := range w.check.rules {
			r.Looked[k] += n
		}
	}
	if r.Err != nil {
		r.Err = fmt.Errorf("seed %d, step %d, %.3f s: %w", o.Seed, p.loop.steps, p.loop.now.Seconds(), r.Err)
		r.Story = p.loop.story()
		for _, w := range p.w {
			r.Story += "cluster " + w.name + "\n" + w.check.states()
		}
	}
	for _, w := range p.w { // nobody runs on
		for _, id := range w.ids {
			if b := w.brokers[id]; b.mirrors != nil {
				b.mirrors.m.End()
			}
		}
	}
	return r
}

func (p *pair) err() error { return errors.Join(p.w[0].check.err, p.w[1].check.err) }

func (p *pair) check() {
	for _, w := range p.w {
		w.check.step()
	}
}

// other is the other cluster of the pair.
func (w *World) other() *World {
	if w.pair.w[0] == w {
		return w.pair.w[1]
	}
	return w.pair.w[0]
}

func newPair(o PairOptions) *pair {
	p := foundPair(o)
	p.setUp()
	return p
}

// foundPair starts the processes of both clusters.
func foundPair(o PairOptions) *pair {
	l := newLoop(o.Seed)
	p := &pair{loop: l, link: newNetwork(l), o: o, on: map[string]bool{}, names: map[metadata.TopicID]string{}, counts: map[string]int{}, moves: map[move]int{}}
	for i, name := range []string{"A", "B"} {
		n := o.Brokers
		if n == 0 {
			n = 3
		}
		w := newCluster(l, Options{Seed: o.Seed, Without: o.Without, Brokers: n, firstID: int32(10 * i), pair: p, name: name})
		p.w[i] = w
	}
	for _, w := range p.w {
		for k := range w.faults.weight {
			if !slices.Contains(pairFaults, k) || o.NoFaults {
				delete(w.faults.weight, k)
			}
		}
		if o.NoFaults {
			delete(w.faults.on, unclean)
		}
		w.o.pause = 300*time.Millisecond + l.between(0, time.Second)
		// A mirror needs both clusters: with the faults of one cluster on each, none
		// would live long enough to be turned.
		w.faults.pause = 200*time.Millisecond + l.between(0, 2*time.Second)
	}
	for _, k := range append(slices.Clone(linkFaults), doings...) {
		p.on[k] = l.rng.IntN(3) > 0 && !slices.Contains(o.Without, k)
	}
	p.on["start"], p.on["stop"], p.on["resume"], p.on["recover"] = true, true, true, true
	p.stormy, p.ambushing = o.Seed%2 == 1, o.Seed%4 >= 2
	for _, w := range p.w {
		w.faults.stormy = p.stormy
	}
	p.pause = 100*time.Millisecond + l.between(0, 600*time.Millisecond)
	return p
}

func (p *pair) until(limit time.Duration, done func() bool, what string) bool {
	for p.err() == nil && p.loop.now < limit && !done() {
		p.loop.step()
		p.check()
	}
	if p.err() == nil && !done() {
		p.w[0].check.fail("LV", "%s", what)
	}
	return p.err() == nil
}

func (p *pair) setUp() {
	if !p.until(time.Minute, func() bool { return p.w[0].allAlive() && p.w[1].allAlive() }, "the clusters do not form") {
		return
	}
	for i := range 2 + p.loop.rng.IntN(2) {
		p.create(p.w[i%2])
	}
	there := func() bool { return p.w[0].allThere() && p.w[1].allThere() }
	if !p.until(2*time.Minute, there, "the topics are not there") {
		return
	}
	p.loop.steps = 0
	p.operate()
	if !p.o.NoFaults {
		p.disturb()
		for _, w := range p.w {
			w.faults.next()
		}
	}
}

// create makes a topic on one cluster.
func (p *pair) create(w *World) {
	rng := p.loop.rng
	p.made++
	var id metadata.TopicID
	id[0], id[15] = 0x70, byte(p.made)
	configs := map[string]string{"min.insync.replicas": []string{"1", "2", "2"}[rng.IntN(3)]}
	if rng.IntN(3) == 0 {
		configs[metadata.DurabilityConfig] = "replicated"
	}
	if rng.IntN(2) == 0 && w.faults.on[unclean] {
		configs["unclean.leader.election.enable"] = "true"
	}
	if rng.IntN(3) == 0 {
		configs[metadata.MirrorULEConfig] = "true"
	}
	name := fmt.Sprintf("t%d", p.made)
	p.names[id] = name
	p.topics = append(p.topics, id)
	w.topics = append(w.topics, id)
	w.admin(controller.NewTopic{NewID: id, CreateTopic: controller.CreateTopic{
		Name: name, Partitions: 1 + rng.Int32N(2), ReplicationFactor: 3, Configs: configs,
	}})
	for index := range int32(2) {
		for _, w := range p.w {
			p.clients(w, id, index)
		}
	}
}

// clients write to and read from a partition of one cluster; whether it is there, and
// whether it may be written to, they find out.
func (p *pair) clients(w *World, id metadata.TopicID, index int32) {
	cl := client{w: w, topic: id, name: p.names[id], index: index, leader: -1, epoch: -1}
	node := int32(300 + len(w.writers) + len(w.readers))
	x := &writer{client: cl, acks: -1, conn: w.connection()}
	// The same ids on both sides, as it is with two clusters: what keeps them apart is
	// the reset. A session that waited here while another wrote there has the lower
	// epoch, and is refused if what was mirrored is not forgotten.
	x.pid = int64(id[15])*10 + int64(index)
	x.pepoch = p.session()
	if p.loop.rng.IntN(4) == 0 {
		x.acks = 1
	}
	x.proc = proc{node: node, up: true}
	w.writers = append(w.writers, x)
	x.run()
	r := &reader{client: cl, last: -1}
	r.proc = proc{node: node + 1, up: true}
	w.readers = append(w.readers, r)
	r.run()
}

func (p *pair) session() int16 { p.sessions++; return int16(p.sessions) }

// refused is a producer that may not write here: it gives up what it has, and begins
// anew when it may.
func (p *pair) refused(x *writer, _ *sent, err error) {
	c := x.w.check
	switch {
	case errors.Is(err, partition.ErrReadOnly):
		if x.seq > 0 || len(x.pending) > 0 {
			x.pending, x.seq, x.pepoch = nil, 0, p.session()
		}
	case errors.Is(err, producer.ErrFencedEpoch):
		c.looked("GI-54")
		c.fail("GI-54", "%s: cluster %s refuses a producer that begins there after the mirror's end: %v", x.name, x.w.name, err)
	}
}

// operate does one thing, and sets the moment for another.
func (p *pair) operate() {
	if p.over {
		return
	}
	p.loop.after(p.loop.between(p.pause/2, p.pause*3/2), nil, p.operate)
	rng := p.loop.rng
	w := p.w[rng.IntN(2)]
	id := p.topics[rng.IntN(len(p.topics))]
	what := p.choose(w, id)
	if p.provoking > p.loop.now && id == p.provokedIn {
		return
	}
	p.wish(w, id, what)
}

// choose is what an operator wants of a topic on w, which is where it is mirrored to.
func (p *pair) choose(w *World, id metadata.TopicID) string {
	rng := p.loop.rng
	t, far := w.store.image().TopicByID(id), w.other().store.image().TopicByID(id)
	failed := false
	if t != nil {
		for _, mp := range t.Partitions {
			failed = failed || t.MirrorState(mp) == metadata.StateFailed
		}
	}
	turned := far != nil && (far.Attachment().Desired == metadata.DesiredMirroring || far.Attachment().Desired == metadata.DesiredPaused)
	switch {
	case far == nil:
		return ""
	case t == nil, t.Attachment().Desired == metadata.DesiredNone, t.Stopped():
		if t != nil && t.Stopped() && rng.IntN(8) == 0 {
			// Also while the other side mirrors it, or remembers that it did.
			return []string{"delete topic", "delete mirror"}[rng.IntN(2)]
		}
		if turned && (!p.on["both ways"] || rng.IntN(10) > 0) {
			if t != nil && rng.IntN(2) == 0 && !w.readOnly(id, 0) {
				return "grow"
			}
			return ""
		}
		if t != nil && t.Attachment().Desired == metadata.DesiredNone && rng.IntN(30) == 0 {
			return "delete topic" // the other side's source, perhaps
		}
		if !turned && far.Attachment().Desired == metadata.DesiredNone && rng.IntN(6) == 0 {
			return "grow far"
		}
		return "start"
	case t.Attachment().Desired == metadata.DesiredStopped:
		return "" // on its way
	case failed && rng.IntN(2) == 0:
		return "recover"
	case t.Attachment().Desired == metadata.DesiredPaused:
		return []string{"resume", "resume", "stop"}[rng.IntN(3)]
	}
	return []string{"pause", "pause", "stop", "stop", "", "start"}[rng.IntN(6)]
}

// readOnly says that clients may not write to a partition, or that there is none.
func (w *World) readOnly(id metadata.TopicID, index int32) bool {
	t := w.store.image().TopicByID(id)
	mp := t.Partition(index)
	return mp == nil || t.ReadOnly(mp)
}

// anyBroker is one that an operator reaches.
func (w *World) anyBroker() *broker {
	first := w.loop.rng.IntN(len(w.ids))
	for i := range w.ids {
		if b := w.brokers[w.ids[(first+i)%len(w.ids)]]; b.proc.up && b.serving && b.img != nil && b.proc.pausedUntil <= w.loop.now {
			return b
		}
	}
	return nil
}

// disturb does something to the link, or to all of one cluster.
func (p *pair) disturb() {
	if p.over {
		return
	}
	p.loop.after(p.loop.between(time.Second, 8*time.Second), nil, p.disturb)
	rng := p.loop.rng
	kind := linkFaults[rng.IntN(len(linkFaults))]
	if !p.on[kind] {
		return
	}
	short := p.loop.between(200*time.Millisecond, 3*time.Second)
	end := func(fn func()) {
		p.loop.after(short, nil, func() {
			if !p.over {
				fn()
			}
		})
	}
	p.loop.note("fault " + kind)
	p.counts[kind]++
	switch kind {
	case "link cut", "link one way":
		way := rng.IntN(2)
		p.cutLink(way, kind == "link cut")
		end(p.link.heal)
	case "link slow":
		p.link.slow = 0.1
		end(func() { p.link.slow = 0 })
	case "link loss":
		p.link.loss = 0.1
		end(func() { p.link.loss = 0 })
	case "cluster dead":
		w := p.w[rng.IntN(2)]
		for _, id := range w.ids {
			if b := w.brokers[id]; b.proc.up {
				b.kill(rng.IntN(2) == 0)
				end(func() {
					if !b.proc.up {
						b.start()
					}
				})
			}
		}
	}
}
