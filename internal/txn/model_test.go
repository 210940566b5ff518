package txn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// producerModel is one producer instance: what it was told, and what it has in
// its transaction.
type producerModel struct {
	Producer
	version int
	parts   map[TopicPartition]bool
	ended   bool // an end was asked for and the answer not seen as success
}

// Random producers that take one id from each other, in both transaction
// versions, with logs and partitions that refuse, time that runs out and
// coordinators that move between two brokers, or are restarted. What must hold:
//   - what the log says is what the coordinator knew, after every move;
//   - of one producer epoch all markers say the same;
//   - a commit that was answered is in every partition of the transaction, once
//     the world is well again, and its markers are no aborts;
//   - a producer is fenced for good once another one was given the id;
//   - nobody gets an epoch that somebody had before.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := newWorld(1)
		options := func(broker int32) Options {
			o := w.optionsOf(broker)
			o.MaxTimeout, o.HoldAdds = time.Hour, time.Second
			return o
		}
		all := map[int32]*Coordinator{}
		for _, id := range []int32{1, 2} {
			all[id] = w.lead(t, options(id), 1)
		}
		leader := int32(1)
		c := all[leader]
		defer func() {
			for _, c := range all {
				c.Close()
			}
		}()
		// elect moves the coordinator, or gives it a new epoch where it is; keep is
		// for what the log has not acknowledged. The one before hears of it later.
		elect := func(to int32, keep int) (before *Coordinator) {
			before = c
			leader, c = to, all[to]
			w.topic.Elect(to, keep)
			w.hear(c)
			return before
		}

		refused, notYet := errors.New("refused"), errors.New("not yet")
		var logFails, markersFail bool
		weather := func() {
			var log error
			var marker func(TopicPartition) error
			if logFails {
				log = fmt.Errorf("%w: %w", ErrNotAvailable, refused)
			}
			if markersFail {
				marker = func(tp TopicPartition) error {
					if tp.Partition%2 == 0 {
						return notYet
					}
					return nil
				}
			}
			w.set(log, marker)
		}
		var current *producerModel
		var old []*producerModel
		given := map[Producer]bool{}
		type commitment struct {
			producer Producer // as the marker has it
			parts    map[TopicPartition]bool
		}
		var promised []commitment
		topics := rapid.Custom(func(t *rapid.T) TopicPartition {
			return TopicPartition{"t", rapid.Int32Range(0, 3).Draw(t, "partition")}
		})

		end := func(t *rapid.T, p *producerModel, commit bool) {
			was := p.Producer
			next, err := c.End(ctx, &EndRequest{ID: "id", ProducerID: was.ID, ProducerEpoch: was.Epoch, Commit: commit, Version: p.version})
			if err != nil {
				p.ended = p.ended || !errors.Is(err, ErrFenced)
				return
			}
			if p != current {
				t.Fatalf("%v ended a transaction, though %v has the id", p.Producer, current.Producer)
			}
			if p.version >= epochBump && next == was || p.version < epochBump && next != was {
				t.Fatalf("end of %v gave %v", was, next)
			}
			if commit && len(p.parts) > 0 {
				promised = append(promised, commitment{next, p.parts})
			}
			p.Producer, p.parts, p.ended = next, map[TopicPartition]bool{}, false
		}

		// waits tells whether an add would be held: what failed is tried again after a
		// while, also when log and partitions are well by now.
		waits := func() bool {
			c.settle()
			return c.Describe(ctx, "id").State.deciding()
		}

		t.Repeat(map[string]func(*rapid.T){
			"init": func(t *rapid.T) {
				got, err := c.InitProducer(ctx, &InitRequest{ID: "id", Timeout: time.Hour, ProducerID: -1, ProducerEpoch: -1})
				if err != nil {
					return
				}
				if given[got] {
					t.Fatalf("%v is given twice", got)
				}
				given[got] = true
				if current != nil {
					old = append(old, current)
				}
				current = &producerModel{Producer: got, version: rapid.SampledFrom([]int{0, 2}).Draw(t, "version"), parts: map[TopicPartition]bool{}}
			},
			"add": func(t *rapid.T) {
				if current == nil || current.ended || waits() {
					t.Skip("nobody to add, or it would wait for time that stands still")
				}
				tp := topics.Draw(t, "partition")
				if _, err := c.AddPartitions(ctx, "id", current.ID, current.Epoch, []TopicPartition{tp}, current.version, false); err == nil {
					current.parts[tp] = true
				}
			},
			"commit": func(t *rapid.T) {
				if current != nil && len(current.parts) > 0 {
					end(t, current, true)
				}
			},
			"abort": func(t *rapid.T) {
				if current != nil && len(current.parts) > 0 {
					end(t, current, false)
				}
			},
			"zombie": func(t *rapid.T) {
				if len(old) == 0 || waits() {
					t.Skip("no zombie, or it would wait for time that stands still")
				}
				p := rapid.SampledFrom(old).Draw(t, "producer")
				if _, err := c.AddPartitions(ctx, "id", p.ID, p.Epoch, []TopicPartition{{"t", 0}}, p.version, false); err == nil {
					t.Fatalf("%v adds, though %v has the id", p.Producer, current.Producer)
				}
				if _, err := c.End(ctx, &EndRequest{ID: "id", ProducerID: p.ID, ProducerEpoch: p.Epoch, Commit: true, Version: p.version}); err == nil && p.version < epochBump {
					t.Fatalf("%v commits, though %v has the id", p.Producer, current.Producer)
				}
			},
			"timeout": func(t *rapid.T) {
				w.clock.Advance(2 * time.Hour)
				c.settle()
				if current != nil && len(current.parts) > 0 {
					// Whether it was aborted depends on the log; this producer gives up.
					current.ended = true
				}
			},
			"log":     func(*rapid.T) { logFails = !logFails; weather() },
			"markers": func(*rapid.T) { markersFail = !markersFail; weather() },
			"restart": func(t *rapid.T) {
				c.Close()
				all[leader] = w.lead(t, options(leader), w.epoch()+1)
				c = all[leader]
			},
			"move": func(t *rapid.T) {
				was := c.describe("id")
				before := elect(rapid.Int32Range(1, 2).Draw(t, "to"), 0)
				w.hear(before)
				if is := c.describe("id"); is != was && !strings.Contains(was, "Prepare") { // whose markers go on meanwhile
					t.Fatalf("%s; before the move it was %s", is, was)
				}
			},
			"deposed": func(t *rapid.T) {
				// It does not know yet, and its producer goes on with it. What it knows to
				// have ended it may still tell.
				before := elect(3-leader, 0)
				if current != nil && before.Describe(ctx, "id").State == Ongoing {
					if _, err := before.End(ctx, &EndRequest{
						ID: "id", ProducerID: current.ID, ProducerEpoch: current.Epoch, Commit: rapid.Bool().Draw(t, "commit"), Version: current.version,
					}); err == nil {
						t.Fatal("a coordinator that was deposed ended a transaction")
					}
				}
				w.hear(before)
			},
			"move before the answer": func(t *rapid.T) {
				if c.settle(); logFails || current == nil || c.Describe(ctx, "id").State != Ongoing {
					t.Skip("nothing would be on its way")
				}
				w.topic.Hold()
				ended := make(chan error, 1)
				r := &EndRequest{ID: "id", ProducerID: current.ID, ProducerEpoch: current.Epoch, Commit: rapid.Bool().Draw(t, "commit"), Version: current.version}
				go func(c *Coordinator) { _, err := c.End(ctx, r); ended <- err }(c)
				within, cancel := context.WithCancel(ctx)
				pending := make(chan error, 1)
				go func() { pending <- w.topic.Pending(within, 0, 1) }()
				var err error
				select {
				case <-pending:
					w.topic.Elect(3-leader, rapid.IntRange(0, 1).Draw(t, "keep"))
					err = <-ended
				case err = <-ended: // refused by the machine
				}
				cancel()
				w.topic.Release()
				if err == nil {
					t.Fatal("an end is answered before the log has it")
				}
				// Which of the two it is, nobody was told; this producer gives up.
				current.ended = true
				leader = w.leader()
				c = all[leader]
				for _, c := range all {
					w.hear(c)
				}
			},
			"": func(t *rapid.T) { c.settle() },
		})

		logFails, markersFail = false, false
		weather()
		for range 10 {
			w.clock.Advance(time.Hour)
			c.settle()
		}
		if d := c.Describe(ctx, "id"); d.Err == nil && (d.State == Ongoing || d.State.deciding()) {
			t.Fatalf("%+v is not through", d)
		}
		outcome := map[Producer]Marker{}
		has := map[Producer]map[TopicPartition]bool{}
		for tp, all := range w.markers {
			for _, m := range all {
				p := Producer{m.ProducerID, m.ProducerEpoch}
				if m.Version >= epochBump { // each epoch is one transaction
					if first, ok := outcome[p]; ok && first.Commit != m.Commit {
						t.Fatalf("markers of %v say commit and abort", p)
					}
					outcome[p] = m
				}
				if m.Commit {
					if has[p] == nil {
						has[p] = map[TopicPartition]bool{}
					}
					has[p][tp] = true
				}
			}
		}
		for _, c := range promised {
			for tp := range c.parts {
				if !has[c.producer][tp] {
					t.Fatalf("the commit of %v has no marker in %v", c.producer, tp)
				}
			}
		}
	})
}
