package authn

import (
	"container/list"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Delays holds back the answer to a failed login, twice as long with each further
// failure of the same address or the same name. A login that succeeds is never
// delayed, so nobody can keep others out by failing in their name.
type Delays struct {
	first time.Duration
	clock clock.Clock

	// mu guards the failures; nothing else is done under it.
	mu struct {
		sync.Mutex
		byKey map[delayKey]*list.Element // of *failures
		// oldest first by last failure. At most maxFailures, some 300 bytes each:
		// who fails under ever new names pushes out what was failed longest ago.
		order *list.List
	}
}

const (
	maxDelay    = 5 * time.Second
	maxFailures = 20_000
	// forgiveness is how long after its last failure an address or name is as new.
	forgiveness = time.Minute
	// maxDelayName keeps a hostile name from costing memory.
	maxDelayName = 64
)

type delayKey struct {
	address bool
	value   string
}

type failures struct {
	key   delayKey
	count int
	last  time.Time
}

// NewDelays begins at a first delay (connection.failed.authentication.delay.ms);
// zero never delays.
func NewDelays(first time.Duration, clk clock.Clock) *Delays {
	d := &Delays{first: first, clock: clk}
	d.mu.byKey = map[delayKey]*list.Element{}
	d.mu.order = list.New()
	return d
}

// Failed counts a failure and answers how long its answer is to wait, and whether
// it is worth a line in the log: the first of an address or name, the second, the
// fourth and so on, so that 100 000 wrong passwords are 17 lines.
func (d *Delays) Failed(address, name string) (wait time.Duration, tell bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := max(d.count(delayKey{true, address}), d.count(delayKey{false, clip(name)}))
	tell = n&(n-1) == 0
	wait = d.first
	for i := 1; i < n && wait < maxDelay; i++ {
		wait *= 2
	}
	return min(wait, max(maxDelay, d.first)), tell
}

// Succeeded forgets what failed under a name. Failures of the address stay: one
// good password does not make its further guesses quicker.
func (d *Delays) Succeeded(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.mu.byKey[delayKey{false, clip(name)}]; e != nil {
		d.drop(e)
	}
}

func (d *Delays) count(k delayKey) int {
	now := d.clock.Now()
	e := d.mu.byKey[k]
	if e == nil {
		if d.mu.order.Len() >= maxFailures {
			d.drop(d.mu.order.Front())
		}
		e = d.mu.order.PushBack(&failures{key: k})
		d.mu.byKey[k] = e
	}
	f := e.Value.(*failures)
	if now.Sub(f.last) > forgiveness {
		f.count = 0
	}
	f.count++
	f.last = now
	d.mu.order.MoveToBack(e)
	return f.count
}

func (d *Delays) drop(e *list.Element) {
	delete(d.mu.byKey, e.Value.(*failures).key)
	d.mu.order.Remove(e)
}

func clip(name string) string { return name[:min(len(name), maxDelayName)] }
