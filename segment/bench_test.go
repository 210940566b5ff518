package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// benchLog is a log on the real file system, as in production.
func benchLog(b *testing.B, c Config) (*Store, *Log) {
	b.Helper()
	o := Options{Dir: b.TempDir(), FlushInterval: -1}
	s := mustOpen(b, o)
	return s, mustLog(b, s, c)
}

// BenchmarkAppend appends pieces as the mirror path does, and beside each piece
// writes the same bytes with a bare pwrite into a file of its own, of the same
// size and with pages as fresh: the page-cache write limit of this very run. Metric
// %limit is what Append reaches of it. No allocation per batch: what is left is
// the index, per 64 KiB.
//
// The two take turns in going first: the second finds the bytes in the processor's
// cache, where the first one's copy into the page cache has brought them. Of the bare
// file only the pwrite counts, not that it is removed and begun anew; of ours all that
// Append does, rolls too, but not retention, which is not the appender's.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct{ piece, batch int }{{1 << 20, 64 << 10}, {1 << 20, 16 << 10}, {1 << 20, 1 << 10}, {256 << 10, 64 << 10}, {16 << 10, 16 << 10}, {1 << 10, 1 << 10}} {
		b.Run(fmt.Sprintf("piece=%d/batch=%d", c.piece, c.batch), func(b *testing.B) {
			const fileSize = 256 << 20
			_, l := benchLog(b, Config{SegmentBytes: fileSize, RetentionMs: -1, RetentionBytes: fileSize})
			raw := &rawFile{dir: b.TempDir(), max: fileSize}
			defer raw.remove(b)
			piece, n := benchPiece(c.piece, c.batch)
			one := len(piece) / n
			b.SetBytes(int64(len(piece)))
			b.ReportAllocs()
			var end int64
			var ours, limit time.Duration
			appended := func() {
				began := time.Now()
				if _, err := l.Append(piece); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(began)
			}
			for first := true; b.Loop(); first = !first {
				for i := range n {
					record.Batch(piece[i*one:]).SetBaseOffset(end)
					end++
				}
				if first {
					appended()
				}
				limit += raw.write(b, piece)
				if !first {
					appended()
				}
				if l.Size() > 1<<30 { // keep the disk small
					b.StopTimer()
					if err := l.SetStartOffset(end); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
			b.ReportMetric(100*limit.Seconds()/ours.Seconds(), "%limit")
			b.ReportMetric(float64(b.N)*float64(len(piece))/1e6/ours.Seconds(), "MB/s-append")
		})
	}
}

// nullFile takes what is written to it for granted.
type nullFile struct{ dataFile }

func (nullFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// BenchmarkAppendAround is what Append does around the write: its share of the time
// where the kernel's is nothing.
func BenchmarkAppendAround(b *testing.B) {
	for _, c := range []struct{ piece, batch int }{{1 << 20, 16 << 10}, {1 << 20, 1 << 10}, {1 << 10, 1 << 10}} {
		b.Run(fmt.Sprintf("piece=%d/batch=%d", c.piece, c.batch), func(b *testing.B) {
			o := Options{Dir: b.TempDir(), FlushInterval: -1, wrap: func(f dataFile) dataFile { return nullFile{f} }}
			l := mustLog(b, mustOpen(b, o), Config{SegmentBytes: 1 << 30, RetentionMs: -1})
			piece, n := benchPiece(c.piece, c.batch)
			one := len(piece) / n
			b.ReportAllocs()
			var end int64
			for b.Loop() {
				for i := range n {
					record.Batch(piece[i*one:]).SetBaseOffset(end)
					end++
				}
				if _, err := l.Append(piece); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchPiece is a piece of n batches.
func benchPiece(piece, batch int) ([]byte, int) {
	one := record.Build(record.BuildHeader{ProducerID: 7, LeaderEpoch: 3}, []record.Record{{Value: make([]byte, batch-record.HeaderSize-12)}})
	n := max(piece/len(one), 1)
	return bytes.Repeat(one, n), n
}

// rawFile is written to without anything around it, and begun anew where a
// segment would be.
type rawFile struct {
	dir  string
	f    *os.File
	size int64
	max  int64
}

func (r *rawFile) write(b *testing.B, p []byte) time.Duration {
	if r.f == nil || r.size+int64(len(p)) > r.max {
		b.StopTimer()
		r.remove(b)
		f, err := os.Create(filepath.Join(r.dir, "raw"))
		if err != nil {
			b.Fatal(err)
		}
		r.f, r.size = f, 0
		b.StartTimer()
	}
	began := time.Now()
	if _, err := r.f.WriteAt(p, r.size); err != nil {
		b.Fatal(err)
	}
	r.size += int64(len(p))
	return time.Since(began)
}

func (r *rawFile) remove(b *testing.B) {
	if r.f == nil {
		return
	}
	if err := errors.Join(r.f.Close(), os.Remove(r.f.Name())); err != nil {
		b.Fatal(err)
	}
	r.f = nil
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
			var total int64
			for b.Loop() {
				v, err := l.Read(offset, 1<<20, end, true)
				if err != nil || v.N == 0 {
					b.Fatal(v, err)
				}
				total += int64(v.N)
				if offset = v.End; offset >= end {
					offset = 0
				}
				v.Release()
			}
			b.ReportMetric(float64(total)/1e6/b.Elapsed().Seconds(), "MB/s")
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

// BenchmarkIndex compares what a lookup may stand on: the index entries of 1
// GiB, one per 64 KiB, in Pebble (warm, and with nothing of it in memory), in the
// tail of an active segment, and in a flat file of fixed entries as Kafka has it.
func BenchmarkIndex(b *testing.B) {
	const n = 1 << 14
	entries := make([]entry, n)
	for i := range entries {
		entries[i] = entry{offset: int64(i) * 64, pos: int64(i) << 16, time: int64(i)}
	}
	s, l := benchLog(b, Config{})
	s.index.putEntries(l.id, 0, entries)
	if err := s.index.do(func() error { return s.index.db.Flush() }); err != nil {
		b.Fatal(err)
	}
	run := func(name string, find func(offset int64) int64) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i += 7919 {
				if o := i % (n * 64); find(o) != o/64<<16 {
					b.Fatal(o, find(o))
				}
			}
		})
	}
	run("pebble/warm", func(o int64) int64 { pos, _ := s.index.position(l.id, 0, o); return pos })
	b.Run("pebble/cold", func(b *testing.B) {
		for i := int64(0); b.Loop(); i += 7919 {
			b.StopTimer()
			x := s.index
			if err := x.close(); err != nil {
				b.Fatal(err)
			}
			x, err := openIndex(s.disk, x.dir, s.o.IndexMemory, s.o.Logger)
			if err != nil {
				b.Fatal(err)
			}
			s.index = x
			b.StartTimer()
			o := i % (n * 64)
			if pos, _ := x.position(l.id, 0, o); pos != o/64<<16 {
				b.Fatal(o, pos)
			}
		}
	})
	run("memory", func(o int64) int64 {
		return entries[sort.Search(n, func(i int) bool { return entries[i].offset > o })-1].pos
	})
	flat := make([]byte, 0, 16*n)
	for _, e := range entries {
		flat = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(flat, uint64(e.offset)), uint64(e.pos))
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "flat"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(flat); err != nil {
		b.Fatal(err)
	}
	run("flat file", func(o int64) int64 {
		var p [16]byte
		at := func(i int) int64 {
			if _, err := f.ReadAt(p[:], int64(16*i)); err != nil {
				b.Fatal(err)
			}
			return int64(binary.BigEndian.Uint64(p[:]))
		}
		at(sort.Search(n, func(i int) bool { return at(i) > o }) - 1)
		return int64(binary.BigEndian.Uint64(p[8:]))
	})
}

// BenchmarkOpen opens a store and one log of 64 MiB: after a clean stop, after a
// kill, and with the index gone. Metric s/GiB is what that makes of a GiB.
func BenchmarkOpen(b *testing.B) {
	for _, how := range []string{"clean", "killed", "index gone"} {
		b.Run(how, func(b *testing.B) {
			s, l := benchLog(b, Config{SegmentBytes: 16 << 20, RetentionMs: -1})
			fillBench(b, l, 16<<10, 64<<20)
			for b.Loop() {
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				if how != "clean" { // begin a run and do not end it
					w, err := openWatermarks(s.disk, s.o.Dir, s.o.Logger)
					if err != nil {
						b.Fatal(err)
					}
					if err := w.close(false); err != nil {
						b.Fatal(err)
					}
				}
				if how == "index gone" {
					if err := s.disk.RemoveAll(s.disk.PathJoin(s.o.Dir, indexDir)); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				s = mustOpen(b, s.o)
				mustLog(b, s, Config{})
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*16, "s/GiB")
		})
	}
}
