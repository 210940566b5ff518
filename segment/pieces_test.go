package segment

import (
	"math/rand/v2"
	"testing"
)

// The size of the pieces follows what they cost, when memory has pages that lie
// together and when it has none any more; the one that stalls is tried seldom.
func TestPieceChoice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var c pieceChoice
	// run does n appends and counts the long ones of the last half. A load that comes
	// and goes makes all of them slower alike, and one in fifty meets a disk that hangs.
	run := func(n int, short, long float64) (longs int) {
		for i := range n {
			isLong, try := c.next()
			cost := short
			if isLong {
				cost = long
			}
			cost *= 1 + 0.2*rng.Float64() + float64(i/500%3)
			if rng.IntN(50) == 0 {
				cost *= 100
			}
			c.took(try, cost)
			if isLong && i >= n/2 {
				longs++
			}
		}
		return longs
	}
	for i, p := range []struct {
		short, long float64
		least, most int // long ones of 20000
	}{
		{1, 0.8, 18_000, 20_000}, // short is tried, no more
		{1, 3.5, 1, 40},          // long ones stall
		{1, 1, 0, 20_000},        // whichever
		{1, 3.5, 1, 40},
		{1, 0.8, 18_000, 20_000},
	} {
		if longs := run(40_000, p.short, p.long); longs < p.least || longs > p.most {
			t.Errorf("%d: short pieces cost %v and long ones %v: %d of 20000 appends had long ones, want %d to %d", i, p.short, p.long, longs, p.least, p.most)
		}
	}
	// What the one in use begins to cost shows soon.
	isLong := func() bool { return c.long }
	for n := 0; isLong(); n++ {
		if run(1, 1, 3.5); n > 500 {
			t.Fatal("long pieces are still in use 500 appends after they began to stall")
		}
	}
}

// A clock that stands still says nothing.
func TestPieceChoiceWithoutTime(t *testing.T) {
	var c pieceChoice
	for range 100 {
		_, try := c.next()
		if c.took(try, 0); c.long {
			t.Fatal("long pieces for no reason")
		}
	}
}
