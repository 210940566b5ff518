package quota

import (
	"math"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Throttle bounds bytes per second that are nobody's quota: those of replicas that an
// operator slows down (KIP-73). What was taken beyond the rate has to be paid off, by
// time, before the next is taken: the rate holds over any time, and one answer of the
// other side is the most that comes at once.
type Throttle struct {
	clock clock.Clock

	// mu guards what follows; nothing is done under it but arithmetic.
	mu struct {
		sync.Mutex
		rate int64 // bytes per second
		debt float64
		last time.Time
	}
}

// NoThrottle is the rate that bounds nothing.
const NoThrottle = math.MaxInt64

// NewThrottle makes one that bounds nothing.
func NewThrottle(c clock.Clock) *Throttle {
	t := &Throttle{clock: c}
	t.mu.rate, t.mu.last = NoThrottle, c.Now()
	return t
}

// Set changes the rate. What is owed stays owed, at the new rate.
func (t *Throttle) Set(bytesPerSecond int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.payLocked()
	t.mu.rate = bytesPerSecond
	if bytesPerSecond == NoThrottle {
		t.mu.debt = 0
	}
}

// Note records bytes that were taken.
func (t *Throttle) Note(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.rate == NoThrottle {
		return
	}
	t.payLocked()
	t.mu.debt += float64(bytes)
}

// Exceeded tells whether nothing more may be taken now.
func (t *Throttle) Exceeded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.rate == NoThrottle {
		return false
	}
	t.payLocked()
	return t.mu.debt > 0 || t.mu.rate <= 0
}

func (t *Throttle) payLocked() {
	now := t.clock.Now()
	if past := now.Sub(t.mu.last); past > 0 {
		t.mu.debt = max(0, t.mu.debt-float64(t.mu.rate)*past.Seconds())
		t.mu.last = now
	}
}
