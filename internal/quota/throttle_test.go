package quota

import (
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// The rate holds over any time, whatever the sizes that are taken are.
func TestThrottle(t *testing.T) {
	c := clock.NewManual(time.Unix(1000, 0))
	th := NewThrottle(c)
	th.Note(1 << 40)
	if th.Exceeded() {
		t.Fatal("without a rate it bounds")
	}
	th.Set(1000)
	taken := 0
	for range 100 { // ten seconds
		if !th.Exceeded() {
			th.Note(700)
			taken += 700
		}
		c.Advance(100 * time.Millisecond)
	}
	if taken < 9000 || taken > 10_700 {
		t.Errorf("%d bytes in 10 s at 1000 a second", taken)
	}
	th.Note(5000)
	c.Advance(time.Second)
	if !th.Exceeded() {
		t.Error("a debt of 5 s is paid in 1")
	}
	th.Set(NoThrottle)
	if th.Exceeded() {
		t.Error("it bounds without a rate")
	}
	th.Set(0)
	if !th.Exceeded() {
		t.Error("a rate of 0 lets something through")
	}
}
