package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// entry is one record of the model's logs: who wrote it, and which it is.
type entry struct {
	epoch int32
	n     int
}

// modelBroker is a broker of the model, with the log of the one partition.
type modelBroker struct {
	incarnation byte
	up          bool
	registered  BrokerEpoch
	cleanEpoch  int64 // what it would say of its last stop
	log         []entry
	durable     int  // entries on disk
	damaged     bool // it cannot be read, nor written
}

// cluster is a model of brokers that replicate one partition under Decide and
// sessions. It knows what was committed, which no leader may lack that was not
// elected uncleanly.
type cluster struct {
	t         fatal
	b         *builder
	rev       int64
	now       time.Time
	s         *sessions
	brokers   map[int32]*modelBroker
	committed []entry
	fsync     bool
	minISR    int32
	writes    int
	// mayLose is set when the next leader may lack records: nobody of those who count
	// as having had every record has them still.
	mayLose bool
	// begun is the last epoch whose leader was there and was looked at.
	begun int32
}

var modelStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newCluster(t fatal, n int32, fsync bool, minISR int32) *cluster {
	e := metadata.NewImage().Edit()
	c := &cluster{t: t, b: newBuilder(e.Image(0)), now: modelStart, brokers: make(map[int32]*modelBroker), fsync: fsync, minISR: minISR}
	c.s = &sessions{o: sessionOptions{Timeout: 3 * time.Second, AfterLoss: 500 * time.Millisecond, Defaults: c.def()}}
	c.s.begin(c.now, c.image(), nil)
	for id := int32(1); id <= n; id++ {
		c.brokers[id] = &modelBroker{cleanEpoch: -1}
		c.start(id)
		c.heartbeat(id)
	}
	durability := "replicated"
	if fsync {
		durability = "fsync"
	}
	c.do(createTopic{CreateTopic{Name: "t", Assignment: map[int32][]int32{0: {1, 2, 3}},
		Configs: map[string]string{metadata.DurabilityConfig: durability}}, testID(1), c.def()})
	return c
}

func (c *cluster) def() defaults {
	return defaults{Partitions: 1, ReplicationFactor: 1, MaxPartitions: 100, MinISR: c.minISR}
}
func (c *cluster) image() *metadata.Image         { return c.b.view() }
func (c *cluster) partition() *metadata.Partition { return c.image().Topic("t").Partition(0) }

// do carries a command out, and holds what must hold after every one.
func (c *cluster) do(cmds ...Command) (failed error) {
	c.t.Helper()
	for _, cmd := range cmds {
		before := c.image().Topic("t").Partition(0)
		changes, err := Decide(c.image(), cmd)
		if err != nil {
			failed = err
			continue
		}
		if len(changes) == 0 {
			continue
		}
		c.rev++
		if err := c.b.apply(changes, c.rev); err != nil {
			c.t.Fatal(err)
		}
		c.b.seal(c.rev)
		c.hold(cmd, before)
	}
	return failed
}

func (c *cluster) hold(cmd Command, before *metadata.Partition) {
	c.t.Helper()
	t := c.image().Topic("t")
	if t == nil {
		return
	}
	p := t.Partition(0)
	bad := func(format string, args ...any) {
		c.t.Helper()
		was := "nothing"
		if before != nil {
			was = showPartition(before)
		}
		c.t.Fatalf("%s\nafter %T %+v\n  was %s\n  is  %s", fmt.Sprintf(format, args...), cmd, cmd, was, showPartition(p))
	}
	for _, id := range p.ISR {
		if !slices.Contains(p.Replicas, id) {
			bad("%d is in the ISR and no replica", id)
		}
		if slices.Contains(p.ELR, id) || slices.Contains(p.LastKnownELR, id) {
			bad("%d is in ISR and ELR", id)
		}
		if b := c.image().Broker(id); p.Leader != metadata.NoLeader && (b == nil || b.Fenced) {
			bad("fenced %d is in the ISR", id)
		}
	}
	for _, list := range [][]int32{p.ELR, p.LastKnownELR, p.AddingReplicas, p.RemovingReplicas} {
		if len(only(list, p.Replicas)) != len(list) {
			bad("%v: not replicas, or not a set", list)
		}
	}
	if len(minus(p.ELR, p.LastKnownELR)) != len(p.ELR) {
		bad("somebody is in both ELRs")
	}
	if len(p.ISR) >= int(min(c.minISR, int32(len(p.Replicas)))) && len(p.ELR) > 0 {
		bad("an ELR beside an ISR that is large enough")
	}
	if p.Leader != metadata.NoLeader && !slices.Contains(p.ISR, p.Leader) {
		bad("the leader is not in the ISR")
	}
	if before != nil {
		switch {
		case samePartition(before, p) != (before.PartitionEpoch == p.PartitionEpoch), p.PartitionEpoch > before.PartitionEpoch+1, p.PartitionEpoch < before.PartitionEpoch:
			bad("partition epoch")
		case p.LeaderEpoch < before.LeaderEpoch, p.Leader != before.Leader && p.LeaderEpoch == before.LeaderEpoch:
			bad("leader epoch")
		}
	}
	if _, unclean := cmd.(electUnclean); unclean {
		c.mayLose = true
	}
	if before != nil && len(minus(before.Replicas, p.Replicas)) > 0 && !c.mayLose && !slices.ContainsFunc(union(p.ISR, p.ELR, p.LastKnownELR), c.complete) {
		bad("those who went were the last that had every record")
	}
	c.leads()
}

func commonPrefix(a, b []entry) []entry {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// start starts a broker's process, which registers when it is let.
func (c *cluster) start(id int32) {
	b := c.brokers[id]
	if b.up {
		return
	}
	b.incarnation++
	r := c.s.admit(c.now, c.image(), registerBroker{RegisterBroker: RegisterBroker{ID: id, Incarnation: [16]byte{b.incarnation}, PreviousEpoch: b.cleanEpoch, Durability: "fsync"}, Defaults: c.def()})
	if c.do(r) != nil {
		return
	}
	b.up, b.registered, b.cleanEpoch = true, epochOf(c.image(), id), -1
}

func (c *cluster) heartbeat(id int32) {
	b := c.brokers[id]
	if !b.up {
		return
	}
	hb := Heartbeat{Broker: id, Epoch: b.registered.Epoch, Revision: c.rev}
	if b.damaged {
		hb.Offline = Resignable(c.image(), id, []OfflineReplica{{Topic: testID(1)}})
		hb.Unusable = Unusable([]OfflineReplica{{Topic: testID(1)}})
	}
	cmds, err := c.s.heartbeat(c.now, c.image(), hb)
	if err != nil {
		c.t.Fatalf("heartbeat of %d: %v", id, err)
	}
	c.do(cmds...)
	if len(c.s.unheard(c.image())) == 0 && b.damaged {
		if left := Resignable(c.image(), id, []OfflineReplica{{Topic: testID(1)}}); len(left) > 0 {
			c.t.Fatalf("%d has told that its log is damaged, and is still in the way: %s", id, showPartition(c.partition()))
		}
	}
	if p := c.image().Topic("t"); p != nil && p.Partition(0).WaitsForEnds() && !b.damaged {
		last := int32(-1)
		if len(b.log) > 0 {
			last = b.log[len(b.log)-1].epoch
		}
		cmds, err := c.s.reportEnds(c.now, c.image(), b.registered, []ReplicaEnd{{testID(1), 0, last, int64(len(b.log))}})
		if err != nil {
			c.t.Fatalf("report of %d: %v", id, err)
		}
		c.do(cmds...)
	}
}

// pass lets time pass, with the controller there all the time.
func (c *cluster) pass(d time.Duration) {
	for end := c.now.Add(d); c.now.Before(end); {
		c.now = c.now.Add(100 * time.Millisecond)
		for range 5 {
			cmds := c.s.tick(c.now, c.image())
			if len(cmds) == 0 {
				break
			}
			c.do(cmds...)
		}
	}
}

// stop ends a process: cleanly, by a kill, or with the power of its machine.
func (c *cluster) stop(id int32, how string, kept int) {
	b := c.brokers[id]
	if !b.up {
		return
	}
	b.up = false
	switch how {
	case "clean":
		b.cleanEpoch, b.durable = b.registered.Epoch, len(b.log)
	case "kill": // its page cache stays, and nobody can tell
		b.cleanEpoch = -1
	case "power":
		b.cleanEpoch = -1
		b.log = b.log[:max(b.durable, min(kept, len(b.log)))]
		// When the last one has lost what was committed, the model forgives.
		p := c.partition()
		if !slices.ContainsFunc(union(p.ISR, p.ELR, p.LastKnownELR), c.complete) {
			c.mayLose = true
		}
	}
	b.durable = min(b.durable, len(b.log))
}

// complete reports whether a replica has what was committed.
func (c *cluster) complete(id int32) bool {
	log := c.brokers[id].log
	return len(log) >= len(c.committed) && slices.Equal(log[:len(c.committed)], c.committed)
}

// leads is the leader's log, if its process is there and knows that it leads. It looks
// at the log where an epoch begins: a leader that the image has, and that died before
// it heard of it, lacks nothing yet.
func (c *cluster) leads() *modelBroker {
	p := c.partition()
	b := c.brokers[p.Leader]
	if b == nil || !b.up || b.registered != epochOf(c.image(), p.Leader) {
		return nil
	}
	if p.LeaderEpoch != c.begun {
		if !c.complete(p.Leader) {
			if !c.mayLose {
				c.t.Fatalf("leader %d has %v and lacks of what was committed: %v\n%s", p.Leader, b.log, c.committed, showPartition(p))
			}
			c.committed = slices.Clone(commonPrefix(b.log, c.committed))
		}
		c.begun, c.mayLose = p.LeaderEpoch, false
	}
	return b
}

func (c *cluster) append() {
	if b := c.leads(); b != nil && !b.damaged {
		c.writes++
		b.log = append(slices.Clone(b.log), entry{c.partition().LeaderEpoch, c.writes})
	}
}

// fetch lets a follower copy up to n entries, after it cut what the leader lacks.
func (c *cluster) fetch(id int32, n int) {
	l, f := c.leads(), c.brokers[id]
	if l == nil || l.damaged || f == l || !f.up || f.damaged || !slices.Contains(c.partition().Replicas, id) {
		return
	}
	f.log = slices.Clone(commonPrefix(f.log, l.log))
	f.durable = min(f.durable, len(f.log))
	f.log = append(f.log, l.log[len(f.log):min(len(l.log), len(f.log)+n)]...)
}

// commit moves the high watermark, as a leader that knows the image does.
func (c *cluster) commit() {
	l, p := c.leads(), c.partition()
	if l == nil || l.damaged || len(p.ISR) < int(min(c.minISR, int32(len(p.Replicas)))) {
		return
	}
	hw := len(l.log)
	for _, id := range p.ISR {
		b := c.brokers[id]
		n := len(commonPrefix(b.log, l.log))
		if c.fsync {
			n = min(n, b.durable)
		}
		hw = min(hw, n)
	}
	if hw > len(c.committed) {
		c.committed = slices.Clone(l.log[:hw])
	}
}

// alterISR is the leader's wish to add a follower that has what was committed, or to
// drop one.
func (c *cluster) alterISR(id int32) {
	l, p := c.leads(), c.partition()
	if l == nil || l.damaged || id == p.Leader {
		return
	}
	c.commit()
	isr := minus(p.ISR, []int32{id})
	if !slices.Contains(p.ISR, id) {
		// In the maximal ISR from here on: caught up to all that may be committed.
		f := c.brokers[id]
		n := len(commonPrefix(f.log, l.log))
		if c.fsync {
			n = min(n, f.durable)
		}
		if !f.up || f.damaged || n < len(l.log) {
			return
		}
		isr = append(isr, id)
	}
	wish := alterISR{Broker: l.registered, AlterISR: AlterISR{Topic: testID(1), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}, Defaults: c.def()}
	for _, m := range isr {
		wish.ISR = append(wish.ISR, ISRMember{m, c.brokers[m].registered.Epoch})
	}
	c.do(wish)
}

// TestReplicasModel lets brokers stop, start, lose power and replicate, controllers
// change and operators move replicas, at random. No leader may lack what was
// committed, with durability=fsync whatever happens, and with durability=replicated as
// long as somebody of the ISR kept its memory.
func TestReplicasModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, 4, rapid.Bool().Draw(t, "fsync"), rapid.Int32Range(1, 3).Draw(t, "min.insync.replicas"))
		for range rapid.IntRange(5, 80).Draw(t, "steps") {
			id := rapid.Int32Range(1, 4).Draw(t, "broker")
			switch rapid.SampledFrom([]string{"append", "append", "fetch", "fetch", "fetch", "sync", "commit", "isr", "isr", "stop", "start", "start",
				"beat", "beat", "beat", "pass", "lost", "controller", "reassign", "drain", "elect", "unclean", "damage", "heal"}).Draw(t, "op") {
			case "append":
				c.append()
			case "fetch":
				c.fetch(id, rapid.IntRange(1, 5).Draw(t, "n"))
			case "sync":
				if b := c.brokers[id]; b.up {
					b.durable = len(b.log)
				}
			case "commit":
				c.commit()
			case "isr":
				c.alterISR(id)
			case "stop":
				c.stop(id, rapid.SampledFrom([]string{"clean", "kill", "power"}).Draw(t, "how"), rapid.IntRange(0, 20).Draw(t, "kept"))
			case "start":
				c.start(id)
			case "beat":
				for id := int32(1); id <= 4; id++ {
					c.heartbeat(id)
				}
			case "pass":
				c.pass(rapid.SampledFrom([]time.Duration{100, 600, 3100}).Draw(t, "ms") * time.Millisecond)
			case "damage":
				c.brokers[id].damaged = true
			case "heal":
				c.heal(id)
			case "lost":
				if !c.brokers[id].up {
					c.s.lose(c.now, lossOf(t, c.brokers[id]))
				}
			case "controller":
				var lately []loss
				if !c.brokers[id].up {
					lately = []loss{lossOf(t, c.brokers[id])}
				}
				c.s.begin(c.now, c.image(), lately)
			case "reassign":
				targets := [][]int32{nil, {1, 2, 3}, {2, 3, 4}, {4, 1}, {3}, {4, 3, 2, 1}}
				c.do(reassign{Reassign{"t", 0, rapid.SampledFrom(targets).Draw(t, "target")}, true, c.def()})
			case "drain":
				if b := c.brokers[id]; b.up {
					c.do(drainBroker{b.registered, maxDrained, c.def()})
				}
			case "elect":
				c.do(electLeader{ElectLeader{"t", 0, false}, c.def()})
			case "unclean":
				p := c.partition()
				if u, ok := replicasOf(c.image(), c.def()).uncleanChoiceOf(c.image().Topic("t"), p); ok && rapid.IntRange(0, 3).Draw(t, "allowed") == 0 {
					c.do(electUnclean{Topic: testID(1), Leader: u.Live[0], Defaults: c.def()})
				}
			}
		}
		c.recover(t)
	})
}

// heal has a follower fetch what is damaged from its leader.
func (c *cluster) heal(id int32) {
	if l, f := c.leads(), c.brokers[id]; l != nil && !l.damaged && f != l && f.up {
		f.damaged = false
	}
}

// lossOf is what is heard of a process that is not there any more: that it does not
// answer, or that it is gone.
func lossOf(t *rapid.T, b *modelBroker) loss {
	l := loss{broker: b.registered.ID}
	if rapid.Bool().Draw(t, "gone") {
		l.gone = b.registered.Epoch
	}
	return l
}

// recover brings everything back: the partition must then be led, and by somebody who
// can. Those who led nothing whole had their files put back by hand.
func (c *cluster) recover(t *rapid.T) {
	for range 12 {
		c.pass(3100 * time.Millisecond)
		for id := range int32(4) {
			if c.partition().Leader == id+1 || c.partition().Leader == metadata.NoLeader {
				c.brokers[id+1].damaged = false
			}
		}
		for id := range int32(4) {
			c.start(id + 1)
			c.heartbeat(id + 1)
			c.heal(id + 1)
		}
	}
	for id := range int32(4) {
		c.heartbeat(id + 1)
	}
	p := c.partition()
	stopping := slices.ContainsFunc(p.Replicas, func(id int32) bool { return c.image().Broker(id).ControlledShutdown })
	if p.Leader == metadata.NoLeader && !stopping {
		t.Fatalf("all brokers are back and nobody leads: %s", showPartition(p))
	}
}
