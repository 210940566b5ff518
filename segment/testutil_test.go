package segment

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

var topicA = [16]byte{0: 0xFB, 1: 0xF0, 15: 1} // a base64 form with '-' and '_' in it

// testBatch is one batch of n records with a value of the given size each.
type testBatch struct {
	base    int64
	n       int
	epoch   int32
	ts      int64
	value   int
	pid     int64 // 0: none
	pepoch  int16
	seq     int32
	txn     bool
	gapLast int32 // compaction took the last records: the batch spans more offsets
	keys    func() (key []byte, tombstone bool)
}

func (b testBatch) build() []byte {
	recs := make([]record.Record, b.n)
	for i := range recs {
		recs[i] = record.Record{OffsetDelta: int32(i), TimestampDelta: int64(i), Value: make([]byte, b.value)}
		for j := range recs[i].Value {
			recs[i].Value[j] = byte(b.base + int64(i) + int64(b.epoch)*7)
		}
	}
	if b.keys != nil {
		for i := range recs {
			var tombstone bool
			if recs[i].Key, tombstone = b.keys(); tombstone {
				recs[i].Value = nil
			}
		}
	}
	if b.gapLast > 0 {
		recs[len(recs)-1].OffsetDelta += b.gapLast
	}
	h := record.NoProducer(b.ts)
	h.BaseOffset, h.LeaderEpoch = b.base, b.epoch
	if b.pid != 0 {
		h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional = b.pid, b.pepoch, b.seq, b.txn
	}
	return record.Build(h, recs)
}

func stamped(b []byte, base int64, epoch int32) []byte {
	record.Batch(b).SetBaseOffset(base)
	record.Batch(b).SetLeaderEpoch(epoch)
	return b
}

// testOptions is a store in memory whose timers stand still. It keeps no
// reserve: a file system without fallocate has the ballast written into it, at
// each first opening.
func testOptions(fs vfs.FS) Options {
	return Options{
		Dir: "data", FS: fs, Clock: clock.NewManual(time.Unix(1_700_000_000, 0)),
		Logger: slog.New(slog.DiscardHandler), IndexMemory: 1 << 20,
		ReserveBytes: -1,
	}
}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustLog(t testing.TB, s *Store, c Config) *Log {
	t.Helper()
	l, err := s.OpenLog(topicA, 0, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustAppend(t testing.TB, l *Log, batches ...[]byte) Appended {
	t.Helper()
	var all []byte
	for _, b := range batches {
		all = append(all, b...)
	}
	a, err := l.Append(all)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// appendN appends n batches of three records, all in the given epoch.
func appendN(t testing.TB, l *Log, n int, epoch int32) {
	t.Helper()
	for range n {
		end := l.EndOffset()
		mustAppend(t, l, testBatch{base: end, n: 3, epoch: epoch, ts: 1000 + end, value: 50}.build())
	}
}

func mustFlush(t testing.TB, l *Log) {
	t.Helper()
	if err := flush(l); err != nil {
		t.Fatal(err)
	}
}

func flush(l *Log) error {
	done := make(chan error, 1)
	l.Flush(func(err error) { done <- err })
	return <-done
}

// fataler is testing.TB and rapid's T.
type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// content reads everything in [offset, end) through views.
func content(t fataler, l *Log, offset int64, max int) []byte {
	t.Helper()
	var all []byte
	end := l.EndOffset()
	for offset < end {
		v, err := l.Read(offset, max, end, true)
		if err != nil {
			t.Fatalf("read at %d: %v", offset, err)
		}
		if v.N == 0 {
			break
		}
		p := make([]byte, v.N)
		if _, err := v.ReadAt(p, 0); err != nil {
			t.Fatalf("view at %d: %v", offset, err)
		}
		v.Release()
		if v.End <= offset {
			t.Fatalf("view at %d ends at %d", offset, v.End)
		}
		all, offset = append(all, p...), v.End
	}
	return all
}

// split cuts b into batches and checks their CRCs.
func split(t fataler, b []byte) []record.Batch {
	t.Helper()
	var list []record.Batch
	for len(b) > 0 {
		x, rest, err := record.Next(b)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if err := x.VerifyCRC(); err != nil {
			t.Fatalf("%v", err)
		}
		list, b = append(list, x), rest
	}
	return list
}

// memWithFile is a file system that holds one log with one file.
func memWithFile(t fataler, content []byte) (*vfs.MemFS, Options) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	dir := fs.PathJoin(o.Dir, logsDir, LogID{topicA, 0}.String())
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	f, err := fs.Create(fs.PathJoin(dir, fileName(0)), "")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := f.Write(bytes.Clone(content)); err != nil { // Write may change what it is given
		t.Fatalf("%v", err)
	}
	_ = f.Close()
	return fs, o
}
