package segment

import (
	"io"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// writePiece is how much of an append one write call has when writes are short. For
// a longer one the kernel looks for pages that lie together, and where its cache has
// filled the memory, as it does on any server, it moves other pages away first: half
// of the time that an append took, with stalls of milliseconds. Eight pages it finds
// without: an order that it does not call costly.
const writePiece = 32 << 10

// longPiece is it when they are long: where the kernel has pages that lie together, a
// long append costs a fifth less than in short pieces.
const longPiece = 1 << 20

// writeAt writes b in pieces that end where pages of their size do. What is no longer
// than a piece is one call: for a short one the kernel asks for no more pages.
func writeAt(f io.WriterAt, b []byte, at int64, piece int) error {
	for len(b) > 0 {
		n := len(b)
		if n > piece {
			n = piece - int(at%int64(piece))
		}
		if _, err := f.WriteAt(b[:n], at); err != nil {
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// pieces writes the appends of a store, long ones in pieces of the size that costs
// less at present. No figure of the kernel's says which, so it tries.
type pieces struct {
	clock clock.Clock
	mu    struct {
		sync.Mutex // not held over a write
		pieceChoice
	}
}

// triedFrom is how long an append has to be for the size of its pieces to matter.
const triedFrom = 4 * writePiece

func (p *pieces) write(f io.WriterAt, b []byte, at int64) error {
	if len(b) < triedFrom {
		return writeAt(f, b, at, writePiece)
	}
	p.mu.Lock()
	long, try := p.mu.next()
	p.mu.Unlock()
	piece := writePiece
	if long {
		piece = longPiece
	}
	began := p.clock.Now()
	err := writeAt(f, b, at, piece)
	took := p.clock.Now().Sub(began)
	p.mu.Lock()
	p.mu.took(try, float64(took)/float64(len(b)))
	p.mu.Unlock()
	return err
}

// pieceChoice learns from what appends took. Every now and then it tries the size that
// is not in use, less and less often while that costs more, and uses it where it costs
// less. Short ones are tried often, as they cost little more at worst; long ones, which
// may stall, down to one append in thousands.
//
// The zero value begins with short ones.
type pieceChoice struct {
	long  bool    // the size that is in use
	cost  float64 // an average of what it takes per byte, 0 if not known
	other float64 // what the other one costs by it, likewise
	since int     // appends since the other one was tried
	every int     // appends from one try to the next, 0 is firstTry
}

const (
	firstTry     = 16
	lastTryShort = 64
	lastTryLong  = 2048

	// gain is how much less the other has to cost. One try never says so, within
	// these bounds: the machine may have done something else meanwhile.
	gain              = 0.95
	leastTry, mostTry = 0.85, 1.5
)

// next is the size for an append, and whether it is a try.
func (c *pieceChoice) next() (long, try bool) {
	if c.since++; c.since < max(c.every, firstTry) {
		return c.long, false
	}
	c.since = 0
	return !c.long, true
}

// took is told what an append took per byte. What is out of all proportion counts
// twice the usual: a disk that hangs says nothing of pages.
func (c *pieceChoice) took(try bool, cost float64) {
	switch {
	case c.cost == 0:
		if !try {
			c.cost = cost
		}
		return
	case !try:
		c.cost += (min(cost, 2*c.cost) - c.cost) / 8
		return
	case c.other == 0:
		c.other = 1
	}
	c.other += (min(max(cost/c.cost, leastTry), mostTry) - c.other) / 4
	if c.other < gain {
		c.long, c.cost, c.other, c.every = !c.long, c.cost*c.other, 1/c.other, firstTry
		return
	}
	last := lastTryLong
	if c.long {
		last = lastTryShort
	}
	c.every = min(2*max(c.every, firstTry), last)
}
