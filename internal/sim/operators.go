package sim

import (
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// More that is done to a cluster, in faultKinds.
const (
	deleteRecords = "delete records"
	retention     = "retention" // of one broker, which keeps a few batches of each log
	unregister    = "unregister"
	addBroker     = "add broker"
	removeBroker  = "remove broker"
	// crashJoining is what befalls a follower while its leader asks that it may join the
	// ISR: they cannot reach each other, it loses power, and the question is late.
	crashJoining = "crash joining"
)

// operator does one of them; false: there was nothing to do.
func (f *faults) operator(kind string) bool {
	w := f.w
	switch kind {
	case deleteRecords:
		return f.deleteRecords()
	case retention:
		b := f.broker()
		if !b.proc.up || b.proc.pausedUntil > w.loop.now {
			return false
		}
		b.disk.keep = 5 + w.loop.rng.IntN(100)
		b.mgr.Retain()
	case unregister: // one that is down, and will come back as a new one
		for _, b := range w.store.image().Brokers() {
			if b.Fenced && !w.brokers[b.ID].proc.up {
				w.admin(controller.Unregister{ID: b.ID})
				return true
			}
		}
		return false
	case addBroker:
		if len(w.spare) == 0 {
			return false
		}
		id := w.spare[0]
		w.spare = w.spare[1:]
		w.ids = append(w.ids, id)
		slices.Sort(w.ids)
		w.loop.note("broker added", int64(id))
		w.brokers[id].start()
	case removeBroker:
		if len(w.ids) <= 3 || f.removing != 0 {
			return false
		}
		f.removing = f.broker().id
		f.remove(f.removing, 0)
	case crashJoining:
		f.crashes++ // when somebody joins next
	}
	return true
}

// deleteRecords asks whoever seems to lead for a later log start.
func (f *faults) deleteRecords() bool {
	w := f.w
	t := w.store.image().TopicByID(w.topics[w.loop.rng.IntN(len(w.topics))])
	p := t.Partitions[w.loop.rng.IntN(len(t.Partitions))]
	b := w.brokers[p.Leader]
	if b == nil || !b.proc.up {
		return false
	}
	offset := partition.HighWatermarkOffset
	if n := w.check.ghost(segment.LogID{Topic: t.ID, Partition: p.Index}).frontier(); n > 0 && !w.loop.chance(0.1) {
		offset = w.loop.rng.Int64N(n)
	}
	w.net.send(400, &b.proc, 0, func() {
		if x := b.mgr.ByID(t.ID, p.Index); x != nil && b.serving {
			_, _ = x.DeleteRecords(offset) // refused where it does not lead any more
		}
	})
	return true
}

// remove takes a broker out for good: its replicas move to others, it stops, and is
// unregistered. Each step waits for the one before.
func (f *faults) remove(id int32, asked int) {
	w := f.w
	b, img := w.brokers[id], w.store.image()
	again := func() { f.later(time.Second, func() { f.remove(id, asked+1) }) }
	giveUp := func() {
		f.removing = 0
		if !b.proc.up {
			f.restart(b)
		}
	}
	if asked > 60 {
		giveUp()
		return
	}
	stays := false
	for _, t := range img.Topics() {
		for _, p := range t.Partitions {
			if !slices.Contains(p.Replicas, id) {
				continue
			}
			stays = true
			if asked%5 == 0 {
				to := slices.DeleteFunc(slices.Clone(w.ids), func(o int32) bool { return o == id })
				w.loop.rng.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
				w.admin(controller.Reassign{Topic: t.Name, Partition: p.Index, Replicas: to[:3]})
			}
		}
	}
	switch r := img.Broker(id); {
	case stays && (b.stopping || !b.proc.up): // somebody moved a replica back meanwhile
		giveUp()
	case stays:
		again()
	case r == nil && !b.proc.up:
		w.loop.note("broker removed", int64(id))
		f.removing = 0
		w.ids = slices.DeleteFunc(w.ids, func(o int32) bool { return o == id })
		w.spare = append(w.spare, id)
	case b.proc.up:
		b.shutdown()
		again()
	default:
		w.admin(controller.Unregister{ID: id})
		again()
	}
}

// joining hears of what a leader is about to ask for.
func (f *faults) joining(leader int32, changes []partition.ISRChange) {
	if f == nil || f.over || f.crashes == 0 {
		return
	}
	w := f.w
	for _, c := range changes {
		was := w.store.image().Partition(c.Topic, c.Partition)
		for _, m := range c.ISR {
			b := w.brokers[m.ID]
			if was == nil || slices.Contains(was.ISR, m.ID) || !b.proc.up {
				continue
			}
			f.crashes--
			f.cut(leader, b.id, w.loop.between(time.Second, 10*time.Second), true)
			if w.loop.chance(0.5) {
				// The question comes when the leader has asked again, and dropped the follower.
				w.net.late[leader] = w.loop.between(3*time.Second, 9*time.Second)
				return
			}
			// It comes when the follower is back, without the end of its log.
			w.net.late[leader] = w.loop.between(300*time.Millisecond, 2*time.Second)
			w.loop.after(w.loop.between(0, 20*time.Millisecond), nil, func() {
				if !f.over && b.proc.up {
					b.kill(true)
					f.later(50*time.Millisecond, func() { f.start(b) })
				}
			})
			return
		}
	}
}
