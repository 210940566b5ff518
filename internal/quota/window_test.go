package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var kafkas = shape{samples: 11, length: 1000}

// What was used, when, and how long the client has to wait then, at a quota of 100
// per second: what ten seconds hold may come at once.
func TestWindow(t *testing.T) {
	var w window
	for _, step := range []struct {
		at   int64 // milliseconds
		n    float64
		want time.Duration
	}{
		{0, 1000, 0},                         // ten full samples' worth
		{0, 1, 10 * time.Millisecond},        // one too many
		{10, 0, 0},                           // it waited
		{10, 99, 990 * time.Millisecond},     // a second's worth too many
		{1000, 0, time.Second},               // a new sample counts for nothing yet
		{10_999, 0, time.Millisecond},        // all of it is still in the window
		{10_999, 10, 101 * time.Millisecond}, // 1110 in 10.999 s
		{11_000, 0, 0},                       // the first sample has left
		{11_000, 100_000, 11 * time.Second},  // never longer than a window
		{22_001, 0, 0},
	} {
		w.record(kafkas, step.at, step.n)
		if got := w.over(kafkas, step.at, 100).Round(time.Millisecond); got != step.want {
			t.Errorf("at %d ms after %g more: %v, want %v", step.at, step.n, got, step.want)
		}
	}
	if w.idle(kafkas, 32_999) || !w.idle(kafkas, 33_000) {
		t.Error("idle")
	}
	w.record(kafkas, 5, 1) // a clock that went back
	if w.newest != 22 {
		t.Error("the window went back to", w.newest)
	}
}

// A client that always waits as it is told is held to its quota whatever the sizes
// of its requests, after the burst that the window allows. (A request is measured
// when it is there: each window may end with a part of one too much.)
func TestHeldToRate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []float64{0.01, 0.5, 2} { // of a request, in seconds' worth at most
		const bound = 5000
		var w window
		now, used := int64(1_000_000), 0.0
		for range 20_000 {
			n := bound * size * random.Float64()
			w.record(kafkas, now, n)
			used += n
			now += int64(w.over(kafkas, now, bound)/time.Millisecond) + 1
		}
		seconds := float64(now-1_000_000) / 1000
		if most, least := bound*(1.1*seconds+13), bound*seconds*0.9; used > most || used < least && size > 0.1 {
			t.Errorf("requests of up to %g s: %g used in %g s, %g per second allowed", size, used, seconds, float64(bound))
		}
	}
}

// Tokens come back at the quota's rate, up to a window's worth.
func TestBucket(t *testing.T) {
	var b bucket
	var got string
	for _, step := range []struct {
		at int64
		n  float64
	}{{0, 110}, {0, 10}, {500, 0}, {1000, 0}, {60_000, 0}, {60_000, 110}, {60_000, 5}} {
		b.refill(step.at, 10)
		b.used += step.n
		got += fmt.Sprint(b.over(kafkas, 10), " ")
	}
	if want := "0s 1s 500ms 0s 0s 0s 500ms "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
