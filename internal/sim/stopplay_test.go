package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// dies kills every broker of w.
func (p *play) dies(w *World) {
	for _, id := range w.ids {
		if b := w.brokers[id]; b.proc.up {
			b.kill(false)
		}
	}
}

// E5. MIR-231, MIR-134: B is failed over with two transactions open. Behind the mirrored
// records lie one ABORT for each, and one reset, in an epoch above theirs; nothing is
// open and nobody is known; who reads committed records gets to the end. MIR-234: a
// producer of B that is given an id of A's begins at sequence 0, and is no duplicate.
func TestPlayStopWithTransactions(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 70)
	toStop(p)
	if info := p.leader(p.b).mgr.ByID(p.id, p.at).Info(); info.LastStable != 2 {
		p.fatal("before the stop: %+v", info)
	}
	p.stop(p.b)
	d := p.partition(p.b).LeaderEpoch
	p.comesToHold(p.b, func() string { return fmt.Sprintf("0@0 1@0 2@0 3@0 4@0 5@0 6@%dA 7@%dA 8@%dR", d, d, d) })
	info, l := p.leader(p.b).mgr.ByID(p.id, p.at).Info(), p.leader(p.b).log(p.id, p.at)
	if info.LastStable != 9 || info.HighWatermark != 9 || len(l.OpenTxns()) > 0 || len(l.Producers()) > 0 {
		p.fatal("after the stop: %+v, open %v, known %v", info, l.OpenTxns(), l.Producers())
	}
	if a := l.producers.AbortedIn(0, 9); len(a) != 2 {
		p.fatal("aborted: %v", a)
	}
	p.produce(p.b, record.BuildHeader{ProducerID: 5, BaseTimestamp: p.loop.time().UnixMilli()})
	if l = p.leader(p.b).log(p.id, p.at); l.end != 10 {
		p.fatal("the write of producer 5 was taken for a duplicate: end %d", l.end)
	}
	p.settles()
}

// E6. MIR-131, MIR-133: B lags when A dies, or while A goes on: the stop asks A nothing
// (the checker fails if it does, W59), ends, and what is lost is a suffix of A's log.
// Nothing of A comes afterwards. MIR-144: nor when A is back.
func TestPlayStopWhileBehind(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("source dead %v", dead), func(t *testing.T) {
			t.Parallel()
			p := begin(t, 71, "a writes 4, b follows, link cut, a writes 3")
			if dead {
				p.dies(p.a)
			}
			p.linked(true)
			began := p.loop.now
			p.wish(p.b, p.id, "stop")
			p.reaches(p.b, metadata.StateStopped)
			if took := p.loop.now - began; took > 3*time.Second {
				p.fatal("it took %v", took)
			}
			lo := p.record(p.b).LMO
			there, here := p.a.brokers[1].log(p.id, p.at), p.leader(p.b).log(p.id, p.at)
			if lo < 4 || dead && lo != 4 {
				p.fatal("the stop line is at %d", lo)
			}
			for i, m := range here.batches {
				if m.base < lo && m.sum != there.batches[i].sum || m.base >= lo && !record.Batch(m.bytes).IsControl() {
					p.fatal("batch %d is not A's, or came after the stop line %d", m.base, lo)
				}
			}
			p.start(p.a)
			p.pass(3*time.Second, nil, "") // a request was under way when it was stopped
			sent := p.fetchedBy(p.b)
			p.run("a rises, a writes 1")
			p.pass(10*time.Second, nil, "")
			if *sent > 0 || p.state(p.b) != metadata.StateStopped {
				p.fatal("%d batches of A came after the stop", *sent)
			}
			p.write(p.b, 1)
			p.settles()
		})
	}
}

// MIR-132: a stop gets B out of FAILED, whatever it failed of: a source that is gone,
// retries that are used up, a loss that waits for the operator, a loop. What it records is what is in the
// log, and nothing is tried again.
func TestPlayStopOutOfFailed(t *testing.T) {
	for how, fail := range map[string]func(*play){
		"source gone": func(p *play) { p.dies(p.a) },
		"source lost records": func(p *play) {
			p.run("a leaves 1, a writes 1, b catches up")
			p.loses(p.a, 1, 1)
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 72, "a writes 3, b follows")
			fail(p)
			p.reaches(p.b, metadata.StateFailed)
			if how != "source gone" {
				p.wait("for good", func() bool { return p.record(p.b).RetryAttempt < 0 })
			}
			l := p.leader(p.b).log(p.id, p.at)
			end, last := l.end, l.batches[len(l.batches)-1].epoch
			p.stop(p.b)
			if r := p.record(p.b); r.LME != last || r.LMO != end || r.RetryAttempt != 0 {
				p.fatal("recorded %+v, the log ended at %d in epoch %d", r, end, last)
			}
			p.start(p.a)
			p.pass(10*time.Second, func() bool { return p.state(p.b) != metadata.StateStopped }, "it did not stay STOPPED")
			p.write(p.b, 1)
			p.settles()
		})
	}
	t.Run("loop", func(t *testing.T) {
		t.Parallel()
		p := begin(t, 73, "a writes 3, b follows, a starts, a reaches FAILED, a stops")
		if r := p.record(p.a); r.LMO > 0 { // this run never mirrored anything
			p.fatal("recorded %+v", r)
		}
		p.run("a writes 1, b catches up")
		p.settles()
	})
}

// MIR-128: B is paused, and then stopped.
func TestPlayStopOfPaused(t *testing.T) {
	t.Parallel()
	p := begin(t, 74, "a writes 3, b follows, b pauses, a writes 2, b stops")
	if r := p.record(p.b); r.LME != 0 || r.LMO != 3 {
		p.fatal("recorded %+v", r)
	}
	p.write(p.b, 1)
	p.settles()
}

// MIR-123: a pause outlives elections and restarts of B, and A is not asked for a
// record. MIR-033: so does a stop, growth and restarts of A included, with the pattern
// still matching.
func TestPlayIntentStays(t *testing.T) {
	for _, what := range []string{"pause", "stop"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 75, "a writes 3, b follows")
			state := metadata.StatePaused
			if what == "stop" {
				state = metadata.StateStopped
				p.stop(p.b)
			} else {
				p.want(p.b, "pause", metadata.DesiredPaused)
				p.reaches(p.b, state)
			}
			before := batches(p.leader(p.b).log(p.id, p.at))
			p.pass(2*time.Second, nil, "") // a request is under way
			asked := 0
			p.fetching = func(b *broker, answers []mirrorFetched) { asked += len(answers) }
			p.run("b elects, a writes 2, b dies")
			p.start(p.b)
			p.whole(p.b)
			for _, o := range p.b.offices {
				if o.proc.up {
					o.proc.up = false
					o.proc.gen++
					p.loop.after(time.Second, nil, o.start)
				}
			}
			p.pass(2*time.Second, nil, "")
			p.dies(p.a)
			p.pass(3*time.Second, nil, "")
			p.start(p.a)
			p.run("a rises, b rises")
			p.a.admin(controller.GrowTopics{{Topic: "t1", Total: 2}})
			p.pass(10*time.Second, func() bool { return p.state(p.b) != state }, "it is not "+state.String()+" any more")
			if asked > 0 {
				p.fatal("A was asked %d times for records", asked)
			}
			p.holds(before, p.b)
			p.settles()
		})
	}
}

// MIR-135: a producer tries to write to B all through the stop. Its first record lies
// behind the reset. (That none comes before STOPPED the checker sees: GI-25.)
func TestPlayWritersThroughAStop(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		p := newPlay(t, 76+seed)
		toStop(p)
		p.b.writing = true
		p.clients(p.b, p.id, p.at)
		p.pass(time.Second, func() bool { return p.b.acked > 0 }, "a write to a mirror")
		p.want(p.b, "stop", metadata.DesiredStopped)
		p.wait("a write is taken", func() bool { return p.b.acked > 0 })
		l := p.leader(p.b).log(p.id, p.at)
		reset := slices.IndexFunc(l.batches, func(m memBatch) bool { b := record.Batch(m.bytes); return b.IsControl() && m.base >= 8 })
		first := slices.IndexFunc(l.batches, func(m memBatch) bool { return m.base >= 6 && !record.Batch(m.bytes).IsControl() })
		if p.state(p.b) != metadata.StateStopped || reset < 0 || first <= reset {
			p.fatal("state %v, the reset is batch %d, the first write batch %d", p.state(p.b), reset, first)
		}
		p.settles()
	}
}

// MIR-139: B has no leader when it is stopped. It stays as it is, and is STOPPED with
// the log of whoever leads then.
func TestPlayStopWithoutLeader(t *testing.T) {
	t.Parallel()
	p := begin(t, 80, "a writes 2, b follows, b leaves 13, a writes 2, b catches up")
	for _, id := range []int32{11, 12} {
		p.b.brokers[id].kill(false)
	}
	p.back(p.b)
	p.wait("nobody leads", func() bool { return p.partition(p.b).Leader == metadata.NoLeader })
	p.want(p.b, "stop", metadata.DesiredStopped)
	p.pass(5*time.Second, func() bool { return p.state(p.b) == metadata.StateStopped }, "STOPPED without a leader")
	p.b.brokers[11].start()
	p.reaches(p.b, metadata.StateStopped)
	if r := p.record(p.b); r.LMO != 4 {
		p.fatal("recorded %+v", r)
	}
	p.whole(p.b)
	p.settles()
}

// MIR-142: no controller of B answers while B is stopped: nothing can be recorded, so
// nothing is written and nobody may write, until one is back.
func TestPlayStopWithoutController(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 81)
	toStop(p)
	p.want(p.b, "stop", metadata.DesiredStopped)
	if p.record(p.b).HasLME {
		p.fatal("too late")
	}
	for _, o := range p.b.offices {
		o.proc.up = false
		o.proc.gen++
	}
	p.pass(2*time.Second, func() bool { // the brokers' sessions last so long
		l := p.b.brokers[max(11, p.partition(p.b).Leader)]
		x := l.mgr.ByID(p.id, p.at)
		return x != nil && x.Info().Leader && !x.Info().ReadOnly || p.end(l) > 6
	}, "it is written to before the stop line is stored")
	for _, o := range p.b.offices {
		o.start()
	}
	p.reaches(p.b, metadata.StateStopped)
	stopped(p)
	p.settles()
}

// MIR-143: B is restarted while A is dead, and then stopped: the source's id was stored
// when the mirror was made.
func TestPlayStopAfterRestartWithoutSource(t *testing.T) {
	t.Parallel()
	p := begin(t, 82, "a writes 3, b follows, a dies, b dies")
	p.start(p.b)
	p.isr(p.b, 3)
	p.stop(p.b)
	if r := p.record(p.b); r.LMO != 3 {
		p.fatal("recorded %+v", r)
	}
	p.settles()
}

// MIR-346: no state can be stored while B mirrors. Its records flow on, a pause waits, and
// nothing is taken for unknown.
func TestPlayStatesCannotBeStored(t *testing.T) {
	t.Parallel()
	p := begin(t, 83, "a writes 2, b follows")
	seen := p.states(p.b)
	for _, o := range p.b.offices {
		if o.proc.up {
			o.proc.pausedUntil = p.loop.now + 2500*time.Millisecond // less than the brokers' sessions
		}
	}
	p.wish(p.b, p.id, "pause")
	p.write(p.a, 3)
	p.wait("they flow", func() bool { return p.ends(p.b)[0] == 5 })
	if p.state(p.b) != metadata.StateMirroring {
		p.fatal("state %v", p.state(p.b))
	}
	p.want(p.b, "pause", metadata.DesiredPaused)
	p.reaches(p.b, metadata.StatePaused)
	if slices.Contains(*seen, metadata.StateUnknown) || slices.Contains(*seen, metadata.StatePreparing) {
		p.fatal("states %v", *seen)
	}
	p.settles()
}

// MIR-346: nobody can read or store states, because no controller of B runs, and all brokers
// of B restart meanwhile. What was paused, or stopped, is not fetched, what was mirrored is
// not written to, and each is what it was when the controllers are back.
func TestPlayStatesCannotBeRead(t *testing.T) {
	for _, steps := range []string{"", "b pauses", "b stops"} {
		t.Run(steps, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 99, "a writes 2, b follows")
			if steps != "" {
				p.run(steps)
			}
			state, desired := p.state(p.b), p.desired(p.b)
			for _, o := range p.b.offices {
				o.proc.up = false
				o.proc.gen++
			}
			for _, id := range p.b.ids {
				p.b.brokers[id].kill(false)
				p.b.brokers[id].start()
			}
			end := p.ends(p.b)[0]
			sent := p.fetchedBy(p.b)
			p.write(p.a, 2)
			p.pass(10*time.Second, func() bool { return *sent > 0 || slices.Max(p.ends(p.b)) > end }, "records came, or were written")
			for _, o := range p.b.offices {
				o.start()
			}
			p.isr(p.b, 3)
			if state != metadata.StateMirroring {
				p.pass(5*time.Second, func() bool { return *sent > 0 || p.state(p.b) != state || p.desired(p.b) != desired }, "it was started")
				p.want(p.b, map[metadata.MirrorState]string{metadata.StatePaused: "resume", metadata.StateStopped: "start"}[state], metadata.DesiredMirroring)
			}
			p.caughtUp(p.b)
			p.settles()
		})
	}
}

// MIR-294, MIR-295: packets between the clusters vanish, both ways or one, and no
// connection ends. It is noticed, nothing is appended twice, and B goes on when they
// come through again. MIR-290: so it is when all of A is down and comes back, and the
// failure is forgotten with the first records.
func TestPlayLinkFaults(t *testing.T) {
	for how, fault := range map[string]func(*play){
		"both ways": func(p *play) { p.linked(false) },
		"requests": func(p *play) {
			for _, x := range p.a.ids {
				for _, y := range p.b.ids {
					p.link.isolate(y, x, true)
				}
			}
		},
		"answers": func(p *play) {
			for _, x := range p.a.ids {
				for _, y := range p.b.ids {
					p.link.isolate(x, y, true)
				}
			}
		},
		"source dead": func(p *play) { p.dies(p.a) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 84, "a writes 3, b follows")
			fault(p)
			if how != "source dead" {
				p.write(p.a, 2)
			}
			p.reaches(p.b, metadata.StateFailed)
			if r := p.record(p.b); r.RetryAttempt < 1 || !strings.Contains(r.ErrorMessage, "unreachable") {
				p.fatal("failed with %+v", r)
			}
			p.pass(10*time.Second, nil, "")
			p.linked(true)
			p.start(p.a)
			p.run("a writes 1, b catches up")
			p.comesToHold(p.b, p.as(p.a))
			p.wait("the failure is forgotten", func() bool { return p.record(p.b).RetryAttempt == 0 })
			p.settles()
		})
	}
}

// MIR-297: answers that come long after who asked has given up, in any order, while B's
// leadership and its fetchers change: nothing is appended twice or elsewhere (the checker compares each append with A's log).
func TestPlayLateAnswers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		p := begin(t, 85+seed, "a writes 3, b follows")
		p.link.slow = 0.6
		for i := range 12 {
			p.append(p.a, 1)
			p.pass(500*time.Millisecond, nil, "")
			switch i % 4 {
			case 1:
				p.run("b elects")
			case 3:
				p.run("b pauses, b resumes")
			}
		}
		p.link.slow = 0
		p.caughtUp(p.b)
		p.comesToHold(p.b, p.as(p.a))
		p.settles()
	}
}

// MIR-298: the leader of B is cut off from its controllers, and not from A. Its session
// ends and another one leads; what it goes on to append comes to nothing.
func TestPlayMirrorLeaderWithoutController(t *testing.T) {
	t.Parallel()
	p := begin(t, 90, "a writes 3, b follows")
	old := p.leader(p.b)
	p.alone(old)
	p.b.net.isolate(old.id, storeNode, true)
	p.b.net.isolate(storeNode, old.id, true)
	p.append(p.a, 1)
	p.wait("another leads", func() bool { return p.partition(p.b).Leader != old.id && p.led(p.b) })
	p.append(p.a, 2)
	p.wait("it has all", func() bool { return p.end(p.leader(p.b)) == 6 })
	p.pass(3*time.Second, nil, "")
	p.whole(p.b)
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-299, MIR-071: followers of B are cut off from their leader. Until they have left
// the ISR nothing above what they have is committed in B; when they are back all is equal.
func TestPlayMirrorFollowersCutOff(t *testing.T) {
	t.Parallel()
	p := begin(t, 91, "a writes 3, b follows")
	l := p.leader(p.b)
	for _, f := range p.followers(p.b) {
		p.b.net.isolate(f.id, l.id, true)
		p.b.net.isolate(l.id, f.id, true)
	}
	p.append(p.a, 2)
	hw := func() int64 { return l.mgr.ByID(p.id, p.at).HighWatermark() }
	p.wait("the leader has it", func() bool { return p.end(l) == 5 })
	p.pass(time.Second, func() bool { return len(p.partition(p.b).ISR) == 3 && hw() > 3 }, "committed without the followers")
	p.wait("they have left the ISR, and it is committed", func() bool { return len(p.partition(p.b).ISR) == 1 && hw() == 5 })
	p.back(p.b)
	p.isr(p.b, 3)
	p.caughtUp(p.b)
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-074: the leader of a mirror is killed, or loses its power with what it had not
// synced, while records come.
func TestPlayMirrorLeaderDies(t *testing.T) {
	for seed := range uint64(6) {
		p := begin(t, 92+seed, "a writes 3")
		p.a.writing = true
		p.clients(p.a, p.id, p.at)
		p.follows(p.b)
		for range 3 {
			p.pass(p.loop.between(0, time.Second), nil, "")
			l := p.leader(p.b)
			l.kill(seed%2 == 0)
			p.pass(p.loop.between(0, time.Second), nil, "")
			l.start()
			p.whole(p.b)
		}
		p.settles()
	}
}

// MIR-062: every broker of both clusters is restarted in turn, D1 D2 S2 D1 S1 D2, while
// producers write. MIR-293: so are all of the source: B has nothing that A did not have
// (GI-21, the checker), loses nothing, and both are equal in the end.
func TestPlayRollingBounce(t *testing.T) {
	t.Parallel()
	p := begin(t, 98, "a writes 3", "min.insync.replicas", "2")
	p.a.writing = true
	p.clients(p.a, p.id, p.at)
	p.follows(p.b)
	for _, id := range []int32{11, 12, 2, 11, 1, 12, 3, 13} {
		w := p.a
		if id > 10 {
			w = p.b
		}
		b := w.brokers[id]
		b.shutdown()
		p.wait("it is down", func() bool { return !b.proc.up })
		p.pass(p.loop.between(0, time.Second), nil, "")
		b.start()
		p.whole(w)
	}
	if p.cuts(p.b) > 0 {
		p.fatal("B was cut %d times", p.cuts(p.b))
	}
	p.settles()
}

// MIR-388: four operators at once on one topic of B: each command is answered, and the
// state that comes of it is one that the newest wish leads to.
func TestPlayFourOperators(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		p := begin(t, 100+seed, "a writes 3, b follows")
		for range 3 {
			for _, what := range []string{"pause", "resume", "stop", "start"} {
				p.loop.after(p.loop.between(0, 5*time.Millisecond), nil, func() { p.wish(p.b, p.id, what) })
			}
			p.pass(p.loop.between(0, 300*time.Millisecond), nil, "")
		}
		p.wait("the state is that of the wish", func() bool {
			return p.state(p.b) == map[metadata.Desired]metadata.MirrorState{
				metadata.DesiredMirroring: metadata.StateMirroring, metadata.DesiredPaused: metadata.StatePaused, metadata.DesiredStopped: metadata.StateStopped,
			}[p.desired(p.b)]
		})
		p.settles()
	}
}

// MIR-013: the mirror of a stopped topic is deleted while the topic is started in it: one of
// the two wins, and no topic is ever in a mirror that is not there.
func TestPlayDeleteRacesStart(t *testing.T) {
	t.Parallel()
	deleted, started := 0, 0
	for seed := range uint64(36) {
		p := begin(t, 120+seed, "a writes 2, b follows, b stops")
		for _, what := range []string{"delete mirror", "start"} {
			p.loop.after(p.loop.between(0, 10*time.Millisecond), nil, func() { p.wish(p.b, p.id, what) })
		}
		p.pass(3*time.Second, func() bool {
			img := p.b.store.image()
			name := img.TopicByID(p.id).Attachment().Mirror
			return name != "" && img.Mirror(name) == nil
		}, "a topic is in a mirror that is not there")
		if p.b.store.image().Mirror(mirrorName) == nil {
			deleted++
		} else {
			started++
		}
		p.settles()
	}
	if deleted == 0 || started == 0 {
		t.Errorf("deleted %d times, started %d times: the race was none", deleted, started)
	}
}

// MIR-121: a pause in the middle of a long catch-up: B ends with a whole batch, and goes on
// behind it.
func TestPlayPauseWhileCatchingUp(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 140)
	big := record.Build(record.NoProducer(0), []record.Record{{Value: make([]byte, 10_000)}, {OffsetDelta: 1, Value: make([]byte, 10_000)}})
	x := p.leader(p.a)
	for range 400 {
		p.loop.after(0, &x.proc, func() { x.mgr.ByID(p.id, p.at).Produce(slices.Clone(big), produceAll, ignore) })
	}
	p.wait("written", func() bool { return x.mgr.ByID(p.id, p.at).HighWatermark() == 800 })
	p.link.base = 100 * time.Millisecond
	p.want(p.b, "start", metadata.DesiredMirroring)
	p.wait("on its way", func() bool { return p.partition(p.b) != nil && p.ends(p.b)[0] > 20 })
	p.want(p.b, "pause", metadata.DesiredPaused)
	p.reaches(p.b, metadata.StatePaused)
	at := p.ends(p.b)[0]
	if at >= 800 || at%2 != 0 {
		p.fatal("paused at %d", at)
	}
	p.pass(3*time.Second, func() bool { return slices.Max(p.ends(p.b)) > at }, "it goes on")
	p.link.base = 300 * time.Microsecond
	p.run("b resumes, b catches up")
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-082: elections at the source, one after the other with a record between: our epoch
// is raised before the source's reaches it, and B never stops mirroring.
func TestPlayEpochRaisedInTime(t *testing.T) {
	t.Parallel()
	p := begin(t, 141, "a writes 2, b follows")
	seen := p.states(p.b)
	a := p.listen(p.b)
	for range 20 {
		p.a.admin(controller.BumpEpochs{{Topic: p.id, MinLeaderEpoch: p.partition(p.a).LeaderEpoch}})
		p.pass(200*time.Millisecond, nil, "")
		p.run("a writes 1, b catches up")
	}
	if len(*seen) != 1 || a.bump == 0 || p.partition(p.b).LeaderEpoch <= p.partition(p.a).LeaderEpoch {
		p.fatal("states %v, raised %d times, epochs %d and %d", *seen, a.bump, p.partition(p.b).LeaderEpoch, p.partition(p.a).LeaderEpoch)
	}
	p.settles()
}
