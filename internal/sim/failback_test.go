package sim

import (
	"fmt"
	"testing"
)

// E1, E2: the base cycle with exact logs. A: 0-2, an election, 3-5. B mirrors and is
// stopped; B and A both write on; A follows B.
//
// MIR-150, MIR-152, MIR-153: A's surplus is cut, whether it has an epoch of its own or
// the last mirrored one; B's records come, and A is B on every replica.
func TestPlayFailback(t *testing.T) {
	for _, elects := range []bool{false, true} {
		t.Run(fmt.Sprintf("election before the surplus %v", elects), func(t *testing.T) {
			p := newPlay(t, 1)
			p.write(p.a, 3)
			p.elect(p.a)
			e1 := p.partition(p.a).LeaderEpoch
			p.write(p.a, 3)
			p.follows(p.b)
			p.stop(p.b)
			if r := p.record(p.b); r.LME != e1 || r.LMO != 6 {
				p.fatal("last mirrored: %+v", r)
			}
			if elects {
				p.elect(p.a)
			}
			p.write(p.a, 2)
			p.write(p.b, 1)
			d := p.partition(p.b).LeaderEpoch
			p.follows(p.a)
			p.holds(fmt.Sprintf("0@0 1@0 2@0 3@%d 4@%d 5@%d 6@%dR 7@%d", e1, e1, e1, d, d), p.a, p.b)
			if n := p.cuts(p.a); n != 1 {
				p.fatal("A was cut %d times", n)
			}
			p.settles()
		})
	}
}
