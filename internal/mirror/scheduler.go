package mirror

import (
	"context"
	"sync"
	"time"
)

// scheduler runs what may block: actions, refreshes, calls of the controller. The
// nil one, which production has, lets each have a goroutine. That of a [Manual] lets
// one run at a time, up to the next place at which it has to wait.
type scheduler struct {
	spawn func(fn func())
	park  func(ready func() bool)
}

// run begins fn beside its caller.
func (s *scheduler) run(fn func()) {
	if s == nil {
		go fn()
		return
	}
	s.spawn(fn)
}

// until stands before each select that blocks, and names the same things: where one
// runs at a time, the others do until ready. It must not have any effect.
func (s *scheduler) until(ready func() bool) {
	if s != nil {
		s.park(ready)
	}
}

// wait waits for goroutines. What a Manual runs ends by its context.
func (s *scheduler) wait(done *sync.WaitGroup) {
	if s == nil {
		done.Wait()
	}
}

// within bounds a call of the source by time. In a simulation, which has a time of
// its own, the source does that itself.
func (s *scheduler) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if s == nil {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// await takes what comes on ch, unless ctx ends before.
func await[T any](ctx context.Context, s *scheduler, ch <-chan T) (T, error) {
	s.until(func() bool { return len(ch) > 0 || ctx.Err() != nil })
	select {
	case v := <-ch:
		return v, nil
	default:
	}
	select {
	case v := <-ch:
		return v, nil
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
