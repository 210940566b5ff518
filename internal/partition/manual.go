package partition

import (
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Disk has the logs of a [Manual], instead of log directories.
type Disk interface {
	// Open opens a log, a new one if there is none.
	Open(id segment.LogID) (Log, error)
	Has(id segment.LogID) bool
	Remove(id segment.LogID) error
}

// Manual is a manager without goroutines: whoever has it does by hand what those
// would do, in an order of his own choice, and gets the same each time. The
// simulation is one; everything else about it is as in a Manager.
type Manual struct {
	*Manager
}

// NewManual makes a manager of logs on disk. AlterISR of o is not called: see
// Proposals. spawn runs work later, which may wait for the disk.
func NewManual(o Options, disk Disk, spawn func(work func())) *Manual {
	m := newManager(o)
	m.disk, m.shared.spawn = disk, spawn
	return &Manual{m}
}

// Apply is Manager.Apply. It tells whether brokers changed, so that Join is due.
func (m *Manual) Apply(prev, next *metadata.Image) {
	m.Manager.Apply(prev, next)
	if prev != nil && !slices.Equal(prev.Brokers(), next.Brokers()) {
		m.shared.join()
	}
}

// CheckISR is due twice in ReplicaLag.
func (m *Manual) CheckISR() { m.shared.check() }

// Retain is due as often as retention is checked.
func (m *Manual) Retain() { m.retainAll() }

// ExpireAcks is due four times a second.
func (m *Manual) ExpireAcks() { m.shared.expireOnce() }

// Proposals are changes of ISRs that the controller is to be asked for in one call.
type Proposals struct {
	Changes []ISRChange
	queue   []isrProposal
}

// Proposals takes what waits for the controller; nothing is asked before the call
// before it was answered.
func (m *Manual) Proposals() *Proposals {
	queue, changes := m.shared.take()
	if len(queue) == 0 {
		return nil
	}
	return &Proposals{changes, queue}
}

// Answer hears the controller. again says that Retry is due after a pause.
func (m *Manual) Answer(p *Proposals, results []ISRResult) (again bool) {
	return m.shared.settle(p.queue, results)
}

// Retry proposes again what was not answered.
func (m *Manual) Retry() { m.shared.retry() }

// place, holds and removeLog are of the log directories, where there are any.

func (m *Manager) place(id segment.LogID, old bool) (*logDir, error) {
	if m.disk != nil {
		return nil, nil
	}
	return m.dirs.place(id, old)
}

func (m *Manager) holds(id segment.LogID) bool {
	if m.disk != nil {
		return m.disk.Has(id)
	}
	return m.dirs.holds(id)
}

func (m *Manager) removeLog(id segment.LogID, dir *logDir) error {
	if m.disk != nil {
		return m.disk.Remove(id)
	}
	return m.dirs.remove(id, dir)
}
