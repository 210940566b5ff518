package group

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// consumerHarness drives one machine by hand: time, writes and topics are the
// test's.
type consumerHarness struct {
	o        Options
	now      time.Time
	m        *machine
	log      []entry // what was acknowledged
	inflight []write
	tickets  ticket
	answers  map[ticket]any
	topics   topicView
}

func newConsumerHarness() *consumerHarness {
	h := &consumerHarness{
		now: time.UnixMilli(1_700_000_000_000), answers: map[ticket]any{},
		topics: topicView{metadata.NewImage(), 1},
	}
	h.o.EnsureDefaults()
	h.m = newMachine("g", &h.o, h.now)
	return h
}

// setTopic makes a topic, grows it, or with no partitions deletes it. Its id is
// made of its name and how often it was made.
func (h *consumerHarness) setTopic(name string, id byte, partitions int) {
	e := h.topics.image.Edit()
	if old := h.topics.image.Topic(name); old != nil {
		e.DeleteTopic(old.ID)
	}
	if partitions > 0 {
		t := &metadata.Topic{ID: metadata.TopicID{0: 0xaa, 1: name[0], 15: id}, Name: name}
		for i := range partitions {
			t.Partitions = append(t.Partitions, &metadata.Partition{Index: int32(i)})
		}
		e.PutTopic(t)
	}
	h.topics = topicView{e.Image(h.topics.image.Revision + 1), h.topics.version + 1}
}

// step gives the machine an input. Its writes wait for ack.
func (h *consumerHarness) step(in any) error {
	var fx effects
	h.m.topics = h.topics
	err := h.m.step(h.now, in, &fx)
	for _, r := range fx.replies {
		h.answers[r.to] = r.result
	}
	h.inflight = append(h.inflight, fx.writes...)
	return err
}

var errDisk = errors.New("the disk")

// ack ends the oldest write.
func (h *consumerHarness) ack(fail bool) error {
	w := h.inflight[0]
	h.inflight = h.inflight[1:]
	if fail {
		return h.step(stored{w.done, errDisk})
	}
	h.log = append(h.log, w.records...)
	return h.step(stored{w.done, nil})
}

func (h *consumerHarness) ackAll() error {
	for len(h.inflight) > 0 {
		if err := h.ack(false); err != nil {
			return err
		}
	}
	return nil
}

func (h *consumerHarness) ticket() ticket {
	h.tickets++
	return h.tickets
}

// restart loads the group from what was acknowledged, as another leader would.
func (h *consumerHarness) restart() error {
	h.inflight = nil
	image := &replay{groups: map[string]*replayed{}, open: map[int64]map[string]struct{}{}}
	for i, e := range h.log {
		d, err := decode(e.key, e.value)
		if err != nil {
			return fmt.Errorf("own record %x: %w", e.key, err)
		}
		image.apply(&d, -1, int64(i))
	}
	h.m = newMachine("g", &h.o, h.now)
	h.m.topics = h.topics
	if g := image.groups["g"]; g != nil {
		h.m.adopt(h.now, g)
	}
	return h.m.check()
}

// describe is one line on the group and one for each member.
func (h *consumerHarness) describe() string {
	if h.m.consumer == nil {
		return fmt.Sprintf("classic %s generation=%d members=%d", h.m.state, h.m.generation, len(h.m.members))
	}
	h.m.topics = h.topics
	d := h.m.describeConsumer()
	s := fmt.Sprintf("%s epoch=%d target=%d", d.State, d.Epoch, d.AssignmentEpoch)
	for _, mem := range d.Members {
		kind := ""
		if mem.Classic {
			kind = " classic"
		}
		s += fmt.Sprintf("\n%s%s@%d has %s, is to have %s", mem.MemberID, kind, mem.Epoch, printTopics(mem.Assignment), printTopics(mem.Target))
	}
	return s
}

func printTopics(topics []TopicPartitions) string {
	if len(topics) == 0 {
		return "nothing"
	}
	slices.SortFunc(topics, func(a, b TopicPartitions) int { return slices.Compare([]byte(a.Topic), []byte(b.Topic)) })
	s := ""
	for i, t := range topics {
		if i > 0 {
			s += " "
		}
		s += fmt.Sprint(t.Topic, t.Partitions)
	}
	return s
}
