//go:build interop

package segment

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lockstep-kafka/lockstep/fixtures/apachekafka"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// kafkaDump lets Apache Kafka print every segment of a store, which must find as
// many batches and records as we do, and returns the control records it named.
func kafkaDump(t *testing.T, dir string) []string {
	t.Helper()
	logs, err := FindLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, l := range logs {
		found, err := filepath.Glob(filepath.Join(l.Dir, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	dumps, err := apachekafka.Dump(t.Context(), files...)
	if errors.Is(err, apachekafka.ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var controls []string
	empty := 0
	for _, f := range files {
		var want apachekafka.Dumped
		last := int64(-1)
		err := Dump(f, func(_ int64, b record.Batch) error {
			want.Batches, want.Records = want.Batches+1, want.Records+int64(b.NumRecords())
			if b.NumRecords() == 0 {
				empty++
			}
			return EachRecord(b, maxInflated, func(r record.Record) error {
				offset := b.BaseOffset() + int64(r.OffsetDelta)
				if last >= 0 && offset != last+1 {
					want.Gaps = append(want.Gaps, [2]int64{last, offset})
				}
				last = offset
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := dumps[f]; d.Batches != want.Batches || d.Records != want.Records || !slices.Equal(d.Gaps, want.Gaps) {
			t.Errorf("%s: Apache Kafka sees %d batches with %d records and gaps %d, we see %d with %d and %d", f, d.Batches, d.Records, d.Gaps, want.Batches, want.Records, want.Gaps)
		}
		controls = append(controls, dumps[f].Controls...)
	}
	t.Logf("Apache Kafka printed %d files; %d batches are empty; control records %q", len(files), empty, controls)
	return controls
}

// Whatever becomes of a log, its segments are such as Apache Kafka's own tool
// reads: after truncations, restarts at an offset, a moved start, compaction in
// every codec with what it leaves behind, and with the producer reset of a
// failover, which is a control record that no Apache Kafka release knows.
func TestApacheKafkaPrintsSegments(t *testing.T) {
	o := testOptions(nil)
	o.Dir = t.TempDir()
	s := mustOpen(t, o)

	cut := mustLog(t, s, Config{SegmentBytes: 500, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, cut, 10, 1)
	for _, end := range []int64{28, 17, 9} {
		if err := cut.Truncate(end); err != nil {
			t.Fatal(err)
		}
		appendN(t, cut, 4, int32(40-end))
	}
	if err := cut.SetStartOffset(7); err != nil {
		t.Fatal(err)
	}

	open := func(partition int32, c Config) *Log {
		l, err := s.OpenLog(topicA, partition, c)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	again := open(1, Config{})
	appendN(t, again, 3, 1)
	if err := again.TruncateFully(1 << 40); err != nil {
		t.Fatal(err)
	}
	appendN(t, again, 3, 2)

	compacted := open(2, compactConfig)
	for i, codec := range []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLz4, record.CodecZstd} {
		pid, ts := int64(100+i), int64(10*i)
		appendKeyed(t, compacted,
			keyedBatch{epoch: 1, codec: codec, recs: []kv{{"a", "1", ts}, {"b", "2", ts}, {"tomb", "", ts}}},
			keyedBatch{epoch: 1, codec: codec, recs: []kv{{"a", "3", ts + 1}}}, // loses all it has
			keyedBatch{epoch: 1, codec: codec, pid: pid, recs: []kv{{"a", "4", ts + 2}}},
			keyedBatch{epoch: 1, codec: codec, pid: pid, seq: 1, txn: true, recs: []kv{{"t", "5", ts + 3}}})
		appendMarker(t, compacted, record.CommitMarker(pid, 0, 1, ts+4), 1)
		appendKeyed(t, compacted, keyedBatch{epoch: 1, codec: codec, pid: pid, seq: 2, txn: true, recs: []kv{{"t", "6", ts + 5}}})
		appendMarker(t, compacted, record.AbortMarker(pid, 0, 1, ts+6), 1)
	}
	appendMarker(t, compacted, record.PIDReset("the-source", 100), 1)
	appendKeyed(t, compacted, keyedBatch{epoch: 2, recs: []kv{{"z", "1", 200}}})
	stats := mustCompact(t, compacted, 1000, CompactOptions{})
	if stats.RecordsKept >= stats.RecordsRead {
		t.Errorf("nothing was compacted: %+v", stats)
	}
	if controls := kafkaDump(t, o.Dir); !slices.Contains(controls, "endTxnMarker: COMMIT") || !slices.Contains(controls, "endTxnMarker: ABORT") {
		t.Errorf("control records %q", controls)
	}
	// Again with more to do, when the delete horizon of tombstones and markers has passed.
	appendKeyed(t, compacted, keyedBatch{epoch: 2, recs: []kv{{"z", "2", 300}}}, keyedBatch{epoch: 2, recs: []kv{{"z", "3", 400}}})
	mustCompact(t, compacted, 1_000_000, CompactOptions{})
	kafkaDump(t, o.Dir)

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	kafkaDump(t, o.Dir)
}

// Batches that only hold offsets, which replace what is gone, are printed too.
func TestApacheKafkaPrintsHoles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), LogID{topicA, 0}.String())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := testBatch{base: 0, n: 2, epoch: 1}.build()
	b = append(b, record.Hole(2, 1<<33, 1)...)
	b = append(b, record.EmptyOf(testBatch{base: 1 << 33, n: 5, epoch: 1, pid: 7}.build())...)
	b = append(b, testBatch{base: 1<<33 + 5, n: 1, epoch: 2}.build()...)
	if err := os.WriteFile(filepath.Join(dir, fileName(0)), b, 0o644); err != nil {
		t.Fatal(err)
	}
	kafkaDump(t, filepath.Dir(dir))
}
