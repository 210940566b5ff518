package segment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// The index that is rebuilt from compacted files finds each epoch where it
// began, though its first batches have no records any more.
func TestCompactKeepsEpochs(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.SegmentBytes = 600
	l := mustLog(t, s, c)
	for i := range 40 {
		appendKeyed(t, l, keyedBatch{epoch: int32(i / 3), recs: []kv{{"a", fmt.Sprint(i), int64(i)}}})
	}
	want := fmt.Sprint(l.Epochs())
	mustCompact(t, l, 1000, CompactOptions{})
	rebuilt := s.rebuiltLog(t)
	if got := fmt.Sprint(rebuilt.Epochs()); got != want || fmt.Sprint(l.Epochs()) != want {
		t.Fatalf("epochs %v, rebuilt %v, were %v", l.Epochs(), got, want)
	}
	for e := range int32(16) {
		e1, end1 := l.EpochEnd(e)
		if e2, end2 := rebuilt.EpochEnd(e); e1 != e2 || end1 != end2 {
			t.Errorf("epoch %d ends at %d/%d, rebuilt %d/%d", e, e1, end1, e2, end2)
		}
	}
}

// An aborted transaction goes in steps: its records; then its entry in the list
// that consumers get, while the marker gets its horizon; then the marker. After
// each, also after a restart, a consumer sees what the producer wrote later.
func TestCompactAborted(t *testing.T) {
	for _, restart := range []string{"none", "close", "crash"} {
		t.Run(restart, func(t *testing.T) { compactAborted(t, restart) })
	}
}

func compactAborted(t *testing.T, restart string) {
	o := testOptions(vfs.NewCrashableMem())
	s := mustOpen(t, o)
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "committed", 1}}})
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, txn: true, recs: []kv{{"a", "aborted", 2}, {"b", "aborted", 2}}})
	appendMarker(t, l, record.AbortMarker(9, 0, 1, 3), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, seq: 2, txn: true, recs: []kv{{"c", "later", 4}}})
	appendMarker(t, l, record.CommitMarker(9, 0, 1, 5), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 6}}})
	want := "map[a:committed c:later z:1]"
	markers := func() (n int) {
		for _, b := range logBatches(t, l) {
			if kind, _, err := b.Control(); err == nil && kind == record.Abort {
				n++
			}
		}
		return n
	}
	for i, step := range []struct{ entries, markers int }{{1, 1}, {1, 1}, {0, 1}, {0, 0}} {
		if i > 0 {
			mustCompact(t, l, int64(i*10_000), CompactOptions{})
		}
		if got := fmt.Sprint(state(readCommitted(t, l, l.EndOffset()))); got != want {
			t.Fatalf("round %d: a consumer sees %s, want %s", i, got, want)
		}
		if n := len(l.Aborted(0, l.EndOffset())); n != step.entries || markers() != step.markers {
			t.Fatalf("round %d: %d entries, %d markers, want %v", i, n, markers(), step)
		}
		switch restart {
		case "none":
			continue
		case "crash":
			o.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
		case "close":
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s = mustOpen(t, o)
		l = mustLog(t, s, compactConfig)
		if got := fmt.Sprint(state(readCommitted(t, l, l.EndOffset()))); got != want {
			t.Fatalf("restart behind round %d: a consumer sees %s, want %s", i, got, want)
		}
	}
}

// min.compaction.lag.ms keeps a segment with a young record, and all behind it,
// from being compacted; max.compaction.lag.ms closes an active segment whose
// first record waits too long.
func TestCompactLag(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.MinCompactionLagMs, c.MinCleanableRatio = 100, 0.9
	l := mustLog(t, s, c)
	for i := range 4 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "1", int64(1000 + 100*i)}}})
	}
	if stats := mustCompact(t, l, 1250, CompactOptions{}); stats.End != 2 {
		t.Errorf("ended at %d, want 2: the record of 1200 is younger than 100 ms at 1250", stats.End)
	}
	c.SegmentBytes, c.MinCompactionLagMs, c.MaxCompactionLagMs = 1<<20, 0, 500
	l.SetConfig(c)
	for range 3 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "2", 1900}}})
	}
	if got := l.Cleanable(ms(1600), l.EndOffset()); got.Overdue || got.Due {
		t.Errorf("%+v at 1600", got)
	}
	if got := l.Cleanable(ms(1701), l.EndOffset()); !got.Overdue || !got.Due {
		t.Errorf("%+v at 1701: the record of 1200 waits longer than 500 ms", got)
	}
	mustCompact(t, l, 1701, CompactOptions{})
	if got := l.Cleanable(ms(2400), l.EndOffset()-1); got.Overdue {
		t.Errorf("%+v: the active segment reaches above the high watermark", got)
	}
	if got := l.Cleanable(ms(2401), l.EndOffset()); !got.Overdue || !got.Due || got.DirtyBytes != 0 {
		t.Errorf("%+v at 2401: the active segment's first record is of 1900", got)
	}
	if stats := mustCompact(t, l, 2401, CompactOptions{}); stats.End != l.EndOffset() || stats.RecordsKept != 1 {
		t.Errorf("%+v: the active segment was not closed", stats)
	}
}

// A segment that cannot be read ends the round with a *DamageError, before
// anything is rewritten from it, and the log is not due again while it is there.
func TestCompactDamage(t *testing.T) {
	for _, at := range []int64{70, 15} { // in the records; in the leader epoch, which no batch's CRC covers
		o := testOptions(vfs.NewCrashableMem())
		s := mustOpen(t, o)
		l := mustLog(t, s, compactConfig)
		for i := range 6 {
			appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", fmt.Sprint(i), 10}}})
		}
		bad := l.Segments()[3]
		f, err := o.FS.OpenReadWrite(bad.Path, "")
		if err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		_, err = l.Compact(context.Background(), ms(1000), l.EndOffset(), CompactOptions{})
		var damage *DamageError
		if !errors.As(err, &damage) || damage.File != bad.Path || damage.Offset < bad.Base || damage.Offset > bad.End {
			t.Fatalf("position %d: error %v", at, err)
		}
		if c := l.Cleanable(ms(1000), l.EndOffset()); c.Due || c.Damaged == nil {
			t.Fatalf("position %d: %+v", at, c)
		}
		if _, err = l.Compact(context.Background(), ms(1000), l.EndOffset(), CompactOptions{}); !errors.As(err, &damage) {
			t.Fatalf("position %d: again: %v", at, err)
		}
		if got := len(l.Segments()); got != 6 {
			t.Fatalf("position %d: %d segments", at, got)
		}
	}
}

// Batches whose records cannot be read stay as they are, and so do tombstones
// behind them, which may be all that hides a record.
func TestCompactUnreadable(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.DeleteRetentionMs = 0
	l := mustLog(t, s, c)
	h := record.NoProducer(10)
	plain := record.Batch(record.Build(h, []record.Record{{Key: []byte("a"), Value: []byte("hidden")}}))
	plain[22] |= byte(record.CodecLz4)
	broken, err := plain.AppendRebuilt(nil, record.Rebuild{Records: []byte("no lz4 frame"), Count: 1, MaxTimestamp: 10})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, stamped(broken, 0, 1))
	appendKeyed(t, l,
		keyedBatch{epoch: 1, codec: record.CodecGzip, recs: []kv{{"big", strings.Repeat("0", 5000), 10}}},
		keyedBatch{epoch: 1, codec: record.CodecGzip, recs: []kv{{"big", "small", 10}}},
		keyedBatch{epoch: 1, recs: []kv{{"a", "", 10}}}, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 10}}})
	for range 3 {
		stats := mustCompact(t, l, 1000, CompactOptions{MaxBatchBytes: 1000})
		if stats.Unreadable != 2 || stats.Tombstones != 0 {
			t.Fatalf("stats %+v", stats)
		}
	}
	batches := logBatches(t, l)
	if string(batches[0]) != string(broken) || len(batches) != 5 || !batches[3].HasDeleteHorizon() {
		t.Fatalf("batches %v", describe(batches))
	}
}

// A disk that fills up while a file is written leaves the log as it was, and the
// next round does it all.
func TestCompactDiskFull(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var left atomic.Int64
	left.Store(1 << 40)
	o := testOptions(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, cleanedSuffix) && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) < 0 {
			return syscall.ENOSPC
		}
		return nil
	})))
	s := mustOpen(t, o)
	l := mustLog(t, s, compactConfig)
	for i := range 6 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", fmt.Sprint(i), 10}}})
	}
	before := content(t, l, 0, 1<<20)
	for n := range int64(2) { // the create fails, or the write
		left.Store(n)
		_, err := l.Compact(context.Background(), ms(1000), l.EndOffset(), CompactOptions{})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%d operations: error %v", n, err)
		}
		if string(content(t, l, 0, 1<<20)) != string(before) {
			t.Fatalf("%d operations: log changed", n)
		}
	}
	left.Store(1 << 40)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"b", "goes on", 10}}})
	if stats := mustCompact(t, l, 1000, CompactOptions{}); stats.RecordsKept != 1 {
		t.Fatalf("stats %+v", stats)
	}
}

// Appends and reads go on beside rounds; a reader sees the newest value of each
// key at the end, and never a damaged or missing batch before.
func TestCompactBeside(t *testing.T) {
	o := testOptions(nil)
	o.Dir = t.TempDir()
	s := mustOpen(t, o)
	c := compactConfig
	c.SegmentBytes = 4000
	l := mustLog(t, s, c)
	const n, keys = 600, 17
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		defer done.Store(true)
		for i := range n {
			b := keyedBatch{base: l.EndOffset(), epoch: int32(1 + i/100), codec: allCodecs[i%5], pid: 3, seq: int32(i), recs: []kv{{fmt.Sprint("k", i%keys), fmt.Sprint(i), int64(i)}}}.build(t)
			if _, err := l.Append(b); err != nil {
				t.Error(err)
				return
			}
			if i%50 == 0 {
				if err := flush(l); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				last := int64(-1)
				for _, f := range logRecords(t, l) {
					if f.offset <= last {
						t.Errorf("offset %d behind %d", f.offset, last)
					}
					last = f.offset
				}
			}
		})
	}
	rounds := 0
	for !done.Load() {
		if _, err := l.Compact(t.Context(), ms(int64(rounds)), l.EndOffset(), CompactOptions{}); err != nil {
			t.Fatal(err)
		}
		rounds++
	}
	wg.Wait()
	mustFlush(t, l)
	mustCompact(t, l, 1<<40, CompactOptions{})
	got := state(logRecords(t, l))
	for i := n - keys; i < n; i++ {
		if key := fmt.Sprint("k", i%keys); got[key] != fmt.Sprint(i) {
			t.Errorf("%s is %s, want %d", key, got[key], i)
		}
	}
}

// The map answers as Go's does, at any fill, and says when it is full.
func TestOffsetMap(t *testing.T) {
	for _, slots := range []int64{0, 2, 3, 10, 1000} {
		m := newOffsetMap(slots*slotSize, 1<<40)
		defer m.free()
		if got := int64(len(m.slots)) * 8; got > max(slots, 2)*slotSize {
			t.Errorf("%d slots take %d bytes", slots, got)
		}
		want := map[string]int64{}
		for i := int64(0); ; i++ {
			key := fmt.Sprint("key", i*i%701)
			if _, known := want[key]; !m.put([]byte(key), i) {
				if known || len(want) != m.max || m.utilisation() != 1 {
					t.Fatalf("%d slots: full with %d keys of %d", slots, len(want), m.max)
				}
				break
			}
			if want[key] = i; i > 5000 {
				break
			}
		}
		for i := range 701 {
			key := fmt.Sprint("key", i)
			o, ok := want[key]
			if !ok {
				o = -1
			}
			if got := m.newest([]byte(key)); got != o {
				t.Fatalf("%d slots: %s at %d, want %d", slots, key, got, o)
			}
		}
	}
	m := newOffsetMap(1<<30, 10)
	defer m.free()
	if len(m.slots)*8 > 20*slotSize {
		t.Errorf("%d bytes for 10 keys", len(m.slots)*8)
	}
}
