package quota

import (
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// A whole window's worth passes at once; who comes then waits until the rate is down
// again, but never longer than a sample.
func TestRate(t *testing.T) {
	clk := clock.NewManual(time.UnixMilli(1_700_000_000_000))
	r := NewRate(Options{Clock: clk, Samples: 11, SampleLength: time.Second}, 2)
	for i := range 20 {
		if wait := r.Note(); wait != 0 {
			t.Fatalf("connection %d waits %s", i+1, wait)
		}
	}
	if wait := r.Note(); wait != 500*time.Millisecond {
		t.Errorf("one too many waits %s", wait)
	}
	clk.Advance(500 * time.Millisecond)
	for range 100 {
		r.Note()
	}
	if wait := r.Note(); wait != time.Second {
		t.Errorf("a hundred too many wait %s", wait)
	}
	r.Set(NoRate)
	if wait := r.Note(); wait != 0 {
		t.Errorf("without a rate it waits %s", wait)
	}
	r.Set(0)
	if wait := r.Note(); wait != time.Second {
		t.Errorf("with a rate of nothing it waits %s", wait)
	}
}
