package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// each does something for every partition of the topic.
func (p *play) each(do func()) {
	for p.at = range int32(len(p.a.store.image().TopicByID(p.id).Partitions)) {
		do()
	}
	p.at = 0
}

// firstSent tells the lowest offset of what a cluster's mirrors are sent, by partition.
func (p *play) firstSent(w *World) map[int32]int64 {
	first := map[int32]int64{}
	p.fetching = func(b *broker, answers []mirrorFetched) {
		for _, a := range answers {
			if b.w != w || len(a.records) == 0 {
				continue
			}
			base, key := record.Batch(a.records).BaseOffset(), a.header.Key.Partition
			if was, ok := first[key]; !ok || base < was {
				first[key] = base
			}
		}
	}
	return first
}

// MIR-160: one failback of six partitions: an idle one, one with a surplus in the last
// mirrored epoch and one in an epoch of its own, one that lagged when B was stopped, one
// to which B wrote nothing, and one with elections all along. Each is cut where it has to
// be and nowhere else (GI-34, GI-35: the checker), nothing is fetched that A has, and all
// are equal in the end.
func TestPlayFailbackOfMixedPartitions(t *testing.T) {
	t.Parallel()
	const idle, sameEpoch, newEpoch, lagging, silent, elections = 0, 1, 2, 3, 4, 5
	p := newWidePlay(t, 160, 6)
	on := func(at int32, steps string) { p.at = at; p.run(steps); p.at = 0 }
	p.each(func() { p.write(p.a, 4) })
	on(elections, "a elects, a writes 1, a elects, a elects, a writes 1")
	p.want(p.b, "start", metadata.DesiredMirroring)
	p.each(func() { p.caughtUp(p.b) })
	p.linked(false)
	on(lagging, "a writes 3")
	p.want(p.b, "stop", metadata.DesiredStopped)
	p.each(func() { p.reaches(p.b, metadata.StateStopped) })
	p.linked(true)
	on(sameEpoch, "a writes 2, b writes 1")
	on(newEpoch, "a elects, a writes 2, b writes 1")
	on(lagging, "b writes 2")
	on(silent, "a writes 1")
	on(elections, "a elects, a writes 1, a elects, b elects, b writes 3")

	lines := map[int32]int64{}
	p.each(func() {
		lines[p.at] = p.record(p.b).LMO
		if least := map[int32]int64{elections: 6}[p.at]; lines[p.at] != max(4, least) {
			p.fatal("the stop line of partition %d is at %d", p.at, lines[p.at])
		}
	})
	first := p.firstSent(p.a)
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.each(func() { p.caughtUp(p.a) })
	cuts := map[int32]int{idle: 0, sameEpoch: 1, newEpoch: 1, lagging: 1, silent: 1, elections: 1}
	p.each(func() {
		p.comesToHold(p.a, p.as(p.b))
		if got := p.cuts(p.a); got != cuts[p.at] {
			p.fatal("partition %d was cut %d times", p.at, got)
		}
	})
	if fmt.Sprint(first) != fmt.Sprint(lines) {
		p.fatal("batches were sent from %v on, the stop lines are %v", first, lines)
	}
	p.settles()
}

// MIR-172: B knows the last mirrored epoch of one partition and of another one certainly
// none: A had grown while B heard nothing of it, and B itself grew later. The first is cut
// by the epoch, the other begins from scratch.
func TestPlayFailbackOfNeverMirrored(t *testing.T) {
	t.Parallel()
	p := begin(t, 161, "a writes 4, b follows, link cut")
	p.a.admin(controller.GrowTopics{{Topic: "t1", Total: 2}})
	p.at = 1
	p.wait("A has grown", func() bool { return p.partition(p.a) != nil && p.led(p.a) })
	p.run("a writes 3")
	p.at = 0
	p.run("b stops, link healed, a writes 2, b writes 1")
	p.b.admin(controller.GrowTopics{{Topic: "t1", Total: 2}})
	p.at = 1
	p.wait("B has grown", func() bool { return p.partition(p.b) != nil && p.led(p.b) })
	p.run("b writes 5")
	p.want(p.a, "start", metadata.DesiredMirroring)
	first := p.firstSent(p.a)
	for p.at = range int32(2) {
		p.caughtUp(p.a)
		p.comesToHold(p.a, p.as(p.b))
		if p.cuts(p.a) != 1 {
			p.fatal("partition %d was cut %d times", p.at, p.cuts(p.a))
		}
	}
	if first[0] != 4 || first[1] != 0 {
		p.fatal("batches were sent from %v on", first)
	}
	p.settles()
}

// marker ends a transaction at the leader of w, and waits until that is committed.
func (p *play) marker(w *World, m partition.Marker) {
	p.t.Helper()
	x := p.leader(w)
	want := p.end(x) + 1
	p.loop.after(0, &x.proc, func() { x.mgr.ByID(p.id, p.at).AppendMarker(-1, m, func(error) {}) })
	p.wait("a marker", func() bool { return x.mgr.ByID(p.id, p.at).HighWatermark() >= want })
}

// transact writes a record of a transaction to w.
func (p *play) transact(w *World, pid int64, epoch int16, seq int32) {
	p.t.Helper()
	p.produce(w, record.BuildHeader{ProducerID: pid, ProducerEpoch: epoch, BaseSequence: seq, Transactional: true, BaseTimestamp: p.loop.time().UnixMilli()})
}

// MIR-232: a producer of A is fenced with its transaction open, which that aborts, and its
// successor begins another one. B's stop aborts what is open then, and that once: nothing
// if the successor has committed, and its transaction, not the first one's, if not.
func TestPlayStopAfterFencedTransaction(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("the successor commits %v", commits), func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, 162)
			p.transact(p.a, 5, 0, 0)
			p.marker(p.a, partition.Marker{ProducerID: 5, ProducerEpoch: 1, Version: 1})
			p.transact(p.a, 5, 1, 0)
			want, last := "0@0 1@0A 2@0", "3@%[1]dA 4@%[1]dR"
			if commits {
				p.marker(p.a, partition.Marker{ProducerID: 5, ProducerEpoch: 1, Commit: true, Version: 1})
				want, last = want+" 3@0C", "4@%[1]dR"
			}
			p.run("b follows, b stops")
			d := p.partition(p.b).LeaderEpoch
			p.comesToHold(p.b, func() string { return want + " " + fmt.Sprintf(last, d) })
			l := p.leader(p.b).log(p.id, p.at)
			if aborted := l.producers.AbortedIn(0, l.end); len(aborted) != map[bool]int{true: 1, false: 2}[commits] || len(l.OpenTxns()) > 0 {
				p.fatal("aborted %v, open %v", aborted, l.OpenTxns())
			}
			p.settles()
		})
	}
}

// MIR-238: one transaction over two partitions is committed in A, and B has heard of that in
// one of them when it is stopped. It is committed there and aborted in the other, for
// readers too: that is documented, and each abort is counted.
func TestPlayStopOfAHalfCommittedTransaction(t *testing.T) {
	t.Parallel()
	p := newWidePlay(t, 163, 2)
	p.each(func() { p.write(p.a, 1); p.transact(p.a, 5, 0, 0) })
	p.want(p.b, "start", metadata.DesiredMirroring)
	p.each(func() { p.caughtUp(p.b) })
	p.marker(p.a, markerOf(5))
	p.caughtUp(p.b)
	p.linked(false)
	p.at = 1
	p.marker(p.a, markerOf(5))
	p.at = 0
	p.want(p.b, "stop", metadata.DesiredStopped)
	p.each(func() {
		p.reaches(p.b, metadata.StateStopped)
		p.write(p.b, 1)
		l := p.leader(p.b).log(p.id, p.at)
		aborted := l.producers.AbortedIn(0, l.end)
		if len(aborted) != int(p.at) || len(l.OpenTxns()) > 0 || l.LastStable(l.hw) != l.hw {
			p.fatal("partition %d: aborted %v, open %v, stable up to %d of %d", p.at, aborted, l.OpenTxns(), l.LastStable(l.hw), l.hw)
		}
		if p.at == 1 && aborted[0].FirstOffset != 1 {
			p.fatal("aborted %+v: its record lies at 1", aborted[0])
		}
	})
	p.linked(true)
	p.settles()
}

// retain has retention keep n batches of each log of a broker.
func (p *play) retain(b *broker, n int) {
	p.t.Helper()
	p.loop.after(0, &b.proc, func() { b.disk.keep = n; b.mgr.Retain() })
	p.wait("retention", func() bool { l := b.log(p.id, p.at); return len(l.batches) <= n })
}

// MIR-252: B's own retention deletes what A still has. It is not fetched again, whoever
// leads B then, after a pause, a restart and a failure either, and B never begins below A.
func TestPlayOwnRetention(t *testing.T) {
	t.Parallel()
	p := begin(t, 164, "a writes 8, b follows")
	p.pass(2*time.Second, nil, "") // what is under way
	sent := p.fetchedBy(p.b)
	for _, id := range p.b.ids {
		p.retain(p.b.brokers[id], 2)
	}
	for i, steps := range []string{"b catches up", "b elects", "b pauses, b resumes", "b dies, b rises", "a dies, b reaches FAILED, a rises"} {
		p.run(steps + ", a writes 1, b catches up")
		for _, id := range p.partition(p.b).Replicas {
			if l := p.b.brokers[id].log(p.id, p.at); l.start < 6 {
				p.fatal("after %q: broker %d begins at %d", steps, id, l.start)
			}
		}
		if *sent != i+1 {
			p.fatal("after %q: %d batches were sent for %d records", steps, *sent, i+1)
		}
	}
	p.settles()
}

// MIR-260: retention is due on all brokers of A while its gate is closed. What lies above the
// cut is not kept for that, no log ends before it begins, and the gate opens.
func TestPlayRetentionInTheGate(t *testing.T) {
	t.Parallel()
	p := begin(t, 165, "a writes 6, b follows, b stops, a writes 4, b writes 2")
	l, slow := p.leader(p.a), p.followers(p.a)[0]
	p.a.net.isolate(slow.id, l.id, true) // it has its session, and asks nobody
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.wait("the leader cuts", func() bool { return p.end(l) == 6 })
	p.retain(l, 1) // which ends at 6
	for _, b := range p.followers(p.a) {
		p.retain(b, 5) // those that have not cut end at 10
	}
	p.gateStaysClosed(500*time.Millisecond, 6) // less than replicaLag
	check := func() bool {
		for _, id := range p.a.ids {
			if g := p.a.brokers[id].log(p.id, p.at); g.start > g.hw || g.hw > g.end {
				p.fatal("broker %d: begins at %d, high watermark %d, ends at %d", id, g.start, g.hw, g.end)
			}
		}
		return p.state(p.a) == metadata.StateMirroring
	}
	p.back(p.a)
	p.wait("the gate opens", check)
	p.run("a rises, a catches up")
	for _, id := range p.a.ids {
		g := p.a.brokers[id].log(p.id, p.at)
		for _, m := range g.batches {
			if m.base >= 6 && m.epoch == 0 {
				p.fatal("broker %d still has %d, which A alone had", id, m.base)
			}
		}
	}
	p.settles()
}

// MIR-304: the clocks of all brokers jump, by a day ahead here and back there, while A is
// mirrored, while it is away, and while B is paused and stopped. Nothing but the clocks changes.
func TestPlayClocksJump(t *testing.T) {
	for _, far := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		t.Run(far.String(), func(t *testing.T) {
			t.Parallel()
			p := begin(t, 166, "a writes 3, b follows")
			jump := func(n time.Duration) {
				for i, w := range p.w {
					for j, id := range w.ids {
						w.brokers[id].proc.skew = n * far * time.Duration(1+j-2*i)
					}
				}
			}
			for n, steps := range []string{
				"a writes 2, b catches up", "link cut, a writes 1, b reaches FAILED, link healed, b catches up",
				"b pauses, a writes 1, b resumes, b catches up", "a elects, a writes 1, b catches up", "b elects, a writes 1, b catches up",
			} {
				jump(time.Duration(n%3) - 1)
				began := p.loop.now
				p.run(steps)
				if took := p.loop.now - began; took > 30*time.Second {
					p.fatal("%q took %v", steps, took)
				}
			}
			if p.cuts(p.b) > 0 {
				p.fatal("B was cut")
			}
			p.comesToHold(p.b, p.as(p.a))
			jump(1)
			p.run("b stops, b writes 1")
			p.settles()
		})
	}
}
