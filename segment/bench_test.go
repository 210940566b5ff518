package segment

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// benchLog is a log on the real file system, as in production.
func benchLog(b *testing.B, c Config) (*Store, *Log) {
	b.Helper()
	o := Options{Dir: b.TempDir(), FlushInterval: -1}
	s := mustOpen(b, o)
	return s, mustLog(b, s, c)
}

// BenchmarkAppend appends pieces as the mirror path does. No allocation per
// batch: what is left is the index, per 64 KiB.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct{ piece, batch int }{{1 << 20, 64 << 10}, {1 << 20, 1 << 10}, {16 << 10, 16 << 10}, {1 << 10, 1 << 10}} {
		b.Run(fmt.Sprintf("piece=%d/batch=%d", c.piece, c.batch), func(b *testing.B) {
			s, l := benchLog(b, Config{SegmentBytes: 256 << 20, RetentionMs: -1, RetentionBytes: 256 << 20})
			one := record.Build(record.BuildHeader{ProducerID: 7, LeaderEpoch: 3}, []record.Record{{Value: make([]byte, c.batch-record.HeaderSize-12)}})
			var piece []byte
			for len(piece) < c.piece {
				piece = append(piece, one...)
			}
			n := len(piece) / len(one)
			b.SetBytes(int64(len(piece)))
			b.ReportAllocs()
			var end int64
			for b.Loop() {
				for i := range n {
					record.Batch(piece[i*len(one):]).SetBaseOffset(end)
					end++
				}
				if _, err := l.Append(piece); err != nil {
					b.Fatal(err)
				}
				if l.Size() > 1<<30 { // keep the disk small
					b.StopTimer()
					if err := l.SetStartOffset(end); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
			_ = s
		})
	}
}

func fillBench(b *testing.B, l *Log, batch int, total int64) {
	b.Helper()
	one := record.Build(record.NoProducer(1), []record.Record{{Value: make([]byte, batch-record.HeaderSize-12)}})
	var piece []byte
	for len(piece) < 1<<20 {
		piece = append(piece, one...)
	}
	for l.Size() < total {
		end := l.EndOffset()
		for i := 0; i*len(one) < len(piece); i++ {
			record.Batch(piece[i*len(one):]).SetBaseOffset(end + int64(i))
		}
		if _, err := l.Append(piece); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads on and on, as a follower or consumer does: closed
// segments, and the end of each view has to be found.
func BenchmarkRead(b *testing.B) {
	for _, batch := range []int{1 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			_, l := benchLog(b, Config{SegmentBytes: 16 << 20, RetentionMs: -1})
			fillBench(b, l, batch, 64<<20)
			end, offset := l.EndOffset(), int64(0)
			b.ReportAllocs()
			var bytes int64
			for b.Loop() {
				v, err := l.Read(offset, 1<<20, end, true)
				if err != nil || v.N == 0 {
					b.Fatal(v, err)
				}
				bytes += int64(v.N)
				if offset = v.End; offset >= end {
					offset = 0
				}
				v.Release()
			}
			b.ReportMetric(float64(bytes)/1e6/b.Elapsed().Seconds(), "MB/s")
		})
	}
}

// BenchmarkReadTail reads what was appended last, up to the end.
func BenchmarkReadTail(b *testing.B) {
	_, l := benchLog(b, Config{})
	fillBench(b, l, 16<<10, 8<<20)
	end := l.EndOffset()
	b.ReportAllocs()
	for b.Loop() {
		v, err := l.Read(end-4, 1<<20, end, true)
		if err != nil || v.N == 0 {
			b.Fatal(v, err)
		}
		v.Release()
	}
}

// BenchmarkLookup finds random offsets: in closed segments by Pebble, in the
// active one in memory.
func BenchmarkLookup(b *testing.B) {
	_, l := benchLog(b, Config{SegmentBytes: 32 << 20, RetentionMs: -1})
	fillBench(b, l, 16<<10, 64<<20)
	segments := l.Segments()
	for name, seg := range map[string]SegmentInfo{"closed": segments[0], "active": segments[len(segments)-1]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := seg.End - seg.Base
			for i := int64(0); b.Loop(); i += 7919 {
				v, err := l.Read(seg.Base+i%n, 1, l.EndOffset(), true)
				if err != nil {
					b.Fatal(err)
				}
				v.Release()
			}
		})
	}
}

// BenchmarkOpen opens a store and one log: after a clean stop, and with the
// index gone, per 64 MiB.
func BenchmarkOpen(b *testing.B) {
	for _, rebuild := range []bool{false, true} {
		b.Run(fmt.Sprintf("rebuild=%v", rebuild), func(b *testing.B) {
			s, l := benchLog(b, Config{SegmentBytes: 16 << 20, RetentionMs: -1})
			fillBench(b, l, 16<<10, 64<<20)
			for b.Loop() {
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				if rebuild {
					if err := s.disk.RemoveAll(s.disk.PathJoin(s.o.Dir, indexDir)); err != nil {
						b.Fatal(err)
					}
				}
				s = mustOpen(b, s.o)
				mustLog(b, s, Config{})
			}
		})
	}
}
