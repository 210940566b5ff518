package perf

import (
	"fmt"
	"io"
	"time"
)

// Report is the outcome of a run. Sizes are of record values and keys as the
// application sees them, not of what went over the wire.
type Report struct {
	Kind        string  `json:"kind"`    // produce, consume or null-mirror
	Seconds     float64 `json:"seconds"` // measured time, without warm-up
	Records     int64   `json:"records"`
	Bytes       int64   `json:"bytes"`
	Errors      int64   `json:"errors"`
	PlannedRate float64 `json:"plannedRate,omitempty"` // the schedule's records per second

	RecordsPerSecond float64 `json:"recordsPerSecond"`
	MBPerSecond      float64 `json:"mbPerSecond"` // 1 MB is 1 000 000 bytes
	CPUSeconds       float64 `json:"cpuSeconds"`  // of this process
	CPUPerGB         float64 `json:"cpuSecondsPerGB"`

	LatencyFrom string   `json:"latencyFrom,omitempty"` // what latencies count from
	Latency     *Latency `json:"latencyMillis,omitempty"`
	Error       string   `json:"firstError,omitempty"`
}

// What latencies count from.
const (
	fromPlan    = "the planned send time"
	fromSend    = "the send time, since no rate was given"
	fromPlanEnd = "the planned send time to the arrival here"
)

// Latency are the percentiles of a histogram, in milliseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99.9"`
	Max   float64 `json:"max"`
}

func latencyOf(h *Histogram) *Latency {
	if h.Count() == 0 {
		return nil
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return &Latency{
		Count: h.Count(), Mean: ms(h.Mean()), Max: ms(h.Max()),
		P50: ms(h.Percentile(50)), P90: ms(h.Percentile(90)), P99: ms(h.Percentile(99)), P999: ms(h.Percentile(99.9)),
	}
}

// finish fills the rates from the counts.
func (r *Report) finish(elapsed, cpu time.Duration) {
	r.Seconds, r.CPUSeconds = elapsed.Seconds(), cpu.Seconds()
	if r.Seconds > 0 {
		r.RecordsPerSecond = float64(r.Records) / r.Seconds
		r.MBPerSecond = float64(r.Bytes) / 1e6 / r.Seconds
	}
	if r.Bytes > 0 {
		r.CPUPerGB = r.CPUSeconds / (float64(r.Bytes) / 1e9)
	}
}

// Print writes the report for a person.
func (r *Report) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d records, %d bytes in %.2f s: %.0f records/s, %.1f MB/s; CPU %.2f s, %.3f s/GB; errors %d\n",
		r.Kind, r.Records, r.Bytes, r.Seconds, r.RecordsPerSecond, r.MBPerSecond, r.CPUSeconds, r.CPUPerGB, r.Errors)
	if err == nil && r.Latency != nil {
		l := r.Latency
		_, err = fmt.Fprintf(w, "latency from %s, ms: mean %.2f, p50 %.2f, p90 %.2f, p99 %.2f, p99.9 %.2f, max %.2f (%d records)\n",
			r.LatencyFrom, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max, l.Count)
	}
	if err == nil && r.Error != "" {
		_, err = fmt.Fprintf(w, "first error: %s\n", r.Error)
	}
	return err
}
