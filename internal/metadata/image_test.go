package metadata

import (
	"fmt"
	"reflect"
	"testing"
)

func makeTopic(n byte, name string, partitions int) *Topic {
	t := &Topic{ID: TopicID{15: n}, Name: name}
	for i := range partitions {
		t.Partitions = append(t.Partitions, &Partition{Index: int32(i), Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	}
	return t
}

// TestEditShares holds that an edit copies the topic it changes and nothing else.
func TestEditShares(t *testing.T) {
	e := NewImage().Edit()
	e.PutTopic(makeTopic(2, "a", 3))
	e.PutTopic(makeTopic(3, "b", 3))
	one := e.Image(1)

	e = one.Edit()
	if !e.SetMirrorState(TopicID{15: 2}, 1, &MirrorPartition{Mirror: "m", State: StateMirroring}) {
		t.Fatal("partition not found")
	}
	two := e.Image(2)

	a1, a2 := one.Topic("a"), two.Topic("a")
	if a1 == a2 || a1.Partitions[1] == a2.Partitions[1] {
		t.Error("the changed partition is shared")
	}
	if a1.Partitions[1].Mirror != nil || a2.Partitions[1].Mirror == nil {
		t.Error("the change is in the wrong image")
	}
	if a1.Partitions[0] != a2.Partitions[0] || one.Topic("b") != two.Topic("b") {
		t.Error("what did not change was copied")
	}
	if two.TopicByID(TopicID{15: 2}) != a2 || two.Revision != 2 || one.Revision != 1 {
		t.Error("the image disagrees with itself")
	}
}

func TestEditIndexes(t *testing.T) {
	id := TopicID{15: 2}
	e := NewImage().Edit()
	e.PutTopic(makeTopic(2, "a", 1))
	e.SetAttachment(id, "m", 7)
	img := e.Image(7)
	names := func(topics []*Topic) (s []string) {
		for _, topic := range topics {
			s = append(s, topic.Name)
		}
		return s
	}
	if got := names(img.MirrorTopics("m")); !reflect.DeepEqual(got, []string{"a"}) {
		t.Errorf("topics of m: %v", got)
	}
	if got := img.MirrorTopics("l"); len(got) != 0 {
		t.Errorf("topics of l: %v", names(got))
	}
	if r := img.Topic("a").MirrorRevision; r != 7 {
		t.Errorf("MirrorRevision %d", r)
	}

	// Moved to another mirror; every way to the topic gives the same one.
	e = img.Edit()
	e.SetAttachment(id, "n.paused", 8)
	moved := e.Image(8)
	if len(moved.MirrorTopics("m")) != 0 || moved.MirrorTopics("n")[0] != moved.Topic("a") {
		t.Error("the attachment did not move")
	}

	// Deleted, and created again under its old name with another id, in one edit.
	e = moved.Edit()
	e.PutTopic(makeTopic(9, "a", 2))
	e.DeleteTopic(id)
	next := e.Image(9)
	if topic := next.Topic("a"); topic == nil || topic.ID != (TopicID{15: 9}) || next.TopicByID(id) != nil {
		t.Errorf("topic a: %+v", next.Topic("a"))
	}
	if len(next.MirrorTopics("n")) != 0 || len(next.Topics()) != 1 {
		t.Error("the deleted topic is still attached or listed")
	}
	if moved.TopicByID(id) == nil {
		t.Error("an older image changed")
	}
}

func TestEditRefusesHoles(t *testing.T) {
	e := NewImage().Edit()
	e.PutTopic(makeTopic(2, "a", 1))
	if e.PutPartition(TopicID{15: 2}, &Partition{Index: 2}) || e.PutPartition(TopicID{15: 3}, &Partition{}) {
		t.Error("a hole, or an unknown topic, was accepted")
	}
	if !e.PutPartition(TopicID{15: 2}, &Partition{Index: 1}) || e.SetMirrorState(TopicID{15: 2}, 5, nil) {
		t.Error("the next partition was refused, or an unknown one accepted")
	}
	// What a decision sees while the edit is under way, sorted topics included.
	if got := len(e.View().Topics()); got != 1 {
		t.Errorf("%d topics", got)
	}
	e.PutTopic(makeTopic(3, "b", 1))
	if got := len(e.View().Topics()); got != 2 {
		t.Errorf("%d topics after another one", got)
	}
}

// TestShareWith holds that an image read anew gives equal things the same pointers.
func TestShareWith(t *testing.T) {
	build := func(epoch int32) *Image {
		e := NewImage().Edit()
		e.PutTopic(makeTopic(2, "a", 3))
		b := makeTopic(3, "b", 3)
		b.Partitions[1].LeaderEpoch = epoch
		e.PutTopic(b)
		e.PutBroker(&Broker{ID: 1})
		e.PutMirror(&Mirror{Name: "m", Configs: map[string]string{"k": "v"}})
		return e.Image(1)
	}
	old, next := build(0), build(1)
	next.ShareWith(old)
	if next.Topic("a") != old.Topic("a") || next.Broker(1) != old.Broker(1) || next.Mirror("m") != old.Mirror("m") {
		t.Error("equal things are not shared")
	}
	b, ob := next.Topic("b"), old.Topic("b")
	if b == ob || b.Partitions[0] != ob.Partitions[0] || b.Partitions[1] == ob.Partitions[1] || b.Partitions[1].LeaderEpoch != 1 {
		t.Error("a changed topic is shared, or its unchanged partitions are not")
	}
	if next.TopicByID(b.ID) != b {
		t.Error("the image disagrees with itself")
	}
}

// BenchmarkEditOneOfMany prints what one state write costs in a big cluster.
func BenchmarkEditOneOfMany(b *testing.B) {
	e := NewImage().Edit()
	for i := range 10_000 {
		t := makeTopic(0, fmt.Sprintf("topic-%05d", i), 10)
		t.ID = TopicID{0: 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
		e.PutTopic(t)
	}
	img := e.Image(1)
	m := &MirrorPartition{Mirror: "m"}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e := img.Edit()
		e.SetMirrorState(TopicID{0: 1, 14: byte(i % 10_000 >> 8), 15: byte(i % 10_000)}, 3, m)
		img = e.Image(int64(i))
	}
}

// Whatever of a topic changes beside its partitions is told from a change of these.
func TestOnlyPartitionsDiffer(t *testing.T) {
	was := &Topic{ID: TopicID{1}, Name: "t", Configs: map[string]string{"a": "b"}, MirrorName: "m", MirrorRevision: 3, Partitions: []*Partition{{}}}
	for name, tt := range map[string]struct {
		change func(*Topic)
		want   bool
	}{
		"nothing":      {func(*Topic) {}, true},
		"partitions":   {func(t *Topic) { t.Partitions = []*Partition{{}, {Index: 1}} }, true},
		"id":           {func(t *Topic) { t.ID = TopicID{2} }, false},
		"name":         {func(t *Topic) { t.Name = "u" }, false},
		"internal":     {func(t *Topic) { t.Internal = true }, false},
		"life":         {func(t *Topic) { t.Life++ }, false},
		"config":       {func(t *Topic) { t.Configs = map[string]string{"a": "c"} }, false},
		"one config":   {func(t *Topic) { t.Configs = nil }, false},
		"mirror":       {func(t *Topic) { t.MirrorName = "m.removed" }, false},
		"mirror again": {func(t *Topic) { t.MirrorRevision++ }, false},
	} {
		now := *was
		tt.change(&now)
		if got := now.OnlyPartitionsDiffer(was); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if was.OnlyPartitionsDiffer(nil) {
		t.Error("a new topic is no old one")
	}
	if n := reflect.TypeFor[Topic]().NumField(); n != 8 {
		t.Errorf("a topic has %d fields: do the new ones count?", n)
	}
}
