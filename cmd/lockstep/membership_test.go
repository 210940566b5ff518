package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// fakeOffice answers by script.
type fakeOffice struct {
	register func(controller.RegisterBroker) (int64, error)
	beat     func(controller.Heartbeat) (controller.HeartbeatResult, error)

	mu    sync.Mutex
	beats []controller.Heartbeat
}

func (f *fakeOffice) RegisterBroker(_ context.Context, r controller.RegisterBroker) (int64, error) {
	return f.register(r)
}

func (f *fakeOffice) Heartbeat(_ context.Context, hb controller.Heartbeat) (controller.HeartbeatResult, error) {
	f.mu.Lock()
	f.beats = append(f.beats, hb)
	f.mu.Unlock()
	return f.beat(hb)
}

func (f *fakeOffice) last() controller.Heartbeat {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beats[len(f.beats)-1]
}

func (f *fakeOffice) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.beats)
}

func registers(epoch int64) func(controller.RegisterBroker) (int64, error) {
	return func(controller.RegisterBroker) (int64, error) { return epoch, nil }
}

func newTestMember(t *testing.T, f *fakeOffice, clk clock.Clock, others bool) *member {
	t.Helper()
	m := newMember(memberOptions{
		Office: f, Registration: controller.RegisterBroker{ID: 1, PreviousEpoch: noCleanStop}, Applied: func() int64 { return 9 },
		Unusable: func() ([]controller.UnusableReplicas, []controller.OfflineReplica) { return nil, nil },
		Others:   func() bool { return others }, Interval: 500 * time.Millisecond, Session: 3 * time.Second,
		Clock: clk, Logger: slog.New(slog.DiscardHandler),
	})
	if err := m.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// The lease ends a session after the last answered heartbeat was sent, however long
// the answer took: the controller counts from when it came there, which is later.
func TestLease(t *testing.T) {
	clk := clock.NewManual(time.Unix(1000, 0))
	f := &fakeOffice{register: registers(5)}
	m := newTestMember(t, f, clk, true)
	if m.Lease() {
		t.Error("a lease before the first answer")
	}
	f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
		clk.Advance(time.Second) // on the way
		return controller.HeartbeatResult{}, nil
	}
	if !m.beat(t.Context()) {
		t.Fatal("no answer")
	}
	if hb := f.last(); hb.Broker != 1 || hb.Epoch != 5 || hb.Revision != 9 || hb.WantShutdown || hb.WantFence {
		t.Errorf("%+v", hb)
	}
	clk.Advance(2*time.Second - 1)
	if !m.Lease() {
		t.Error("the lease ended before its time")
	}
	clk.Advance(1)
	if m.Lease() {
		t.Error("a lease after the session")
	}
	// An error does not prolong it; an answer does, unless it says that the broker
	// counts as gone.
	f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
		return controller.HeartbeatResult{}, controller.ErrNotController
	}
	if m.beat(t.Context()) || m.Lease() {
		t.Error("an error counts as an answer")
	}
	f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
		return controller.HeartbeatResult{}, nil
	}
	if !m.beat(t.Context()) || !m.Lease() {
		t.Error("no lease after an answer")
	}
	f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
		return controller.HeartbeatResult{Fenced: true}, nil
	}
	if !m.beat(t.Context()) || m.Lease() || !m.Fenced() {
		t.Error("a lease while fenced")
	}
	// Who is alone need ask nobody.
	if alone := newTestMember(t, f, clk, false); !alone.Lease() {
		t.Error("no lease for the only broker")
	}
}

// A controller that knows another registration, or none, is registered with anew; it
// hears that nothing was lost in between.
func TestRegistersAnew(t *testing.T) {
	for _, cause := range []error{controller.ErrStaleBrokerEpoch, controller.ErrUnknownBroker} {
		f := &fakeOffice{register: registers(5)}
		m := newTestMember(t, f, clock.System(), true)
		f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
			return controller.HeartbeatResult{}, cause
		}
		var again controller.RegisterBroker
		f.register = func(r controller.RegisterBroker) (int64, error) {
			again = r
			return 8, nil
		}
		if !m.beat(t.Context()) || m.Epoch() != 8 || again.PreviousEpoch != 5 || m.Lease() {
			t.Errorf("%v: epoch %d, registered as %+v", cause, m.Epoch(), again)
		}
	}
}

// While another process holds the broker's place, or there is no controller, a start
// waits; what will not come right by itself ends it.
func TestRegistrationWaits(t *testing.T) {
	answers := []error{controller.ErrDuplicateBroker, controller.ErrNotController, nil}
	f := &fakeOffice{register: func(controller.RegisterBroker) (int64, error) {
		err := answers[0]
		answers = answers[1:]
		return 5, err
	}}
	if m := newTestMember(t, f, clock.System(), true); m.Epoch() != 5 || len(answers) != 0 {
		t.Errorf("epoch %d, %d answers left", m.Epoch(), len(answers))
	}
	answers = []error{controller.ErrInvalidRequest}
	m := newMember(memberOptions{Office: f, Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)})
	if err := m.register(t.Context()); !errors.Is(err, controller.ErrInvalidRequest) {
		t.Errorf("refused: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.register = func(controller.RegisterBroker) (int64, error) {
		cancel()
		return 0, controller.ErrDuplicateBroker
	}
	if err := m.register(ctx); !errors.Is(err, controller.ErrDuplicateBroker) {
		t.Errorf("given up: %v", err)
	}
}

// A controlled shutdown asks until the leaders are elsewhere, and no longer than it
// may; a broker alone has nobody to hand over to, or to tell that it goes.
func TestHandOver(t *testing.T) {
	f := &fakeOffice{register: registers(5)}
	asked := 0
	f.beat = func(hb controller.Heartbeat) (controller.HeartbeatResult, error) {
		if hb.WantShutdown {
			asked++
		}
		return controller.HeartbeatResult{ShouldShutdown: asked >= 3}, nil
	}
	m := newTestMember(t, f, clock.System(), true)
	m.o.Interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	m.cancel = cancel
	m.wg.Go(func() { m.run(ctx) })
	m.handOver(t.Context(), 0, time.Minute)
	m.leave(t.Context())
	if hb := f.last(); asked < 3 || !hb.WantFence || m.Lease() {
		t.Errorf("asked %d times, last %+v", asked, hb)
	}

	f.beat = func(controller.Heartbeat) (controller.HeartbeatResult, error) {
		return controller.HeartbeatResult{}, controller.ErrNotController
	}
	m = newTestMember(t, f, clock.System(), true)
	m.handOver(t.Context(), 2, time.Millisecond) // returns
	n := f.count()
	m = newTestMember(t, f, clock.System(), false)
	m.handOver(t.Context(), 2, time.Hour)
	m.leave(t.Context())
	if f.count() != n {
		t.Error("a broker alone asks for leaders elsewhere")
	}
}
