package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// fakeStore is the store as far as images are concerned: keys with the revision of
// their last change.
type fakeStore struct {
	revision int64
	values   map[string][]byte
	changed  map[string]int64
}

func (s *fakeStore) commit(txn []write) {
	s.revision++
	for _, w := range txn {
		if w.value == nil {
			delete(s.values, w.key)
			delete(s.changed, w.key)
			continue
		}
		s.values[w.key], s.changed[w.key] = w.value, s.revision
	}
}

// read builds an image from everything.
func (s *fakeStore) read(t *rapid.T, c codec) *builder {
	var changes []Change
	for key, value := range s.values { // in no order, on purpose
		ch, err := c.decode(key, value, s.changed[key])
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, ch)
	}
	b := newBuilder(metadata.NewImage())
	if err := b.apply(changes, s.revision); err != nil {
		t.Fatal(err)
	}
	b.seal(s.revision)
	return b
}

// genCommand draws a command over a few names, so that they meet.
func genCommand(id metadata.TopicID) *rapid.Generator[Command] {
	return rapid.Custom(func(t *rapid.T) Command {
		def := defaults{partitions: 1, replicationFactor: 1, maxPartitions: 1000}
		topic := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "topic")
		mirror := rapid.SampledFrom([]string{"m", "n"}).Draw(t, "mirror")
		partitions := rapid.SampledFrom([]int32{1, 2, 150, 300}).Draw(t, "partitions")
		switch rapid.IntRange(0, 11).Draw(t, "kind") {
		case 0:
			return registerBroker{RegisterBroker{ID: 1, Incarnation: [16]byte{rapid.Byte().Draw(t, "incarnation")}}}
		case 1:
			return createTopic{CreateTopic{Name: topic, Partitions: partitions}, id, def}
		case 2:
			return growTopic{CreatePartitions{Topic: topic, Total: partitions, FromMirror: rapid.Bool().Draw(t, "from")}, def}
		case 3:
			return createMirror{mirror, map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "secret"}}
		case 4:
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

// TestReplay runs random commands against the model of a store. After each one the
// image that was decided on, the one that the watch builds from transactions in
// any order within each, and the one read from scratch are the same. And when a
// controller dies between two transactions, the next one finds a store that it can
// read, sweeps it, and can be asked the same again.
func TestReplay(t *testing.T) {
	c := testCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		store := &fakeStore{values: map[string][]byte{}, changed: map[string]int64{}}
		watch := newBuilder(metadata.NewImage())
		shuffle := rand.New(rand.NewPCG(1, 2))
		commit := func(txn []write) {
			store.commit(txn)
			txn = slices.Clone(txn)
			shuffle.Shuffle(len(txn), func(i, j int) { txn[i], txn[j] = txn[j], txn[i] })
			var changes []Change
			for _, w := range txn {
				ch, err := c.decode(w.key, w.value, store.revision)
				if err != nil {
					t.Fatal(err)
				}
				changes = append(changes, ch)
			}
			if err := watch.apply(changes, store.revision); err != nil {
				t.Fatal(err)
			}
			watch.seal(store.revision)
		}
		carryOut := func(cmd Command, dieAfter int) (died bool) {
			img := watch.view()
			changes, err := Decide(img, cmd)
			if err != nil {
				return false
			}
			groups, err := c.groups(changes)
			if err != nil {
				t.Fatal(err)
			}
			var p pack
			for _, g := range groups {
				p.add(g)
			}
			for i, txn := range p.txns {
				if i == dieAfter {
					return true
				}
				commit(txn)
			}
			return false
		}
		carryOut(registerBroker{RegisterBroker{ID: 1, Incarnation: [16]byte{99}}}, -1)
		steps := rapid.IntRange(1, 25).Draw(t, "steps")
		for n := range steps {
			cmd := genCommand(testID(byte(n + 1))).Draw(t, "command")
			if cmd == nil {
				for _, w := range drawStates(t, watch.view()) {
					carryOut(w, -1)
				}
				continue
			}
			if carryOut(cmd, rapid.SampledFrom([]int{-1, -1, -1, 0, 1, 2}).Draw(t, "die")) {
				// The next controller.
				watch = store.read(t, c)
				orphans := watch.orphans()
				groups, err := c.groups(orphans)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range groups {
					commit(g)
				}
				if len(watch.pending) != 0 || len(store.read(t, c).pending) != 0 {
					t.Fatalf("the sweep left %v", watch.pending)
				}
				carryOut(cmd, -1)
			}
			if len(watch.pending) != 0 {
				t.Fatalf("%T left fragments behind: %v", cmd, watch.pending)
			}
			if got, want := show(watch.view()), show(store.read(t, c).view()); got != want {
				t.Fatalf("after %T the watch shows\n%s\nthe store holds\n%s", cmd, got, want)
			}
			checkImage(t, watch.view())
		}
	})
}

// drawStates moves every partition of one topic along the table.
func drawStates(t *rapid.T, img *metadata.Image) []Command {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "states of")
	topic := img.Topic(name)
	if topic == nil {
		return nil
	}
	to := rapid.SampledFrom(metadata.MirrorStates()).Draw(t, "state")
	cmds := make([]Command, 0, len(topic.Partitions))
	for _, p := range topic.Partitions {
		cmds = append(cmds, writeState{topic.Attachment().Mirror, MirrorStateWrite{
			Topic: topic.ID, Partition: p.Index, State: to, LeaderEpoch: -1, StateEpoch: -1,
			SetLME: to == metadata.StateStopping, LME: 3, LMO: int64(p.Index), ErrorMessage: "drawn"}})
	}
	return cmds
}

// checkImage holds what every image promises.
func checkImage(t *rapid.T, img *metadata.Image) {
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
		"a partition is missing": {putPartition{testID(1), &metadata.Partition{Index: 1}}, putTopic{testID(1), "a", false, 2, nil}},
		"one name, two ids": {putPartition{testID(1), &metadata.Partition{}}, putTopic{testID(1), "a", false, 1, nil},
			putPartition{testID(2), &metadata.Partition{}}, putTopic{testID(2), "a", false, 1, nil}},
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
		if _, err := c.decideAll(newBuilder(img), r); err != nil {
			b.Fatal(err)
		}
	}
}
