package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// faultKinds is all that can be done to a cluster, in this order.
var faultKinds = []string{
	"kill", "power", "power all", "pause", "shutdown", // of brokers
	"kill controller", "pause controller",
	"loss", "slow net", "cut broker", "cut pair", "cut one way", "cut controller", "cut store", "reset",
	"slow disk",
	"elect", "reassign", "config",
	deleteRecords, retention, unregister, addBroker, removeBroker, crashJoining,
	unclean,
}

// unclean is no fault of its own: some topics allow unclean elections.
const unclean = "unclean"

// faults does them. Each seed switches a random half on, each with a rate of its own
// (swarm): what is rare together becomes likely alone.
type faults struct {
	w      *World
	on     map[string]bool
	weight map[string]int
	counts map[string]int
	pause  time.Duration
	over   bool

	removing int32 // broker that an operator takes out, 0: none
	crashes  int   // followers to come that crash while they join

	stormy      bool          // faults come in storms
	storm, calm time.Duration // when this one ends, and the calm behind it
}

func newFaults(w *World, without []string) *faults {
	f := &faults{w: w, on: map[string]bool{}, weight: map[string]int{}, counts: map[string]int{}}
	for _, k := range faultKinds {
		on, weight := w.loop.rng.IntN(2) == 0, 1+w.loop.rng.IntN(5)
		if on && !slices.Contains(without, k) {
			if f.on[k] = true; k != unclean {
				f.weight[k] = weight
			}
		}
	}
	f.pause = 30*time.Millisecond + w.loop.between(0, 130*time.Millisecond)
	if w.pair != nil {
		f.pause *= 4 // mirrors need quiet to get anywhere
	}
	return f
}

// next does one and sets the moment for another.
func (f *faults) next() {
	if f.over {
		return
	}
	w := f.w
	pause := w.loop.between(f.pause/2, f.pause*3/2)
	if w.loop.chance(0.01) {
		pause += w.loop.between(2*time.Second, 12*time.Second) // quiet, so that things come right in between
	}
	if f.stormy {
		pause = f.gust(pause)
	}
	w.loop.after(pause, nil, f.next)
	total := 0
	for _, k := range faultKinds {
		total += f.weight[k]
	}
	if total == 0 {
		return
	}
	n := w.loop.rng.IntN(total)
	for i, k := range faultKinds {
		if n -= f.weight[k]; n < 0 {
			w.loop.note("fault "+k, int64(i))
			if f.do(k) {
				f.counts[k]++
			}
			return
		}
	}
}

// later has fn end a fault, unless all have ended by then.
func (f *faults) later(d time.Duration, fn func()) {
	f.w.loop.after(d, nil, func() {
		if !f.over {
			fn()
		}
	})
}

func (f *faults) broker() *broker { return f.w.brokers[f.w.ids[f.w.loop.rng.IntN(len(f.w.ids))]] }

func (f *faults) restart(b *broker) {
	d := f.lasts(f.w.loop.between(50*time.Millisecond, 6*time.Second))
	f.later(d, func() { f.start(b) })
}

// start starts a broker, unless it is up, or was removed meanwhile.
func (f *faults) start(b *broker) {
	if !b.proc.up && slices.Contains(f.w.ids, b.id) {
		b.start()
	}
}

// do does one; false: there was nothing to do it to.
func (f *faults) do(kind string) bool {
	w := f.w
	short := f.lasts(w.loop.between(100*time.Millisecond, 6*time.Second))
	switch kind {
	case "kill", "power":
		b := f.broker()
		if !b.proc.up {
			return false
		}
		b.kill(kind == "power")
		f.restart(b)
	case "power all":
		if w.loop.chance(0.7) {
			return false // rarely
		}
		for _, id := range w.ids {
			if b := w.brokers[id]; b.proc.up {
				b.kill(true)
				f.restart(b)
			}
		}
	case "pause":
		b := f.broker()
		if !b.proc.up {
			return false
		}
		b.proc.pausedUntil = w.loop.now + short
	case "shutdown":
		b := f.broker()
		if !b.proc.up || b.stopping {
			return false
		}
		b.shutdown()
		f.later(7*time.Second, func() {
			if f.removing != b.id {
				f.start(b)
			}
		})
	case "kill controller":
		o := w.offices[w.loop.rng.IntN(len(w.offices))]
		if !o.proc.up {
			return false
		}
		f.stopOffice(o, short)
	case "pause controller":
		o := w.store.holder
		if o == nil || !o.proc.up {
			return false
		}
		o.proc.pausedUntil = w.loop.now + short
	case "loss":
		w.net.loss = 0.05
		f.later(short, func() { w.net.loss = 0 })
	case "slow net":
		w.net.slow = 0.05
		f.later(short, func() { w.net.slow = 0 })
	case "cut broker": // from the other brokers and the controllers, not from clients
		b := f.broker()
		for _, o := range w.nodes() {
			f.cut(b.id, o, short, true)
		}
	case "cut pair":
		return f.cut(f.broker().id, f.broker().id, short, true)
	case "cut one way":
		return f.cut(f.broker().id, w.nodes()[w.loop.rng.IntN(len(w.nodes()))], short, false)
	case "cut controller":
		b := f.broker()
		for _, o := range w.offices {
			f.cut(b.id, o.id, short, true)
		}
	case "cut store":
		f.cut(w.nodes()[w.loop.rng.IntN(len(w.nodes()))], storeNode, short, true)
	case "reset":
		w.brokenConnection(f.broker().id, 0)
	case "slow disk":
		b := f.broker()
		b.disk.slow = 500 * time.Millisecond
		f.later(short, func() { b.disk.slow = 3 * time.Millisecond })
	case deleteRecords, retention, unregister, addBroker, removeBroker, crashJoining:
		return f.operator(kind)
	default:
		f.admin(kind)
	}
	return true
}

// stopOffice kills a controller, for a while.
func (f *faults) stopOffice(o *office, d time.Duration) {
	o.proc.up = false
	o.proc.gen++
	f.later(d, func() {
		if !o.proc.up {
			o.start()
		}
	})
}

// admin is what operators do meanwhile.
func (f *faults) admin(kind string) {
	w := f.w
	t := w.store.image().TopicByID(w.topics[w.loop.rng.IntN(len(w.topics))])
	if t == nil {
		return
	}
	p := t.Partitions[w.loop.rng.IntN(len(t.Partitions))]
	switch kind {
	case "elect":
		w.admin(controller.ElectLeader{Topic: t.Name, Partition: p.Index})
	case "reassign":
		m := controller.Reassign{Topic: t.Name, Partition: p.Index}
		if !w.loop.chance(0.2) || !p.Reassigning() {
			ids := slices.Clone(w.ids)
			w.loop.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			m.Replicas = ids[:min(len(ids), 2+w.loop.rng.IntN(2))]
		}
		w.admin(m)
	case "config":
		v := strconv.Itoa(1 + w.loop.rng.IntN(2))
		w.admin(controller.AlterConfigs{Type: controller.ResourceTopic, Name: t.Name, Ops: []controller.ConfigOp{{Name: "min.insync.replicas", Value: &v}}})
	}
}

// cut cuts two nodes off from each other for a while, or one way.
func (f *faults) cut(a, b int32, d time.Duration, both bool) bool {
	if a == b {
		return false
	}
	f.w.net.isolate(a, b, true)
	if both {
		f.w.net.isolate(b, a, true)
	}
	f.later(d, func() {
		f.w.net.isolate(a, b, false)
		f.w.net.isolate(b, a, false)
	})
	return true
}

// nodes are brokers and controllers.
func (w *World) nodes() []int32 {
	list := slices.Clone(w.ids)
	for _, o := range w.offices {
		list = append(list, o.id)
	}
	return list
}

// end ends all faults, and has everything run.
func (f *faults) end() {
	w := f.w
	f.over = true
	w.net.heal()
	w.net.loss, w.net.slow = 0, 0
	for _, id := range w.ids {
		b := w.brokers[id]
		b.disk.slow = 3 * time.Millisecond
		b.proc.pausedUntil = 0
		if b.stopping || !b.proc.up {
			// One that is about to stop does so, and comes back.
			w.loop.after(5*time.Second, nil, func() {
				if !b.proc.up {
					b.start()
				}
			})
		}
	}
	for _, o := range w.offices {
		o.proc.pausedUntil = 0
		if !o.proc.up {
			o.start()
		}
	}
}
