package quota

import (
	"math"
	"sync"
	"time"
)

// NoRate is the greatest value of a rate, and means none.
const NoRate = math.MaxInt32

// Rate holds one rate that is nobody's quota: the connections of a listener, or of
// all of them (max.connection.creation.rate, KIP-612).
type Rate struct {
	o     Options
	shape shape

	// mu guards what follows; nothing is done under it but arithmetic.
	mu struct {
		sync.Mutex
		perSecond int
		window    window
	}
}

// NewRate makes one that allows so many per second, from NoRate on any number.
func NewRate(o Options, perSecond int) *Rate {
	o.EnsureDefaults()
	r := &Rate{o: o, shape: shape{o.Samples, o.SampleLength.Milliseconds()}}
	r.mu.window.advance(r.shape, o.Clock.Now().UnixMilli())
	r.mu.perSecond = perSecond
	return r
}

// Set changes what is allowed. What was measured stays.
func (r *Rate) Set(perSecond int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.perSecond = perSecond
}

// Note records one and tells for how long the next has to wait, one sample at most:
// as with Kafka, who is held up for so long is let in even if nothing at all is
// allowed.
func (r *Rate) Note() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.perSecond >= NoRate {
		return 0
	}
	now := r.o.Clock.Now().UnixMilli()
	r.mu.window.record(r.shape, now, 1)
	if r.mu.perSecond <= 0 {
		return r.o.SampleLength
	}
	return min(r.mu.window.over(r.shape, now, float64(r.mu.perSecond)), r.o.SampleLength)
}
