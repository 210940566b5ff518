package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

var produceAll = partition.ProduceOptions{Acks: -1}

func ignore(partition.ProduceResult, error) {}

func markerOf(pid int64) partition.Marker {
	return partition.Marker{ProducerID: pid, Commit: true, Version: 1}
}

// gateStaysClosed lets time pass in which the gate of a's failback must not open.
func (p *play) gateStaysClosed(d time.Duration, target int64) {
	p.t.Helper()
	// MIR-190: while it is closed nothing comes from the source, and the high watermark
	// is not above what the leader has left.
	p.pass(d, func() bool {
		if p.state(p.a) == metadata.StateMirroring {
			return true
		}
		for _, b := range append(p.followers(p.a), p.a.brokers[max(1, p.partition(p.a).Leader)]) {
			x := b.mgr.ByID(p.id, p.at)
			if l := b.log(p.id, p.at); l.hw > l.end || x != nil && x.Info().Leader && x.HighWatermark() > p.end(b) {
				return true
			}
		}
		return false
	}, "the gate opened, or the high watermark is above the end")
	if e := p.end(p.leader(p.a)); e > target {
		p.fatal("the leader ends at %d, the cut was to %d", e, target)
	}
}

// MIR-180, MIR-190: all replicas are in sync, and the gate opens when the followers have
// cut too (the checker compares all logs at that moment, GI-65).
func TestPlayGate(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 20)
	toFailback(p)
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.wait("the gate opens", func() bool {
		if x := p.a.brokers[p.partition(p.a).Leader].mgr.ByID(p.id, p.at); x.HighWatermark() > x.Info().LogEnd {
			p.fatal("high watermark %d above the end %d", x.HighWatermark(), x.Info().LogEnd)
		}
		return p.state(p.a) == metadata.StateMirroring
	})
	if e := slices.Max(p.ends(p.a)); e != 6 {
		p.fatal("ends %v", p.ends(p.a))
	}
	p.caughtUp(p.a)
	p.settles()
}

// MIR-181: a follower that cannot be reached keeps the gate closed, until it is back or
// has left the ISR. MIR-182: so does one that died.
func TestPlayGateSlowFollower(t *testing.T) {
	for _, dies := range []bool{false, true} {
		p := newPlay(t, 21)
		toFailback(p)
		l := p.leader(p.a)
		slow := p.followers(p.a)[0]
		if dies {
			// It dies when the leader has cut and it has not.
			p.want(p.a, "start", metadata.DesiredMirroring)
			p.wait("the leader cuts", func() bool { return p.end(l) == 6 })
			slow.kill(false)
		} else {
			p.a.net.isolate(slow.id, l.id, true) // it has its session, and asks nobody
			p.want(p.a, "start", metadata.DesiredMirroring)
			p.wait("the leader cuts", func() bool { return p.end(l) == 6 })
			p.gateStaysClosed(700*time.Millisecond, 6) // less than replicaLag
		}
		p.reaches(p.a, metadata.StateMirroring)
		if slices.Contains(p.partition(p.a).ISR, slow.id) {
			p.fatal("the gate opened with %d in the ISR, which never cut", slow.id)
		}
		p.run("a catches up, a rises, a catches up")
		p.settles()
	}
}

// MIR-183: below min.insync.replicas nothing is cut and the gate stays closed; a
// partition that waits too long says for whom; with the replicas back it goes on.
func TestPlayGateBelowMinISR(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 22, "min.insync.replicas", "2")
	toFailback(p)
	l := p.leader(p.a)
	for _, b := range p.followers(p.a) {
		b.kill(false)
	}
	p.isr(p.a, 1)
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.gateStaysClosed(10*time.Second, 8)
	if p.end(l) != 8 {
		p.fatal("it was cut to %d", p.end(l))
	}
	p.reaches(p.a, metadata.StateFailed)
	if text := p.record(p.a).ErrorMessage; !strings.Contains(text, "replicas [") {
		p.fatal("it says %q", text)
	}
	p.run("a rises, a catches up")
	p.settles()
}

// E4. MIR-186: the leader cuts and dies before its followers do. The next one, which has
// more, asks again, cuts, and waits for the others; the old one comes back with less.
func TestPlayGateLeaderDiesAfterItsCut(t *testing.T) {
	t.Parallel()
	p := begin(t, 23, "a writes 6, b follows, b stops, a writes 3")
	l, third := p.leader(p.a), p.followers(p.a)[1]
	p.a.net.isolate(third.id, l.id, true) // it stays in the ISR for a while, and has not the last record
	p.a.net.isolate(l.id, third.id, true)
	p.append(p.a, 1)
	p.wait("the second has it", func() bool { return p.end(p.followers(p.a)[0]) == 10 })
	p.wish(p.a, p.id, "start")
	p.wait("the leader cuts", func() bool { return p.end(l) == 6 })
	if e := p.end(p.followers(p.a)[0]); e != 10 || p.end(third) != 9 {
		p.fatal("the followers end at %v", p.ends(p.a))
	}
	l.kill(false)
	p.wait("another leads", func() bool { return p.partition(p.a).Leader != l.id && p.led(p.a) })
	l.start()
	p.run("a heals, a catches up, a rises")
	p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	p.settles()
}

// MIR-188: a replica that is down while the others cut comes back when records of the
// source lie where its own were, in the same epoch even (A.2 of the specification). It
// cuts before it enters the ISR.
func TestPlayGateAwayReplica(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 24)
	toFailback(p)
	away := p.followers(p.a)[1]
	away.kill(false)
	p.isr(p.a, 2)
	p.run("a follows, b writes 3, a catches up")
	away.start()
	p.wait("it is back", func() bool {
		if slices.Contains(p.partition(p.a).ISR, away.id) && !prefix(away.log(p.id, p.at), p.leader(p.a).log(p.id, p.at)) {
			p.fatal("in the ISR with records of its own")
		}
		return len(p.partition(p.a).ISR) == 3
	})
	p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	p.settles()
}

// MIR-195: the power goes when the leader has cut, and the cut had not reached the disk:
// the log is as it was. It is cut again before the partition takes any part.
func TestPlayGateCutIsLost(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 25)
	toFailback(p)
	l := p.leader(p.a)
	log := l.log(p.id, p.at)
	before := *log
	p.wish(p.a, p.id, "start")
	p.wait("the leader cuts", func() bool { return p.end(l) == 6 })
	for _, id := range p.a.ids {
		p.a.brokers[id].kill(false)
	}
	log.batches, log.end, log.durable = before.batches, before.end, before.end
	for _, b := range before.batches[6:] {
		log.epochs.Assign(b.epoch, b.base)
	}
	p.start(p.a)
	p.run("a catches up, a rises")
	p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	p.settles()
}

// MIR-192: a replica that is being added while the gate waits counts once it is in the
// ISR, and one that is being removed blocks nothing.
func TestPlayGateReassignment(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 26)
	toFailback(p)
	out := p.followers(p.a)[1]
	p.a.net.isolate(out.id, p.leader(p.a).id, true)
	p.wish(p.a, p.id, "start")
	p.wait("the leader cuts", func() bool { return p.end(p.leader(p.a)) == 6 })
	keep := slices.DeleteFunc(slices.Clone(p.partition(p.a).Replicas), func(id int32) bool { return id == out.id })
	p.a.admin(controller.Reassign{Topic: "t1", Partition: p.at, Replicas: keep})
	p.reaches(p.a, metadata.StateMirroring)
	p.a.admin(controller.Reassign{Topic: "t1", Partition: p.at, Replicas: append(keep, out.id)})
	p.back(p.a)
	p.wait("three replicas", func() bool { return len(p.partition(p.a).ISR) == 3 && !p.partition(p.a).Reassigning() })
	p.caughtUp(p.a)
	p.settles()
}

// The gate of all replicas: mirror.support.unclean.leader.election=true.
//
// MIR-200: with one down nothing is cut and nothing comes, though the ISR would be
// enough. MIR-207: so it is after a restart of the leader. MIR-201: a partition that
// waits too long says for whom, and FAILED comes of it, again and again; when its replica is
// given to a healthy broker the gate waits for that one, and opens.
func TestPlayGateOfAll(t *testing.T) {
	t.Parallel()
	p := newPlayOf(t, 27, 4, 1, metadata.MirrorULEConfig, "true")
	toFailback(p)
	away := p.followers(p.a)[1]
	away.kill(false)
	p.isr(p.a, 2)
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.gateStaysClosed(5*time.Second, 8)
	l := p.leader(p.a)
	l.kill(false)
	p.wait("another leads", func() bool { return p.partition(p.a).Leader != l.id && p.led(p.a) })
	l.start()
	p.wait("it is back", func() bool { return len(p.partition(p.a).ISR) == 2 })
	p.gateStaysClosed(5*time.Second, 8)
	for range 2 {
		p.reaches(p.a, metadata.StateFailed)
		if text := p.record(p.a).ErrorMessage; !strings.Contains(text, fmt.Sprintf("replicas [%d]", away.id)) {
			p.fatal("it says %q", text)
		}
		p.run("a recovers")
		p.gateStaysClosed(5*time.Second, 8)
	}
	// It never comes back: the operator gives its replica to another broker, and recovers.
	p.reaches(p.a, metadata.StateFailed)
	seen := p.states(p.a)
	replicas := slices.Clone(p.partition(p.a).Replicas)
	replicas[slices.Index(replicas, away.id)] = 4
	p.reassign(p.a, replicas...)
	if p.state(p.a) == metadata.StateFailed {
		p.run("a recovers")
	}
	p.caughtUp(p.a)
	p.comesToHold(p.a, p.as(p.b))
	if !slices.Contains(*seen, metadata.StateMirroring) || slices.Contains(p.partition(p.a).Replicas, away.id) {
		p.fatal("states %v, replicas %v", *seen, p.partition(p.a).Replicas)
	}
	away.start()
	p.settles()
}

// MIR-202: after the gate of all replicas each of them may lead, whatever is elected: all
// come to be what the elected one is, and the mirror goes on.
func TestPlayGateOfAllThenUncleanElections(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 28, metadata.MirrorULEConfig, "true")
	toFailback(p)
	p.run("a follows, b writes 2, a catches up")
	for _, id := range []int32{1, 2, 3} {
		// It misses what comes next, and is elected all the same.
		if p.partition(p.a).Leader == id {
			p.elect(p.a)
		}
		p.a.brokers[id].kill(false)
		p.write(p.b, 1)
		p.isr(p.a, 2)
		p.caughtUp(p.a)
		p.uncleanly(p.a, id)
		p.run("a rises, a catches up")
		p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	}
	p.settles()
}
