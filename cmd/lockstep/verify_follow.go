package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// verifyFollow is verify --follow.
type verifyFollow struct {
	interval time.Duration
	rate     int64
	listen   string
	json     bool

	out     io.Writer
	seen    map[string]verify.PartitionReport // by topic-partition, of the last round
	failed  string                            // why the last round failed
	said    string                            // the counts that were printed last,
	saidAt  time.Time                         // and when
	metrics *verifyMetrics
}

func (f *verifyFollow) check() error {
	switch {
	case f.interval <= 0:
		return fmt.Errorf("--interval %v: has to be above zero", f.interval)
	case f.rate < 0:
		return fmt.Errorf("--rate %d: must not be below zero", f.rate)
	}
	return nil
}

// run compares until ctx ends, which is no error, and answers what the last round
// found.
func (f *verifyFollow) run(ctx context.Context, o verify.Options, out io.Writer) (*verify.Report, error) {
	f.out, f.seen, f.metrics = out, make(map[string]verify.PartitionReport), newVerifyMetrics()
	o.Rate = f.rate
	if f.listen != "" {
		stop, err := f.serve()
		if err != nil {
			return nil, fmt.Errorf("--listen %s: %w", f.listen, err)
		}
		defer stop()
	}
	// A cluster that is not there at the start is a slip of the command's; later ones
	// are waited for.
	var last *verify.Report
	var failure error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	verify.Follow(ctx, o, f.interval, func(r *verify.Report, err error) {
		f.metrics.round(r, err)
		if err == nil {
			err = f.print(r)
			last = r
		} else if last != nil {
			err = f.printFailure(err)
		}
		if err != nil {
			failure = err
			cancel()
		}
	})
	return last, failure
}

// quietFor is how long rounds that found nothing new print nothing.
const quietFor = time.Minute

// print writes what is new since the round before: a partition with another result,
// and a line about the round.
func (f *verifyFollow) print(r *verify.Report) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var equal, differ, missing, failed int
	var bytes, open, skipped int64
	next := make(map[string]verify.PartitionReport, len(r.Partitions))
	for _, p := range r.Partitions {
		name := p.Topic + "-" + strconv.Itoa(int(p.Partition))
		was, known := f.seen[name]
		next[name] = p
		bytes += grown(p.Bytes, was.Bytes)
		open += p.Unverified()
		skipped += grown(p.Skipped, was.Skipped)
		switch p.Result {
		case verify.Equal:
			equal++
		case verify.Differs:
			differ++
		case verify.Missing:
			missing++
		default:
			failed++
		}
		if f.json {
			if !known || was.Verified != p.Verified || was.Result != p.Result {
				if err := json.NewEncoder(f.out).Encode(p); err != nil {
					return err
				}
			}
			continue
		}
		if p.Result != verify.Equal && (p.Result != was.Result || p.Offset != was.Offset || p.Detail != was.Detail) || known && p.Result == verify.Equal && was.Result != verify.Equal {
			if err := f.printPartition(now, name, p); err != nil {
				return err
			}
		}
	}
	f.seen, f.failed = next, ""
	if f.json {
		return nil
	}
	counts := fmt.Sprintf("%d equal, %d differ, %d missing, %d could not be read", equal, differ, missing, failed)
	if bytes+skipped == 0 && counts == f.said && time.Since(f.saidAt) < quietFor {
		return nil
	}
	f.said, f.saidAt = counts, time.Now()
	text := ""
	if skipped > 0 {
		text = fmt.Sprintf(", %d offsets were deleted before they could be compared: raise --rate", skipped)
	}
	_, err := fmt.Fprintf(f.out, "%s %s; %d bytes compared, %d offsets to go%s\n", now, counts, bytes, open, text)
	return err
}

// grown is by how much a count has, which begins anew with a topic that is made anew.
func grown(now, was int64) int64 {
	if now < was {
		return now
	}
	return now - was
}

func (f *verifyFollow) printPartition(now, name string, p verify.PartitionReport) error {
	text := fmt.Sprintf("%s %s: %s", now, name, p.Result)
	switch p.Result {
	case verify.Equal:
		text = fmt.Sprintf("%s %s: equal again, verified up to offset %d", now, name, p.Verified)
	case verify.Differs:
		text += fmt.Sprintf(" at offset %d\n    source: %s\n    mirror: %s", p.Offset, p.SourceBatch, p.MirrorBatch)
	}
	if p.Detail != "" {
		text += "\n    " + p.Detail
	}
	_, err := fmt.Fprintln(f.out, text)
	return err
}

func (f *verifyFollow) printFailure(err error) error {
	if f.failed == err.Error() || f.json {
		return nil
	}
	f.failed = err.Error()
	_, printed := fmt.Fprintf(f.out, "%s not compared: %v\n", time.Now().UTC().Format(time.RFC3339), err)
	return printed
}

// serve answers /metrics until stop.
func (f *verifyFollow) serve() (stop func(), err error) {
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { obs.Write(w) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	var done sync.WaitGroup
	done.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(f.out, "metrics:", err)
		}
	})
	return func() {
		_ = server.Close()
		done.Wait()
	}, nil
}

// verifyMetrics publish what the last round found.
type verifyMetrics struct {
	mu struct {
		sync.Mutex
		partitions map[[2]string]verify.PartitionReport // by topic and partition
		last       time.Time                            // of the last round that was not in vain
	}
	rounds, failed, compared, skipped *metrics.Counter
}

const (
	metricVerified   = "lockstep_verify_offset"
	metricUnverified = "lockstep_verify_offsets_to_go"
	metricDiffers    = "lockstep_verify_differs"
	metricVerifyAge  = "lockstep_verify_last_round_age_seconds"
	metricRounds     = "lockstep_verify_rounds_total"
	metricNoRounds   = "lockstep_verify_round_errors_total"
	metricCompared   = "lockstep_verify_compared_bytes_total"
	metricSkipped    = "lockstep_verify_skipped_offsets_total"
)

func newVerifyMetrics() *verifyMetrics {
	m := &verifyMetrics{
		rounds: obs.Counter(metricRounds), failed: obs.Counter(metricNoRounds), compared: obs.Counter(metricCompared), skipped: obs.Counter(metricSkipped),
	}
	m.mu.partitions = make(map[[2]string]verify.PartitionReport)
	m.mu.last = time.Now()
	obs.Gauge(metricVerifyAge, func() float64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return time.Since(m.mu.last).Seconds()
	})
	return m
}

// round takes the outcome of one.
func (m *verifyMetrics) round(r *verify.Report, err error) {
	m.rounds.Inc()
	if err != nil {
		m.failed.Inc()
		return
	}
	m.mu.Lock()
	old := m.mu.partitions
	m.mu.partitions = make(map[[2]string]verify.PartitionReport, len(r.Partitions))
	m.mu.last = time.Now()
	for _, p := range r.Partitions {
		key := [2]string{p.Topic, strconv.Itoa(int(p.Partition))}
		m.mu.partitions[key] = p
		m.compared.AddInt64(grown(p.Bytes, old[key].Bytes))
		m.skipped.AddInt64(grown(p.Skipped, old[key].Skipped))
	}
	m.mu.Unlock()
	for key := range old {
		if _, ok := m.mu.partitions[key]; !ok {
			for _, name := range []string{metricVerified, metricUnverified, metricDiffers} {
				obs.Unregister(name, "topic", key[0], "partition", key[1])
			}
		}
	}
	for key := range m.mu.partitions {
		if _, ok := old[key]; ok {
			continue
		}
		of := func(name string, value func(verify.PartitionReport) float64) {
			obs.Gauge(name, func() float64 {
				m.mu.Lock()
				defer m.mu.Unlock()
				return value(m.mu.partitions[key])
			}, "topic", key[0], "partition", key[1])
		}
		of(metricVerified, func(p verify.PartitionReport) float64 { return float64(p.Verified) })
		of(metricUnverified, func(p verify.PartitionReport) float64 { return float64(p.Unverified()) })
		of(metricDiffers, func(p verify.PartitionReport) float64 {
			if p.Result == verify.Differs {
				return 1
			}
			return 0
		})
	}
}
