package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// crashPoint is a moment in the life of a mirror. The play is brought to the moment
// before, then something begins, and at is true when the moment has come.
type crashPoint struct {
	id, what string
	bring    func(*play)      // up to the moment before
	begin    func(*play)      // what leads to it
	at       func(*play) bool // is it now?
	done     func(*play)      // what has to be true in the end
}

// what is the newest thing that a mirror of d asked a controller for.
type asked struct {
	state  metadata.MirrorState // that is to be written
	last   bool                 // the last mirrored epoch
	bump   int                  // raised epochs asked for
	leader int32                // epoch at that time
}

// listen has a play remember what the mirrors of a cluster ask for.
func (p *play) listen(w *World) *asked {
	a := &asked{state: metadata.StateUnknown}
	p.asking = func(b *broker, call any) {
		if b.w != w {
			return
		}
		switch c := call.(type) {
		case controller.WriteStates:
			a.state, a.last = c.Writes[0].State, c.Writes[0].SetLME
		case controller.BumpEpochs:
			a.bump++
			a.leader = p.partition(w).LeaderEpoch
		}
	}
	return a
}

// ends are those of the replicas of w, its leader's first.
func (p *play) ends(w *World) []int64 {
	mp := p.partition(w)
	all := []int64{end(w.brokers[max(mp.Leader, w.ids[0])].log(p.id, p.at))}
	for _, b := range p.followers(w) {
		all = append(all, p.end(b))
	}
	return all
}

// controls are the control batches of a log above an offset.
func controls(l *memLog, from int64) (aborts, resets int) {
	if l == nil {
		return 0, 0
	}
	for _, m := range l.batches {
		if b := record.Batch(m.bytes); m.base >= from && b.IsControl() {
			switch kind, _, _ := b.Control(); kind {
			case record.Abort:
				aborts++
			case record.MirrorPIDReset:
				resets++
			}
		}
	}
	return aborts, resets
}

// toFailback: b was mirrored to and stopped, and both were written to since: a, which is
// about to follow b, has to cut to 6.
func toFailback(p *play) {
	p.run("a writes 6, b follows, b stops, a writes 2, b writes 2")
}

func failback(p *play) { p.wish(p.a, p.id, "start") }

// followed: a is what b is.
func followed(p *play) {
	if p.desired(p.a) != metadata.DesiredMirroring {
		p.want(p.a, "start", metadata.DesiredMirroring) // the crash came before anything was recorded
	}
	p.run("a rises, b rises, a catches up")
	p.comesToHold(p.a, p.as(p.b))
}

// toMirroring: b mirrors a.
func toMirroring(p *play) {
	p.run("a writes 3, b follows")
}

func mirrorsOn(p *play) {
	p.run("a rises, b rises, b catches up")
	p.comesToHold(p.b, p.as(p.a))
}

// toStop: b mirrors a, with two transactions open.
func toStop(p *play) {
	p.write(p.a, 2)
	for _, pid := range []int64{5, 9} {
		p.produce(p.a, record.BuildHeader{ProducerID: pid, Transactional: true, BaseTimestamp: p.loop.time().UnixMilli()})
	}
	p.run("a writes 2, b follows")
}

func stopping(p *play) { p.wish(p.b, p.id, "stop") }

// stopped: b ends as the specification says, however often it began with that: what was
// mirrored, one ABORT for each transaction, resets, and then it takes a write.
func stopped(p *play) {
	if p.desired(p.b) != metadata.DesiredStopped {
		p.want(p.b, "stop", metadata.DesiredStopped)
	}
	p.start(p.b)
	p.run("b reaches STOPPED, b rises")
	r, l := p.record(p.b), p.leader(p.b).log(p.id, p.at)
	if r.LMO > 6 {
		p.fatal("last mirrored: %+v", r)
	}
	open := 2
	if r.LMO < 6 { // the crash took what had not been flushed, and the stop did not ask the source for it
		open = 0
		for _, m := range l.batches {
			if b := record.Batch(m.bytes); m.base < r.LMO && b.IsTransactional() {
				open++
			}
		}
	}
	if aborts, resets := controls(l, r.LMO); aborts != open || resets < 1 {
		p.fatal("%d aborts, %d resets; %d transactions were open", aborts, resets, open)
	}
	at := l.end
	p.write(p.b, 1)
	last := l.batches[len(l.batches)-1]
	if last.base != at || last.epoch <= r.LME {
		p.fatal("the first write is at %d in epoch %d", last.base, last.epoch)
	}
	p.comesToHold(p.b, p.as(p.b))
}

// stoppedWhole: it was STOPPED before the crash, and so nothing at all is missing.
func stoppedWhole(p *play) {
	if r := p.record(p.b); r.LMO != 6 {
		p.fatal("last mirrored: %+v", r)
	}
	stopped(p)
}

// isOlder says that the leader of w does not know the newest image yet.
func (p *play) isOlder(w *World) bool {
	b := w.brokers[p.partition(w).Leader]
	return b == nil || b.img == nil || b.img.TopicByID(p.id) == nil || b.img.TopicByID(p.id).Partition(0).Mirror != p.partition(w).Mirror
}

func crashPoints() []crashPoint {
	a := &asked{state: metadata.StateUnknown} // of the point that runs
	again := false                            // a second command of it was sent
	hears := func(begin func(*play), w func(*play) *World) func(*play) {
		return func(p *play) { a = p.listen(w(p)); begin(p) }
	}
	here := func(p *play) *World { return p.a }
	there := func(p *play) *World { return p.b }
	preparing := func(p *play) bool { return p.state(p.a) == metadata.StatePreparing }
	told := func(p *play) bool { return p.a.check.mirrored(segmentID(p)).lme.Offset == 6 }
	lastKnown := func(p *play) bool { return p.record(p.b).HasLME }
	bEnds := func(p *play) (leader int64, least, most int64) {
		e := p.ends(p.b)
		return e[0], slices.Min(e[1:]), slices.Max(e[1:])
	}
	bControls := func(p *play) (int, int) {
		return controls(p.b.brokers[p.partition(p.b).Leader].log(p.id, p.at), 0)
	}
	return []crashPoint{
		{"MIR-310", "the mirror stored, not seen by all", func(p *play) { p.write(p.a, 3) }, func(p *play) { p.wish(p.b, p.id, "start") },
			func(p *play) bool { return p.b.store.image().Mirror(mirrorName) != nil }, startedThenMirrored},
		{"MIR-311", "the start stored, the topic not everywhere", func(p *play) { p.write(p.a, 3) }, func(p *play) { p.wish(p.b, p.id, "start") },
			func(p *play) bool { return p.b.store.image().TopicByID(p.id) != nil }, startedThenMirrored},
		{"MIR-332", "a mirror deleted, not seen by all", func(p *play) { toMirroring(p); p.stop(p.b) }, func(p *play) { p.wish(p.b, p.id, "delete mirror") },
			func(p *play) bool { return p.b.store.image().Mirror(mirrorName) == nil }, ordinary},
		{"MIR-312", "PREPARING stored, the lookup not sent", toFailback, failback, preparing, followed},
		{"MIR-313", "the lookup answered, its answer not used", toFailback, failback,
			func(p *play) bool { return preparing(p) && told(p) && p.ends(p.a)[0] == 8 }, followed},
		{"MIR-314", "the leader cut, its followers not", toFailback, failback,
			func(p *play) bool { e := p.ends(p.a); return e[0] == 6 && e[1] == 8 && e[2] == 8 }, followed},
		{"MIR-315", "one follower of two cut", toFailback, failback,
			func(p *play) bool { e := p.ends(p.a); return e[0] == 6 && e[1]+e[2] == 14 }, followed},
		{"MIR-316", "the gate passed, MIRRORING not stored", toFailback, hears(failback, here),
			func(p *play) bool { return preparing(p) && a.state == metadata.StateMirroring }, followed},
		{"MIR-317", "MIRRORING stored, nothing fetched", toFailback, failback,
			func(p *play) bool { return p.state(p.a) == metadata.StateMirroring }, followed},
		{"MIR-318", "a batch on the leader, not on its followers", toMirroring, func(p *play) { p.append(p.a, 1) },
			func(p *play) bool { leader, _, most := bEnds(p); return leader == 4 && most == 3 }, mirrorsOn},
		{"MIR-319", "a batch on all replicas, the high watermark not moved", toMirroring, func(p *play) { p.append(p.a, 1) },
			func(p *play) bool {
				leader, least, _ := bEnds(p)
				return leader == 4 && least == 4 && p.led(p.b) && p.b.brokers[p.partition(p.b).Leader].mgr.ByID(p.id, p.at).HighWatermark() == 3
			}, mirrorsOn},
		{"MIR-320", "a raised epoch asked for, not stored", toMirroring, hears(jumpEpoch, there),
			func(p *play) bool { return a.bump > 0 && p.partition(p.b).LeaderEpoch == a.leader }, mirrorsOn},
		{"MIR-320", "a raised epoch stored, not seen by the leader", toMirroring, hears(jumpEpoch, there),
			func(p *play) bool {
				mp := p.partition(p.b)
				if a.bump == 0 || mp.LeaderEpoch == a.leader || mp.Leader < 0 {
					return false
				}
				x := p.b.brokers[mp.Leader].mgr.ByID(p.id, p.at)
				return x != nil && x.Info().LeaderEpoch < mp.LeaderEpoch
			}, mirrorsOn},
		{"MIR-321", "PAUSING stored, still fetching", toMirroring, func(p *play) { p.wish(p.b, p.id, "pause") },
			func(p *play) bool { return p.state(p.b) == metadata.StatePausing }, pausedThenMirrored},
		{"MIR-321", "PAUSED not stored", toMirroring, hears(func(p *play) { p.wish(p.b, p.id, "pause") }, there),
			func(p *play) bool {
				return a.state == metadata.StatePaused && p.state(p.b) == metadata.StatePausing
			}, pausedThenMirrored},
		// Where no leader is about to cut, the command stores both; here one is.
		{"MIR-322", "the stop recorded, STOPPING not stored", func(p *play) { p.write(p.a, 3) }, func(p *play) { again = false; p.wish(p.b, p.id, "start") },
			func(p *play) bool {
				if p.b.store.image().TopicByID(p.id) == nil || p.state(p.b) != metadata.StatePreparing {
					return false
				}
				if !again {
					again = true
					stopping(p)
				}
				return p.desired(p.b) == metadata.DesiredStopped
			}, stopped},
		{"MIR-322", "the stop recorded and STOPPING stored, nobody has heard of it", toStop, stopping,
			func(p *play) bool { return p.desired(p.b) == metadata.DesiredStopped && p.isOlder(p.b) }, stopped},
		{"MIR-323", "STOPPING stored, still fetching", toStop, func(p *play) { stopping(p); p.append(p.a, 1) },
			func(p *play) bool { return p.state(p.b) == metadata.StateStopping && p.isOlder(p.b) }, stoppedBehind},
		{"MIR-324", "the stop line drawn, not stored", toStop, hears(stopping, there),
			func(p *play) bool { return a.last && !lastKnown(p) }, stopped},
		{"MIR-325", "the stop line stored, the epoch not raised", toStop, func(p *play) { a = p.listen(p.b); stopping(p) },
			func(p *play) bool { return lastKnown(p) && a.bump == 0 }, stopped},
		{"MIR-325", "the stop line stored, the raised epoch of a second try not stored", stopTwice, func(p *play) { a = p.listen(p.b); p.start(p.b) },
			func(p *play) bool { return a.bump > 0 && p.partition(p.b).LeaderEpoch == a.leader }, stopped},
		{"MIR-326", "the epoch raised, nothing aborted", stopTwice, func(p *play) { a = p.listen(p.b); p.start(p.b) },
			func(p *play) bool {
				aborts, _ := bControls(p)
				return a.bump > 0 && p.partition(p.b).LeaderEpoch > a.leader && aborts == 0
			}, stopped},
		{"MIR-327", "one transaction of two aborted", toStop, stopping,
			func(p *play) bool { aborts, _ := bControls(p); return aborts == 1 }, stopped},
		{"MIR-328", "all aborted, no reset", toStop, stopping,
			func(p *play) bool { aborts, resets := bControls(p); return aborts == 2 && resets == 0 }, stopped},
		{"MIR-329", "the reset on the leader, not on its followers", toStop, stopping,
			func(p *play) bool {
				_, resets := bControls(p)
				leader, _, most := bEnds(p)
				return resets == 1 && most < leader
			}, stopped},
		{"MIR-330", "the reset committed, STOPPED not stored", toStop, hears(stopping, there),
			func(p *play) bool {
				return a.state == metadata.StateStopped && p.state(p.b) == metadata.StateStopping
			}, stopped},
		{"MIR-331", "STOPPED stored, not seen by the leader", toStop, stopping,
			func(p *play) bool { return p.state(p.b) == metadata.StateStopped && p.isOlder(p.b) }, stoppedWhole},
	}
}

// startedThenMirrored: the topic is there once, with all that the source has.
func startedThenMirrored(p *play) {
	if p.desired(p.b) != metadata.DesiredMirroring {
		p.want(p.b, "start", metadata.DesiredMirroring)
	}
	mirrorsOn(p)
}

// ordinary: b's topic is in no mirror, and writable.
func ordinary(p *play) {
	p.whole(p.b)
	p.wait("nothing is left of the mirror", func() bool {
		t := p.b.store.image().TopicByID(p.id)
		return t.MirrorName == "" && t.Partition(p.at).Mirror == nil && p.b.store.image().Mirror(mirrorName) == nil
	})
	p.write(p.b, 1)
}

// jumpEpoch raises the source's leader epoch far above the mirror's, and writes in it.
func jumpEpoch(p *play) {
	p.a.admin(controller.BumpEpochs{{Topic: p.id, MinLeaderEpoch: 60}})
	p.wait("the source's epoch is raised", func() bool { return p.partition(p.a).LeaderEpoch > 60 && p.led(p.a) })
	p.append(p.a, 1)
}

// stopTwice: the stop line of b is stored, and then everybody there dies.
func stopTwice(p *play) {
	toStop(p)
	stopping(p)
	p.wait("the stop line is stored", func() bool { return p.record(p.b).HasLME })
	for _, id := range p.b.ids {
		p.b.brokers[id].kill(false)
	}
}

// stoppedBehind: as stopped, but what the source wrote last may have come or not.
func stoppedBehind(p *play) {
	p.start(p.b)
	p.run("b reaches STOPPED, b rises")
	if r := p.record(p.b); r.LMO > 7 {
		p.fatal("last mirrored: %+v", r)
	}
	p.write(p.b, 1)
	p.comesToHold(p.b, p.as(p.b))
}

// pausedThenMirrored: the pause holds, and the resume brings what was missed.
func pausedThenMirrored(p *play) {
	if p.desired(p.b) != metadata.DesiredPaused {
		p.want(p.b, "pause", metadata.DesiredPaused)
	}
	p.start(p.b)
	p.run("b reaches PAUSED, a writes 1")
	at := slices.Max(p.ends(p.b))
	p.pass(3*time.Second, func() bool { return slices.Max(p.ends(p.b)) > at }, "a paused mirror goes on")
	p.want(p.b, "resume", metadata.DesiredMirroring)
	mirrorsOn(p)
}

// victims of a crash; d is the cluster that is the destination of the point, or is
// about to be.
var victims = []struct {
	name string
	of   func(p *play, d *World) []*broker
}{
	{"leader", func(p *play, d *World) []*broker {
		if mp := p.partition(d); mp != nil {
			return []*broker{d.brokers[mp.Leader]}
		}
		return []*broker{d.brokers[d.ids[0]]} // there is no topic yet
	}},
	{"follower", func(p *play, d *World) []*broker {
		if p.partition(d) != nil {
			return p.followers(d)[:1]
		}
		return []*broker{d.brokers[d.ids[1]]}
	}},
	{"owner of the mirror", func(p *play, d *World) []*broker {
		for _, id := range d.ids {
			if b := d.brokers[id]; b.proc.up && b.img != nil {
				if o := d.brokers[b.mirrors.m.Owner(mirrorName)]; o != nil {
					return []*broker{o}
				}
			}
		}
		return nil
	}},
	{"controller", nil},
	{"source's leader", func(p *play, d *World) []*broker { return []*broker{d.other().brokers[p.partition(d.other()).Leader]} }},
	{"all brokers", func(_ *play, d *World) (all []*broker) {
		for _, id := range d.ids {
			all = append(all, d.brokers[id])
		}
		return all
	}},
}

// crash does to a victim what ways say, and undoes it after a while.
func (p *play) crash(d *World, victim int, way string) {
	const down = 2 * time.Second
	if v := victims[victim]; v.of != nil {
		for _, b := range v.of(p, d) {
			if b == nil || !b.proc.up {
				continue
			}
			switch way {
			case "kill", "power":
				b.kill(way == "power")
			case "pause": // for longer than its session
				b.proc.pausedUntil = p.loop.now + sessionTimeout + 2*time.Second
				continue
			case "clean stop":
				b.shutdown()
			}
			p.loop.after(down+5*time.Second*time.Duration(bit(way == "clean stop")), nil, func() {
				if !b.proc.up {
					b.start()
				}
			})
		}
		return
	}
	o := d.store.holder
	if way == "pause" {
		o.proc.pausedUntil = p.loop.now + leaseTTL + 2*time.Second
		return
	}
	o.proc.up = false
	o.proc.gen++
	p.loop.after(down, nil, o.start)
}

var ways = []string{"kill", "power", "pause", "clean stop"}

// destination is the cluster that mirrors at a point.
func (c crashPoint) destination(p *play) *World {
	if c.id >= "MIR-312" && c.id <= "MIR-317" {
		return p.a
	}
	return p.b
}

// TestCrashPoints is group G19, and MIR-161 with it: a crash at each step of a failback,
// of a mirror at work, of a pause and of a failover, of each who takes part, in each way.
// In the end everything is as it is without the crash, and no rule was broken on the way.
// Where all brokers lose their power that is MIR-334.
//
// MIR-312, MIR-313, MIR-314, MIR-315, MIR-316, MIR-317, MIR-318, MIR-319, MIR-320, MIR-321,
// MIR-322, MIR-323, MIR-324, MIR-325, MIR-326, MIR-327, MIR-328, MIR-329, MIR-330, MIR-331.
// MIR-310, MIR-311 and MIR-332 are of the mirror's and the topic's own beginning and end.
//
// MIR-141: the leader goes between the last fetch and the stored stop line (MIR-323,
// MIR-324), and the next one draws it from its own log. MIR-185: the leader goes before
// its own cut (MIR-313), and the next one asks and cuts again.
func TestCrashPoints(t *testing.T) {
	for i, c := range crashPoints() {
		for v, victim := range victims {
			for w, way := range ways {
				if victim.of == nil && way != "kill" && way != "pause" {
					continue // the office has no disk, and nothing to hand over
				}
				t.Run(fmt.Sprintf("%s %s/%s %s", c.id, c.what, victim.name, way), func(t *testing.T) {
					t.Parallel()
					// Each has its own, because a point remembers what was asked.
					crashAt(t, crashPoints()[i], v, way, uint64(100*i+10*v+w))
				})
			}
		}
	}
}

func crashAt(t *testing.T, c crashPoint, victim int, way string, seed uint64) {
	p := newPlay(t, seed)
	c.bring(p)
	c.begin(p)
	p.wait(c.what, func() bool { return c.at(p) })
	p.crash(c.destination(p), victim, way)
	p.pass(time.Second, nil, "")
	c.done(p)
	p.settles()
}

// MIR-333: a crash while everything recovers from another: two points, two victims, two
// ways, drawn. The second crash comes at its point if that is met again, else a while
// after the first.
func TestCrashPointsTwice(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := newLoop(seed).rng
			i := rng.IntN(len(crashPoints()))
			c := crashPoints()[i]
			p := newPlay(t, 1000+seed)
			c.bring(p)
			c.begin(p)
			p.wait(c.what, func() bool { return c.at(p) })
			draw := func() (int, string) {
				v := rng.IntN(len(victims))
				if victims[v].of == nil {
					return v, "kill"
				}
				return v, ways[rng.IntN(len(ways))]
			}
			v, way := draw()
			p.crash(c.destination(p), v, way)
			// Another point of the same story: what leads to it is under way.
			later := c
			for range 20 {
				if x := crashPoints()[rng.IntN(len(crashPoints()))]; x.destination(p) == c.destination(p) {
					later = x
					break
				}
			}
			p.happens(p.loop.between(0, 6*time.Second), func() bool {
				return p.partition(c.destination(p)) != nil && p.led(c.destination(p)) && later.id > c.id && later.at(p)
			})
			if mp := p.partition(c.destination(p)); mp != nil && mp.Leader >= 0 {
				v, way = draw()
				p.crash(c.destination(p), v, way)
			}
			p.pass(time.Second, nil, "")
			c.done(p)
			p.settles()
		})
	}
}

// MIR-335: every broker of both clusters loses its power while B mirrors A, and each
// loses another part of what it had not synced. What A lost B does not keep once it has
// heard of A's new epoch (GI-21), and B follows on.
func TestCrashBothClusters(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := begin(t, 2000+seed, "a writes 3", metadata.DurabilityConfig, []string{"fsync", "replicated"}[seed%2], metadata.MirrorULEConfig, fmt.Sprint(seed%4 > 1))
			p.a.writing = true
			p.clients(p.a, p.id, p.at)
			p.follows(p.b)
			p.pass(p.loop.between(time.Second, 3*time.Second), nil, "")
			for _, w := range p.w {
				for _, id := range w.ids {
					b := w.brokers[id]
					b.kill(true)
					p.loop.after(p.loop.between(0, 3*time.Second), nil, b.start)
				}
			}
			p.pass(5*time.Second, nil, "")
			p.settles() // an operator recovers what failed because the source lost records
		})
	}
}
