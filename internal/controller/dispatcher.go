package controller

import (
	"context"
	"slices"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// dispatcher shows images to watchers, from one goroutine, in order, and in the
// order in which the watchers came: whoever registered first has applied an image
// before the next one sees it. A watcher that is slow is shown fewer images, never
// older ones.
type dispatcher struct {
	follower *follower

	mu struct {
		sync.Mutex
		watchers []*watcher
		// wake is closed and replaced when a watcher came.
		wake chan struct{}
		// shown is the revision that every watcher has seen; told is closed and
		// replaced when it moves.
		shown int64
		told  chan struct{}
	}
}

// watcher is one registered function.
type watcher struct {
	fn   func(prev, next *metadata.Image)
	seen *metadata.Image // the dispatcher's goroutine only

	// mu is held during a call of fn, so that cancel returns when none is under
	// way and none will follow.
	mu       sync.Mutex
	canceled bool
}

func newDispatcher(f *follower) *dispatcher {
	d := &dispatcher{follower: f}
	d.mu.wake, d.mu.told = make(chan struct{}), make(chan struct{})
	return d
}

func (d *dispatcher) watch(fn func(prev, next *metadata.Image)) (cancel func()) {
	w := &watcher{fn: fn}
	d.mu.Lock()
	d.mu.watchers = append(d.mu.watchers, w)
	d.mu.shown = -1 // not everything to everybody any more
	close(d.mu.wake)
	d.mu.wake = make(chan struct{})
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		d.mu.watchers = slices.DeleteFunc(slices.Clone(d.mu.watchers), func(o *watcher) bool { return o == w })
		d.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.canceled = true
	}
}

func (d *dispatcher) run(ctx context.Context) {
	for {
		d.mu.Lock()
		watchers, wake := slices.Clone(d.mu.watchers), d.mu.wake
		d.mu.Unlock()
		img, changed := d.follower.latest()
		for _, w := range watchers {
			if ctx.Err() != nil {
				return
			}
			w.show(img)
		}
		d.mu.Lock()
		if d.mu.wake == wake && img.Revision > d.mu.shown { // nobody came meanwhile
			d.mu.shown = img.Revision
			close(d.mu.told)
			d.mu.told = make(chan struct{})
		}
		d.mu.Unlock()
		select {
		case <-changed:
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) show(img *metadata.Image) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.canceled || w.seen == img {
		return
	}
	prev := w.seen
	w.seen = img
	w.fn(prev, img)
}

// wait returns when every watcher has seen revision.
func (d *dispatcher) wait(ctx context.Context, revision int64) error {
	for {
		d.mu.Lock()
		shown, told := d.mu.shown, d.mu.told
		d.mu.Unlock()
		if shown >= revision {
			return nil
		}
		select {
		case <-told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
