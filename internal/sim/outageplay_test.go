package sim

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// MIR-051: nobody leads the topic in A for longer than all retries of a failure take. B
// waits and tries again, records little, and goes on as soon as somebody leads, whatever
// it had to wait for next; no operator is needed.
func TestPlaySourceWithoutLeader(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 150)
	p.o.Retries = 3
	p.run("a writes 1, b follows, b dies, b rises, a writes 2, a leaves 1, a writes 1, b catches up")
	for _, id := range []int32{2, 3} {
		p.a.brokers[id].kill(false)
	}
	p.back(p.a)
	p.wait("nobody leads in A", func() bool { return p.partition(p.a).Leader == metadata.NoLeader })
	first := p.record(p.b).StateEpoch
	p.wait("B says why", func() bool { return strings.Contains(p.record(p.b).ErrorMessage, "no leader") })
	// The retries of the plays are 3 s apart at most: two records each.
	p.pass(2*time.Minute, nil, "")
	if n := p.record(p.b).StateEpoch - first; n < 4 || n > 2*60 {
		p.fatal("%d states were recorded in two minutes", n)
	}
	p.a.brokers[2].start()
	p.wait("somebody leads in A", func() bool { return p.led(p.a) })
	back := p.loop.now
	p.reaches(p.b, metadata.StateMirroring)
	if took := p.loop.now - back; took > 5*time.Second {
		p.fatal("B took %v to see it", took)
	}
	p.run("a rises, a writes 1, b catches up")
	p.settles()
}

// MIR-129: B is resumed while A is dead. It waits, loses nothing, and goes on when A is back.
func TestPlayResumeWithoutSource(t *testing.T) {
	t.Parallel()
	p := begin(t, 151, "a writes 3, b follows, b pauses, a writes 2, a dies, b resumes, b reaches FAILED")
	if r := p.record(p.b); r.RetryAttempt < 1 || !strings.Contains(r.ErrorMessage, "unreachable") {
		p.fatal("failed with %+v", r)
	}
	p.pass(20*time.Second, func() bool { return p.cuts(p.b) > 0 || slices.Max(p.ends(p.b)) != 3 }, "B's log changed")
	p.run("a rises, b catches up")
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-148: the mirror of a topic that was failed over is deleted, and B restarts. The topic
// is an ordinary one, is written to, and nothing of A comes, whose topic of that name and
// id goes on.
func TestPlayDeletedMirrorAndRestart(t *testing.T) {
	t.Parallel()
	p := begin(t, 152, "a writes 3, b follows, b stops, b writes 1")
	p.do(p.b, "delete mirror", func() bool { return p.desired(p.b) == metadata.DesiredNone })
	before := p.fetchedBy(p.b)
	p.run("b dies, b rises, a writes 4")
	log := batches(p.leader(p.b).log(p.id, p.at))
	p.pass(10*time.Second, func() bool {
		return p.state(p.b) != metadata.StateUnknown || p.b.store.image().Mirror(mirrorName) != nil
	}, "it is mirrored again")
	p.holds(log, p.b)
	if *before > 0 {
		p.fatal("%d batches of A were fetched", *before)
	}
	p.write(p.b, 1)
	p.settles()
}

// MIR-067: a producer of A does not hear that its batch was taken, and sends it again, also
// to the next leader. It is there once in A, and once in B.
func TestPlayProducerRetries(t *testing.T) {
	t.Parallel()
	p := begin(t, 153, "a writes 1, b follows")
	h := record.BuildHeader{ProducerID: 7, BaseTimestamp: p.loop.time().UnixMilli()}
	batch := record.Build(h, []record.Record{{Value: []byte("once")}})
	send := func() {
		x := p.leader(p.a)
		p.loop.after(0, &x.proc, func() { x.mgr.ByID(p.id, p.at).Produce(slices.Clone(batch), produceAll, ignore) })
	}
	send()
	p.wait("it is committed", func() bool { return p.leader(p.a).mgr.ByID(p.id, p.at).HighWatermark() == 2 })
	send()
	p.pass(time.Second, nil, "")
	p.elect(p.a)
	send()
	p.run("a writes 1, b catches up")
	if end := p.end(p.leader(p.a)); end != 3 {
		p.fatal("A ends at %d", end)
	}
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}

// MIR-206: the option for unclean elections belongs to the cluster that cuts. Set in B, it
// does not make A's gate wait for a replica that is down; set in A, it does. It is not
// copied with the topic's other configs.
func TestPlayOptionIsLocal(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		t.Run("set in "+where, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, 154)
			toFailback(p)
			p.set(map[string]*World{"a": p.a, "b": p.b}[where], metadata.MirrorULEConfig, "true")
			away := p.followers(p.a)[1]
			away.kill(false)
			p.isr(p.a, 2)
			p.want(p.a, "start", metadata.DesiredMirroring)
			if where == "a" {
				p.gateStaysClosed(10*time.Second, 8)
				away.start()
			}
			p.caughtUp(p.a)
			p.pass(5*time.Second, nil, "") // two refreshes, and the configs that they copy
			if got := p.a.store.image().TopicByID(p.id).Configs[metadata.MirrorULEConfig]; (got == "true") != (where == "a") {
				p.fatal("in A the option is %q", got)
			}
			p.whole(p.a)
			p.comesToHold(p.a, p.as(p.b))
			p.settles()
		})
	}
}

// MIR-052: of five brokers of B, one does what is done once per mirror: a config that
// changes in A is changed once, and growth is asked for once. MIR-053: that broker dies
// between seeing a change and making it; the one that takes its place makes it, and what
// B has in the end is what A has, not an older value.
func TestPlayOwnerOfAMirror(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(map[bool]string{true: "dies", false: "lives"}[dies], func(t *testing.T) {
			t.Parallel()
			p := newPlayOf(t, 155, 5, 1)
			p.run("a writes 1, b follows")
			alters, grows := map[int32]int{}, map[int32]int{}
			var owner *broker
			p.asking = func(b *broker, call any) {
				switch c := call.(type) {
				case controller.AlterConfigs:
					alters[b.id]++
					if owner == nil && dies {
						owner = b
						p.loop.after(0, nil, func() { b.kill(false) }) // before the office has it
					}
				case controller.GrowTopics:
					if c[0].FromMirror {
						grows[b.id]++
					}
				}
			}
			p.set(p.a, "retention.ms", "1000000")
			if dies {
				p.wait("the owner is dead", func() bool { return owner != nil && !owner.proc.up })
				p.set(p.a, "retention.ms", "2000000")
			}
			want := p.a.store.image().TopicByID(p.id).Configs["retention.ms"]
			has := func() bool { return p.b.store.image().TopicByID(p.id).Configs["retention.ms"] == want }
			p.wait("the config is copied", has)
			p.a.admin(controller.GrowTopics{{Topic: "t1", Total: 2}})
			p.wait("B has grown", func() bool { return len(p.b.store.image().TopicByID(p.id).Partitions) == 2 })
			p.pass(10*time.Second, func() bool { return !has() }, "an older value came back")
			if !dies && (len(alters) != 1 || len(grows) != 1) || len(alters) > 2 || len(grows) != 1 {
				p.fatal("configs were changed by %v, topics grown by %v", alters, grows)
			}
			for id, n := range alters {
				if n > 1 || grows[id] > 1 || !dies && grows[id] != 1 {
					p.fatal("configs were changed by %v, topics grown by %v", alters, grows)
				}
			}
			p.start(p.b)
			p.settles()
		})
	}
}

// MIR-389: a command reaches a broker of B that has not heard of the last one yet: it is
// refused for what it was decided from, and no wrong state comes of it; again, it succeeds.
func TestPlayCommandToABrokerBehind(t *testing.T) {
	t.Parallel()
	p := begin(t, 156, "a writes 2, b follows")
	behind := p.followers(p.b)[0]
	p.b.net.isolate(storeNode, behind.id, true) // it hears nothing new
	before := behind.revision()
	p.b.admin(controller.SetMirrorTopics{Mirror: mirrorName, Topics: []string{"t1"}, Desired: metadata.DesiredPaused, Validation: -1})
	p.reaches(p.b, metadata.StatePaused)
	if behind.revision() != before {
		p.fatal("it has heard of the pause")
	}
	var refused error
	done := false
	behind.mirrors.m.Go(func() {
		out, err := behind.mirrors.c.Start(t.Context(), mirror.StartRequest{Mirror: mirrorName, Topics: []string{"t1"}})
		if refused = err; err == nil && len(out) == 1 {
			refused = out[0].Err
		}
		done = true
	})
	p.loop.after(time.Millisecond, &behind.proc, func() {})
	p.wait("an answer", func() bool { return done })
	if !errors.Is(refused, controller.ErrMirrorStates) || p.state(p.b) != metadata.StatePaused || p.desired(p.b) != metadata.DesiredPaused {
		p.fatal("answered %v, the state is %v", refused, p.state(p.b))
	}
	p.run("b heals, b resumes, b catches up")
	p.settles()
}
