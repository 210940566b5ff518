package partition

// Waiter is one parked fetch. It may wait at many partitions at once; its
// channel holds one signal, so a burst of appends wakes it once.
type Waiter struct {
	C chan struct{}
}

// NewWaiter makes a waiter that no partition knows yet.
func NewWaiter() *Waiter { return &Waiter{C: make(chan struct{}, 1)} }

func (w *Waiter) wake() {
	select {
	case w.C <- struct{}{}:
	default:
	}
}

// AddWaiter makes the partition signal w when data becomes readable, when the
// last stable offset moves, and when leadership or the partition itself goes.
// The caller must read the partition once after adding, or it may miss what
// came in between.
func (p *Partition) AddWaiter(w *Waiter) {
	p.waiters.Lock()
	if p.waiters.set == nil {
		p.waiters.set = make(map[*Waiter]struct{})
	}
	p.waiters.set[w] = struct{}{}
	p.waiters.Unlock()
}

// RemoveWaiter is safe to call for a waiter that was never added.
func (p *Partition) RemoveWaiter(w *Waiter) {
	p.waiters.Lock()
	delete(p.waiters.set, w)
	p.waiters.Unlock()
}

// wake signals the waiters. What they wait for is above or below the high
// watermark; followers wait for the log's end and have wakeFollowers.
func (p *Partition) wake() {
	p.waiters.Lock()
	for w := range p.waiters.set {
		w.wake()
	}
	p.waiters.Unlock()
}
