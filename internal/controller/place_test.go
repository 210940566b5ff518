package controller

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func ptr[T any](v T) *T { return &v }

// TestPlace holds what placement promises, over brokers and racks at random: replicas
// are distinct, over as many racks as there are; among brokers of equal racks nobody
// leads more than one partition more than another; only the living lead.
func TestPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := metadata.NewImage().Edit()
		racks := make(map[int32]string)
		inRack := make(map[string]int)
		alive := make(map[int32]bool)
		for id := range rapid.Int32Range(1, 9).Draw(t, "brokers") {
			b := &metadata.Broker{ID: id, Rack: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "rack"), Fenced: id > 0 && rapid.IntRange(0, 4).Draw(t, "fenced") == 0}
			racks[id], alive[id] = b.Rack, !b.Fenced
			if alive[id] {
				inRack[b.Rack]++
			}
			e.PutBroker(b)
		}
		img := e.Image(1)
		living := living(img)
		rf := rapid.IntRange(1, living).Draw(t, "rf")
		n := rapid.Int32Range(1, 40).Draw(t, "partitions")
		got, err := place(img, rapid.StringN(1, 5, 10).Draw(t, "topic"), nil, n, int16(rf))
		if err != nil {
			t.Fatal(err)
		}
		leads := make(map[int32]int)
		for i, r := range got {
			leads[r[0]]++
			spread := make(map[string]bool)
			for j, id := range r {
				if !alive[id] {
					t.Fatalf("partition %d is on %d, which is not alive: %v", i, id, r)
				}
				for _, other := range r[:j] {
					if other == id {
						t.Fatalf("partition %d: %v", i, r)
					}
				}
				spread[racks[id]] = true
			}
			if want := min(rf, len(inRack)); len(spread) != want {
				t.Fatalf("partition %d is in %d racks of %d: %v in %v", i, len(spread), want, r, racks)
			}
		}
		lo, hi := int(n), 0
		for id := range racks {
			if alive[id] {
				lo, hi = min(lo, leads[id]), max(hi, leads[id])
			}
		}
		if hi-lo > 1 {
			t.Fatalf("some lead %d, some %d: %v", hi, lo, got)
		}
	})
}

// The partitions of one broker are followed by all others, so that all take over when
// it fails; and replicas are as many on each.
func TestPlaceSpreadsFollowers(t *testing.T) {
	e := metadata.NewImage().Edit()
	for id := range int32(5) {
		e.PutBroker(&metadata.Broker{ID: id})
	}
	got, err := place(e.Image(1), "orders", nil, 100, 3)
	if err != nil {
		t.Fatal(err)
	}
	holds := make(map[int32]int)
	seconds := make(map[int32]map[int32]bool)
	for _, r := range got {
		for _, id := range r {
			holds[id]++
		}
		if seconds[r[0]] == nil {
			seconds[r[0]] = make(map[int32]bool)
		}
		seconds[r[0]][r[1]] = true
	}
	for id := range int32(5) {
		if holds[id] != 60 {
			t.Errorf("broker %d holds %d of 300 replicas", id, holds[id])
		}
		if len(seconds[id]) < 3 {
			t.Errorf("broker %d is followed by %v only", id, seconds[id])
		}
	}
}
