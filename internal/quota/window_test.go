package quota

import (
	"fmt"
	"math/rand/v2"
	"slices"
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

// How long n more have to wait at a quota of 100 per second behind 900, 40 and 40 of
// the seconds 0, 3 and 5.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		at   int64 // milliseconds
		n    float64
		want time.Duration
	}{
		{5000, 20, 0},                         // 1000 in ten seconds
		{5000, 30, 100 * time.Millisecond},    // later in the same second
		{5500, 80, 100 * time.Millisecond},    // likewise
		{5500, 200, 5500 * time.Millisecond},  // the 900 have left
		{5500, 1000, 6300 * time.Millisecond}, // and the rest is paid off in that second
		{5500, 1050, 9400 * time.Millisecond}, // the first 40 had to leave as well
		{5500, 5000, 11 * time.Second},        // never: no longer than a window
	} {
		var w window
		for _, r := range [][2]int64{{0, 900}, {3000, 40}, {5000, 40}} {
			w.record(kafkas, r[0], float64(r[1]))
		}
		w.advance(kafkas, c.at)
		got := w.fits(kafkas, c.at, c.n, 100)
		if got != c.want {
			t.Errorf("%g more at %d ms: %v, want %v", c.n, c.at, got, c.want)
		}
	}
}

// Whatever was used: n more are within the bound after the wait, and not a millisecond
// before.
func TestFitsIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		const bound = 100
		var w window
		now := int64(1_000_000)
		w.advance(kafkas, now)
		for range random.IntN(20) {
			now += random.Int64N(1500)
			w.record(kafkas, now, float64(random.IntN(300)))
		}
		n := float64(random.IntN(1000))
		wait := w.fits(kafkas, now, n, bound)
		over := func(at int64) time.Duration {
			later := window{newest: w.newest, slots: slices.Clone(w.slots)}
			later.record(kafkas, at, n)
			return later.over(kafkas, at, bound)
		}
		if got := over(now + wait.Milliseconds()); got > 0 {
			t.Fatalf("%g more after %v: %v too early; %+v at %d", n, wait, got, w, now)
		}
		if wait > 0 && over(now+wait.Milliseconds()-1) == 0 {
			t.Fatalf("%g more waited %v, a millisecond too long; %+v at %d", n, wait, w, now)
		}
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
