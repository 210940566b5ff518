// Package obs is where the other packages report what happens: counters,
// gauges and histograms by name and labels, and typed events. It keeps one
// registry per process; the admin listener writes it out.
//
// A metric is looked up once, when its owner is made, and held as a pointer:
// looking one up formats labels and is not for hot code.
package obs

import (
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/VictoriaMetrics/metrics"
)

var registry = metrics.NewSet()

// Counter finds or makes a counter. Labels are key, value pairs.
func Counter(name string, labels ...string) *metrics.Counter {
	return registry.GetOrCreateCounter(Name(name, labels...))
}

// Histogram finds or makes a histogram with Prometheus buckets, which Grafana
// and Prometheus both read. Observations are in the unit of the name.
func Histogram(name string, labels ...string) *metrics.PrometheusHistogram {
	return registry.GetOrCreatePrometheusHistogram(Name(name, labels...))
}

var gauges struct {
	sync.Mutex
}

// Gauge registers fn as the value of a gauge and returns it. A later call with
// the same name and labels replaces the function: the newest owner of a
// partition speaks for it.
func Gauge(name string, fn func() float64, labels ...string) *metrics.Gauge {
	full := Name(name, labels...)
	gauges.Lock()
	defer gauges.Unlock()
	registry.UnregisterMetric(full)
	return registry.NewGauge(full, fn)
}

// Unregister removes a series whose subject is gone.
func Unregister(name string, labels ...string) {
	registry.UnregisterMetric(Name(name, labels...))
}

// Write writes all series, ours and the process's, in the Prometheus text
// format.
func Write(w io.Writer) {
	registry.WritePrometheus(w)
	metrics.WriteProcessMetrics(w)
}

// Name renders name{key="value",…}; values are escaped, so that a hostile
// topic or client name cannot forge a series.
func Name(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	var b strings.Builder
	b.WriteString(name)
	b.WriteByte('{')
	for i := 0; i+1 < len(labels); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(labels[i])
		b.WriteByte('=')
		b.WriteString(strconv.Quote(labels[i+1]))
	}
	b.WriteByte('}')
	return b.String()
}
