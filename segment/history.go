package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

// history is what the index should have known of a log and does not: the epochs,
// producers and times of its batches, and where they are. They are gathered by
// one walk over the log, in log order and beside the appends, which it
// overtakes: only for the last bytes it holds the log's lock. So there is nothing to
// merge, and what comes out is what a recovery that made everybody wait would
// have found.
//
// Until then the log takes appends and serves reads by offset; what needs the
// history answers ErrRebuilding or waits. Nothing is ever concluded from a
// history that is not complete.
type history struct {
	l    *Log
	cuts uint64

	// How far it is: everything before the segment that begins at base, and of that
	// the part in walked. begun is where the walk over that segment began: what
	// the index knows of the part before it holds.
	base      int64
	begun     struct{ pos, offset int64 }
	walked    walked
	epochs    epoch.Cache
	producers *producer.Table

	asked atomic.Bool // somebody waits for it

	mu struct {
		sync.Mutex
		done    bool
		err     error // why it could not be gathered
		waiting []func(error)
	}
}

// catchUp is how near to the log end the walk has to be before it holds the
// log's lock for the rest: headers of so many bytes take a millisecond or two.
const catchUp = 1 << 20

func newHistory(r *recovery) *history {
	s := r.segments[min(r.at, len(r.segments)-1)]
	h := &history{l: r.l, cuts: r.l.cuts.Load(), base: s.base, walked: r.walked, epochs: r.epochs, producers: r.producers}
	h.begun.pos, h.begun.offset = r.walked.size, r.walked.end
	return h
}

// Ready is nil when everything about the log is known. ErrRebuilding means that
// it is being gathered; the asking brings the log to the head of the queue.
// Another error is why it cannot be: a *DamageError, mostly.
func (l *Log) Ready() error {
	h := l.history.Load()
	if h == nil || invariants.Planted("historyUnknownAsEmpty") {
		return nil
	}
	h.mu.Lock()
	done, err := h.mu.done, h.mu.err
	h.mu.Unlock()
	if done {
		return err
	}
	l.store.gather.ask(h)
	return fmt.Errorf("%w: %s", ErrRebuilding, l.id)
}

// WhenReady calls done once when everything about the log is known, or with the
// error that prevents it: at once, or on a goroutine of the store, which it must
// not hold up.
func (l *Log) WhenReady(done func(error)) {
	h := l.history.Load()
	if h == nil {
		done(nil)
		return
	}
	h.mu.Lock()
	if !h.mu.done {
		h.mu.waiting = append(h.mu.waiting, done)
		h.mu.Unlock()
		return
	}
	err := h.mu.err
	h.mu.Unlock()
	done(err)
}

// Wait waits until everything about the log is known.
func (l *Log) Wait(ctx context.Context) error {
	h := l.history.Load()
	if h == nil || invariants.Planted("historyUnknownAsEmpty") {
		return nil
	}
	l.store.gather.ask(h)
	done := make(chan error, 1)
	l.WhenReady(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end tells all who wait.
func (h *history) end(err error) {
	h.mu.Lock()
	waiting := h.mu.waiting
	h.mu.done, h.mu.err, h.mu.waiting = true, err, nil
	h.mu.Unlock()
	for _, done := range waiting {
		done(err)
	}
}

// gather walks until everything is known. stop says that the store closes.
func (h *history) gather(stop func() bool) error {
	l := h.l
	for {
		if l.store.o.gate != nil {
			l.store.o.gate(l)
		}
		invariants.Fault("segment.gatherHistory")
		if stop() {
			return fmt.Errorf("%w: %s", ErrClosed, l.id)
		}
		s, size, last, err := h.next()
		switch {
		case err != nil:
			return err
		case s == nil: // the log changed under us
		case last && size-h.walked.size <= catchUp:
			done, err := h.finish()
			if done || err != nil {
				return err
			}
		default:
			if err := h.walk(s, size, stop); err != nil {
				if errors.Is(err, ErrClosed) || l.cuts.Load() != h.cuts {
					continue // removed, or another file now
				}
				return err
			}
			if !last {
				if err := h.closed(s); err != nil {
					return err
				}
			}
		}
	}
}

// next is the segment to go on with. After a replacement of files everything is
// walked anew.
func (h *history) next() (s *segment, size int64, last bool, err error) {
	l := h.l
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed || l.history.Load() != h { // another recovery, after a repair
		return nil, 0, false, fmt.Errorf("%w: %s", ErrClosed, l.id)
	}
	if cuts := l.cuts.Load(); cuts != h.cuts {
		h.cuts, h.epochs, h.producers = cuts, epoch.Cache{}, producer.New()
		h.enter(l.mu.segments[0])
		return nil, 0, false, nil
	}
	i := h.findLocked()
	if s = l.mu.segments[i]; s.base != h.base { // retention took the one we were at
		h.enter(s)
	}
	return s, s.size, i == len(l.mu.segments)-1, nil
}

// findLocked is the index of the segment that begins at base, or the first
// behind it.
func (h *history) findLocked() int {
	i := slices.IndexFunc(h.l.mu.segments, func(s *segment) bool { return s.base >= h.base })
	if i < 0 {
		i = len(h.l.mu.segments) - 1
	}
	return i
}

func (h *history) enter(s *segment) {
	h.base, h.walked = s.base, newWalked(s.base)
	h.begun.pos, h.begun.offset = 0, s.base
}

// walk goes on in segment s up to size.
func (h *history) walk(s *segment, size int64, stop func() bool) error {
	f, err := h.l.store.files.acquire(s)
	if err != nil {
		return err
	}
	defer f.release()
	err = h.walked.on(f, size, walkOptions{interval: h.l.store.o.IndexInterval, noCRC: true, each: h.producers.Apply, stop: stop})
	switch {
	case errors.Is(err, errStopped):
		return fmt.Errorf("%w: %s", ErrClosed, h.l.id)
	case err != nil:
		return h.l.damage(s, h.walked.size, h.walked.end, err)
	}
	return nil
}

// closed takes in a closed segment that was walked, and goes on to the next.
func (h *history) closed(s *segment) error {
	l := h.l
	l.wr.Lock()
	defer l.wr.Unlock()
	if l.isClosed() || l.history.Load() != h || l.cuts.Load() != h.cuts {
		return nil
	}
	i := h.findLocked()
	if l.mu.segments[i] != s {
		return nil // retention took it
	}
	if err := h.compare(s); err != nil {
		return err
	}
	h.take()
	h.tell(s, h.walked.entries)
	m := summary{size: s.size, end: s.end, times: h.walked.times, epochs: h.walked.epochs.Entries()}
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.Set(l.id.key(kindSummary, s.base), l.stamp(m.encode()), nil)
		_ = b.Set(l.id.key(kindProducer, s.end), l.stamp(h.producers.Encode(nil)), nil)
	})
	l.store.flusher.indexGrew.Store(true)
	l.mu.Lock()
	s.times = h.walked.times
	l.mu.Unlock()
	h.enter(l.mu.segments[i+1])
	return nil
}

// compare looks whether the segment holds what it should: it ends where the next
// one begins, and where the marks had a checksum of its batches' heads, or
// recovery walked it, they are these batches.
func (h *history) compare(s *segment) error {
	d := &DamageError{File: s.path(), At: h.walked.size, Offset: h.walked.end}
	switch {
	case h.walked.end != s.end:
		d.Err = fmt.Errorf("batches end at offset %d, the segment at %d", h.walked.end, s.end)
	case s.times.heads != 0 && s.times.heads != h.walked.times.heads:
		d.Offset, d.Err = s.base, errHeads
	default:
		return nil
	}
	return d
}

// take adds the walked segment to what is known of the log.
func (h *history) take() {
	for _, e := range h.walked.epochs.Entries() {
		h.epochs.Assign(e.Epoch, e.Start)
	}
	h.epochs.TruncateStart(h.l.StartOffset())
	h.producers.TruncateStart(h.l.mu.segments[0].base)
	h.producers.Replicated(h.l.HighWatermark())
}

// tell puts the walked segment's entries into the index, in place of what is
// there of the walked part.
func (h *history) tell(s *segment, entries []entry) {
	l, x := h.l, h.l.store.index
	if h.begun.pos == 0 {
		x.write(func(b *pebble.Batch) { x.dropSegment(b, l.id, s.base) })
	} else {
		x.dropBehind(l.id, s.base, h.begun.pos, h.begun.offset)
	}
	x.putEntries(l.id, s.base, entries)
}

// finish walks the last bytes while no append is under way, and publishes
// everything. done is false if the log has gone on meanwhile.
func (h *history) finish() (done bool, err error) {
	l := h.l
	l.wr.Lock()
	defer l.wr.Unlock()
	s := l.active()
	if s.base != h.base || l.history.Load() != h || l.cuts.Load() != h.cuts || l.isClosed() || s.size-h.walked.size > 2*catchUp {
		return false, nil
	}
	if err := h.walk(s, s.size, nil); err != nil {
		return false, err
	}
	if err := h.compare(s); err != nil {
		return false, err
	}
	h.take()
	entries := h.walked.entries
	older := max(0, len(entries)-l.store.o.tail/2)
	h.tell(s, entries[:older])
	l.mu.Lock()
	s.times, s.trimmed = h.walked.times, h.begun.pos > 0 || older > 0
	l.mu.epochs, l.mu.written, l.mu.producers = h.epochs, h.walked.epochs, h.producers
	l.mu.tail = append([]entry(nil), entries[older:]...)
	l.history.Store(nil)
	l.publishLocked()
	l.mu.Unlock()
	l.indexed, l.stored, l.checkpointed = h.walked.indexed, 0, checkpointed{}
	return true, nil
}
