package txn

import (
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// census counts transactional ids for the gauges: those that the log has.
type census [states]atomic.Int64

// registerGauges tells operators how many transactional ids are in each state,
// and for how long the oldest open transaction has held up its readers. The
// latter is looked at with the timeouts, so it lags by TimeoutCheck.
func (c *Coordinator) registerGauges() {
	for i := range c.census {
		if s := State(i); s != Dead && s != PrepareEpochFence { // nobody ever sees those
			obs.Gauge("lockstep_transactional_ids", func() float64 { return float64(c.census[i].Load()) }, "state", s.String())
		}
	}
	obs.Gauge("lockstep_transaction_oldest_open_seconds", func() float64 {
		oldest := int64(0)
		for _, s := range c.led.All() {
			if at := s.oldestOpen.Load(); at != 0 && (oldest == 0 || at < oldest) {
				oldest = at
			}
		}
		if oldest == 0 {
			return 0
		}
		return c.o.Clock.Now().Sub(time.Unix(0, oldest)).Seconds()
	})
}

// counted moves an id from what it was to what it is.
func (c *census) counted(was, is *values) {
	if was != nil {
		c[was.state].Add(-1)
	}
	if is != nil {
		c[is.state].Add(1)
	}
}

// logValues is what the log says of the id; nil: nothing.
func (m *machine) logValues() *values {
	if !m.logged || m.dead {
		return nil
	}
	v := m.values
	return &v
}

// lookAtOldest renews oldestOpen.
func (s *shard) lookAtOldest() {
	oldest := int64(0)
	for m := range s.ids.All() {
		if m.state == Ongoing || m.state.deciding() {
			if at := m.started.UnixNano(); oldest == 0 || at < oldest {
				oldest = at
			}
		}
	}
	s.oldestOpen.Store(oldest)
}

// note counts a transition that the log has taken.
func (c *Coordinator) note(p *pending) {
	switch p.by {
	case commit:
		c.commits.Inc()
	case abort:
		c.aborts.Inc()
	case fence:
		c.fences.Inc()
	}
}
