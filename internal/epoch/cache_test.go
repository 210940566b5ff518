package epoch

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Table A.1 of the specification.
func TestMirrorTarget(t *testing.T) {
	cache := []Entry{{2, 0}, {3, 40}, {5, 100}, {6, 160}}
	late := []Entry{{3, 50}, {5, 100}, {6, 160}} // with log start 50
	for _, c := range []struct {
		entries []Entry
		lme     int32
		lmo     int64
		want    int64
	}{
		{cache, -1, -1, 0},
		{cache, 1, -1, 0},
		{cache, 2, -1, 40}, {cache, 2, 30, 30},
		{cache, 3, -1, 100},
		{cache, 4, -1, 100},
		{cache, 5, -1, 160}, {cache, 5, 130, 130},
		{cache, 6, -1, 200}, {cache, 6, 180, 180},
		{cache, 7, -1, 200}, {cache, 7, 230, 200},
		{late, 2, -1, 50},
		{late, -1, -1, 0},
		{cache, -1, 120, 0},  // from scratch stays from scratch
		{cache, 3, 150, 100}, // an offset behind the epoch's end adds nothing
		{nil, 4, -1, 200},    // no batches: nothing to cut
		{nil, -1, -1, 0},
	} {
		if got := MirrorTarget(c.entries, 200, c.lme, c.lmo); got != c.want {
			t.Errorf("LME %d LMO %d over %v: %d, want %d", c.lme, c.lmo, c.entries, got, c.want)
		}
	}
}

func TestEnd(t *testing.T) {
	c := New([]Entry{{2, 10}, {3, 40}, {5, 100}})
	for _, x := range []struct {
		epoch, wantEpoch int32
		wantEnd          int64
	}{
		{-1, -1, -1}, {0, 0, 10}, {1, 1, 10}, {2, 2, 40}, {3, 3, 100}, {4, 3, 100}, {5, 5, 150}, {6, -1, -1},
	} {
		if e, end := c.End(x.epoch, 150); e != x.wantEpoch || end != x.wantEnd {
			t.Errorf("epoch %d ends at %d of %d, want %d of %d", x.epoch, end, e, x.wantEnd, x.wantEpoch)
		}
	}
	if e, end := New(nil).End(3, 0); e != -1 || end != -1 {
		t.Errorf("empty cache: %d %d", e, end)
	}
	for offset, want := range map[int64]int32{9: -1, 10: 2, 39: 2, 40: 3, 99: 3, 100: 5, 1000: 5} {
		if e, ok := c.At(offset); e != want || ok != (want >= 0) {
			t.Errorf("epoch at %d: %d %v, want %d", offset, e, ok, want)
		}
	}
}

func TestAssign(t *testing.T) {
	for _, c := range []struct {
		epoch int32
		start int64
		want  string
	}{
		{5, 120, "[{2 0} {5 100}]"},         // known
		{6, 150, "[{2 0} {5 100} {6 150}]"}, // next
		{6, 100, "[{2 0} {6 100}]"},         // 5 had no batch after all
		{4, 110, "[{2 0} {4 110}]"},         // contradicts 5: Kafka drops what contradicts the newest
		{5, 90, "[{2 0} {5 90}]"},
		{-1, 120, "[{2 0} {5 100}]"},
		{1, 0, "[{1 0}]"},
	} {
		x := New([]Entry{{2, 0}, {5, 100}})
		x.Assign(c.epoch, c.start)
		if got := fmt.Sprint(x.Entries()); got != c.want {
			t.Errorf("assign %d at %d: %s, want %s", c.epoch, c.start, got, c.want)
		}
	}
}

// MIR-091: an epoch that begins where the log ends is forgotten with the cut, though
// nothing of it was in the log.
func TestTruncate(t *testing.T) {
	entries := []Entry{{2, 10}, {3, 40}, {5, 100}}
	for end, want := range map[int64]string{5: "[]", 10: "[]", 11: "[{2 10}]", 40: "[{2 10}]", 100: "[{2 10} {3 40}]", 101: fmt.Sprint(entries)} {
		c := New(entries)
		c.TruncateEnd(end)
		if got := fmt.Sprint(c.Entries()); got != want {
			t.Errorf("end %d: %s, want %s", end, got, want)
		}
	}
	for start, want := range map[int64]string{0: fmt.Sprint(entries), 10: fmt.Sprint(entries), 11: "[{2 11} {3 40} {5 100}]", 40: "[{3 40} {5 100}]", 99: "[{3 99} {5 100}]", 200: "[{5 200}]"} {
		c := New(entries)
		c.TruncateStart(start)
		if got := fmt.Sprint(c.Entries()); got != want {
			t.Errorf("start %d: %s, want %s", start, got, want)
		}
	}
}

// Against the slowest possible cache: the epoch of every single offset.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Cache
		var model []int32 // epoch of each offset
		start, e := int64(0), int32(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				e += rapid.Int32Range(0, 2).Draw(t, "newer")
				c.Assign(e, int64(len(model)))
				for range rapid.IntRange(1, 4).Draw(t, "n") {
					model = append(model, e)
				}
			},
			"end": func(t *rapid.T) {
				end := rapid.Int64Range(start, int64(len(model))).Draw(t, "end")
				model = model[:end]
				c.TruncateEnd(end)
			},
			"start": func(t *rapid.T) {
				start = rapid.Int64Range(start, int64(len(model))).Draw(t, "start")
				c.TruncateStart(start)
			},
			"": func(t *rapid.T) {
				end := int64(len(model))
				for o := start; o < end; o++ {
					if got, ok := c.At(o); !ok || got != model[o] {
						t.Fatalf("epoch at %d: %d %v, want %d", o, got, ok, model[o])
					}
				}
				for o := start; o < end; o++ {
					want := end
					for x := o; x < end; x++ {
						if model[x] > model[o] {
							want = x
							break
						}
					}
					if gotE, got := c.End(model[o], end); gotE != model[o] || got != want {
						t.Fatalf("end of epoch %d: %d of %d, want %d", model[o], got, gotE, want)
					}
				}
				for i, x := range c.Entries() {
					if i > 0 && (c.entries[i-1].Epoch >= x.Epoch || c.entries[i-1].Start >= x.Start) {
						t.Fatalf("not ascending: %v", c.entries)
					}
				}
			},
		})
	})
}
