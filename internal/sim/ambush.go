package sim

import (
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Half of the seeds of a pair have storms, half of them ambushes; the rest is left to
// chance as it is, for who is hit all the time gets nowhere, and shows less.

// A storm is a short while in which faults of a cluster come one upon the other, and are
// soon over. Between storms mirrors live long enough to be turned.
const (
	stormFor   = 1200 * time.Millisecond // at most
	stormPause = 30 * time.Millisecond   // between two faults, at most
	calmFor    = 5 * time.Second         // at most
	stormHaste = 10                      // what a fault of a storm lasts shorter
)

// gust is the time until the next fault of a cluster that has storms.
func (f *faults) gust(pause time.Duration) time.Duration {
	l := f.w.loop
	if l.now >= f.calm {
		f.storm = l.now + l.between(stormFor/4, stormFor)
		f.calm = f.storm + l.between(calmFor/4, calmFor)
	}
	if l.now < f.storm {
		return l.between(stormPause/4, stormPause)
	}
	return min(pause, f.calm-l.now)
}

// lasts is how long a fault lasts that is drawn to last d.
func (f *faults) lasts(d time.Duration) time.Duration {
	if f.w.loop.now < f.storm {
		return d / stormHaste
	}
	return d
}

// ambushes befall a mirror in the moment in which its state changes.
const (
	ambushLeader     = "ambush leader"     // is killed
	ambushPause      = "ambush pause"      // of the leader
	ambushController = "ambush controller" // whoever holds the office is killed
	ambushLink       = "ambush link"       // is cut
	ambushSource     = "ambush source"     // the source's leader is killed
	ambushPausing    = "ambush pausing"    // an operator pauses
	ambushResuming   = "ambush resuming"
	ambushStopping   = "ambush stopping"
	ambushDeletion   = "ambush deletion" // of the source's topic
	// provoked makes an unclean election of the source likely: a follower falls behind, and
	// then everybody else is killed.
	provoked = "unclean provoked"
)

var ambushes = []string{ambushLeader, ambushPause, ambushController, ambushLink, ambushSource, ambushPausing, ambushResuming, ambushStopping}

// trap is what befalls a mirror in one state, and how often.
type trap struct {
	chance float64
	kinds  []string
}

// traps lead from a state to where chance alone leads never, or seldom.
var traps = map[metadata.MirrorState]trap{
	metadata.StateEpochFencing: {0.5, []string{ambushController, ambushController, ambushPausing, ambushStopping}},
	metadata.StateULERecovery:  {0.8, []string{ambushLink, ambushLink, ambushSource, ambushController, ambushPausing, ambushStopping}},
	metadata.StateMirroring:    {0.8, []string{provoked}},
	metadata.StatePausing:      {0.3, []string{ambushStopping}},
	metadata.StatePaused:       {0.3, []string{ambushDeletion}},
}

// ambush lies in wait for a new state of a mirror partition in w.
func (p *pair) ambush(w *World, id segment.LogID, leader int32, to metadata.MirrorState) {
	if !p.ambushing || p.over || p.o.NoFaults {
		return
	}
	l := p.loop
	kind := ""
	switch trap := traps[to]; {
	case len(trap.kinds) > 0 && l.chance(trap.chance):
		kind = trap.kinds[l.rng.IntN(len(trap.kinds))]
	case l.chance(0.15):
		kind = ambushes[l.rng.IntN(len(ambushes))]
	default:
		return
	}
	wait := l.between(0, 8*time.Millisecond)
	if l.chance(0.5) {
		wait /= 4 // before anybody has done what the new state asks for
	}
	l.after(wait, nil, func() {
		if !p.over && p.spring(kind, w, id, leader) {
			l.note("fault "+kind, int64(leader), int64(to))
			p.counts[kind]++
		}
	})
}

// asked lies in wait for what a mirror asks of the controller: whoever holds the office is
// killed, and what was to come first comes late, or never.
func (p *pair) asked(b *broker, call any) {
	if !p.ambushing || p.over || p.o.NoFaults {
		return
	}
	chance := 0.0
	switch c := call.(type) {
	case controller.BumpEpochs:
		chance = 0.2
	case controller.WriteStates:
		for _, w := range c.Writes {
			if w.State == metadata.StatePreparing && chance == 0 {
				if chance = 0.03; p.loop.chance(chance) && p.spring(ambushDeletion, b.w, segment.LogID{Topic: w.Topic}, b.id) {
					chance = 1
					p.counts[ambushDeletion]++
				}
			}
		}
	}
	if p.loop.chance(chance) && p.spring(ambushController, b.w, segment.LogID{}, b.id) {
		p.loop.note("fault "+ambushController, int64(b.id))
		p.counts[ambushController]++
	}
}

// spring carries an ambush out; false: there was nobody.
func (p *pair) spring(kind string, w *World, id segment.LogID, leader int32) bool {
	l := p.loop
	switch kind {
	case ambushLeader:
		return w.strike(leader, l.chance(0.5))
	case ambushPause:
		b := w.brokers[leader]
		if b == nil || !b.proc.up {
			return false
		}
		b.proc.pausedUntil = l.now + l.between(100*time.Millisecond, 5*time.Second)
	case ambushController:
		o := w.store.holder
		if o == nil || !o.proc.up {
			return false
		}
		w.faults.stopOffice(o, l.between(100*time.Millisecond, 3*time.Second))
	case ambushLink:
		p.cutLink(0, true)
		l.after(l.between(100*time.Millisecond, 2*time.Second), nil, func() {
			if !p.over {
				p.link.heal()
			}
		})
	case ambushSource:
		far := w.other().store.image().Partition(id.Topic, id.Partition)
		return far != nil && w.other().strike(far.Leader, l.chance(0.5))
	case ambushPausing:
		p.wish(w, id.Topic, "pause")
	case ambushResuming:
		p.wish(w, id.Topic, "resume")
	case ambushStopping:
		p.wish(w, id.Topic, "stop")
	case provoked:
		return p.provoke(w.other(), id)
	case ambushDeletion:
		p.wish(w.other(), id.Topic, "delete topic")
	}
	return true
}

// strike kills a broker, or takes its power, and starts it again; false: it is not up.
func (w *World) strike(id int32, power bool) bool {
	b := w.brokers[id]
	if b == nil || !b.proc.up {
		return false
	}
	b.kill(power)
	w.faults.restart(b)
	return true
}

// cutLink cuts the link from one cluster to the other, or both ways.
func (p *pair) cutLink(from int, both bool) {
	for _, a := range p.w[from].ids {
		for _, b := range p.w[1-from].ids {
			p.link.isolate(a, b, true)
			if both {
				p.link.isolate(b, a, true)
			}
		}
	}
}

// provoke makes an unclean election of a source likely, where the seed has such; false:
// not now.
func (p *pair) provoke(w *World, id segment.LogID) bool {
	t := w.store.image().TopicByID(id.Topic)
	mp := t.Partition(id.Partition)
	if mp == nil || !w.faults.on[unclean] || p.provoking > p.loop.now || mp.Leader < 0 || len(mp.ISR) < 2 {
		return false
	}
	p.provoking, p.provokedIn = p.loop.now+8*time.Second, id.Topic
	set := func(w *World, name string) {
		v := "true"
		w.admin(controller.AlterConfigs{Type: controller.ResourceTopic, Name: t.Name, Ops: []controller.ConfigOp{{Name: name, Value: &v}}})
	}
	set(w, "unclean.leader.election.enable")
	if p.loop.chance(0.8) {
		set(w.other(), metadata.MirrorULEConfig)
	}
	last := slices.DeleteFunc(slices.Clone(mp.ISR), func(id int32) bool { return id == mp.Leader })[0]
	f := w.faults
	for _, id := range mp.Replicas {
		f.cut(last, id, 5*time.Second, true)
	}
	f.later(3500*time.Millisecond, func() {
		for _, id := range mp.Replicas {
			if b := w.brokers[id]; id != last && b.proc.up {
				b.kill(false)
				f.later(p.loop.between(2*time.Second, 4*time.Second), func() { f.start(b) })
			}
		}
	})
	return true
}
