package segment

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// L17: a producer reset goes like a marker, once its horizon has passed, and not
// while there is a batch before it whose producer would come back without it.
func TestCompactL17(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 7, recs: []kv{{"a", "1", 10}}})
	appendMarker(t, l, record.PIDReset("source", 20), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"b", "1", 30}}}, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 31}}})
	resets := func() (n int, horizon bool) {
		for _, b := range logBatches(t, l) {
			if kind, _, err := b.Control(); err == nil && kind == record.MirrorPIDReset {
				n++
				horizon = b.HasDeleteHorizon()
			}
		}
		return n, horizon
	}
	now := int64(1000)
	for range 3 { // the record of producer 7 is the newest of its key
		mustCompact(t, l, now, CompactOptions{})
		now += 10_000
		if n, horizon := resets(); n != 1 || horizon {
			t.Fatalf("%d resets, horizon %v, while producer 7 has a batch before it", n, horizon)
		}
	}
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "2", 40}}}, keyedBatch{epoch: 1, recs: []kv{{"z", "2", 41}}})
	steps := []struct {
		resets  int
		horizon bool
	}{{1, false}, {1, true}, {0, false}} // the record goes; the horizon is set; it has passed
	for i, want := range steps {
		mustCompact(t, l, now, CompactOptions{})
		now += 10_000
		if n, horizon := resets(); n != want.resets || horizon != want.horizon {
			t.Fatalf("round %d: %d resets, horizon %v, want %v", i, n, horizon, want)
		}
		if len(l.Producers()) != 0 {
			t.Fatalf("producers %v", l.Producers())
		}
	}
	if got := s.rebuiltLog(t).Producers(); len(got) != 0 {
		t.Fatalf("producers came back: %v", got)
	}
}

// rebuiltLog opens a copy of the store as a kill would leave it, without its
// index.
func (s *Store) rebuiltLog(t testing.TB) *Log {
	t.Helper()
	fs := s.o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	if err := fs.RemoveAll(s.index.dir); err != nil {
		t.Fatal(err)
	}
	o := testOptions(fs)
	o.IndexInterval = s.o.IndexInterval
	return mustLog(t, mustOpen(t, o), compactConfig)
}

// MIR-253: the batches of a topic that its source compacted already keep their
// offsets, gaps and bytes, empty batches included.
func TestCompactMIR253(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	var source []byte
	for _, b := range []keyedBatch{
		{base: 4, epoch: 2, recs: []kv{{"a", "1", 10}}},
		{base: 1000, epoch: 2, codec: record.CodecZstd, recs: []kv{{"b", "1", 20}, {"c", "1", 21}}},
		{base: 5_000_000_000, epoch: 3, recs: []kv{{"d", "1", 30}}},
		{base: 5_000_000_009, epoch: 3, recs: []kv{{"z", "1", 30}}},
	} {
		one := b.build(t)
		mustAppend(t, l, one)
		source = append(source, one...)
	}
	mustFlush(t, l)
	mustCompact(t, l, 1000, CompactOptions{})
	if got := recordsOf(t, logBatches(t, l)); fmt.Sprint(got) != fmt.Sprint(recordsOf(t, split(t, source))) {
		t.Fatalf("records %v", got)
	}
	kept := slices.DeleteFunc(logBatches(t, l), func(b record.Batch) bool { return b.NumRecords() == 0 })
	for i, b := range split(t, source) {
		if string(b) != string(kept[i]) {
			t.Errorf("batch at %d has other bytes", b.BaseOffset())
		}
	}
	if fmt.Sprint(s.rebuiltLog(t).Epochs()) != fmt.Sprint(l.Epochs()) {
		t.Errorf("epochs %v, rebuilt %v", l.Epochs(), s.rebuiltLog(t).Epochs())
	}
}

// MIR-254: two logs with the same records that are compacted at different times
// say the same of every key. MIR-255: and a deleted key is never alive again.
func TestCompactMIR254(t *testing.T) {
	open := func() *Log { return mustLog(t, mustOpen(t, testOptions(vfs.NewCrashableMem())), compactConfig) }
	one, two := open(), open()
	want := map[string]string{}
	for i := range 60 {
		key, value := fmt.Sprint("k", i*7%11), fmt.Sprint(i)
		if want[key] = value; i%5 == 0 {
			value = ""
			delete(want, key)
		}
		b := keyedBatch{base: one.EndOffset(), epoch: int32(1 + i/20), recs: []kv{{key, value, int64(i)}}}.build(t)
		for _, l := range []*Log{one, two} {
			mustAppend(t, l, b)
			mustFlush(t, l)
		}
		if i%4 == 0 {
			mustCompact(t, one, int64(i*500), CompactOptions{})
		}
		if i%17 == 0 {
			mustCompact(t, two, int64(i*900), CompactOptions{Memory: 5 * slotSize})
		}
		for _, l := range []*Log{one, two} {
			if got := state(logRecords(t, l)); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("after %d: %v, want %v", i, got, want)
			}
		}
	}
	if fmt.Sprint(one.Epochs()) != fmt.Sprint(two.Epochs()) {
		t.Errorf("epochs %v and %v", one.Epochs(), two.Epochs())
	}
}

// MIR-256: nothing at or above the high watermark or the last stable offset is
// compacted, and the first dirty offset is pulled back by a truncation below it,
// whatever happens to the index.
func TestCompactMIR256(t *testing.T) {
	o := testOptions(vfs.NewCrashableMem())
	s := mustOpen(t, o)
	l := mustLog(t, s, compactConfig)
	for i := range 10 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", fmt.Sprint(i), int64(i)}}})
	}
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 5, txn: true, recs: []kv{{"a", "open", 10}}})
	for i := range 5 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", fmt.Sprint("behind", i), int64(i)}}})
	}
	ctx := t.Context()
	if stats, err := l.Compact(ctx, ms(1000), 6, CompactOptions{}); err != nil || stats.End != 6 {
		t.Fatalf("high watermark 6: %+v, %v", stats, err)
	}
	if got := len(logRecords(t, l)); got != 1+10 {
		t.Fatalf("%d records, want the newest below 6 and all from there on", got)
	}
	if stats := mustCompact(t, l, 1000, CompactOptions{}); stats.End != 10 {
		t.Fatalf("transaction open at 10: %+v", stats)
	}
	if got := len(logRecords(t, l)); got != 1+6 {
		t.Fatalf("%d records, want the newest below 10 and all from there on", got)
	}
	reopen := func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, o)
		l = mustLog(t, s, compactConfig)
	}
	from := func() int64 { return l.Cleanable(ms(1000), l.EndOffset()).From }
	if reopen(); from() != 10 {
		t.Fatalf("first dirty offset %d after a restart, want 10", from())
	}
	if err := l.Truncate(4); err != nil {
		t.Fatal(err)
	}
	cut := l.EndOffset()
	if from() > cut {
		t.Fatalf("first dirty offset %d, log was cut at %d", from(), cut)
	}
	appendN(t, l, 5, 2)
	mustFlush(t, l)
	if from() > cut {
		t.Fatalf("first dirty offset %d, log was cut at %d", from(), cut)
	}
	if reopen(); from() > cut {
		t.Fatalf("first dirty offset %d after a restart, log was cut at %d", from(), cut)
	}
	if err := l.TruncateFully(2); err != nil {
		t.Fatal(err)
	}
	if from() != 2 {
		t.Fatalf("first dirty offset %d of an empty log at 2", from())
	}
	appendN(t, l, 5, 2)
	mustFlush(t, l)
	if err := l.SetStartOffset(8); err != nil {
		t.Fatal(err)
	}
	if from() != 8 {
		t.Fatalf("first dirty offset %d, log start 8", from())
	}
}

// MIR-257: what DeleteRecords has hidden hides nothing: a record behind the log
// start is judged by records behind the log start.
func TestCompactMIR257(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.SegmentBytes = 1 << 20
	l := mustLog(t, s, c)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "1", 10}, {"b", "1", 10}, {"a", "2", 10}, {"c", "1", 10}}})
	l.SetConfig(compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 11}}})
	if err := l.SetStartOffset(1); err != nil {
		t.Fatal(err)
	}
	mustCompact(t, l, 1000, CompactOptions{})
	if got := fmt.Sprint(state(logRecords(t, l))); got != "map[a:2 b:1 c:1 z:1]" {
		t.Fatal(got)
	}
	if l.StartOffset() != 1 {
		t.Fatalf("log start %d", l.StartOffset())
	}
}

// MIR-258: a fetch at any offset inside what compaction took goes on at the next
// batch, and one that meets only empty batches gets them, so that the client,
// which goes on behind a batch's last offset, does not ask again for ever.
func TestCompactMIR258(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.SegmentBytes = 400
	l := mustLog(t, s, c)
	for i := range 40 {
		appendKeyed(t, l, keyedBatch{epoch: int32(1 + i/10), pid: 3, seq: int32(2 * i), recs: []kv{{"a", fmt.Sprint(i), int64(100 + i)}, {"b", fmt.Sprint(i), int64(100 + i)}}})
	}
	mustCompact(t, l, 1000, CompactOptions{})
	all := logRecords(t, l)
	for offset := range l.EndOffset() {
		var got []found
		for o, steps := offset, 0; o < l.EndOffset(); steps++ {
			v, err := l.Read(o, 1, l.EndOffset(), true)
			if err != nil || v.N == 0 || steps > 100 {
				t.Fatalf("stuck at %d from %d: %d bytes, %v", o, offset, v.N, err)
			}
			p := make([]byte, v.N)
			if _, err := v.ReadAt(p, 0); err != nil {
				t.Fatal(err)
			}
			v.Release()
			batches := split(t, p)
			got = append(got, recordsOf(t, batches)...)
			o = batches[len(batches)-1].NextOffset()
		}
		want := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return f.offset < offset })
		got = slices.DeleteFunc(got, func(f found) bool { return f.offset < offset })
		if !slices.Equal(got, want) {
			t.Fatalf("from %d: %v, want %v", offset, got, want)
		}
	}
}

// Times are found among the records that are left, not in the empty batches
// that still carry the time of what they lost.
func TestCompactTimes(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l,
		keyedBatch{epoch: 1, pid: 4, recs: []kv{{"a", "1", 900}, {"b", "1", 50}}}, // stays as the producer's last
		keyedBatch{epoch: 1, recs: []kv{{"b", "2", 200}, {"c", "1", 100}}},
		keyedBatch{epoch: 1, recs: []kv{{"a", "2", 150}}},
		keyedBatch{epoch: 1, recs: []kv{{"z", "1", 120}}},
	)
	mustCompact(t, l, 1000, CompactOptions{})
	if o, ts, _, ok := l.MaxTimestamp(); !ok || o != 2 || ts != 200 {
		t.Errorf("newest is %d at %d, %v; want 200 at 2", ts, o, ok)
	}
	for ts, want := range map[int64]int64{10: 2, 150: 2, 200: 2, 201: -1, math.MaxInt64: -1} {
		if o, _, _, _, err := l.OffsetForTime(ts); err != nil || o != want {
			t.Errorf("offset for %d is %d, %v; want %d", ts, o, err, want)
		}
	}
}
