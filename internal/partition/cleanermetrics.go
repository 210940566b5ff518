package partition

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/segment"
)

// cleanerTotals are of one look at all logs.
type cleanerTotals struct {
	dirtyBytes, uncleanableBytes int64
	uncleanable                  int
	maxRatio                     float64
	maxWait                      time.Duration
}

func (t *cleanerTotals) add(found segment.Cleanable, state *cleanState, now time.Time) {
	t.dirtyBytes += found.DirtyBytes
	t.maxRatio = max(t.maxRatio, found.Ratio)
	t.maxWait = max(t.maxWait, now.Sub(state.since))
	if found.Damaged != nil || now.Before(state.aside) {
		t.uncleanable++
		t.uncleanableBytes += found.DirtyBytes
	}
}

// cleanerStats are the cleaner's metrics.
type cleanerStats struct {
	totals atomic.Pointer[cleanerTotals]
	recopy atomic.Uint64 // float: bytes written per byte read in the last round

	rounds, failures, read, written *metrics.Counter
}

func (s *cleanerStats) register() {
	s.totals.Store(new(cleanerTotals))
	s.rounds = obs.Counter("lockstep_log_cleaner_rounds_total")
	s.failures = obs.Counter("lockstep_log_cleaner_failures_total")
	s.read = obs.Counter("lockstep_log_cleaner_read_bytes_total")
	s.written = obs.Counter("lockstep_log_cleaner_written_bytes_total")
	gauge := func(name string, of func(*cleanerTotals) float64) {
		obs.Gauge(name, func() float64 { return of(s.totals.Load()) })
	}
	gauge("lockstep_log_cleaner_dirty_bytes", func(t *cleanerTotals) float64 { return float64(t.dirtyBytes) })
	gauge("lockstep_log_cleaner_max_dirty_ratio", func(t *cleanerTotals) float64 { return t.maxRatio })
	gauge("lockstep_log_cleaner_max_wait_seconds", func(t *cleanerTotals) float64 { return t.maxWait.Seconds() })
	gauge("lockstep_log_cleaner_uncleanable_partitions", func(t *cleanerTotals) float64 { return float64(t.uncleanable) })
	gauge("lockstep_log_cleaner_uncleanable_bytes", func(t *cleanerTotals) float64 { return float64(t.uncleanableBytes) })
	obs.Gauge("lockstep_log_cleaner_recopy_ratio", func() float64 { return math.Float64frombits(s.recopy.Load()) })
}

func (s *cleanerStats) publish(t cleanerTotals) { s.totals.Store(&t) }

func (s *cleanerStats) add(r segment.CompactStats) {
	s.rounds.Inc()
	s.read.AddInt64(r.BytesRead)
	s.written.AddInt64(r.BytesWritten)
	if r.BytesRead > 0 {
		s.recopy.Store(math.Float64bits(float64(r.BytesWritten) / float64(r.BytesRead)))
	}
}
