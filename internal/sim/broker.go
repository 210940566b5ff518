package sim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/replica"
	"github.com/lockstep-kafka/lockstep/segment"
)

const (
	heartbeatInterval = 500 * time.Millisecond
	sessionTimeout    = 3 * time.Second
	replicaLag        = 2 * time.Second
)

var (
	errChain   = errors.New("sim: an earlier transaction took effect late")
	errNobody  = errors.New("sim: no controller")
	errStopped = errors.New("sim: broker does not serve")
)

// broker is one broker: its disk, which stays, and the process that runs. Its
// partitions and followers are the real ones, driven by hand; how it registers and
// keeps its session is what cmd/lockstep does.
type broker struct {
	w    *World
	id   int32
	proc proc
	disk *disk

	mgr      *partition.Manual
	rep      *replica.Manual
	fetchers []*fetcher
	parked   []*parked
	mirrors  *mirrors // in a pair of clusters

	watch       *watch
	img         *metadata.Image
	waiting     []waiting
	incarnation [16]byte
	previous    int64 // PreviousEpoch of the next registration
	epoch       int64 // -1: not registered
	fenced      bool
	until       time.Duration // end of the lease
	beating     bool          // a heartbeat, or a registration, is under way
	altering    bool          // a change of ISRs is
	stopping    bool
	handedOver  bool
	serving     bool
}

func (b *broker) start() {
	w := b.w
	b.proc.up = true
	b.proc.gen++
	b.proc.pausedUntil = 0
	b.proc.settle = b.settle
	b.mgr = partition.NewManual(partition.Options{
		NodeID: b.id, Clock: procClock{w.loop, &b.proc}, Logger: discard,
		TopicDefaults: map[string]string{metadata.DurabilityConfig: "fsync"},
		Lease:         func() bool { return w.loop.now < b.until },
		AlterISR:      func(context.Context, []partition.ISRChange) []partition.ISRResult { return nil },
		ReplicaLag:    replicaLag,
	}, b.disk, b.spawn)
	b.rep = replica.NewManual(replica.Options{
		NodeID: b.id, Partitions: b.mgr.Manager, BrokerEpoch: func() int64 { return b.epoch },
		MaxBytes: 1 << 16, PartitionMaxBytes: 1 << 14, Clock: procClock{w.loop, &b.proc},
	}, replica.ManualHooks{
		Fetcher: func(f *replica.Fetcher) { b.fetchers = append(b.fetchers, &fetcher{b: b, f: f}) },
		Spawn:   b.spawn,
		Session: b.connect,
	})
	b.fetchers, b.parked, b.waiting = nil, nil, nil
	b.img, b.watch = nil, nil
	for i := range b.incarnation {
		b.incarnation[i] = byte(w.loop.rng.Uint32())
	}
	b.previous, b.disk.clean = b.disk.clean, -1
	b.epoch, b.fenced, b.until = -1, true, -1
	b.beating, b.altering, b.stopping, b.handedOver, b.serving = false, false, false, false, true
	w.loop.note("broker starts", int64(b.id), b.previous)
	b.mirrors = nil
	if w.pair != nil {
		b.mirrors = newMirrors(b)
	}
	b.beat()
	b.checkISR()
	b.expire()
	b.reportEnds()
}

// spawn has work happen when the disk gets to it.
func (b *broker) spawn(work func()) {
	b.w.loop.after(b.w.loop.between(0, b.disk.slow), &b.proc, work)
}

var discard = slog.New(slog.DiscardHandler)

// stop ends the process: by kill, by the loss of its power, or cleanly.
func (b *broker) kill(power bool) {
	w := b.w
	w.loop.note("kill", int64(b.id), bit(power))
	b.end()
	b.disk.lose(func() float64 {
		if !power {
			return 1 // the kernel has it
		}
		switch w.loop.rng.IntN(3) {
		case 0:
			return 0
		case 1:
			return 1
		}
		return w.loop.rng.Float64()
	})
	gone := int64(0)
	if !power && b.epoch > 0 {
		gone = b.epoch // its machine goes on, and refuses in its name
	}
	w.brokenConnection(b.id, gone)
}

// end ends the process.
func (b *broker) end() {
	b.proc.up = false
	b.proc.gen++
	if b.mirrors != nil {
		b.mirrors.m.End()
	}
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// shutdown is a controlled one.
func (b *broker) shutdown() {
	if b.stopping || !b.proc.up {
		return
	}
	b.stopping = true
	b.w.loop.note("controlled shutdown", int64(b.id))
	b.w.loop.after(4*time.Second, &b.proc, b.leave) // whatever was handed over by then
}

func (b *broker) leave() {
	if !b.serving {
		return
	}
	b.serving, b.until = false, -1
	end := func(any, error) {
		for _, l := range b.disk.sorted() {
			l.durable, l.marked = l.end, l.hw
			l.flushing, l.waiters = false, nil
		}
		b.disk.clean = b.epoch
		b.end()
		b.w.loop.note("clean stop", int64(b.id), b.epoch)
	}
	b.office(controller.Heartbeat{Broker: b.id, Epoch: b.epoch, Revision: b.revision(), WantFence: true}, time.Second, end)
}

func (b *broker) revision() int64 {
	if b.img == nil {
		return 0
	}
	return b.img.Revision
}

// office asks the active controller, as far as this broker knows who that is.
func (b *broker) office(call any, timeout time.Duration, heard func(any, error)) {
	o := b.w.store.holder
	if b.watch != nil {
		o = b.watch.office
	}
	if o == nil {
		b.w.loop.after(10*time.Millisecond, &b.proc, func() { heard(nil, errNobody) })
		return
	}
	b.w.net.call(&b.proc, &o.proc, timeout, func(reply func(any)) { o.ask(call, reply) }, func(v any, err error) {
		if a, ok := v.(answer); ok {
			if err = a.err; a.elsewhere {
				err = controller.ErrNotController
			}
		}
		heard(v, err)
	})
}

// beat sends heartbeats, and registers where that is needed.
func (b *broker) beat() {
	w := b.w
	pause := heartbeatInterval
	if b.epoch < 0 || b.fenced {
		pause = 100 * time.Millisecond
	}
	w.loop.after(pause, &b.proc, b.beat)
	if b.beating || !b.serving {
		return
	}
	b.beating = true
	if b.epoch < 0 {
		b.register()
		return
	}
	hb := controller.Heartbeat{Broker: b.id, Epoch: b.epoch, Revision: b.revision(), WantShutdown: b.stopping}
	sent := w.loop.now
	b.office(hb, sessionTimeout/2, func(v any, err error) {
		b.beating = false
		if b.epoch != hb.Epoch || !b.serving {
			return
		}
		switch {
		case errors.Is(err, controller.ErrStaleBrokerEpoch), errors.Is(err, controller.ErrUnknownBroker):
			b.epoch, b.until, b.fenced = -1, -1, true
		case err == nil:
			r := controller.HeartbeatAnswer(v.(answer).img, hb)
			b.fenced = r.Fenced
			b.until = sent + sessionTimeout
			if r.Fenced {
				b.until = -1
			}
			if hb.WantShutdown && r.ShouldShutdown {
				b.leave()
			}
		}
	})
}

func (b *broker) register() {
	w := b.w
	r := controller.RegisterBroker{ID: b.id, Incarnation: b.incarnation, Durability: "fsync", PreviousEpoch: b.previous}
	b.office(r, sessionTimeout/2, func(v any, err error) {
		b.beating = false
		if err != nil {
			return
		}
		for _, it := range v.(answer).outcomes {
			if it.Err != nil {
				return
			}
		}
		if me := v.(answer).img.Broker(b.id); me != nil && me.Incarnation == b.incarnation {
			b.epoch, b.previous = me.Epoch, me.Epoch
			w.loop.note("registered", int64(b.id), b.epoch)
			if b.watch == nil {
				b.watch = w.store.follow(&b.proc, b.apply)
			}
		}
	})
}

// apply follows the metadata; what stands for the one watcher of a real broker.
func (b *broker) apply(prev, next *metadata.Image) {
	b.mgr.Apply(prev, next)
	b.rep.Apply(next)
	b.img = next
	if b.mirrors != nil {
		b.mirrors.m.Apply(next)
	}
	kept := b.waiting[:0]
	var due []func()
	for _, x := range b.waiting {
		if next.Revision >= x.revision {
			due = append(due, x.fn)
		} else {
			kept = append(kept, x)
		}
	}
	b.waiting = kept
	for _, fn := range due {
		fn()
	}
	b.w.check.applied(b)
}

func (b *broker) checkISR() {
	b.w.loop.after(replicaLag/2, &b.proc, b.checkISR)
	b.mgr.CheckISR()
}

func (b *broker) expire() {
	b.w.loop.after(250*time.Millisecond, &b.proc, b.expire)
	b.mgr.ExpireAcks()
}

// reportEnds tells how far logs reach that a partition waits for.
func (b *broker) reportEnds() {
	b.w.loop.after(time.Second, &b.proc, b.reportEnds)
	if b.img == nil || b.epoch < 0 || b.img.Revision < b.epoch {
		return
	}
	var ends []controller.ReplicaEnd
	for _, t := range b.img.Topics() {
		for _, p := range t.Partitions {
			if !p.WaitsForEnds() || !slices.Contains(p.LastKnownELR, b.id) {
				continue
			}
			if x := b.mgr.ByID(t.ID, p.Index); x != nil {
				end, last := x.LogEnd()
				ends = append(ends, controller.ReplicaEnd{Topic: t.ID, Partition: p.Index, LastEpoch: last, End: end})
			}
		}
	}
	if len(ends) > 0 {
		b.office(controller.Ends{Broker: controller.BrokerEpoch{ID: b.id, Epoch: b.epoch}, Ends: ends}, time.Second, func(any, error) {})
	}
}

// settle is what goroutines of a real broker would do now.
func (b *broker) settle() {
	b.rep.Handle()
	if b.mirrors != nil {
		b.mirrors.settle()
	}
	for i := 0; i < len(b.fetchers); i++ {
		b.fetchers[i].pump()
	}
	b.serveParked()
	b.alterISRs()
}

func (b *broker) alterISRs() {
	if b.altering || b.epoch < 0 {
		return
	}
	p := b.mgr.Proposals()
	if p == nil {
		return
	}
	b.altering = true
	b.w.faults.joining(b.id, p.Changes)
	call := controller.AlterISRs{Broker: controller.BrokerEpoch{ID: b.id, Epoch: b.epoch}}
	for _, c := range p.Changes {
		w := controller.AlterISR{Topic: c.Topic, Partition: c.Partition, LeaderEpoch: c.LeaderEpoch, PartitionEpoch: c.PartitionEpoch}
		for _, m := range c.ISR {
			w.ISR = append(w.ISR, controller.ISRMember{ID: m.ID, Epoch: m.Epoch})
		}
		call.Wishes = append(call.Wishes, w)
	}
	b.office(call, 2*time.Second, func(v any, err error) {
		results := make([]partition.ISRResult, len(p.Changes))
		revision := int64(0)
		for i := range results {
			r := controller.AlterISRResult{Err: err}
			if err == nil {
				a := v.(answer)
				revision = a.img.Revision
				r.Err = a.outcomes[i].Err
				r.Partition = a.img.Partition(p.Changes[i].Topic, p.Changes[i].Partition)
			}
			results[i] = replica.ISRResult(r)
		}
		answered := func() {
			b.altering = false
			if b.mgr.Answer(p, results) {
				b.w.loop.after(500*time.Millisecond, &b.proc, b.mgr.Retry)
			}
		}
		if b.revision() >= revision {
			answered()
			return
		}
		b.waiting = append(b.waiting, waiting{revision, answered})
	})
}

// log is this broker's log of a partition, nil if it has none, or nobody is meant.
func (b *broker) log(id metadata.TopicID, index int32) *memLog {
	if b == nil {
		return nil
	}
	return b.disk.logs[segment.LogID{Topic: id, Partition: index}]
}
