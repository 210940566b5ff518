package segment

import (
	"encoding/binary"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

var partitionsN = flag.Int("partitions.n", 2000, "logs that BenchmarkPartitions opens")

// BenchmarkPartitions is a store with many idle logs (make partitionsbench): what
// one costs in memory, and how long it takes to make them, to close them, and to
// open them again after a clean stop and after a kill. Goroutines and open files
// must not grow with them.
func BenchmarkPartitions(b *testing.B) {
	for _, c := range []struct {
		name    string
		batches int
	}{{"empty", 0}, {"small", 10}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				benchPartitions(b, *partitionsN, c.batches)
			}
		})
	}
}

func benchPartitions(b *testing.B, n, batches int) {
	o := Options{Dir: b.TempDir(), FlushInterval: -1, ScrubInterval: time.Hour}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	b.StopTimer()
	before, goroutines := useOf(b), runtime.NumGoroutine()
	b.StartTimer()
	s := mustOpen(b, o)
	b.ReportMetric(per(benchOpenAll(b, s, n)), "µs/log-make")
	piece, _ := benchPiece(1<<10, 1<<10)
	for _, l := range s.mu.logs {
		for i := range batches {
			record.Batch(piece).SetBaseOffset(int64(i))
			mustAppend(b, l, piece)
		}
	}
	began := time.Now()
	s.flusher.background()
	b.ReportMetric(per(time.Since(began)), "µs/log-flush")
	after := useOf(b)
	b.ReportMetric(float64(after.heap-before.heap)/float64(n), "heap-B/log")
	b.ReportMetric(float64(after.rss-before.rss)/float64(n), "rss-B/log")
	b.ReportMetric(float64(after.files-before.files), "files")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
	b.ReportMetric(per(benchClose(b, s)), "µs/log-close")

	s = mustOpen(b, o)
	b.ReportMetric(per(benchOpenAll(b, s, n)), "µs/log-open-clean")
	clean := useOf(b)
	b.ReportMetric(float64(clean.heap-before.heap)/float64(n), "heap-B/log-opened")
	b.ReportMetric(per(benchClose(b, s)), "µs/log-close-unchanged")

	// A kill: the marks say that the store was not closed.
	s = mustOpen(b, o)
	s.partial, s.marks.clean = true, false
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	s = mustOpen(b, o)
	if s.marks.clean {
		b.Fatal("the store says that it was closed")
	}
	b.ReportMetric(per(benchOpenAll(b, s, n)), "µs/log-open-killed")
	benchClose(b, s)
	b.ReportMetric(0, "ns/op")
}

// benchOpenAll opens logs as a manager does, some at once.
func benchOpenAll(b *testing.B, s *Store, n int) time.Duration {
	b.Helper()
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			var topic [16]byte
			binary.BigEndian.PutUint32(topic[:], uint32(i/100)+1)
			_, err := s.OpenLog(topic, int32(i%100), Config{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

func benchClose(b *testing.B, s *Store) time.Duration {
	b.Helper()
	began := time.Now()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// use is what the process holds.
type use struct{ heap, rss, files int64 }

func useOf(b *testing.B) use {
	b.Helper()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := use{heap: int64(m.HeapAlloc)}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.files = int64(len(fds))
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u // no such thing here: the figure is 0
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			u.rss = kb << 10
		}
	}
	return u
}
