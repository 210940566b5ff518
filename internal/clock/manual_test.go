package clock

import (
	"slices"
	"testing"
	"time"
)

// Timers fire in order of time, those of one instant in order of creation, and
// a timer set by a firing function within the same advance fires too.
func TestManualFiresInOrder(t *testing.T) {
	m := NewManual(time.Unix(0, 0))
	var got []string
	say := func(s string) func() { return func() { got = append(got, s) } }
	m.AfterFunc(2*time.Second, say("b"))
	m.AfterFunc(time.Second, func() {
		got = append(got, "a")
		m.AfterFunc(time.Second, say("d"))
	})
	m.AfterFunc(2*time.Second, say("c"))
	stopped := m.AfterFunc(time.Second, say("never"))
	if !stopped.Stop() || stopped.Stop() {
		t.Fatal("Stop must tell whether the timer was pending")
	}
	m.Advance(1500 * time.Millisecond)
	m.Advance(500 * time.Millisecond)
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
		t.Fatalf("fired %v, want %v", got, want)
	}
	timer := m.NewTimer(time.Minute)
	m.Advance(time.Minute - 1)
	select {
	case <-timer.C():
		t.Fatal("fired early")
	default:
	}
	m.Advance(1)
	<-timer.C()
}
