package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// diskOptions is a store on the real file system whose timers stand still.
func diskOptions(t testing.TB) Options {
	return Options{Dir: filepath.Join(t.TempDir(), "data"), Clock: clock.NewManual(time.Unix(1_700_000_000, 0)), IndexMemory: 1 << 20, IndexInterval: 200}
}

func TestAppendRefuses(t *testing.T) {
	l := mustLog(t, mustOpen(t, testOptions(vfs.NewMem())), Config{})
	appendN(t, l, 2, 1)
	good := testBatch{base: 6, n: 2, epoch: 1}.build()
	for name, c := range map[string]struct {
		bytes []byte
		err   error
	}{
		"below the end":       {testBatch{base: 5, n: 1, epoch: 1}.build(), ErrOffsetOrder},
		"second goes back":    {append(append([]byte(nil), good...), testBatch{base: 7, n: 1, epoch: 1}.build()...), ErrOffsetOrder},
		"half a batch at end": {append(append([]byte(nil), good...), good[:30]...), record.ErrShort},
		"nothing":             {nil, nil},
	} {
		_, err := l.Append(c.bytes)
		if err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if l.EndOffset() != 6 || l.Size() != int64(len(content(t, l, 0, 1000))) {
			t.Errorf("%s: something was appended", name)
		}
	}
	a := mustAppend(t, l, testBatch{base: 10, n: 2, epoch: 2, ts: 50}.build(), testBatch{base: 12, n: 3, epoch: 2, ts: 40}.build())
	if a != (Appended{First: 10, End: 15, MaxTimestamp: 51, OffsetOfMaxTimestamp: 11}) {
		t.Errorf("%+v", a)
	}
	if _, err := l.Read(16, 100, 20, true); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("read above the end: %v", err)
	}
}

// A view keeps its bytes when the segment is deleted, and never shows other
// bytes when the log is cut and appended to again, on a file system that cuts
// in place.
func TestViewOutlivesItsSegment(t *testing.T) {
	s := mustOpen(t, diskOptions(t))
	l := mustLog(t, s, Config{SegmentBytes: 600})
	appendN(t, l, 8, 1)
	old, err := l.Read(0, 1000, 24, false)
	if err != nil {
		t.Fatal(err)
	}
	last, err := l.Read(18, 1000, 24, false)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, old.Len())
	if _, err := old.ReadAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if f, ok := old.File(); !ok || old.Offset() != 0 || old.Len() != len(want) {
		t.Fatalf("file %v %v", f, ok)
	}
	half := make([]byte, last.Len()/2)
	if _, err := last.ReadAt(half, 0); err != nil {
		t.Fatal(err)
	}

	if err := l.SetStartOffset(12); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(l.Dir(), fileName(0))); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("segment 0 is still there: %v", err)
	}
	if err := l.Truncate(21); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, testBatch{base: 21, n: 3, epoch: 9, ts: 1, value: 50}.build())

	got := make([]byte, len(want))
	if _, err := old.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("deleted segment: %v", err)
	}
	all := make([]byte, last.Len())
	if n, err := last.ReadAt(all, 0); !errors.Is(err, io.ErrUnexpectedEOF) || n != len(half) || !bytes.Equal(all[:n], half) {
		t.Fatalf("cut segment gave %d bytes, %v: want the %d that stayed, then an error", n, err, len(half))
	}
	old.Release()
	old.Release() // the second does nothing
	last.Release()
	if got := split(t, content(t, l, 12, 1000)); len(got) != 4 || got[3].PartitionLeaderEpoch() != 9 {
		t.Fatalf("%d batches", len(got))
	}
}

// Many logs with many segments, few open files, views that hold some.
func TestFileCache(t *testing.T) {
	o := diskOptions(t)
	o.MaxOpenFiles = 8
	s := mustOpen(t, o)
	var logs []*Log
	for p := range int32(10) {
		l, err := s.OpenLog(topicA, p, Config{SegmentBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 5, 1)
		mustFlush(t, l)
		logs = append(logs, l)
	}
	var views []View
	for _, l := range logs {
		for o := range int64(5) {
			v, err := l.Read(3*o, 1000, 15, false)
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, v)
		}
	}
	for i := range views {
		p := make([]byte, views[i].Len())
		if _, err := views[i].ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		views[i].Release()
	}
	for _, l := range logs {
		if got := len(split(t, content(t, l, 0, 1000))); got != 5 {
			t.Fatalf("%d batches", got)
		}
	}
	l, err := s.OpenLog(topicA, 99, Config{SegmentBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 20, 1)
	mustFlush(t, l)
	appendN(t, l, 5, 1)
	if n := s.files.open(); n > 8+5 { // those with unsynced bytes stay
		t.Errorf("%d files open", n)
	}
}

// A tail reader and a sequential reader never ask the index.
func TestSequentialReaderAsksNoIndex(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.IndexInterval, o.tail = 100, 4
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 5000})
	appendN(t, l, 100, 1)
	before := s.index.lookups.Load()
	content(t, l, 0, 700)
	for range 50 { // at the tail
		end := l.EndOffset()
		appendN(t, l, 1, 1)
		if got := len(split(t, content(t, l, end, 700))); got != 1 {
			t.Fatalf("%d batches at the tail", got)
		}
	}
	if n := s.index.lookups.Load() - before; n != 0 {
		t.Errorf("%d index lookups", n)
	}
	v, err := l.Read(100, 10, 300, true)
	if err != nil || v.Base != 99 {
		t.Fatalf("base %d, %v", v.Base, err)
	}
	v.Release()
	if n := s.index.lookups.Load() - before; n == 0 {
		t.Error("a reader elsewhere needs the index; is it used at all?")
	}
}

// A full disk: appends and new marks are refused, reads, flushes and deletions
// go on, and with room all resumes by itself.
func TestDiskFull(t *testing.T) {
	var full atomic.Bool
	inner := vfs.NewCrashableMem()
	fs := errorfs.Wrap(inner, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt && filepath.Ext(op.Path) != ".log") {
			return syscall.ENOSPC
		}
		return nil
	}))
	s := mustOpen(t, testOptions(fs))
	l := mustLog(t, s, Config{SegmentBytes: 600})
	appendN(t, l, 4, 1)
	full.Store(true)
	l.SetHighWatermark(6)
	mustFlush(t, l)
	s.flusher.checkpoint()
	if _, err := l.Append(testBatch{base: 12, n: 3, value: 300}.build()); !errors.Is(err, ErrFull) {
		t.Fatalf("roll on a full disk: %v", err)
	}
	if got := len(split(t, content(t, l, 0, 1000))); got != 4 || s.Health().State != Full {
		t.Fatalf("%d batches, %v", got, s.Health())
	}
	full.Store(false)
	if _, err := l.Append(testBatch{base: 12, n: 3}.build()); !errors.Is(err, ErrFull) {
		t.Fatalf("append before the next look: %v", err)
	}
	s.space.look()
	appendN(t, l, 2, 1)
	if h := s.Health(); h.State != Healthy {
		t.Fatalf("after an append: %v", h)
	}
	mustFlush(t, l)
	s.flusher.checkpoint()
	l = mustLog(t, mustOpen(t, testOptions(clone(inner))), Config{})
	if l.EndOffset() != 18 || l.HighWatermark() != 6 {
		t.Fatalf("end %d, high watermark %d", l.EndOffset(), l.HighWatermark())
	}
}

func TestDelete(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(fs))
	l := mustLog(t, s, Config{SegmentBytes: 600})
	appendN(t, l, 8, 1)
	mustFlush(t, l)
	v, err := l.Read(0, 1000, 24, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(topicA, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(topicA, 0); err != nil {
		t.Fatalf("again: %v", err)
	}
	if got := split(t, viewBytes(t, &v)); len(got) != 2 {
		t.Fatal("a view outlives the log")
	}
	if _, err := l.Append(testBatch{base: 24, n: 1}.build()); !errors.Is(err, ErrClosed) {
		t.Fatalf("append: %v", err)
	}
	if _, err := l.Read(0, 1000, 24, false); !errors.Is(err, ErrClosed) {
		t.Fatalf("read: %v", err)
	}
	if err := flush(l); !errors.Is(err, ErrClosed) {
		t.Fatalf("flush: %v", err)
	}
	if len(s.Logs()) != 0 {
		t.Fatal("still listed")
	}
	// The same topic id again, as a mirror of a deleted mirror topic has it.
	l = mustLog(t, s, Config{})
	if l.EndOffset() != 0 || len(l.Epochs()) != 0 {
		t.Fatalf("a new log ends at %d", l.EndOffset())
	}
	appendN(t, l, 1, 5)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testOptions(fs))
	if l = mustLog(t, s, Config{}); fmt.Sprint(l.Epochs()) != "[{5 0}]" || l.EndOffset() != 3 {
		t.Fatalf("%v, end %d", l.Epochs(), l.EndOffset())
	}
	if got := s.Logs(); len(got) != 1 || got[0] != (LogID{topicA, 0}) {
		t.Fatal(got)
	}
}

func viewBytes(t *testing.T, v *View) []byte {
	t.Helper()
	defer v.Release()
	p := make([]byte, v.Len())
	if _, err := v.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLock(t *testing.T) {
	o := diskOptions(t)
	mustOpen(t, o)
	if _, err := Open(o); err == nil {
		t.Fatal("two stores in one directory")
	}
}

func TestCheckProducer(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, testOptions(fs))
	l := mustLog(t, s, Config{SegmentBytes: 1})
	x := testBatch{base: 0, n: 3, epoch: 1, pid: 5}
	mustAppend(t, l, x.build())
	mustAppend(t, l, testBatch{base: 3, n: 2, epoch: 1, pid: 5, seq: 3}.build())
	check := func() {
		t.Helper()
		if dup, err := l.CheckProducer(x.build()); err != nil || dup == nil || dup.BaseOffset != 0 {
			t.Fatalf("%+v, %v", dup, err)
		}
		if _, err := l.CheckProducer(testBatch{base: 5, n: 1, pid: 5, seq: 9}.build()); !errors.Is(err, producer.ErrOutOfOrderSequence) {
			t.Fatal(err)
		}
	}
	check()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustLog(t, mustOpen(t, testOptions(fs)), Config{})
	check()
	if err := l.Truncate(3); err != nil {
		t.Fatal(err)
	}
	if dup, err := l.CheckProducer(testBatch{base: 3, n: 2, pid: 5, seq: 3}.build()); dup != nil || err != nil {
		t.Fatalf("what was cut is no duplicate: %+v, %v", dup, err)
	}
}

// Time look-ups see into compressed batches, in every codec; a bomb is not
// blown up.
func TestOffsetForTimeCompressed(t *testing.T) {
	recs := []record.Record{{Value: bytes.Repeat([]byte("abc"), 500)}, {OffsetDelta: 1, TimestampDelta: 10}, {OffsetDelta: 2, TimestampDelta: 5}, {OffsetDelta: 3, TimestampDelta: 30}}
	plain := record.Batch(record.Build(record.NoProducer(1000), recs))
	for codec, c := range map[record.Codec]kgo.CompressionCodec{
		record.CodecGzip: kgo.GzipCompression(), record.CodecSnappy: kgo.SnappyCompression(), record.CodecLz4: kgo.Lz4Compression(), record.CodecZstd: kgo.ZstdCompression(),
	} {
		b := compress(t, plain, codec, c)
		l := mustLog(t, mustOpen(t, testOptions(vfs.NewMem())), Config{})
		mustAppend(t, l, b)
		for ts, want := range map[int64]int64{900: 0, 1000: 0, 1001: 1, 1010: 1, 1011: 3, 1030: 3, 1031: -1} {
			if o, _, _, ok, err := l.OffsetForTime(ts); o != want || ok != (want >= 0) || err != nil {
				t.Errorf("%s: offset for %d is %d %v %v, want %d", codec, ts, o, ok, err, want)
			}
		}
		if o, ts, _, ok := l.MaxTimestamp(); o != 3 || ts != 1030 || !ok {
			t.Errorf("%s: max timestamp %d at %d", codec, ts, o)
		}
		bomb := compress(t, append(plain[:record.HeaderSize:record.HeaderSize], make([]byte, maxInflated+1)...), codec, c)
		if _, err := inflate(codec, record.Batch(bomb).RecordBytes(), maxInflated); err == nil {
			t.Errorf("%s: a bomb of %d bytes went off", codec, len(bomb))
		}
	}
}

func compress(t *testing.T, b record.Batch, codec record.Codec, c kgo.CompressionCodec) []byte {
	t.Helper()
	compressor, err := kgo.DefaultCompressor(c)
	if err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	z, _ := compressor.Compress(&w, b.RecordBytes())
	out := append(append([]byte(nil), b[:record.HeaderSize]...), z...)
	out[8], out[9], out[10], out[11] = byte((len(out)-12)>>24), byte((len(out)-12)>>16), byte((len(out)-12)>>8), byte(len(out)-12)
	out[22] |= byte(codec)
	return out
}

// One appender, readers, flushers, a truncator's worth of cuts: for -race, and
// no reader ever sees bytes that are not whole batches.
func TestConcurrent(t *testing.T) {
	o := diskOptions(t)
	o.MaxOpenFiles = 8
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 2000})
	appendN(t, l, 5, 1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for r := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; !stop.Load(); i++ {
				offset := l.StartOffset() + int64(i*7+r)%max(1, l.EndOffset()-l.StartOffset())
				v, err := l.Read(offset, 100+i%3000, l.EndOffset(), true)
				if err != nil {
					if !errors.Is(err, ErrOutOfRange) {
						t.Errorf("read: %v", err)
					}
					continue
				}
				p := make([]byte, v.Len())
				if _, err := v.ReadAt(p, 0); err == nil && len(p) > 0 {
					split(t, p)
				} else if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("view: %v", err)
				}
				v.Release()
				l.LastStable(l.HighWatermark())
				l.EpochEnd(1)
				_, _, _, _, _ = l.OffsetForTime(int64(1000 + i))
				l.MaxTimestamp()
			}
		}()
	}
	for i := range 80 {
		appendN(t, l, 3, int32(1+i/10))
		l.SetHighWatermark(l.EndOffset())
		switch i % 10 {
		case 3:
			l.Flush(func(error) {})
		case 5:
			if err := l.Truncate(l.EndOffset() - 5); err != nil {
				t.Error(err)
			}
		case 8:
			if err := l.SetStartOffset(max(l.StartOffset(), l.EndOffset()-60)); err != nil {
				t.Error(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestDump(t *testing.T) {
	s := mustOpen(t, diskOptions(t))
	l := mustLog(t, s, Config{})
	appendN(t, l, 4, 1)
	path := l.Segments()[0].Path
	n := 0
	if err := Dump(path, func(pos int64, b record.Batch) error {
		n++
		return b.VerifyCRC()
	}); err != nil || n != 4 {
		t.Fatalf("%d batches, %v", n, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(t.TempDir(), "x.log")
	if err := os.WriteFile(torn, b[:len(b)-1], 0o644); err != nil {
		t.Fatal(err)
	}
	var damage *DamageError
	if err := Dump(torn, func(int64, record.Batch) error { return nil }); !errors.As(err, &damage) || damage.Offset != 9 {
		t.Fatal(err)
	}
}

func TestNames(t *testing.T) {
	id := LogID{topicA, 17}
	if got, ok := ParseLogID(id.String()); !ok || got != id {
		t.Fatalf("%s: %v %v", id, got, ok)
	}
	for _, bad := range []string{"", "x-1", id.String() + "-delete", id.String() + " ", "-_AAAAAAAAAAAAAAAAAAAQ--1", "-_AAAAAAAAAAAAAAAAAAAQ-01", "-_AAAAAAAAAAAAAAAAAAAR-0"} {
		if _, ok := ParseLogID(bad); ok {
			t.Errorf("%q is no log", bad)
		}
	}
	for name, want := range map[string]int64{"00000000000000000000.log": 0, "00000000000000000042.log": 42, "09223372036854775807.log": 1<<63 - 1, "09223372036854775808.log": -1, "42.log": -1, "00000000000000000000.index": -1} {
		if got, ok := parseFileName(name); ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: %d %v", name, got, ok)
		}
	}
}
