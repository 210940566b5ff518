package controller

import (
	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// meters are looked up once per controller; two controllers of one process, as in
// the demo, share the series.
type meters struct {
	commits   *metrics.Counter
	refused   *metrics.Counter // fenced: deposed, or behind another transaction
	commit    *metrics.PrometheusHistogram
	fullReads *metrics.Counter
	fenced    *metrics.Counter
	unclean   *metrics.Counter
}

func newMeters() *meters {
	return &meters{
		commits:   obs.Counter("lockstep_metadata_transactions_total", "result", "committed"),
		refused:   obs.Counter("lockstep_metadata_transactions_total", "result", "fenced"),
		commit:    obs.Histogram("lockstep_metadata_commit_seconds"),
		fullReads: obs.Counter("lockstep_metadata_full_reads_total"),
		fenced:    obs.Counter("lockstep_brokers_fenced_total"),
		unclean:   obs.Counter("lockstep_unclean_elections_total"),
	}
}
