package quota

import (
	"math"
	"time"
)

// maxSamples bounds quota.window.num, and with it the size of an entity.
const maxSamples = 64

// shape is how rates are measured: over how many samples, of which length.
type shape struct {
	samples int
	length  int64 // milliseconds
}

// whole is the time that a full window covers.
func (s shape) whole() time.Duration {
	return time.Duration(int64(s.samples)*s.length) * time.Millisecond
}

// window adds up what was used, by samples of equal length. Sample k covers the
// milliseconds [k*length, (k+1)*length).
//
// Invariant: newest is the largest k that was recorded in, and a slot is of the one
// k <= newest in (newest-samples, newest] that falls on it.
type window struct {
	newest int64
	slots  []float64
}

// advance forgets what has left the window by now. A clock that goes back stays in
// the newest sample.
func (w *window) advance(s shape, now int64) {
	if w.slots == nil {
		w.slots = make([]float64, s.samples)
		w.newest = now / s.length
		return
	}
	k := now / s.length
	if k-w.newest >= int64(s.samples) {
		clear(w.slots)
		w.newest = k
		return
	}
	for w.newest < k {
		w.newest++
		w.slots[w.newest%int64(s.samples)] = 0
	}
}

func (w *window) record(s shape, now int64, n float64) {
	w.advance(s, now)
	w.slots[w.newest%int64(s.samples)] += n
}

func (w *window) total() (sum float64) {
	for _, n := range w.slots {
		sum += n
	}
	return sum
}

// over tells how long it takes until the rate is down at the bound (in units per
// second), if nothing more is recorded. The samples before the newest count as
// full ones from the start, so that a first request does not count as a rate of its
// own.
func (w *window) over(s shape, now int64, bound float64) time.Duration {
	elapsed := int64(s.samples-1)*s.length + max(now-w.newest*s.length, 0)
	excess := w.total()/bound*1000 - float64(elapsed) // milliseconds
	if excess <= 0 {
		return 0
	}
	// After a whole window nothing of this is in it any more.
	return min(time.Duration(excess*float64(time.Millisecond)), s.whole())
}

// fits tells how long it takes until n more are within the bound (in units per
// second), if nothing else is recorded: until samples that are in the way have left
// the window. over is right for what was used already, and on average; who is told by
// it when to ask again for what did not fit is there before it does. More than a window
// allows at all waits until the window is empty.
func (w *window) fits(s shape, now int64, n, bound float64) time.Duration {
	sum := w.total() + n
	for k := w.newest; ; k++ {
		at := k*s.length + int64(math.Ceil(sum/bound*1000)) - int64(s.samples-1)*s.length
		if at = max(at, now, k*s.length); at < (k+1)*s.length || k == w.newest+int64(s.samples) {
			return min(time.Duration(at-now)*time.Millisecond, s.whole())
		}
		sum -= w.slots[(k+1)%int64(s.samples)]
	}
}

// idle says that nothing of it is left by now.
func (w *window) idle(s shape, now int64) bool {
	return now/s.length-w.newest >= int64(s.samples)
}

// bucket holds tokens for mutations of metadata (KIP-599). It may go below zero:
// a request is admitted as a whole, and the next ones wait.
type bucket struct {
	used float64 // tokens taken and not refilled yet; the bucket's size may change
	last int64   // of the last refill
}

func (b *bucket) refill(now int64, rate float64) {
	if dt := now - b.last; dt > 0 {
		b.used = max(0, b.used-rate*float64(dt)/1000)
		b.last = now
	}
}

// over tells how long it takes until the bucket is not below zero.
func (b *bucket) over(s shape, rate float64) time.Duration {
	size := rate * s.whole().Seconds()
	if b.used <= size {
		return 0
	}
	return min(time.Duration((b.used-size)/rate*float64(time.Second)), s.whole())
}
