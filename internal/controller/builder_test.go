package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// model is a controller on a model of the store: keys with the revision of their
// last change. Its image comes from a builder that is shown every transaction, in
// any order within it.
type model struct {
	t        fatal
	codec    codec
	revision int64
	values   map[string][]byte
	changed  map[string]int64
	watch    *builder
	shuffle  *rand.Rand
}

// fatal is what rapid's and testing's T have in common.
type fatal interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
}

func newModel(t fatal, c codec) *model {
	m := &model{t: t, codec: c, values: map[string][]byte{}, changed: map[string]int64{},
		watch: newBuilder(metadata.NewImage()), shuffle: rand.New(rand.NewPCG(1, 2))}
	m.do(registerBroker{RegisterBroker: RegisterBroker{ID: 1, Incarnation: [16]byte{99}}, Ended: true})
	m.unfence()
	return m
}

// unfence lets broker 1 in.
func (m *model) unfence() {
	m.do(unfenceBroker{BrokerEpoch: BrokerEpoch{1, m.image().Broker(1).Epoch}})
}

func (m *model) image() *metadata.Image { return m.watch.view() }

func (m *model) commit(txn []write) {
	m.t.Helper()
	m.revision++
	changes := make([]Change, len(txn))
	for i, j := range m.shuffle.Perm(len(txn)) {
		w := txn[j]
		if w.value == nil {
			delete(m.values, w.key)
			delete(m.changed, w.key)
		} else {
			m.values[w.key], m.changed[w.key] = w.value, m.revision
		}
		var err error
		if changes[i], err = m.codec.decode(w.key, w.value, m.revision); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := m.watch.apply(changes, m.revision); err != nil {
		m.t.Fatal(err)
	}
	m.watch.seal(m.revision)
}

// plan decides commands that do not depend on each other, as transactions.
func (m *model) plan(cmds ...Command) [][]write {
	m.t.Helper()
	var p pack
	for _, cmd := range cmds {
		changes, err := Decide(m.image(), cmd)
		if err != nil {
			continue
		}
		groups, err := m.codec.groups(changes)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, g := range groups {
			p.add(g)
		}
	}
	return p.txns
}

func (m *model) do(cmds ...Command) {
	m.t.Helper()
	for _, txn := range m.plan(cmds...) {
		m.commit(txn)
	}
}

// doAndDie carries out a command up to a number of transactions. If it had more,
// the controller dies there; the next one reads everything, sweeps, and is asked
// the same again.
func (m *model) doAndDie(cmd Command, after int) (died bool) {
	m.t.Helper()
	txns := m.plan(cmd)
	for i, txn := range txns {
		if i == after {
			died = true
			break
		}
		m.commit(txn)
	}
	if !died {
		return false
	}
	m.watch = m.read()
	groups, err := m.codec.groups(m.watch.orphans())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, g := range groups {
		m.commit(g)
	}
	checkImage(m.t, m.image())
	if left := m.read().pending; len(left) != 0 {
		m.t.Fatalf("%T died after %d transactions; the sweep left %v", cmd, after, left)
	}
	m.do(cmd)
	return true
}

// read builds an image from everything.
func (m *model) read() *builder {
	m.t.Helper()
	var changes []Change
	for key, value := range m.values { // in no order, on purpose
		ch, err := m.codec.decode(key, value, m.changed[key])
		if err != nil {
			m.t.Fatal(err)
		}
		changes = append(changes, ch)
	}
	b := newBuilder(metadata.NewImage())
	if err := b.apply(changes, m.revision); err != nil {
		m.t.Fatal(err)
	}
	b.seal(m.revision)
	return b
}

// check holds that the watch shows what the store holds.
func (m *model) check(after any) {
	m.t.Helper()
	if len(m.watch.pending) != 0 {
		m.t.Fatalf("%T left fragments behind: %v", after, m.watch.pending)
	}
	if got, want := show(m.image()), show(m.read().view()); got != want {
		m.t.Fatalf("after %T the watch shows\n%s\nthe store holds\n%s", after, got, want)
	}
	checkImage(m.t, m.image())
}

// stopAll takes every topic of a mirror to STOPPED.
func (m *model) stopAll(mirror string) {
	for _, topic := range m.image().MirrorTopics(mirror) {
		m.do(setTopic{mirror, topic.Name, metadata.DesiredStopped})
		for _, to := range []metadata.MirrorState{metadata.StateStopping, metadata.StateStopped} {
			m.do(statesOf(m.image().Topic(topic.Name), to)...)
		}
	}
}

// genCommand draws a command over a few names, so that they meet.
func genCommand(id metadata.TopicID) *rapid.Generator[Command] {
	return rapid.Custom(func(t *rapid.T) Command {
		def := defaults{Partitions: 1, ReplicationFactor: 1, MaxPartitions: 1000, MinISR: 1}
		topic := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "topic")
		mirror := rapid.SampledFrom([]string{"m", "n"}).Draw(t, "mirror")
		partitions := rapid.SampledFrom([]int32{1, 2, 140}).Draw(t, "partitions")
		switch rapid.IntRange(0, 12).Draw(t, "kind") {
		case 0:
			return registerBroker{RegisterBroker: RegisterBroker{ID: 1, Incarnation: [16]byte{rapid.Byte().Draw(t, "incarnation")}}, Ended: true}
		case 1:
			return createTopic{CreateTopic{Name: topic, Partitions: partitions}, id, def}
		case 2:
			return growTopic{CreatePartitions{Topic: topic, Total: partitions, FromMirror: rapid.Bool().Draw(t, "from")}, def}
		case 3:
			return createMirror{mirror, map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "secret"}}
		case 4, 10:
			return removeMirror{mirror, -1}
		case 5, 6:
			return startTopic{mirror, MirrorTopic{Name: topic, Partitions: partitions}, id, def}
		case 7:
			return setTopic{mirror, topic, rapid.SampledFrom([]metadata.Desired{metadata.DesiredPaused, metadata.DesiredStopped, metadata.DesiredStopped}).Draw(t, "desired")}
		case 8:
			return recoverTopic{mirror, topic, true}
		case 9:
			return startHead{StartMirrorTopics{Mirror: mirror, Include: []string{topic}, Validation: -1}}
		}
		return nil // a pass over the states of a topic, see the test
	})
}

// TestReplay runs random commands. After each one, the image that the watch builds
// and the one read from scratch are the same, also when a controller died on the way.
//
// MIR-340: states, state epochs, retry counts and last mirrored epochs among it.
func TestReplay(t *testing.T) {
	c := testCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, c)
		steps := rapid.IntRange(1, 15).Draw(t, "steps")
		for n := range steps {
			cmd := genCommand(testID(byte(n+1))).Draw(t, "command")
			if cmd == nil {
				m.do(drawStates(t, m.image())...)
				continue
			}
			if r, ok := cmd.(removeMirror); ok { // which wants everything stopped
				m.stopAll(r.Name)
			}
			m.doAndDie(cmd, rapid.SampledFrom([]int{-1, -1, 0, 1, 2}).Draw(t, "die"))
			m.check(cmd)
			m.unfence()
		}
	})
}

// TestDieEverywhere lets the controller die after every transaction of every
// command that has several. The next one, asked the same, comes to the same end as
// one that lived.
func TestDieEverywhere(t *testing.T) {
	c := testCodec(t)
	def := defaults{Partitions: 1, ReplicationFactor: 1, MaxPartitions: 1000, MinISR: 1}
	source := func(name string, id byte) MirrorTopic {
		return MirrorTopic{Name: name, ID: testID(id), Partitions: 300}
	}
	started := []Command{
		createMirror{"m", map[string]string{"bootstrap.servers": "a:1"}},
		startTopic{Mirror: "m", Topic: source("a", 1), Defaults: def},
		startTopic{Mirror: "m", Topic: source("b", 2), Defaults: def},
	}
	for _, tc := range []struct {
		name string
		prep []Command
		stop bool
		cmd  Command
	}{
		{"create", nil, false, createTopic{CreateTopic{Name: "a", Partitions: 300}, testID(1), def}},
		{"start", started[:2], false, startTopic{Mirror: "m", Topic: source("b", 2), Defaults: def}},
		{"grow", started, false, growTopic{CreatePartitions{Topic: "a", Total: 700, FromMirror: true}, def}},
		{"delete topic", started, true, deleteTopicByID{testID(1)}},
		{"delete mirror", started, true, removeMirror{"m", -1}},
		{"restart broker", started, false, registerBroker{RegisterBroker: RegisterBroker{ID: 1, Incarnation: [16]byte{7}}, Ended: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run := func(after int) (*model, bool) {
				m := newModel(t, c)
				for _, cmd := range tc.prep {
					m.do(cmd)
				}
				if tc.stop {
					m.stopAll("m")
				}
				died := m.doAndDie(tc.cmd, after)
				m.check(tc.cmd)
				m.unfence()
				return m, died
			}
			lived, _ := run(-1)
			cuts := 0
			for ; ; cuts++ {
				m, died := run(cuts)
				if !died {
					break
				}
				if got, want := outline(m.image()), outline(lived.image()); got != want {
					t.Errorf("died after %d transactions; in the end\n%s\nwant\n%s", cuts, got, want)
				}
			}
			if cuts < 2 {
				t.Errorf("only %d transactions: nothing was tried", cuts)
			}
		})
	}
}

// outline is an image without what legitimately differs when a command is carried
// out in two goes: revisions, and epochs that were raised twice.
func outline(img *metadata.Image) string {
	var out strings.Builder
	for _, m := range img.Mirrors() {
		fmt.Fprintln(&out, "mirror", m.Name)
	}
	for _, t := range img.Topics() {
		fmt.Fprintf(&out, "topic %s %q", t.Name, t.MirrorName)
		states := make(map[string]int)
		for _, p := range t.Partitions {
			states[fmt.Sprint(p.Leader, " ", t.MirrorState(p), " left over: ", p.Mirror != nil)]++
		}
		fmt.Fprintln(&out, states)
	}
	return out.String()
}

// drawStates moves every partition of one topic along the table.
func drawStates(t *rapid.T, img *metadata.Image) []Command {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "states of")
	to := rapid.SampledFrom(metadata.MirrorStates()).Draw(t, "state")
	if topic := img.Topic(name); topic != nil {
		return statesOf(topic, to)
	}
	return nil
}

func statesOf(topic *metadata.Topic, to metadata.MirrorState) []Command {
	cmds := make([]Command, 0, len(topic.Partitions))
	for _, p := range topic.Partitions {
		cmds = append(cmds, writeState{topic.Attachment().Mirror, MirrorStateWrite{
			Topic: topic.ID, Partition: p.Index, State: to, LeaderEpoch: -1, StateEpoch: -1,
			SetLME: to == metadata.StateStopping, LME: 3, LMO: int64(p.Index), ErrorMessage: "drawn"}})
	}
	return cmds
}

// checkImage holds what every image promises.
func checkImage(t fatal, img *metadata.Image) {
	for _, topic := range img.Topics() {
		if img.TopicByID(topic.ID) != topic || img.Topic(topic.Name) != topic {
			t.Fatalf("%s: the indexes disagree", topic.Name)
		}
		a := topic.Attachment()
		if a.Mirror != "" && !slices.Contains(img.MirrorTopics(a.Mirror), topic) {
			t.Fatalf("%s: missing among the topics of %s", topic.Name, a.Mirror)
		}
		if a.Mirror != "" && img.Mirror(a.Mirror) == nil {
			t.Fatalf("%s: attached to %s, which does not exist", topic.Name, a.Mirror)
		}
		for i, p := range topic.Partitions {
			if p.Index != int32(i) || len(p.Replicas) == 0 {
				t.Fatalf("%s-%d: %+v", topic.Name, i, p)
			}
			m := topic.MirrorPartition(p)
			if m == nil {
				continue
			}
			if m.State == metadata.StateMirroring && m.HasLME {
				t.Fatalf("%s-%d: an LME record while mirroring (W66)", topic.Name, i)
			}
			if (m.State == metadata.StatePreparing || m.State == metadata.StateStopped) && !m.HasLME {
				t.Fatalf("%s-%d: no LME record in %s (W66)", topic.Name, i, m.State)
			}
			if m.State == metadata.StateFailed && m.RetryAttempt == 0 {
				t.Fatalf("%s-%d: FAILED without an attempt (S13)", topic.Name, i)
			}
		}
	}
}

func TestBuilderReportsDamage(t *testing.T) {
	for name, changes := range map[string][]Change{
		"a partition is missing": {putPartition{ID: testID(1), Partition: &metadata.Partition{Index: 1}}, putTopic{testID(1), "a", false, 2, nil, 0}},
		"one name, two ids": {putPartition{ID: testID(1), Partition: &metadata.Partition{}}, putTopic{testID(1), "a", false, 1, nil, 0},
			putPartition{ID: testID(2), Partition: &metadata.Partition{}}, putTopic{testID(2), "a", false, 1, nil, 0}},
	} {
		if err := newBuilder(metadata.NewImage()).apply(changes, 1); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// BenchmarkDecideStates prints what deciding and applying 10 000 state writes
// costs without the store.
func BenchmarkDecideStates(b *testing.B) {
	e := metadata.NewImage().Edit()
	for i := range 20 {
		t := &metadata.Topic{ID: testID(byte(i + 1)), Name: fmt.Sprint("t", i), MirrorName: "m"}
		for p := range 500 {
			t.Partitions = append(t.Partitions, &metadata.Partition{Index: int32(p), Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		}
		e.PutTopic(t)
	}
	img := e.Image(1)
	r := &request{}
	for _, t := range img.Topics() {
		for p := range t.Partitions {
			r.cmds = append(r.cmds, writeState{"m", MirrorStateWrite{Topic: t.ID, Partition: int32(p), LeaderEpoch: -1, StateEpoch: -1}})
		}
	}
	c := &Controller{codec: testCodec(b)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.decideAll(newBuilder(img), false, r.cmds); err != nil {
			b.Fatal(err)
		}
	}
}
