package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// fetcherKey says which partitions share a fetcher.
type fetcherKey struct {
	leader  int32
	slot    int
	durable bool // their leaders wait for our disk
}

// fetcher is one connection to one leader.
type fetcher struct {
	key     fetcherKey
	worker  *pipeline.Worker
	flushes *flushes
	// patience belongs to the worker's goroutine.
	patience *patience
	users    int // of the Manager's loop
}

func (m *Manager) newFetcher(key fetcherKey) *fetcher {
	f := &fetcher{key: key, flushes: &flushes{clock: m.o.Clock}, patience: newPatience(m.o.Silence, m.o.Timeout)}
	f.worker = m.newWorker(pipeline.WorkerOptions{
		Open: func(ctx context.Context) (sdk.Session, error) {
			s, err := m.open(ctx, key.leader)
			if err != nil {
				return nil, err
			}
			return m.heard(f, s), nil
		},
		MaxWait: m.o.MaxWait, MinBytes: m.o.MinBytes, MaxBytes: m.o.MaxBytes, PartitionMaxBytes: m.o.PartitionMaxBytes,
		Backoff: notYetBackoff, Settle: f.flushes.settle, Logger: m.o.Logger, Clock: m.o.Clock,
	}, f)
	f.flushes.poke = f.worker.Poke
	return f
}

// open makes the session of a fetcher. An outage is told once, when it begins, and
// once when it is over.
func (m *Manager) open(ctx context.Context, leader int32) (sdk.Session, error) {
	s, err := m.session(ctx, leader)
	if errors.Is(err, context.Canceled) {
		return nil, err
	}
	m.outages.Lock()
	before := m.outages.since[leader]
	if err == nil {
		delete(m.outages.since, leader)
	} else if before.IsZero() {
		m.outages.since[leader] = m.o.Clock.Now()
	}
	m.outages.Unlock()
	switch {
	case err == nil && !before.IsZero():
		m.o.Logger.Info("leader is reached again", "leader", leader, "after", m.o.Clock.Now().Sub(before).Round(time.Millisecond))
	case err != nil && before.IsZero():
		m.o.Logger.Warn("leader cannot be reached, its replicas here wait", "leader", leader, "err", err)
	}
	return s, err
}

func (m *Manager) dial(ctx context.Context, leader int32) (sdk.Session, error) {
	client, err := m.o.Dial(ctx, leader)
	if err != nil {
		return nil, err
	}
	return source.NewReplicaSession(client, fmt.Sprintf("lockstep-replica-%d", m.o.NodeID), m.o.Timeout,
		source.Replica{ID: m.o.NodeID, Epoch: m.o.BrokerEpoch})
}

const (
	// settleWait is how long a fetcher waits for the disk before it asks for more
	// without: most fsyncs take less, and a broken disk must not hold up its
	// neighbours.
	settleWait = 20 * time.Millisecond
	// settleBytes is what an answer brings at least when there is more to come.
	settleBytes = 256 << 10
)

// flushes counts the fsyncs that a fetcher's leader waits for.
type flushes struct {
	clock clock.Clock
	poke  func() // ends the fetch under way

	mu   sync.Mutex
	open int
	idle chan struct{} // closed when open falls to 0
	late bool          // the fetcher went on: poke when they are done
}

func (f *flushes) asked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open++; f.open == 1 {
		f.idle = make(chan struct{})
	}
}

func (f *flushes) done() {
	f.mu.Lock()
	f.open--
	poke := false
	if f.open == 0 {
		close(f.idle)
		poke, f.late = f.late, false
	}
	f.mu.Unlock()
	if poke {
		f.poke()
	}
}

// settle waits for the fsyncs that were asked for, unless they take long or more
// records are waiting at the leader.
func (f *flushes) settle(ctx context.Context, bytes int) {
	f.mu.Lock()
	open, idle := f.open, f.idle
	f.mu.Unlock()
	if open == 0 {
		return
	}
	if bytes < settleBytes {
		timer := f.clock.NewTimer(settleWait)
		defer timer.Stop()
		select {
		case <-idle:
			return
		case <-timer.C():
		case <-ctx.Done():
			return
		}
	}
	f.mu.Lock()
	f.late = f.open > 0
	f.mu.Unlock()
}
