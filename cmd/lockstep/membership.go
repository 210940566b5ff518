package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// office is what a member asks of the controller.
type office interface {
	RegisterBroker(ctx context.Context, r controller.RegisterBroker) (brokerEpoch int64, err error)
	Heartbeat(ctx context.Context, hb controller.Heartbeat) (controller.HeartbeatResult, error)
}

type memberOptions struct {
	Office       office
	Registration controller.RegisterBroker
	Applied      func() int64 // revision of the image that all watchers have been shown
	// Unusable are replicas here that cannot be used, and those of them that others can
	// replace.
	Unusable func() ([]controller.UnusableReplicas, []controller.OfflineReplica)
	// Others tells whether the cluster has other brokers.
	Others func() bool
	// Interval lies between two heartbeats, Session after the last one that was
	// answered the broker counts as gone.
	Interval, Session time.Duration
	Clock             clock.Clock
	Logger            *slog.Logger
	// Fail ends this process: the cluster is not the one that it knows.
	Fail func(error)
}

// member keeps this broker in its cluster: it registers, sends heartbeats from a
// goroutine of its own, so that nothing slow delays them, and registers anew when
// the controller does not know it any more.
type member struct {
	o     memberOptions
	epoch atomic.Int64
	// until is when the session of the last answered heartbeat ends, counted from
	// when that was sent: the controller counts from later. In nanoseconds since base.
	until atomic.Int64
	base  time.Time

	kick   chan struct{} // cap 1: send a heartbeat now
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards what follows.
	mu       sync.Mutex
	stopping bool // ask for leaders to be moved
	state    controller.HeartbeatResult
	changed  chan struct{} // closed and replaced with each answer
	lost     bool          // the last heartbeat was not answered
}

func newMember(o memberOptions) *member {
	m := &member{o: o, base: o.Clock.Now(), kick: make(chan struct{}, 1), changed: make(chan struct{}), cancel: func() {}}
	m.state.Fenced = true
	m.until.Store(-1)
	return m
}

// join registers, until it succeeds or ctx ends, and starts the heartbeats.
func join(ctx context.Context, o memberOptions) (*member, error) {
	m := newMember(o)
	if err := m.register(ctx); err != nil {
		return nil, err
	}
	ctx, m.cancel = context.WithCancel(context.Background())
	m.wg.Go(func() { m.run(ctx) })
	return m, nil
}

// registerPause lies between two tries to register.
const registerPause = 100 * time.Millisecond

// register tries again what may come right by itself: there is no controller for a
// moment, or the process before this one is taken for alive.
func (m *member) register(ctx context.Context) error {
	for said := false; ; {
		epoch, err := m.o.Office.RegisterBroker(ctx, m.o.Registration)
		if err == nil {
			m.epoch.Store(epoch)
			// In this process nothing gets lost that another registration would have
			// to tell of.
			m.o.Registration.PreviousEpoch = epoch
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, controller.ErrDuplicateBroker) && !errors.Is(err, controller.ErrNotController) {
			return err
		}
		if !said {
			said = true
			m.o.Logger.Warn("registration waits", "err", err)
		}
		if !m.sleep(ctx, registerPause) {
			return err
		}
	}
}

// Epoch is the broker epoch.
func (m *member) Epoch() int64 { return m.epoch.Load() }

// Lease tells whether nobody else can be taken for a leader of what this broker
// leads: the controller has answered within the session, or there is nobody else.
func (m *member) Lease() bool {
	return int64(m.o.Clock.Now().Sub(m.base)) < m.until.Load() || !m.o.Others()
}

// Fenced tells whether the controller takes this broker for gone.
func (m *member) Fenced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Fenced
}

// wake sends a heartbeat without waiting for its time.
func (m *member) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *member) run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := m.o.Interval
		if !m.beat(ctx) {
			pause = min(pause, registerPause)
		}
		t := m.o.Clock.NewTimer(pause)
		select {
		case <-t.C():
		case <-m.kick:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// beat sends one heartbeat and takes its answer in. It tells whether there was one.
func (m *member) beat(ctx context.Context) bool {
	m.mu.Lock()
	hb := controller.Heartbeat{Broker: m.o.Registration.ID, Epoch: m.epoch.Load(), Revision: m.o.Applied(), WantShutdown: m.stopping}
	m.mu.Unlock()
	hb.Unusable, hb.Offline = m.o.Unusable() // after the revision: what of it cannot be opened is among them
	sent := m.o.Clock.Now().Sub(m.base)
	// A controller that hangs must not take the time in which another could answer.
	try, cancel := context.WithTimeout(ctx, m.o.Session/2)
	defer cancel()
	res, err := m.o.Office.Heartbeat(try, hb)
	switch {
	case err == nil:
		m.answered(res, sent)
		return true
	case ctx.Err() != nil:
		return false
	case errors.Is(err, controller.ErrStaleBrokerEpoch), errors.Is(err, controller.ErrUnknownBroker):
		m.o.Logger.Warn("the controller does not know this broker as it is; registering anew", "epoch", hb.Epoch, "err", err)
		m.until.Store(-1)
		if err := m.register(try); errors.Is(err, controller.ErrOtherMetadata) {
			m.o.Fail(err)
			return true // there is no hurry any more
		} else if err != nil {
			m.o.Logger.Warn("registration failed", "err", err)
			return false
		}
		return true
	}
	m.mu.Lock()
	first := !m.lost
	m.lost = true
	m.mu.Unlock()
	if first {
		m.o.Logger.Warn("heartbeat is not answered", "err", err)
	}
	return false
}

func (m *member) answered(res controller.HeartbeatResult, sent time.Duration) {
	until := sent + m.o.Session
	if res.Fenced {
		until = -1
	}
	m.until.Store(int64(until))
	m.mu.Lock()
	was, lost := m.state, m.lost
	m.state, m.lost = res, false
	close(m.changed)
	m.changed = make(chan struct{})
	m.mu.Unlock()
	if lost {
		m.o.Logger.Info("heartbeats are answered again")
	}
	if was.Fenced != res.Fenced {
		m.o.Logger.Info("fence", "fenced", res.Fenced, "epoch", m.epoch.Load())
	}
}

// wait waits for an answer that satisfies ok.
func (m *member) wait(ctx context.Context, ok func(controller.HeartbeatResult) bool) error {
	for {
		m.mu.Lock()
		state, changed := m.state, m.changed
		m.mu.Unlock()
		if ok(state) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitUnfenced waits until the controller takes this broker for alive.
func (m *member) waitUnfenced(ctx context.Context) error {
	return m.wait(ctx, func(r controller.HeartbeatResult) bool { return !r.Fenced })
}

// handOver asks for leaders elsewhere and waits until they are, for at most tries
// times each. It tells whether somebody else leads now. Without others there is nothing
// to wait for.
func (m *member) handOver(ctx context.Context, tries int, each time.Duration) bool {
	if !m.o.Others() {
		return false
	}
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	began := m.o.Clock.Now()
	for try := range tries + 1 {
		m.wake()
		one, cancel := context.WithTimeout(ctx, each)
		err := m.wait(one, func(r controller.HeartbeatResult) bool { return r.ShouldShutdown })
		cancel()
		if err == nil {
			m.o.Logger.Info("others lead what this broker led", "after", m.o.Clock.Now().Sub(began))
			return true
		}
		m.o.Logger.Warn("controlled shutdown is not through", "try", try+1, "err", err)
		if ctx.Err() != nil {
			break
		}
	}
	return false
}

// farewell bounds the last heartbeat: where a whole cluster is stopped nobody may be
// left to hear it.
const farewell = time.Second

// leave ends the heartbeats, and tells the controller not to wait for the session's
// end. To be called when nothing is served any more.
func (m *member) leave(ctx context.Context) {
	m.cancel()
	m.wg.Wait()
	m.until.Store(-1)
	if !m.o.Others() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	_, err := m.o.Office.Heartbeat(ctx, controller.Heartbeat{
		Broker: m.o.Registration.ID, Epoch: m.epoch.Load(), Revision: m.o.Applied(), WantFence: true,
	})
	if err != nil {
		m.o.Logger.Warn("could not say good bye; the session ends by itself", "err", err)
	}
}

// sleep waits on the clock; false: ctx ended first.
func (m *member) sleep(ctx context.Context, d time.Duration) bool {
	t := m.o.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
