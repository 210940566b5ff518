package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// fetchedBy counts the batches that a cluster's mirrors are sent.
func (p *play) fetchedBy(w *World) *int {
	n := new(int)
	p.fetching = func(b *broker, answers []mirrorFetched) {
		if b.w != w {
			return
		}
		for _, a := range answers {
			for rest := a.records; len(rest) > 0; *n++ {
				var err error
				if _, rest, err = record.Next(rest); err != nil {
					p.fatal("%v", err)
				}
			}
		}
	}
	return n
}

// E1, E2: the base cycle with exact logs. A: 0-2, an election, 3-5. B mirrors and is
// stopped; B and A both write on; A follows B, and both turn again.
//
// MIR-150, MIR-152, MIR-153: A's surplus is cut, whether it has an epoch of its own or
// the last mirrored one; B's records come, and A is B on every replica. MIR-196: A's
// followers have the surplus in an epoch that their leader has cut. MIR-162: and back
// again, with the first epoch of A's own above every mirrored one. MIR-130: the planned
// stop there loses nothing.
func TestPlayFailback(t *testing.T) {
	for _, elects := range []bool{false, true} {
		t.Run(fmt.Sprintf("election before the surplus %v", elects), func(t *testing.T) {
			t.Parallel()
			p := begin(t, 1, "a writes 3, a elects")
			e1 := p.partition(p.a).LeaderEpoch
			p.run("a writes 3, b follows, b stops")
			if r := p.record(p.b); r.LME != e1 || r.LMO != 6 {
				p.fatal("last mirrored: %+v", r)
			}
			if elects {
				p.elect(p.a)
			}
			p.run("a writes 2, b writes 1")
			d := p.partition(p.b).LeaderEpoch
			p.follows(p.a)
			log := fmt.Sprintf("0@0 1@0 2@0 3@%d 4@%d 5@%d 6@%dR 7@%d", e1, e1, e1, d, d)
			p.holds(log, p.a, p.b)
			if n := p.cuts(p.a); n != 1 {
				p.fatal("A was cut %d times", n)
			}
			p.run("a stops, a writes 1")
			d2 := p.partition(p.a).LeaderEpoch
			if r := p.record(p.a); r.LME != d || r.LMO != 8 || d2 <= d {
				p.fatal("last mirrored %+v, then epoch %d", r, d2)
			}
			p.follows(p.b)
			p.holds(fmt.Sprintf("%s 8@%dR 9@%d", log, d2, d2), p.a, p.b)
			if n := p.cuts(p.b); n != 0 {
				p.fatal("B was cut %d times", n)
			}
			p.settles()
		})
	}
}

// MIR-151: A wrote nothing since. Nothing is cut, and nothing is sent but what B has
// more. (MIR-163: so nothing is told of as cut.)
func TestPlayFailbackWithoutSurplus(t *testing.T) {
	t.Parallel()
	p := begin(t, 2, "a writes 6, b follows, b stops, b writes 2")
	sent := p.fetchedBy(p.a)
	p.follows(p.a)
	if *sent != 3 || p.cuts(p.a) != 0 {
		p.fatal("%d batches were sent, %d cuts", *sent, p.cuts(p.a))
	}
	p.settles()
}

// MIR-154: A lost records since, so that the last mirrored epoch is above all that it
// has. It is not cut to zero: it keeps what it has and gets the rest.
func TestPlayFailbackOfLessThanMirrored(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, "a writes 3")
	p.alone(p.a.brokers[3])
	p.isr(p.a, 2)
	p.run("a elects, a writes 3, b follows, b stops, b writes 1, a heals")
	for _, id := range []int32{1, 2} {
		p.a.brokers[id].kill(false)
	}
	p.uncleanly(p.a, 3)
	sent := p.fetchedBy(p.a)
	p.start(p.a)
	p.run("a follows, a rises")
	if *sent != 5 {
		p.fatal("%d batches were sent", *sent)
	}
	p.settles()
}

// MIR-156: A is told to follow B while B follows A. A refuses, cuts nothing and says
// why, B goes on; when B is stopped A follows.
func TestPlayFailbackTooEarly(t *testing.T) {
	t.Parallel()
	p := begin(t, 4, "a writes 4, b follows, a starts, a reaches FAILED")
	if text := p.record(p.a).ErrorMessage; !strings.Contains(text, "mirror loop") {
		p.fatal("A says %q", text)
	}
	p.pass(5*time.Second, func() bool { return p.state(p.b) != metadata.StateMirroring || p.cuts(p.a) > 0 }, "B stopped, or A was cut")
	p.holds("0@0 1@0 2@0 3@0", p.a, p.b)
	p.stop(p.b)
	p.do(p.a, "recover", func() bool { return p.state(p.a) != metadata.StateFailed })
	p.caughtUp(p.a)
	p.settles()
}

// MIR-159, MIR-164: producers and consumers are at work on A when it begins to follow B,
// and on B. What A acknowledged is cut only with a new version of the timeline, what a
// consumer reads is of one version (the checker looks at each answer), and those whose
// place is cut away go on instead of hanging.
//
// MIR-244: an idempotent producer on A gets no false duplicate and is not called out of
// order (GI-54, GI-40).
func TestPlayFailbackUnderClients(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		p := begin(t, 10+seed, "a writes 3, b follows, b stops")
		p.a.writing, p.b.writing = true, true
		for _, w := range p.w {
			p.clients(w, p.id, 0)
		}
		p.pass(3*time.Second, nil, "")
		if p.a.acked == 0 || p.b.acked == 0 {
			p.fatal("%d and %d writes were acknowledged", p.a.acked, p.b.acked)
		}
		p.run("a starts, a reaches MIRRORING")
		acked, read := p.a.acked, p.a.read
		p.pass(3*time.Second, nil, "")
		if p.a.acked != acked || p.a.read == read || p.cuts(p.a) != 1 {
			p.fatal("%d writes to a mirror, %d reads of it, %d cuts", p.a.acked-acked, p.a.read-read, p.cuts(p.a))
		}
		p.settles()
	}
}

// MIR-171: B's mirror was deleted, so B knows of nothing. A begins from scratch, once.
func TestPlayFailbackAfterDelete(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, "a writes 3, b follows, b stops, b writes 1")
	p.do(p.b, "delete mirror", func() bool { return p.desired(p.b) == metadata.DesiredNone })
	p.follows(p.a)
	if p.cuts(p.a) != 1 {
		p.fatal("%d cuts", p.cuts(p.a))
	}
	p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	p.settles()
}

// MIR-165: what the failover of B ended stays ended on A: the transaction that was open
// there is aborted by the mirrored marker, and no producer of A is known behind the
// mirrored reset (GI-50). MIR-237: what A's coordinator wrote meanwhile is cut.
func TestPlayFailbackOfTransactions(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 6)
	toStop(p)
	p.stop(p.b)
	x := p.leader(p.a)
	p.loop.after(0, &x.proc, func() {
		x.mgr.ByID(p.id, p.at).AppendMarker(-1, markerOf(5), func(error) {})
	})
	p.wait("A commits", func() bool { return p.end(x) == 7 })
	p.follows(p.a)
	for _, id := range p.partition(p.a).Replicas {
		l := p.a.brokers[id].log(p.id, p.at)
		if open, known := l.OpenTxns(), l.Producers(); len(open) > 0 || len(known) > 0 {
			p.fatal("broker %d: open %v, known %v", id, open, known)
		}
		if got := l.producers.AbortedIn(0, l.end); len(got) != 2 {
			p.fatal("broker %d: aborted %v", id, got)
		}
	}
	p.settles()
}

// MIR-184: the stop line that B tells lies inside a batch of A. All replicas of A end
// with the same whole batches, and nobody asks for ever.
func TestPlayCutInsideABatch(t *testing.T) {
	t.Parallel()
	p := begin(t, 7, "a writes 5, b follows, b stops")
	three := record.Build(record.NoProducer(0), []record.Record{{}, {OffsetDelta: 1}, {OffsetDelta: 2}})
	x := p.leader(p.a)
	p.loop.after(0, &x.proc, func() { x.mgr.ByID(p.id, p.at).Produce(three, produceAll, ignore) })
	p.wait("a batch of three", func() bool { e := p.ends(p.a); return e[0] == 8 && e[1] == 8 && e[2] == 8 })
	p.telling = func(l *source.LastMirrored) { l.Offset = 6 }
	p.run("a starts, a reaches MIRRORING")
	p.telling = nil
	p.caughtUp(p.a)
	p.holds(batches(p.leader(p.b).log(p.id, p.at)), p.a)
	p.settles()
}
