package txn

import "sync"

// markerWriters run the calls of WriteMarkers, which wait for disks and
// perhaps for other brokers: at most max at the same time, in the order in which
// they were asked for. The queue is bounded by the transactional ids, each of
// which has at most one call.
type markerWriters struct {
	max int
	mu  struct {
		sync.Mutex
		queue   []func()
		writers int
		idle    sync.Cond // no writers; its lock is the mutex
	}
}

func (w *markerWriters) init(max int) {
	w.max = max
	w.mu.idle.L = &w.mu.Mutex
}

func (w *markerWriters) submit(call func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.queue = append(w.mu.queue, call)
	if w.mu.writers < w.max {
		w.mu.writers++
		go w.run()
	}
}

// wait returns at a moment in which no call runs or waits. Calls may be submitted
// meanwhile, as a sync.WaitGroup that is at zero would not allow.
func (w *markerWriters) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.mu.writers > 0 {
		w.mu.idle.Wait()
	}
}

// run ends when there is nothing to do: an idle coordinator has no goroutines
// here.
func (w *markerWriters) run() {
	for {
		w.mu.Lock()
		if len(w.mu.queue) == 0 {
			if w.mu.writers--; w.mu.writers == 0 {
				w.mu.idle.Broadcast()
			}
			w.mu.Unlock()
			return
		}
		call := w.mu.queue[0]
		w.mu.queue[0] = nil
		w.mu.queue = w.mu.queue[1:]
		w.mu.Unlock()
		call()
	}
}
