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
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// play is a pair of clusters in which happens what a test says, and nothing else: no
// faults and no operators by chance. One topic of one partition, three replicas in each
// cluster, born in a. The checker looks on, after each event.
//
// What a scenario calls its source and its destination is a and b, or the other way
// round for a failback.
type play struct {
	*pair
	t    *testing.T
	a, b *World
	id   metadata.TopicID
	at   int32 // the partition that all is about now
}

// newPlay forms both clusters and makes the topic; configs are key, value, ….
func newPlay(t *testing.T, seed uint64, configs ...string) *play {
	t.Helper()
	return newWidePlay(t, seed, 1, configs...)
}

// newWidePlay is newPlay with a topic of several partitions.
func newWidePlay(t *testing.T, seed uint64, partitions int32, configs ...string) *play {
	t.Helper()
	return newPlayOf(t, seed, 3, partitions, configs...)
}

// newPlayOf is newWidePlay with clusters of so many brokers.
func newPlayOf(t *testing.T, seed uint64, brokers int, partitions int32, configs ...string) *play {
	t.Helper()
	p := &play{pair: foundPair(PairOptions{Options: Options{Seed: seed, Brokers: brokers}, NoFaults: true}), t: t}
	p.a, p.b = p.w[0], p.w[1]
	t.Cleanup(p.close)
	for _, k := range doings {
		p.on[k] = true
	}
	for _, w := range p.w {
		w.o.balance, w.writing = 0, false
		for _, o := range w.offices { // leaders stay where a test puts them
			if o.proc.up {
				o.proc.gen++
				o.start()
			}
		}
	}
	p.wait("the clusters form", func() bool { return p.a.allAlive() && p.b.allAlive() })
	p.id[0], p.id[15] = 0x70, 1
	p.names[p.id], p.topics = "t1", []metadata.TopicID{p.id}
	all := map[string]string{"min.insync.replicas": "1"}
	for i := 0; i+1 < len(configs); i += 2 {
		all[configs[i]] = configs[i+1]
	}
	p.a.topics = p.topics
	replicas := make(map[int32][]int32)
	for i := range partitions {
		replicas[i] = []int32{1, 2, 3}
	}
	p.a.admin(controller.NewTopic{NewID: p.id, CreateTopic: controller.CreateTopic{Name: "t1", Assignment: replicas, Configs: all}})
	p.wait("the topic is there", func() bool { return p.a.allThere() && p.partition(p.a) != nil && p.led(p.a) })
	return p
}

func (p *play) close() {
	for _, w := range p.w {
		for _, id := range w.ids {
			if b := w.brokers[id]; b.mirrors != nil {
				b.mirrors.m.End()
			}
		}
	}
}

// fatal ends the test with the end of the story.
func (p *play) fatal(format string, args ...any) {
	p.t.Helper()
	story := strings.Split(p.loop.story(), "\n")
	p.t.Fatalf("%s\n%s\n%.3f s: %s", strings.Join(story[max(0, len(story)-40):], "\n"), p.logs(), p.loop.now.Seconds(), fmt.Sprintf(format, args...))
}

// playPatience is how long a play waits for anything, in simulated time.
const playPatience = 3 * time.Minute

// wait lets things happen until cond.
func (p *play) wait(what string, cond func() bool) {
	p.t.Helper()
	if !p.happens(playPatience, cond) {
		p.fatal("never: %s", what)
	}
}

// happens lets things happen until cond, or for a while; false: it did not.
func (p *play) happens(within time.Duration, cond func() bool) bool {
	p.t.Helper()
	for until := p.loop.now + within; !cond(); {
		if p.loop.now >= until || !p.loop.step() {
			return false
		}
		p.check()
		if err := p.err(); err != nil {
			p.fatal("%v", err)
		}
	}
	return true
}

// pass lets time pass, in which never must not become true; nil: whatever happens.
func (p *play) pass(d time.Duration, never func() bool, what string) {
	p.t.Helper()
	if p.happens(d, func() bool { return never != nil && never() }) {
		p.fatal("%s", what)
	}
}

func (p *play) partition(w *World) *metadata.Partition { return w.store.image().Partition(p.id, p.at) }

func (p *play) led(w *World) bool {
	mp := p.partition(w)
	if mp == nil || mp.Leader < 0 {
		return false
	}
	x := w.brokers[mp.Leader].mgr.ByID(p.id, p.at)
	return x != nil && x.Info().Leader && x.Info().LeaderEpoch == mp.LeaderEpoch
}

// leader is the broker that leads the partition in w.
func (p *play) leader(w *World) *broker {
	p.t.Helper()
	p.wait("somebody leads in "+w.name, func() bool { return p.led(w) && w.brokers[p.partition(w).Leader].proc.up })
	return w.brokers[p.partition(w).Leader]
}

// followers are the other replicas' brokers, whether they run or not.
func (p *play) followers(w *World) (all []*broker) {
	mp := p.partition(w)
	for _, id := range mp.Replicas {
		if id != mp.Leader {
			all = append(all, w.brokers[id])
		}
	}
	return all
}

func (p *play) state(w *World) metadata.MirrorState {
	t := w.store.image().TopicByID(p.id)
	if t.Partition(p.at) == nil {
		return metadata.StateUnknown
	}
	return t.MirrorState(t.Partition(p.at))
}

func (p *play) record(w *World) *metadata.MirrorPartition {
	t := w.store.image().TopicByID(p.id)
	if r := t.MirrorPartition(t.Partition(p.at)); r != nil {
		return r
	}
	return &metadata.MirrorPartition{State: metadata.StateUnknown}
}

// reaches waits for a state of the mirror in w.
func (p *play) reaches(w *World, s metadata.MirrorState) {
	p.t.Helper()
	p.wait("state "+s.String()+" in "+w.name, func() bool { return p.state(w) == s })
}

func (p *play) end(b *broker) int64 { return end(b.log(p.id, p.at)) }

// ISR waits for the ISR of the partition in w to have n members.
func (p *play) isr(w *World, n int) {
	p.t.Helper()
	p.wait(fmt.Sprintf("ISR of %d in %s", n, w.name), func() bool { return p.led(w) && len(p.partition(w).ISR) == n })
}

// write produces one batch of a record, n times, and waits until they are committed.
func (p *play) write(w *World, n int) {
	p.t.Helper()
	b := p.leader(w)
	want := p.end(b) + int64(n)
	p.append(w, n)
	p.wait("written to "+w.name, func() bool {
		return p.led(w) && w.brokers[p.partition(w).Leader].mgr.ByID(p.id, p.at).HighWatermark() >= want
	})
}

// append produces one batch of a record, n times, to the leader's log.
func (p *play) append(w *World, n int) {
	p.t.Helper()
	for range n {
		p.produce(w, record.NoProducer(procClock{p.loop, &p.leader(w).proc}.Now().UnixMilli()))
	}
}

// produce gives one record to the leader.
func (p *play) produce(w *World, h record.BuildHeader) {
	p.t.Helper()
	var refused error
	for range 20 {
		b := p.leader(w)
		at := p.end(b)
		refused = nil
		body := record.Build(h, []record.Record{{Value: []byte(w.name)}})
		p.loop.after(0, &b.proc, func() {
			b.mgr.ByID(p.id, p.at).Produce(body, partition.ProduceOptions{Acks: 1}, func(_ partition.ProduceResult, err error) { refused = err })
		})
		p.wait("a record in the log", func() bool { return refused != nil || p.end(b) > at })
		if refused == nil {
			return
		}
		p.pass(500*time.Millisecond, nil, "") // it was paused, and its session is over
	}
	p.fatal("write to %s: %v", w.name, refused)
}

// do is an operator's command, again until cond: one that meets a broker that has not
// heard of the last one yet comes to nothing.
func (p *play) do(w *World, what string, cond func() bool) {
	p.t.Helper()
	for range 20 {
		p.wish(w, p.id, what)
		if p.happens(3*time.Second, cond) {
			return
		}
	}
	p.fatal("%s comes to nothing", what)
}

func (p *play) desired(w *World) metadata.Desired {
	if t := w.store.image().TopicByID(p.id); t != nil {
		return t.Attachment().Desired
	}
	return metadata.DesiredNone
}

func (p *play) want(w *World, what string, d metadata.Desired) {
	p.t.Helper()
	p.do(w, what, func() bool { return p.desired(w) == d })
}

// follows has w mirror the other cluster, and waits until it is caught up.
func (p *play) follows(w *World) {
	p.t.Helper()
	p.want(w, "start", metadata.DesiredMirroring)
	p.caughtUp(w)
}

// caughtUp waits until every replica in w has what the source's leader has committed.
func (p *play) caughtUp(w *World) {
	p.t.Helper()
	p.wait(w.name+" caught up", func() bool {
		if p.state(w) != metadata.StateMirroring || !p.led(w) || !p.led(w.other()) {
			return false
		}
		there := p.leader(w.other()).mgr.ByID(p.id, p.at).HighWatermark()
		for _, id := range p.partition(w).ISR {
			if x := w.brokers[id].mgr.ByID(p.id, p.at); x == nil || p.end(w.brokers[id]) != there {
				return false
			}
		}
		return p.leader(w).mgr.ByID(p.id, p.at).HighWatermark() == there
	})
}

// stop fails w over.
func (p *play) stop(w *World) {
	p.t.Helper()
	p.want(w, "stop", metadata.DesiredStopped)
	p.reaches(w, metadata.StateStopped)
}

// elect has another broker of w lead, cleanly.
func (p *play) elect(w *World) {
	p.t.Helper()
	mp := p.partition(w)
	was, order := mp.LeaderEpoch, slices.Clone(mp.Replicas)
	for order[0] == mp.Leader || !slices.Contains(mp.ISR, order[0]) {
		order = append(order[1:], order[0])
	}
	p.electTo(w, order[0])
	if p.partition(w).LeaderEpoch == was {
		p.fatal("the leader epoch is still %d", was)
	}
}

// electTo has a broker of the ISR lead.
func (p *play) electTo(w *World, id int32) {
	p.t.Helper()
	order := append([]int32{id}, slices.DeleteFunc(slices.Clone(p.partition(w).Replicas), func(r int32) bool { return r == id })...)
	w.admin(controller.Reassign{Topic: "t1", Partition: p.at, Replicas: order})
	p.wait("another order of replicas", func() bool { return slices.Equal(p.partition(w).Replicas, order) && !p.partition(w).Reassigning() })
	for range 10 {
		w.admin(controller.ElectLeader{Topic: "t1", Partition: p.at})
		if p.happens(3*time.Second, func() bool { return p.partition(w).Leader == id && p.led(w) }) {
			return
		}
	}
	p.fatal("%d does not lead", id)
}

// set changes a config of the topic in w.
func (p *play) set(w *World, key, value string) {
	p.t.Helper()
	w.admin(controller.AlterConfigs{Type: controller.ResourceTopic, Name: "t1", Ops: []controller.ConfigOp{{Name: key, Value: &value}}})
	p.wait("config "+key, func() bool { return w.store.image().TopicByID(p.id).Configs[key] == value })
}

// alone cuts a broker off from everybody in its cluster but keeps it running; back ends it.
func (p *play) alone(b *broker) {
	for _, o := range b.w.nodes() {
		b.w.net.isolate(b.id, o, true)
		b.w.net.isolate(o, b.id, true)
	}
}

func (p *play) back(w *World) { w.net.heal() }

// uncleanly has a broker lead in w that need not have everything: everybody else is down.
func (p *play) uncleanly(w *World, id int32) {
	p.t.Helper()
	for _, o := range w.ids {
		if b := w.brokers[o]; o != id && b.proc.up {
			b.kill(false)
		}
	}
	if b := w.brokers[id]; !b.proc.up {
		b.start()
	}
	p.wait("only one is alive", func() bool { return w.store.image().Broker(id).Eligible() && p.partition(w).Leader < 0 })
	p.set(w, "unclean.leader.election.enable", "true")
	p.wait(fmt.Sprintf("%d is elected uncleanly", id), func() bool { return p.partition(w).Leader == id && p.led(w) })
	p.set(w, "unclean.leader.election.enable", "false")
}

// start starts whoever of w does not run.
func (p *play) start(w *World) {
	for _, id := range w.ids {
		if b := w.brokers[id]; !b.proc.up {
			b.start()
		}
	}
}

// batches prints a log: offset@epoch of each batch, with A for an abort, C for a commit
// and R for a reset of producer ids.
func batches(l *memLog) string {
	if l == nil {
		return "none"
	}
	var s []string
	for _, m := range l.batches {
		x := fmt.Sprintf("%d@%d", m.base, m.epoch)
		if b := record.Batch(m.bytes); b.IsControl() {
			kind, _, _ := b.Control()
			x += map[record.ControlType]string{record.Abort: "A", record.Commit: "C", record.MirrorPIDReset: "R"}[kind]
		}
		s = append(s, x)
	}
	return strings.Join(s, " ")
}

func (p *play) logs() string {
	var b strings.Builder
	for _, w := range p.w {
		mp := p.partition(w)
		if mp == nil {
			continue
		}
		fmt.Fprintf(&b, "cluster %s: leader %d@%d, ISR %v, %v wanted %v, %s\n", w.name, mp.Leader, mp.LeaderEpoch, mp.ISR, p.state(w), p.desired(w), p.record(w).ErrorMessage)
		for _, id := range mp.Replicas {
			fmt.Fprintf(&b, "  %d: %s\n", id, batches(w.brokers[id].log(p.id, p.at)))
		}
	}
	return b.String()
}

// holds wants the same log on every replica of some clusters.
func (p *play) holds(want string, on ...*World) {
	p.t.Helper()
	for _, w := range on {
		for _, id := range p.partition(w).Replicas {
			if got := batches(w.brokers[id].log(p.id, p.at)); got != want {
				p.fatal("broker %d of %s has\n%s, want\n%s", id, w.name, got, want)
			}
		}
	}
}

// comesToHold waits until every replica of w has what want prints.
func (p *play) comesToHold(w *World, want func() string) {
	p.t.Helper()
	p.wait("the same log on every replica of "+w.name, func() bool {
		log := want()
		return p.led(w) && !slices.ContainsFunc(p.partition(w).Replicas, func(id int32) bool { return batches(w.brokers[id].log(p.id, p.at)) != log })
	})
}

// as is what the leader of w has.
func (p *play) as(w *World) func() string {
	return func() string { return batches(w.brokers[max(p.partition(w).Leader, w.ids[0])].log(p.id, p.at)) }
}

// whole waits until all replicas of w are in sync.
func (p *play) whole(w *World) {
	p.t.Helper()
	p.start(w)
	p.back(w)
	p.isr(w, 3)
}

// settles ends the play as a run by chance ends: everything runs, everything is mirrored
// or stopped, and both sides are equal (GI-46, LV-1 to LV-8).
func (p *play) settles() {
	p.t.Helper()
	p.converge()
	if err := p.err(); err != nil {
		p.fatal("%v", err)
	}
}

// cuts is how many versions the timeline in w has had, less one: how often something was
// cut that had been committed.
func (p *play) cuts(w *World) int {
	return w.check.ghost(segment.LogID{Topic: p.id, Partition: p.at}).version
}

func segmentID(p *play) segment.LogID { return segment.LogID{Topic: p.id, Partition: p.at} }
