package sim

import (
	"errors"
	"time"
)

// network carries calls between nodes. A call is a request and an answer on a
// connection: answers of one caller come in any order, a request that was lost is
// never heard of, and one that is late may be heard of long after its caller gave up.
type network struct {
	l *loop
	// cut says that nothing gets from one node to another: a partition may be one way.
	cut map[[2]int32]bool
	// loss, slow are the shares of messages that are lost and that take long.
	loss, slow float64
	base       time.Duration
	lost       int
	late       map[int32]time.Duration // of a node's next message to a controller
	fifo       map[int64]time.Duration // last arrival of ordered connections
	gens       map[int64]int           // of the process at their far end
}

// broken is the last arrival on a connection that brings nothing any more.
const broken = time.Duration(1<<63 - 1)

var (
	errTimeout = errors.New("sim: no answer in time")
	errRefused = errors.New("sim: connection refused")
)

func newNetwork(l *loop) *network {
	return &network{l: l, cut: map[[2]int32]bool{}, late: map[int32]time.Duration{}, fifo: map[int64]time.Duration{}, gens: map[int64]int{}, base: 300 * time.Microsecond}
}

// delay draws how long a message takes; false: it gets lost.
func (n *network) delay(from, to int32) (time.Duration, bool) {
	if n.cut[[2]int32{from, to}] || n.l.chance(n.loss) {
		n.lost++
		return 0, false
	}
	d := n.base + n.l.between(0, n.base)
	if n.l.chance(n.slow) {
		d += n.l.between(0, 3*time.Second)
		if n.l.chance(0.2) { // longer than anybody waits for an answer
			d += n.l.between(0, 6*time.Second)
		}
	}
	if late, ok := n.late[from]; ok && to > officesFrom && to < storeNode {
		delete(n.late, from)
		d += late
	}
	return d, true
}

// send brings a message; conn, if not 0, keeps the order of messages.
func (n *network) send(from int32, to *proc, conn int64, fn func()) bool {
	d, ok := n.delay(from, to.node)
	if gen, known := n.gens[conn]; conn != 0 && known && gen != to.gen || !to.up {
		ok = false
	}
	n.gens[conn] = to.gen
	if !ok || n.fifo[conn] == broken {
		if conn != 0 {
			// What is lost on a connection takes all with it that comes after.
			n.fifo[conn], n.fifo[-conn] = broken, broken
		}
		return false
	}
	if conn != 0 {
		at := max(n.l.now+d, n.fifo[conn]+1)
		n.fifo[conn] = at
		d = at - n.l.now
	}
	n.l.after(d, to, fn)
	return true
}

// call asks to, and tells from what came of it: exactly once, while from lives.
func (n *network) call(from, to *proc, timeout time.Duration, serve func(reply func(any)), heard func(any, error)) {
	n.ordered(from, to, 0, timeout, serve, heard)
}

func (n *network) ordered(from, to *proc, conn int64, timeout time.Duration, serve func(reply func(any)), heard func(any, error)) {
	done := new(bool)
	gen := from.gen
	finish := func(v any, err error) {
		if !*done && from.gen == gen { // not in the process after
			*done = true
			heard(v, err)
		}
	}
	if !to.up && !n.cut[[2]int32{from.node, to.node}] {
		n.l.after(2*n.base, from, func() { finish(nil, errRefused) })
		return
	}
	n.send(from.node, to, conn, func() {
		serve(func(v any) {
			n.send(to.node, from, -conn, func() { finish(v, nil) })
		})
	})
	n.l.unless(done, timeout, from, func() { finish(nil, errTimeout) })
}

// isolate cuts a node off from others, both ways or one.
func (n *network) isolate(from, to int32, cut bool) { n.cut[[2]int32{from, to}] = cut }

func (n *network) heal() { clear(n.cut) }
