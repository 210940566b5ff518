package segment

import (
	"context"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

var (
	compactBytes  = flag.Int64("compact.bytes", 64<<20, "size of the log that BenchmarkCompactBeside compacts")
	compactKeys   = flag.Int("compact.keys", 128_000, "its distinct keys, each of which has two records")
	compactOwn    = flag.Bool("compact.own", false, "append to the log that is compacted, not to another")
	compactMemory = flag.Int64("compact.memory", 128<<20, "CompactOptions.Memory")
	compactRate   = flag.Int64("compact.rate", 0, "bytes that compaction may read and write per second; 0: as fast as it goes")
)

// fillKeyed appends two records for each key, the keys in another order each
// time, in batches of 100 records, until the log has about total bytes.
func fillKeyed(b *testing.B, l *Log, keys int, total int64, codec record.Codec) {
	b.Helper()
	size := max(int(total/int64(2*keys))-26, 16)
	noise := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(noise); i += 8 {
		binary.LittleEndian.PutUint64(noise[i:], r.Uint64()&0x0f0f0f0f0f0f0f0f)
	}
	recs := make([]record.Record, 0, 100)
	var piece []byte
	next := l.EndOffset()
	for round := range 2 {
		for i := range keys {
			key := uint64(i)
			if round == 1 {
				key = uint64(i) * 7919 % uint64(keys)
			}
			at := (i * 61) % (len(noise) - size)
			recs = append(recs, record.Record{OffsetDelta: int32(len(recs)), Key: binary.BigEndian.AppendUint64(make([]byte, 0, 8), key), Value: noise[at : at+size]})
			if len(recs) < cap(recs) && i < keys-1 {
				continue
			}
			h := record.NoProducer(int64(i))
			h.BaseOffset = next
			piece = append(piece, packed(b, record.Build(h, recs), codec)...)
			next += int64(len(recs))
			recs = recs[:0]
			if len(piece) > 1<<20 || i == keys-1 {
				mustAppend(b, l, piece)
				piece = piece[:0]
			}
		}
	}
	c := l.mu.config
	l.SetConfig(Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1, Compact: true})
	mustAppend(b, l, testBatch{base: next, n: 1}.build()) // the active segment, which stays
	l.SetConfig(c)
	mustFlush(b, l)
}

// BenchmarkCompact compacts a log in which every second record is obsolete, by
// codec. MB/s are of the bytes in the log; they are read twice, and half of them
// is written.
func BenchmarkCompact(b *testing.B) {
	for _, codec := range []record.Codec{record.CodecNone, record.CodecLz4, record.CodecZstd} {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			const total, keys = 32 << 20, 64_000
			c := Config{SegmentBytes: 8 << 20, RetentionMs: -1, RetentionBytes: -1, Compact: true}
			b.ReportAllocs()
			var records, bytes int64
			for b.Loop() {
				b.StopTimer()
				s, l := benchLog(b, c)
				fillKeyed(b, l, keys, total, codec)
				bytes += l.Size()
				b.StartTimer()
				records += mustCompact(b, l, 1, CompactOptions{}).RecordsRead
				b.StopTimer()
				_ = s.Close()
				_ = os.RemoveAll(s.o.Dir)
				b.StartTimer()
			}
			b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
			b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkCompactBeside compacts one log, in as many rounds as its memory asks
// for, while another log of the store (or, asked so, the same one) is appended
// to at a steady pace, and compares the appends' latency with that before. `make compactbench` runs it
// with 5 GB and 10 million keys.
func BenchmarkCompactBeside(b *testing.B) {
	for range b.N {
		compactBeside(b)
	}
}

func compactBeside(b *testing.B) {
	// The index flushes by the memtable's size, marks and files by the store's own
	// timers, as in production.
	s := mustOpen(b, Options{Dir: b.TempDir()})
	l := mustLog(b, s, Config{SegmentBytes: 1 << 30, RetentionMs: -1, RetentionBytes: -1, Compact: true})
	other, err := s.OpenLog(topicA, 1, Config{SegmentBytes: 256 << 20, RetentionMs: -1, RetentionBytes: 512 << 20})
	if err != nil {
		b.Fatal(err)
	}
	fillKeyed(b, l, *compactKeys, *compactBytes, record.CodecNone)
	if *compactOwn {
		other = l
	}
	size := l.Size()
	debug.FreeOSMemory()

	quiet, quietFlush := appendFor(b, other, 10*time.Second, nil)
	debug.FreeOSMemory()
	base, peak, stop := resident(), atomic.Int64{}, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				peak.Store(max(peak.Load(), resident()))
			}
		}
	})
	done := make(chan struct{})
	var total CompactStats
	rounds := 0
	began := time.Now()
	wg.Go(func() {
		defer close(done)
		for l.Cleanable(time.Now(), l.EndOffset()).DirtyBytes > 0 {
			stats, err := l.Compact(b.Context(), time.Now(), l.EndOffset(), CompactOptions{Memory: *compactMemory, Throttle: paced(*compactRate)})
			if err != nil {
				b.Error(err)
				return
			}
			rounds++
			total.BytesRead += stats.BytesRead
			total.BytesWritten += stats.BytesWritten
			total.RecordsRead += stats.RecordsRead
			runtime.GC()
		}
	})
	busy, busyFlush := appendFor(b, other, time.Hour, done)
	took := time.Since(began)
	close(stop)
	wg.Wait()
	b.ReportMetric(float64(size)/1e6/took.Seconds(), "MB/s")
	b.ReportMetric(float64(rounds), "rounds")
	b.ReportMetric(float64(peak.Load()-base)/(1<<20), "MiB-growth")
	b.ReportMetric(float64(percentile(busy, 0.99))/float64(percentile(quiet, 0.99)), "p99-ratio")
	b.Logf("%d MB with %d keys to %d MB in %d rounds, %.1f s; read %d MB, wrote %d MB; memory grew by %d MiB of %d allowed",
		size/1e6, *compactKeys, l.Size()/1e6, rounds, took.Seconds(), total.BytesRead/1e6, total.BytesWritten/1e6, (peak.Load()-base)>>20, *compactMemory>>20)
	for _, x := range []struct {
		name string
		all  []time.Duration
	}{{"append, quiet ", quiet}, {"append, beside", busy}, {"flush, quiet  ", quietFlush}, {"flush, beside ", busyFlush}} {
		b.Logf("%s: %d, p50 %v, p99 %v, p99.9 %v, max %v", x.name, len(x.all), percentile(x.all, 0.5), percentile(x.all, 0.99), percentile(x.all, 0.999), percentile(x.all, 1))
	}
}

// appendFor appends 16 KiB a thousand times a second until done is closed or the
// time is over, and asks for a flush as soon as the one before is answered. It
// returns how long each took.
func appendFor(b *testing.B, l *Log, most time.Duration, done <-chan struct{}) (appends, flushes []time.Duration) {
	b.Helper()
	one := record.Batch(record.Build(record.BuildHeader{ProducerID: -1, LeaderEpoch: 1}, []record.Record{{Value: make([]byte, 16<<10)}}))
	flushed := make(chan time.Duration, 1)
	asked := false
	began := time.Now()
	for i := 0; time.Since(began) < most; i++ {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Millisecond)))
		start := time.Now()
		one.SetBaseOffset(l.EndOffset())
		if _, err := l.Append(one); err != nil {
			b.Fatal(err)
		}
		appends = append(appends, time.Since(start))
		if !asked {
			asked, start = true, time.Now()
			l.Flush(func(error) { flushed <- time.Since(start) })
		}
		select {
		case d := <-flushed:
			flushes, asked = append(flushes, d), false
		case <-done:
			most = 0
		default:
		}
		if i%4096 == 0 {
			if _, err := l.Retain(time.Now(), l.EndOffset()); err != nil {
				b.Fatal(err)
			}
		}
	}
	if asked {
		<-flushed
	}
	return appends, flushes
}

func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted[min(int(float64(len(sorted))*p), len(sorted)-1)]
}

// resident is the process' resident memory in bytes.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// paced is a throttle of so many bytes per second.
func paced(rate int64) func(ctx context.Context, n int) error {
	if rate <= 0 {
		return nil
	}
	began, used := time.Now(), int64(0)
	return func(ctx context.Context, n int) error {
		used += int64(n)
		wait := time.Until(began.Add(time.Duration(float64(used) / float64(rate) * 1e9)))
		if wait <= 0 {
			return ctx.Err()
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
