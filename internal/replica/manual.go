package replica

import (
	"context"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Manual is a manager without goroutines, for the simulation: its loop runs when it is
// told to, and its fetchers are driven by hand.
type Manual struct {
	m *Manager
}

// ManualHooks are the world of a Manual.
type ManualHooks struct {
	// Fetcher is told of each new one.
	Fetcher func(*Fetcher)
	// Spawn runs work later: it may wait for the disk.
	Spawn func(work func())
	// Session connects to a leader.
	Session func(leader int32) (sdk.Session, error)
}

// Fetcher is one connection to a leader.
type Fetcher struct {
	*pipeline.Manual
	Leader  int32
	flushes *flushes
}

// Unsynced tells whether appends of this fetcher are on their way to the disk, for
// which its leader waits. The next request had better wait a moment: see settleWait.
func (f *Fetcher) Unsynced() bool {
	f.flushes.mu.Lock()
	defer f.flushes.mu.Unlock()
	return f.flushes.open > 0
}

// GoOn notes that the next request does not wait. poke is called when all that the
// leader waits for is on disk.
func (f *Fetcher) GoOn(poke func()) {
	f.flushes.mu.Lock()
	defer f.flushes.mu.Unlock()
	f.flushes.poke, f.flushes.late = poke, f.flushes.open > 0
}

// NewManual makes a manager that follows nobody.
func NewManual(o Options, h ManualHooks) *Manual {
	m := newManager(o)
	m.spawn = h.Spawn
	m.session = func(_ context.Context, leader int32) (sdk.Session, error) { return h.Session(leader) }
	m.newWorker = func(o pipeline.WorkerOptions, f *fetcher) *pipeline.Worker {
		w := pipeline.NewManual(o)
		h.Fetcher(&Fetcher{w, f.key.leader, f.flushes})
		return w.Worker
	}
	return &Manual{m}
}

// Apply is Manager.Apply.
func (m *Manual) Apply(next *metadata.Image) { m.m.Apply(next) }

// Handle does what is to be done now.
func (m *Manual) Handle() { m.m.handle() }
