package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// behind has a broker of w miss what is written from here on, and leave the ISR. It
// keeps running, but reaches nobody of its cluster.
func (p *play) behind(w *World, id int32) {
	p.t.Helper()
	if p.partition(w).Leader == id {
		p.elect(w)
	}
	p.alone(w.brokers[id])
	p.wait(fmt.Sprintf("%d has left the ISR", id), func() bool { return !slices.Contains(p.partition(w).ISR, id) && p.led(w) })
}

// loses elects uncleanly the one that was behind, and lets it write n records before B
// hears of anything: the link is cut meanwhile.
func (p *play) loses(w *World, id int32, n int) {
	p.t.Helper()
	p.linked(false)
	p.back(w)
	p.uncleanly(w, id)
	if n > 0 {
		p.write(w, n)
	}
	p.linked(true)
}

// linked cuts the link between the clusters, or heals it.
func (p *play) linked(on bool) {
	for _, x := range p.a.ids {
		for _, y := range p.b.ids {
			p.link.isolate(x, y, !on)
			p.link.isolate(y, x, !on)
		}
	}
}

// E3 and its kin: an unclean election at the source takes a record away that B has.
//
// MIR-210, MIR-211, MIR-212: whether the elected one's log is then shorter than B's,
// as long, or longer, B sees it by the epochs. With the option it cuts to where the
// histories part, through ULE_RECOVERY, and follows on. Without it fails for good, cuts
// nothing and says why; recover then does the same (DEC-03). MIR-214: so it does where
// the source tells nothing of diverging epochs when it is fetched from. MIR-413: what is
// cut opens a version of the timeline, once; nothing else does.
//
// MIR-203: the option is switched on while B mirrors: nothing is cut because of that, and
// it counts at the next cut.
func TestPlayUncleanSource(t *testing.T) {
	for _, option := range []string{"true", "false"} {
		for _, n := range []int{0, 1, 5} { // written before B fetches again
			for _, old := range []bool{false, true} {
				t.Run(fmt.Sprintf("option %s, %d records, old source %v", option, n, old), func(t *testing.T) {
					t.Parallel()
					p := newPlay(t, 40)
					p.old = old
					p.run("a writes 4, a leaves 1, a writes 1")
					e := p.partition(p.a).LeaderEpoch
					p.follows(p.b)
					p.holds(fmt.Sprintf("0@0 1@0 2@0 3@0 4@%d", e), p.b)
					p.set(p.b, metadata.MirrorULEConfig, option)
					seen := p.states(p.b)
					p.loses(p.a, 1, n)
					e2 := p.partition(p.a).LeaderEpoch
					want := "0@0 1@0 2@0 3@0"
					for i := range n {
						want += fmt.Sprintf(" %d@%d", 4+i, e2)
					}
					if option == "false" {
						p.reaches(p.b, metadata.StateFailed)
						if r := p.record(p.b); !strings.Contains(r.ErrorMessage, "source lost records") || r.RetryAttempt >= 0 {
							// One that failed first because nobody answered comes to it by its retry.
							p.wait("it says what was lost", func() bool {
								r := p.record(p.b)
								return strings.Contains(r.ErrorMessage, "source lost records") && r.RetryAttempt < 0
							})
						}
						p.pass(5*time.Second, func() bool { return p.cuts(p.b) > 0 }, "it was cut")
						p.do(p.b, "recover", func() bool { return p.state(p.b) != metadata.StateFailed })
					}
					p.caughtUp(p.b)
					p.comesToHold(p.b, func() string { return want })
					if recovered := slices.Contains(*seen, metadata.StateULERecovery); recovered != (option == "true") || p.cuts(p.b) != 1 {
						p.fatal("states %v, %d cuts", *seen, p.cuts(p.b))
					}
					p.run("a rises, a writes 1, b catches up")
					p.settles()
				})
			}
		}
	}
}

// states collects the states that are recorded in w.
func (p *play) states(w *World) *[]metadata.MirrorState {
	all := &[]metadata.MirrorState{}
	p.watchStates(w, all)
	return all
}

func (p *play) watchStates(w *World, all *[]metadata.MirrorState) {
	s := p.state(w)
	if n := len(*all); n == 0 || (*all)[n-1] != s {
		*all = append(*all, s)
	}
	p.loop.after(100*time.Microsecond, nil, func() { p.watchStates(w, all) })
}

// MIR-213: two unclean elections, to two brokers that were behind in different ways,
// before B fetches once. B ends as the last leader has it.
func TestPlayUncleanSourceTwice(t *testing.T) {
	t.Parallel()
	p := begin(t, 41, "a writes 2, a leaves 1, a writes 2, a leaves 2, a writes 2, b follows")
	p.set(p.b, metadata.MirrorULEConfig, "true")
	p.run("link cut, a heals, a trusts 2, a writes 1, a trusts 1, a writes 2")
	e := p.partition(p.a).LeaderEpoch
	p.run("link healed, a rises, b catches up")
	p.comesToHold(p.b, func() string { return fmt.Sprintf("0@0 1@0 2@%d 3@%d", e, e) })
	p.settles()
}

// MIR-215: consumers of B that have read what is cut are told, and go on (the checker
// looks at each answer and at their end); what they have read and lost is charged to
// that cut.
func TestPlayUncleanSourceReaders(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 42)
	p.b.writing = false
	p.run("a writes 3, a leaves 1, a writes 3, b follows")
	p.set(p.b, metadata.MirrorULEConfig, "true")
	p.clients(p.b, p.id, p.at)
	p.wait("they have read all", func() bool { return p.b.readers[0].at == 6 })
	p.loses(p.a, 1, 1)
	p.wait("they go on", func() bool { return p.cuts(p.b) == 1 && p.b.readers[0].at == 4 })
	p.settles()
}

// MIR-216: in ULE_RECOVERY B waits for a replica of its own that is down.
func TestPlayUncleanSourceRecoveryWaits(t *testing.T) {
	t.Parallel()
	p := begin(t, 43, "a writes 3, a leaves 1, a writes 1, b follows")
	p.set(p.b, metadata.MirrorULEConfig, "true")
	away := p.followers(p.b)[0]
	away.kill(false)
	p.isr(p.b, 2)
	p.loses(p.a, 1, 2)
	p.reaches(p.b, metadata.StateULERecovery)
	p.pass(10*time.Second, func() bool { return p.state(p.b) == metadata.StateMirroring }, "it went on without a replica")
	away.start()
	p.run("b catches up, a rises")
	p.settles()
}

// MIR-217: the source loses a record and B follows; then B is failed over: what it
// records is of the log as it is then.
func TestPlayUncleanSourceThenStop(t *testing.T) {
	t.Parallel()
	p := begin(t, 44, "a writes 4, a leaves 1, a writes 1, b follows")
	p.set(p.b, metadata.MirrorULEConfig, "true")
	p.loses(p.a, 1, 2)
	e := p.partition(p.a).LeaderEpoch
	p.run("b catches up, b stops")
	if r := p.record(p.b); r.LME != e || r.LMO != 6 {
		p.fatal("last mirrored %+v, want epoch %d, offset 6", r, e)
	}
	p.whole(p.a)
	p.settles()
}

// E8. MIR-218: an unclean election at the source, the failover, another unclean election
// at the old source, to the one that had lost it the first time, and the failback with
// the option on: it waits for the one that led in between. All are equal in the end.
func TestPlayUncleanBothSides(t *testing.T) {
	t.Parallel()
	p := begin(t, 45, "a writes 1")
	p.behind(p.a, 1) // s0; 2 is s1
	p.a.brokers[3].kill(false)
	p.isr(p.a, 1)
	p.write(p.a, 1) // only on 2
	p.follows(p.b)
	p.set(p.b, metadata.MirrorULEConfig, "true")
	p.loses(p.a, 1, 2)
	e5 := p.partition(p.a).LeaderEpoch
	p.caughtUp(p.b)
	p.comesToHold(p.b, func() string { return fmt.Sprintf("0@0 1@%d 2@%d", e5, e5) })
	p.stop(p.b)
	if r := p.record(p.b); r.LME != e5 || r.LMO != 3 {
		p.fatal("last mirrored %+v", r)
	}
	p.write(p.b, 2)
	// 2 has 0, 1 of the first leadership; 1 and 3 are down when it is elected.
	p.a.brokers[1].kill(false)
	p.run("a trusts 2, a writes 6")
	p.set(p.a, metadata.MirrorULEConfig, "true")
	p.want(p.a, "start", metadata.DesiredMirroring)
	p.pass(5*time.Second, func() bool { return p.state(p.a) == metadata.StateMirroring }, "the gate opened without the others")
	p.start(p.a)
	p.run("a catches up, a rises")
	p.comesToHold(p.a, p.as(p.b))
	p.settles()
}

// MIR-125: the source loses a record while B is paused: B sees it by the epochs before
// it fetches anything.
func TestPlayUncleanSourceWhilePaused(t *testing.T) {
	t.Parallel()
	p := begin(t, 46, "a writes 4, a leaves 1, a writes 1, b follows")
	p.set(p.b, metadata.MirrorULEConfig, "true")
	p.run("b pauses, a heals, a trusts 1, a writes 3, a rises, b resumes, b catches up")
	p.comesToHold(p.b, p.as(p.a))
	if p.cuts(p.b) != 1 {
		p.fatal("%d cuts", p.cuts(p.b))
	}
	p.settles()
}

// MIR-220, MIR-221, MIR-223: an unclean election at B, to a replica that misses some, or
// all, of it, while it mirrors or is paused: B's log shrinks, and what is missing is
// fetched again.
func TestPlayUncleanDestination(t *testing.T) {
	for _, first := range []int{0, 3} {
		for _, paused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d left, paused %v", first, paused), func(t *testing.T) {
				t.Parallel()
				p := newPlay(t, 47)
				if first > 0 {
					p.write(p.a, first)
				}
				p.run("b follows, b leaves 13, a writes 4, b catches up")
				if paused {
					p.want(p.b, "pause", metadata.DesiredPaused)
					p.reaches(p.b, metadata.StatePaused)
				}
				p.run("b heals, b trusts 13")
				if paused {
					p.pass(3*time.Second, func() bool { return p.end(p.b.brokers[13]) > int64(first) }, "a paused mirror fetched")
					p.want(p.b, "resume", metadata.DesiredMirroring)
				}
				p.run("b catches up, b rises")
				p.comesToHold(p.b, p.as(p.a))
				if p.cuts(p.b) != 1 {
					p.fatal("%d cuts", p.cuts(p.b))
				}
				p.settles()
			})
		}
	}
}

// E7. MIR-222: an unclean election at B after its failover, to a replica that does not
// even have all that was mirrored. A, which follows B then, keeps only what B's new
// history has.
func TestPlayUncleanDestinationThenFailback(t *testing.T) {
	t.Parallel()
	p := begin(t, 48, "a writes 3, b follows, b leaves 13, a writes 3, b catches up, b stops, b writes 2, a writes 1, b heals, b trusts 13, b writes 2")
	e := p.partition(p.b).LeaderEpoch
	p.run("b rises, a follows")
	p.comesToHold(p.a, func() string { return fmt.Sprintf("0@0 1@0 2@0 3@%d 4@%d", e, e) })
	p.settles()
}

// MIR-224: with clean elections only, B waits for its leader, as the mirror does, and
// both go on when it is back.
func TestPlayNoUncleanDestination(t *testing.T) {
	t.Parallel()
	p := begin(t, 49, "a writes 2, b follows, b leaves 13, a writes 1, b catches up")
	for _, id := range []int32{11, 12} {
		p.b.brokers[id].kill(false)
	}
	p.back(p.b)
	p.wait("nobody leads", func() bool { return p.partition(p.b).Leader == metadata.NoLeader })
	p.pass(5*time.Second, func() bool { return p.partition(p.b).Leader == 13 || p.state(p.b) != metadata.StateMirroring }, "13 leads, or the state changed")
	p.start(p.b)
	p.caughtUp(p.b)
	p.settles()
}

// MIR-083, MIR-084, MIR-126: the source's epoch jumps above ours, or rises fifty times:
// nothing of it is stored before ours is above (GI-31, looked at with each append), also
// behind a pause, and then the same batches are.
func TestPlayEpochJump(t *testing.T) {
	for _, how := range []string{"jump", "jump while paused", "fifty elections"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := begin(t, 50, "a writes 2, b follows")
			seen := p.states(p.b)
			a := p.listen(p.b)
			switch how {
			case "fifty elections":
				for range 50 {
					p.a.admin(controller.BumpEpochs{{Topic: p.id, MinLeaderEpoch: p.partition(p.a).LeaderEpoch}})
					p.pass(20*time.Millisecond, nil, "")
				}
				p.append(p.a, 1)
			case "jump":
				// The controller is slow: the batches are there before the raised epoch.
				listen := p.asking
				p.asking = func(b *broker, call any) {
					if _, ok := call.(controller.BumpEpochs); ok {
						p.b.store.holder.proc.pausedUntil = p.loop.now + 500*time.Millisecond
					}
					listen(b, call)
				}
				jumpEpoch(p)
			default:
				p.want(p.b, "pause", metadata.DesiredPaused)
				p.reaches(p.b, metadata.StatePaused)
				jumpEpoch(p)
				p.want(p.b, "resume", metadata.DesiredMirroring)
			}
			p.caughtUp(p.b)
			p.comesToHold(p.b, p.as(p.a))
			if here, there := p.partition(p.b).LeaderEpoch, p.partition(p.a).LeaderEpoch; here < there || there < 50 {
				p.fatal("epoch %d here, %d there", here, there)
			}
			if how == "jump" && !slices.Contains(*seen, metadata.StateEpochFencing) {
				p.fatal("states %v", *seen)
			}
			if a.bump == 0 || a.bump > 20 {
				p.fatal("%d times a raised epoch was asked for", a.bump)
			}
			p.settles()
		})
	}
}

// MIR-085: five elections at B without a new record leave no epoch in any log of it.
func TestPlayElectionsHere(t *testing.T) {
	t.Parallel()
	p := begin(t, 51, "a writes 2, a elects, a writes 2, b follows")
	for range 5 {
		p.elect(p.b)
	}
	p.caughtUp(p.b)
	want := fmt.Sprint(p.leader(p.a).log(p.id, p.at).Epochs())
	for _, id := range p.partition(p.b).Replicas {
		if got := fmt.Sprint(p.b.brokers[id].log(p.id, p.at).Epochs()); got != want {
			p.fatal("broker %d has epochs %s, the source %s", id, got, want)
		}
	}
	p.run("a writes 1, b catches up")
	p.settles()
}

// MIR-086: the leader of B stands still with an answer of the source in its socket.
// Another takes over and fetches the same; when the old one wakes, it appends nothing.
// (The checker knows who may append: GI-15.)
func TestPlayDeposedMirrorLeader(t *testing.T) {
	t.Parallel()
	p := begin(t, 52, "a writes 2, b follows")
	old := p.leader(p.b)
	old.proc.pausedUntil = p.loop.now + sessionTimeout + 4*time.Second
	p.append(p.a, 2) // answers the fetch that waits; the answer waits for the process
	p.wait("another leads", func() bool { return p.partition(p.b).Leader != old.id && p.led(p.b) })
	p.wait("it has all", func() bool { return p.end(p.leader(p.b)) == 4 })
	if p.end(old) != 2 {
		p.fatal("the old leader did not stand still")
	}
	p.wait("it wakes", func() bool { return old.proc.pausedUntil < p.loop.now })
	p.whole(p.b)
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-087: the new leader of the source is elected cleanly, and does not know yet how far
// the old one had committed. B cuts nothing and nothing falls.
func TestPlayLaggingHighWatermark(t *testing.T) {
	for seed := range uint64(4) {
		p := begin(t, 53+seed, "a writes 2, b follows, a appends 1")
		p.wait("B has it", func() bool { return p.ends(p.b)[0] == 3 })
		p.leader(p.a).kill(false)
		p.pass(20*time.Second, func() bool {
			l := p.b.brokers[p.partition(p.b).Leader]
			return p.end(l) < 3 || p.state(p.b) == metadata.StateFailed && strings.Contains(p.record(p.b).ErrorMessage, "lost")
		}, "B cut, or believes that something was lost")
		p.run("a writes 1, b catches up")
		if p.cuts(p.b) != 0 {
			p.fatal("%d cuts", p.cuts(p.b))
		}
		p.settles()
	}
}

// MIR-089: the two crash sequences of KIP-101 on a mirrored partition of two replicas that
// count: a follower that restarts before it heard of the high watermark, and then its
// leader; and both without power, with the follower's tail lost and it back first.
func TestPlayAlternateCrashes(t *testing.T) {
	for _, power := range []bool{false, true} {
		p := begin(t, 60, "a writes 2, b follows")
		l, f := p.leader(p.b), p.followers(p.b)[0]
		p.append(p.a, 1)
		p.wait("the follower has it and knows less", func() bool { return p.end(f) == 3 && f.log(p.id, p.at).hw == 2 })
		if power {
			p.linked(false) // the source helps nobody
			l.kill(true)
			f.kill(true)
			f.start()
			p.pass(2*time.Second, nil, "")
			l.start()
		} else {
			f.kill(false)
			f.start()
			p.wait("it follows", func() bool {
				return p.led(p.b) && slices.Contains(p.partition(p.b).ISR, f.id) && f.mgr.ByID(p.id, p.at) != nil
			})
			l.kill(false)
			p.pass(time.Second, nil, "")
			l.start()
		}
		p.run("b rises, link healed, b catches up")
		p.comesToHold(p.b, p.as(p.a))
		p.settles()
	}
}

// MIR-090: three leaders in a row, the first two of which write something that nobody
// else gets (KIP-279): both cut to what they have in common with the third. MIR-091: and
// elections without records before that leave no epoch that would keep them from it.
// MIR-092: the answer that tells them where histories part has a high watermark above
// that, and what they take over of it is below (GI-14, after each event).
func TestPlayFastElections(t *testing.T) {
	for _, w := range []int{0, 1} { // an ordinary topic with a mirror of it, and one that was failed over
		p := begin(t, 61, "a writes 2, b follows")
		c := p.w[w]
		if w == 1 {
			p.stop(p.b)
		}
		for range 3 {
			p.elect(c)
		}
		for range 2 {
			l := p.leader(c)
			for _, o := range p.followers(c) {
				c.net.isolate(o.id, l.id, true) // nobody fetches from it; all keep their sessions
			}
			p.append(c, 1)
			l.kill(false)
			p.wait("another leads", func() bool { return p.partition(c).Leader != l.id && p.led(c) })
			p.back(c)
		}
		p.write(c, 1)
		p.whole(c)
		p.comesToHold(c, p.as(c))
		if w == 0 {
			p.caughtUp(p.b)
			p.comesToHold(p.b, p.as(p.a))
		}
		p.settles()
	}
}
