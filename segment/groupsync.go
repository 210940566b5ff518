package segment

import "sync"

// groupSync has those who want the same thing synced at the same time share one sync:
// who asks is answered by one that began after that. Three thousand logs that are cut at
// once note so in one file, and are kept in one directory.
type groupSync struct {
	mu   sync.Mutex
	over sync.Cond   // busy has become false
	busy bool        // a sync is under way
	next *sharedSync // takes more who ask; nil: nobody waits
}

type sharedSync struct {
	done chan struct{}
	err  error // valid when done is closed
}

// do calls sync, or waits for the call of somebody else that begins after now.
func (g *groupSync) do(sync func() error) error {
	g.mu.Lock()
	if s := g.next; s != nil {
		g.mu.Unlock()
		<-s.done
		return s.err
	}
	s := &sharedSync{done: make(chan struct{})}
	g.next = s
	if g.over.L == nil {
		g.over.L = &g.mu
	}
	for g.busy {
		g.over.Wait()
	}
	g.busy, g.next = true, nil // who asks from here on may have written after this sync began
	g.mu.Unlock()

	s.err = sync()
	close(s.done)

	g.mu.Lock()
	g.busy = false
	g.over.Signal()
	g.mu.Unlock()
	return s.err
}
