package sim

import (
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Options of a run. What is not given the seed decides.
type Options struct {
	Seed  uint64
	Steps int // events with faults; some more follow without, until all is well

	// Without switches kinds of faults off that the seed would have on.
	Without []string
	// Brokers is how many there are, 0: the seed decides.
	Brokers int

	firstID int32 // of brokers, less one: those of two clusters differ
	pair    *pair // of which this cluster is one
	name    string
}

// Result is what a run came to.
type Result struct {
	Seed    uint64
	Steps   int
	Faults  map[string]int
	Hash    uint64
	Acked   int
	Read    int
	Cuts    int
	Lost    int // messages
	Looked  map[string]int
	Elapsed time.Duration // of simulated time
	Err     error
	Story   string // the last events, if Err
}

// World is one cluster, its clients, and what befalls them.
type World struct {
	loop    *loop
	net     *network
	store   *store
	check   *checker
	ids     []int32 // of brokers
	brokers map[int32]*broker
	offices []*office
	writers []*writer
	readers []*reader
	faults  *faults
	o       settings
	heard   map[int32]int64 // in which term a broker's heartbeat came last
	pair    *pair           // nil: there is no other cluster
	name    string          // of the cluster, in a pair
	cause   string          // what appends and cuts now, in a pair

	writing           bool
	pids              int64
	conns             int64
	acked, read, cuts int
	topics            []metadata.TopicID
	spare             []int32 // brokers that are not there yet, or not any more
}

// settings are what a seed draws for the whole run.
type settings struct {
	pause   time.Duration // between two batches of a producer
	txnOps  int
	balance time.Duration
}

func (w *World) connection() int64 { w.conns++; return w.conns }

// Run is one seed.
func Run(o Options) Result {
	w := newWorld(o)
	for w.loop.steps < o.Steps && w.check.err == nil && w.loop.step() {
		w.check.step()
	}
	if w.check.err == nil {
		w.converge()
	}
	r := Result{
		Seed: o.Seed, Steps: w.loop.steps, Faults: w.faults.counts, Hash: w.loop.hash, Acked: w.acked, Read: w.read, Cuts: w.cuts,
		Lost: w.net.lost, Looked: w.check.rules, Elapsed: w.loop.now, Err: w.check.err,
	}
	if r.Err != nil {
		r.Err = fmt.Errorf("seed %d, step %d, %.3f s: %w", o.Seed, w.loop.steps, w.loop.now.Seconds(), r.Err)
		r.Story = w.loop.story() + w.check.story
	}
	return r
}

func newWorld(o Options) *World {
	w := newCluster(newLoop(o.Seed), o)
	w.setUp()
	return w
}

// newCluster starts the processes of a cluster.
func newCluster(l *loop, o Options) *World {
	w := &World{loop: l, pair: o.pair, name: o.name, brokers: map[int32]*broker{}, heard: map[int32]int64{}, writing: true}
	w.net = newNetwork(w.loop)
	w.check = newChecker(w)
	w.store = newStore(w)
	rng := w.loop.rng
	w.o = settings{pause: 50*time.Millisecond + w.loop.between(0, 250*time.Millisecond), txnOps: []int{2, 5, 127}[rng.IntN(3)]}
	if rng.IntN(2) == 0 {
		w.o.balance = 5 * time.Second
	}
	n := o.Brokers
	if drawn := 3 + rng.IntN(3); n == 0 {
		n = drawn
	}
	for id := o.firstID + 1; id <= o.firstID+int32(n); id++ {
		w.ids = append(w.ids, id)
		w.brokers[id] = w.newBroker(id)
	}
	for id := officesFrom + 1; id <= officesFrom+3; id++ {
		c := &office{w: w, id: id, proc: proc{node: id}}
		w.offices = append(w.offices, c)
		c.start()
	}
	for _, id := range w.ids {
		w.brokers[id].start()
	}
	w.faults = newFaults(w, o.Without)
	if w.faults.on[addBroker] {
		id := o.firstID + int32(n) + 1
		w.brokers[id] = w.newBroker(id)
		w.spare = append(w.spare, id)
	}
	return w
}

func (w *World) newBroker(id int32) *broker {
	b := &broker{w: w, id: id, proc: proc{node: id}}
	b.disk = &disk{w: w, node: b, logs: map[segment.LogID]*memLog{}, slow: 3 * time.Millisecond, clean: -1}
	return b
}

// setUp waits until the cluster stands, creates topics, and lets clients and faults
// begin.
func (w *World) setUp() {
	for w.check.err == nil && w.loop.now < time.Minute && !w.allAlive() {
		w.loop.step()
		w.check.step()
	}
	if !w.allAlive() {
		w.check.fail("LV", "the cluster does not form: %v", w.store.image().Brokers())
		return
	}
	rng := w.loop.rng
	for i := range 2 + rng.IntN(2) {
		var id metadata.TopicID
		id[0], id[15] = 0x70, byte(i+1)
		configs := map[string]string{"min.insync.replicas": []string{"1", "2", "2", "2"}[rng.IntN(4)]}
		if rng.IntN(3) == 0 {
			configs[metadata.DurabilityConfig] = "replicated"
		}
		if rng.IntN(4) == 0 && w.faults.on[unclean] {
			configs["unclean.leader.election.enable"] = "true"
		}
		c := controller.NewTopic{NewID: id, CreateTopic: controller.CreateTopic{
			Name: fmt.Sprintf("t%d", i), Partitions: 1 + rng.Int32N(2), ReplicationFactor: 3, Configs: configs,
		}}
		w.topics = append(w.topics, id)
		w.admin(c)
	}
	for w.check.err == nil && w.loop.now < 2*time.Minute && !w.allThere() {
		w.loop.step()
		w.check.step()
	}
	if !w.allThere() {
		w.check.fail("LV", "the topics are not there")
		return
	}
	w.loop.steps = 0
	node := int32(300)
	for _, t := range w.store.image().Topics() {
		for _, p := range t.Partitions {
			cl := client{w: w, topic: t.ID, name: t.Name, index: p.Index, leader: -1, epoch: -1}
			for range 1 + rng.IntN(2) {
				node++
				w.pids++
				x := &writer{client: cl, acks: -1, pid: w.pids, conn: w.connection()}
				if rng.IntN(3) == 0 {
					x.acks = 1
				}
				x.proc = proc{node: node, up: true}
				w.writers = append(w.writers, x)
				x.run()
			}
			for i := range 2 {
				node++
				x := &reader{client: cl, last: -1, curious: i == 0}
				x.proc = proc{node: node, up: true}
				w.readers = append(w.readers, x)
				x.run()
			}
		}
	}
	w.faults.next()
}

// admin asks whoever holds the office, from outside.
func (w *World) admin(call any) {
	o := w.store.holder
	if o == nil {
		return
	}
	if t, ok := call.(controller.NewTopic); ok {
		again := func() {
			if g := w.check.ghost(segment.LogID{Topic: t.NewID}); w.store.image().TopicByID(t.NewID) == nil && (g.m == nil || g.m.ended < 0) {
				w.admin(call)
			}
		}
		w.loop.after(3*time.Second, nil, again)
	}
	w.net.send(400, &o.proc, 0, func() { o.ask(call, func(any) {}) })
}

func (w *World) allAlive() bool {
	n := 0
	for _, b := range w.store.image().Brokers() {
		if b.Eligible() {
			n++
		}
	}
	return n == len(w.ids)
}

func (w *World) allThere() bool {
	for _, id := range w.topics {
		if w.store.image().TopicByID(id) == nil {
			return false
		}
	}
	return true
}

func (w *World) deadBrokers() []int32 {
	var dead []int32
	for _, id := range w.ids {
		if !w.brokers[id].proc.up && w.loop.chance(0.7) {
			dead = append(dead, id)
		}
	}
	return dead
}

// brokenConnection has the active controller see the end of a process, or only of its
// connection (gone is 0).
func (w *World) brokenConnection(id int32, gone int64) {
	o := w.store.holder
	if o == nil || w.net.cut[[2]int32{id, o.id}] {
		return
	}
	w.loop.after(w.net.base, &o.proc, func() {
		if o.elected != 0 && !o.busy {
			o.m.ConnectionLost(w.loop.time(), id, gone)
		}
	})
}

// healing is how long a cluster may take, without faults, until all is well.
const healing = 90 * time.Second

// converge ends all faults and wants the cluster whole (LV-1 to LV-3): every partition
// led, its ISR complete, everything acknowledged readable.
func (w *World) converge() {
	w.faults.end()
	w.loop.note("faults end")
	until := w.loop.now + healing
	settled := time.Duration(0)
	for w.check.err == nil && w.loop.now < until {
		if !w.loop.step() {
			break
		}
		w.check.step()
		if w.loop.now > settled {
			settled = w.loop.now + 100*time.Millisecond
			w.writing = w.loop.now < until-healing+5*time.Second // they go on for a while
			if !w.writing && w.unwell() == "" {
				w.check.full()
				return
			}
		}
	}
	if w.check.err == nil {
		w.check.fail("LV", "%v after the faults: %s", healing, w.unwell())
	}
}

// unwell is what is not as it should be; empty if nothing.
func (w *World) unwell() string {
	if !w.allAlive() {
		return fmt.Sprintf("brokers are fenced: %s", w.brokersToString())
	}
	for _, t := range w.store.image().Topics() {
		for _, p := range t.Partitions {
			id := segment.LogID{Topic: t.ID, Partition: p.Index}
			g := w.check.ghost(id)
			switch {
			case p.Leader < 0:
				return fmt.Sprintf("%s-%d has no leader: %+v", t.Name, p.Index, *p)
			case len(p.ISR) != len(p.Replicas):
				return fmt.Sprintf("%s-%d: not in sync: %+v", t.Name, p.Index, *p)
			case p.Reassigning():
				return fmt.Sprintf("%s-%d: still moving: %+v", t.Name, p.Index, *p)
			}
			leader := w.brokers[p.Leader].log(t.ID, p.Index)
			for _, r := range p.Replicas {
				l := w.brokers[r].log(t.ID, p.Index)
				if l == nil || leader == nil {
					return fmt.Sprintf("%s-%d: broker %d has no log, or the leader %d has none", t.Name, p.Index, r, p.Leader)
				}
				if l.end != leader.end || l.hw != leader.end || l.end != g.frontier() {
					return fmt.Sprintf("%s-%d: broker %d has end %d, high watermark %d; the leader's end %d, committed %d", t.Name, p.Index, r, end(l), l.hw, leader.end, g.frontier())
				}
			}
		}
	}
	for _, x := range w.writers {
		if len(x.pending) > 0 && (w.pair == nil || !w.readOnly(x.topic, x.index)) {
			return fmt.Sprintf("a producer of %s-%d waits for %d batches", x.name, x.index, len(x.pending))
		}
	}
	for _, x := range w.readers {
		if g := w.check.ghost(segment.LogID{Topic: x.topic, Partition: x.index}); x.at != g.frontier() && w.store.image().Partition(x.topic, x.index) != nil {
			return fmt.Sprintf("a consumer of %s-%d is at %d of %d", x.name, x.index, x.at, g.frontier())
		}
	}
	return ""
}

func (w *World) brokersToString() string {
	s := ""
	for _, b := range w.store.image().Brokers() {
		me := w.brokers[b.ID]
		s += fmt.Sprintf("%d: fenced %v, stopping %v, epoch %d, own epoch %d, up %v; ", b.ID, b.Fenced, b.ControlledShutdown, b.Epoch, me.epoch, me.proc.up)
	}
	return s
}
