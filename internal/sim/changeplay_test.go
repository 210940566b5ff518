package sim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
)

// command gives a command to a broker's coordinator, and waits for its answer.
func (p *play) command(b *broker, run func(c *mirror.Coordinator) ([]mirror.TopicOutcome, error)) (out []mirror.TopicOutcome, err error) {
	p.t.Helper()
	done := false
	b.mirrors.m.Go(func() {
		out, err = run(b.mirrors.c)
		done = true
	})
	p.loop.after(time.Millisecond, &b.proc, func() {}) // settle begins it
	p.wait("an answer", func() bool { return done })
	return out, err
}

// reassign gives the partition in w to other brokers, and waits until they have it.
func (p *play) reassign(w *World, replicas ...int32) {
	p.t.Helper()
	w.admin(controller.Reassign{Topic: "t1", Partition: p.at, Replicas: replicas})
	p.wait("other replicas", func() bool {
		mp := p.partition(w)
		return slices.Equal(mp.Replicas, replicas) && !mp.Reassigning() && len(mp.ISR) == len(replicas) && p.led(w)
	})
}

// MIR-038: B has two brokers alive and makes topics of three replicas. The start says so for
// that topic, and makes nothing; refreshes try again, and when the third broker is there the
// topic is mirrored without another command.
func TestPlayTooFewBrokers(t *testing.T) {
	t.Parallel()
	p := begin(t, 170, "a writes 3")
	away := p.b.brokers[p.b.ids[2]]
	away.kill(false)
	p.wait("it is fenced", func() bool { return !p.b.store.image().Broker(away.id).Eligible() })
	b := p.b.brokers[p.b.ids[0]]
	p.wait("it is known", func() bool { return b.img != nil && !b.img.Broker(away.id).Eligible() })
	if _, err := p.command(b, func(c *mirror.Coordinator) ([]mirror.TopicOutcome, error) {
		return nil, c.Create(t.Context(), mirrorName, map[string]string{metadata.MirrorBootstrapServers: "b:1", "fetch.wait.max.ms": "250", "fetch.backoff.ms": "200"})
	}); err != nil {
		p.fatal("create: %v", err)
	}
	out, err := p.command(b, func(c *mirror.Coordinator) ([]mirror.TopicOutcome, error) {
		return c.Start(t.Context(), mirror.StartRequest{Mirror: mirrorName, Include: []string{"t.*"}})
	})
	if err != nil || len(out) != 1 || out[0].Name != "t1" || !errors.Is(out[0].Err, controller.ErrInvalidReplicationFactor) {
		p.fatal("answered %v, %v", out, err)
	}
	tried := 0
	p.asking = func(_ *broker, call any) {
		if c, ok := call.(controller.StartMirrorTopics); ok && len(c.Topics) == 1 {
			tried++
		}
	}
	p.pass(5*time.Second, func() bool { return p.b.store.image().TopicByID(p.id) != nil }, "the topic was made with too few replicas")
	if tried < 3 {
		p.fatal("tried again %d times in five refreshes", tried)
	}
	away.start()
	p.wait("the topic is there", func() bool { return p.partition(p.b) != nil })
	p.caughtUp(p.b)
	if mp := p.partition(p.b); len(mp.Replicas) != 3 {
		p.fatal("replicas %v", mp.Replicas)
	}
	p.settles()
}

// MIR-077: the partition is moved to other brokers of B, all of them and one by one, while
// records come. They get what B's leader has, and nothing is asked of A twice.
func TestPlayMirrorMoves(t *testing.T) {
	t.Parallel()
	p := newPlayOf(t, 171, 5, 1)
	p.run("a writes 5, b follows")
	p.a.writing = true
	p.clients(p.a, p.id, p.at)
	ids := p.b.ids
	at := p.end(p.leader(p.b))
	sent := p.fetchedBy(p.b)
	was := slices.Clone(p.partition(p.b).Replicas)
	others := slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return slices.Contains(was, id) })
	p.reassign(p.b, others[0], others[1], was[0])
	p.reassign(p.b, others[1], was[2], was[1])
	p.pass(time.Second, nil, "")
	p.a.writing = false
	p.caughtUp(p.b)
	p.comesToHold(p.b, p.as(p.a))
	// A leader that hands over drops the answer that it waits for, which is asked for again.
	if wrote := int(p.end(p.leader(p.b)) - at); wrote < 5 || *sent > 2*wrote {
		p.fatal("%d batches were sent for %d that were written", *sent, wrote)
	}
	p.settles()
}

// MIR-297: an answer that does not match the position: what was asked for is answered with
// what was sent for an earlier question, as a confused proxy or source may. It is dropped:
// nothing is appended twice or elsewhere (the checker compares each append with A's log),
// and B goes on. (That answers of another session are refused is source.TestParseRefuses.)
func TestPlayAnswersOfBefore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		p := begin(t, 172+seed, "a writes 3, b follows")
		var before []byte
		confused := 0
		p.fetching = func(b *broker, answers []mirrorFetched) {
			for i := range answers {
				records := answers[i].records
				if b.w != p.b || len(records) == 0 {
					continue
				}
				if before != nil && confused < 5 && p.loop.chance(0.5) {
					confused++
					answers[i].records, answers[i].header.RecordBytes = before, len(before)
					continue
				}
				before = slices.Clone(records)
			}
		}
		for range 12 {
			p.append(p.a, 1)
			p.pass(500*time.Millisecond, nil, "")
		}
		p.caughtUp(p.b)
		p.comesToHold(p.b, p.as(p.a))
		if confused == 0 || p.cuts(p.b) > 0 {
			p.fatal("%d answers were exchanged, %d cuts", confused, p.cuts(p.b))
		}
		p.fetching = nil
		p.settles()
	}
}

// MIR-348: the mirror coordinator, the active controller, goes, and its successor loads the
// metadata. Who commands meanwhile is told to ask again, or is served; nobody is told that
// a mirror or a topic does not exist, and once it is loaded the command is carried out.
func TestPlayCoordinatorLoads(t *testing.T) {
	t.Parallel()
	p := begin(t, 176, "a writes 2, b follows")
	for round := range 3 {
		o := p.b.store.holder
		o.proc.up = false
		o.proc.gen++
		p.loop.after(2*time.Second, nil, o.start)
		b := p.followers(p.b)[round%2]
		refused := 0
		want := []metadata.Desired{metadata.DesiredPaused, metadata.DesiredMirroring}
		for i, d := range want {
			for p.desired(p.b) != d {
				out, err := p.command(b, func(c *mirror.Coordinator) ([]mirror.TopicOutcome, error) {
					if i == 0 {
						return c.Pause(t.Context(), mirrorName, []string{"t1"}, nil)
					}
					return c.Resume(t.Context(), mirrorName, []string{"t1"}, nil)
				})
				if err == nil && len(out) == 1 {
					err = out[0].Err
				}
				switch {
				case err == nil:
				case errors.Is(err, controller.ErrNotController), errors.Is(err, errTimeout), errors.Is(err, errRefused), errors.Is(err, errNobody),
					errors.Is(err, controller.ErrMirrorStates): // the broker has not heard of the last one yet
					refused++
				default:
					p.fatal("a command is answered with %v", err)
				}
				p.pass(20*time.Millisecond, nil, "")
			}
			p.reaches(p.b, map[metadata.Desired]metadata.MirrorState{metadata.DesiredPaused: metadata.StatePaused, metadata.DesiredMirroring: metadata.StateMirroring}[d])
		}
		if p.b.store.holder == o || refused == 0 {
			p.fatal("the office is where it was, or nobody was refused (%d)", refused)
		}
	}
	p.run("a writes 1, b catches up")
	p.settles()
}

// askedEpochs counts the questions of a cluster's mirrors where an epoch ends, and the fetches.
type askedEpochs struct{ epochs, fetches, first int }

// MIR-214: a source that tells nothing of diverging epochs when it is fetched from. After
// each interruption B asks it where the epoch of its last batch ends before it fetches a
// record: after an unclean election, an ordinary one, a pause, and its own election.
func TestPlayOldSourceIsAsked(t *testing.T) {
	t.Parallel()
	p := newPlay(t, 177)
	p.old = true
	p.run("a writes 4, b follows")
	n := &askedEpochs{}
	p.epochAsked = func(b *broker) {
		if b.w == p.b {
			n.epochs++
		}
	}
	p.fetching = func(b *broker, answers []mirrorFetched) {
		for _, x := range answers {
			if b.w == p.b && len(x.records) > 0 && x.header.ErrorCode == 0 {
				if n.fetches++; n.fetches == 1 {
					n.first = n.epochs
				}
			}
		}
	}
	for _, steps := range []string{"a elects", "b elects", "b pauses, b resumes", "a dies, a rises"} {
		p.pass(2*time.Second, nil, "") // what is under way
		*n = askedEpochs{}
		p.run(steps + ", a writes 1, b catches up")
		if n.fetches == 0 || n.first == 0 {
			p.fatal("%q: records came %d times, the first after %d questions for the end of an epoch", steps, n.fetches, n.first)
		}
	}
	p.comesToHold(p.b, p.as(p.a))
	p.settles()
}
