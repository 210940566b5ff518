package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/fixtures/replicated"
	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Random commits, deletions, refused appends, sweeps, restarts and moves between
// two brokers, against a map. What was answered without an error is there, and
// nothing else, before and after every restart and move.
func TestOffsetsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		topic, clk := replicated.New(TopicName, 2), clock.NewManual(epoch0)
		refuse := false
		o := newMemoryLog(2).options(clk)
		o.OffsetsRetentionCheck = time.Hour
		o.OffsetsRetention = 10 * time.Hour
		o.MaxWriteBytes = 1024 // tombstones need several writes
		all := map[int32]*Coordinator{}
		c, leader := (*Coordinator)(nil), int32(1) // whose coordinator c is
		open := func() {
			for _, id := range []int32{1, 2} {
				b, o := topic.Broker(id), o
				o.NodeID, o.Append, o.Load = id, b.Append, b.Load
				var err error
				if all[id], err = New(o); err != nil {
					t.Fatal(err)
				}
			}
		}
		settle := func() {
			for _, s := range c.led.All() { // the sweep, then what it wrote
				waitLoaded(s)
				waitLoaded(s)
			}
		}
		hear := func() {
			for _, c := range all {
				c.Apply(nil, topic.Image())
			}
			c = all[leader]
			settle()
		}
		shut := func() {
			for _, c := range all {
				c.Close()
			}
		}
		open()
		hear()
		defer shut()

		type value struct {
			offset int64
			at     time.Time
		}
		model := map[string]map[TopicPartition]value{}
		groups := rapid.SampledFrom([]string{"a", "b", "c"})
		keys := rapid.Custom(func(t *rapid.T) TopicPartition {
			return TopicPartition{rapid.SampledFrom([]string{"t", "u", "a-rather-long-topic-name"}).Draw(t, "topic"), rapid.Int32Range(0, 9).Draw(t, "partition")}
		})

		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				g := groups.Draw(t, "group")
				r := &CommitRequest{Group: g, Generation: -1, Retention: -1}
				for _, tp := range rapid.SliceOfNDistinct(keys, 1, 5, rapid.ID[TopicPartition]).Draw(t, "keys") {
					r.Offsets = append(r.Offsets, Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: rapid.Int64Range(0, 1000).Draw(t, "offset")})
				}
				errs, err := c.Commit(ctx, r)
				if err != nil {
					t.Fatal(err)
				}
				for i, o := range r.Offsets {
					if (errs[i] != nil) != refuse {
						t.Fatalf("commit while refuse=%v: %v", refuse, errs[i])
					}
					if errs[i] == nil {
						if model[g] == nil {
							model[g] = map[TopicPartition]value{}
						}
						model[g][TopicPartition{o.Topic, o.Partition}] = value{o.Offset, clk.Now()}
					}
				}
			},
			"delete offsets": func(t *rapid.T) {
				g := groups.Draw(t, "group")
				tps := rapid.SliceOfN(keys, 1, 5).Draw(t, "keys")
				res := c.DeleteOffsets(ctx, g, tps)
				if model[g] == nil {
					if !errors.Is(res.Err, ErrNotFound) {
						t.Fatal(res.Err)
					}
					return
				}
				for i, tp := range tps {
					if res.Partitions[i] == nil {
						delete(model[g], tp)
					}
				}
				if len(model[g]) == 0 {
					delete(model, g)
				}
			},
			"delete": func(t *rapid.T) {
				g := groups.Draw(t, "group")
				switch err := c.Delete(ctx, g); {
				case err == nil:
					if model[g] == nil {
						t.Fatal("deleted what was not there")
					}
					delete(model, g)
				case !refuse && model[g] != nil:
					t.Fatal(err)
				}
			},
			"refuse or not": func(t *rapid.T) {
				refuse = !refuse
				topic.Refuse(nil)
				if refuse {
					topic.Refuse(errors.New("refused"))
				}
			},
			"time": func(t *rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "hours") {
					clk.Advance(time.Hour)
					settle()
				}
				if refuse {
					return
				}
				for g, offsets := range model {
					maps.DeleteFunc(offsets, func(_ TopicPartition, v value) bool { return clk.Now().Sub(v.at) >= o.OffsetsRetention })
					if len(offsets) == 0 {
						delete(model, g)
					}
				}
			},
			"restart": func(t *rapid.T) {
				shut()
				open()
				hear()
			},
			"move": func(t *rapid.T) {
				leader = rapid.Int32Range(1, 2).Draw(t, "to") // or the same one in another epoch
				topic.Elect(leader, 0)
				hear()
			},
			"zombie": func(t *rapid.T) {
				zombie := c
				leader = 3 - leader
				topic.Elect(leader, 0)
				if _, err := zombie.Commit(ctx, commit(1)); !errors.Is(err, ErrNotCoordinator) {
					t.Fatal(err)
				}
				hear()
			},
			"": func(t *rapid.T) {
				for _, g := range []string{"a", "b", "c"} {
					all, err := c.Committed(ctx, g)
					if err != nil {
						t.Fatal(err)
					}
					got := map[TopicPartition]int64{}
					for _, o := range all {
						got[TopicPartition{o.Topic, o.Partition}] = o.Offset
					}
					want := map[TopicPartition]int64{}
					for tp, v := range model[g] {
						want[tp] = v.offset
					}
					if !maps.Equal(got, want) {
						t.Fatalf("group %s: %s, want %s", g, fmt.Sprint(got), fmt.Sprint(want))
					}
				}
			},
		})
	})
}
