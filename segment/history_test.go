package segment

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// forgetful opens a store without its index, in which histories wait for the gate.
func forgetful(t *testing.T, o Options) (s *Store, open func()) {
	t.Helper()
	if err := o.FS.RemoveAll(o.FS.PathJoin(o.Dir, indexDir)); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	o.inline, o.gate = -1, func(*Log) { <-gate }
	return mustOpen(t, o), func() { close(gate) }
}

// Compaction and retention need the producers and the times. Before they are
// known both refuse, and nothing is found due; then both do what they would have
// done on a log that never forgot: the records of the aborted transaction go, the
// newest of each key stays.
func TestCleaningWaitsForHistory(t *testing.T) {
	o := testOptions(vfs.NewMem())
	s := mustOpen(t, o)
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l,
		keyedBatch{epoch: 1, recs: []kv{{"a", "1", 10}, {"b", "1", 10}}},
		keyedBatch{epoch: 1, pid: 7, txn: true, recs: []kv{{"b", "aborted", 20}}},
		keyedBatch{epoch: 2, recs: []kv{{"a", "2", 30}}},
	)
	appendMarker(t, l, record.Marker(record.Abort, 7, 0, 1, 35), 2)
	appendKeyed(t, l, keyedBatch{epoch: 2, recs: []kv{{"c", "1", 40}}}) // active
	l.SetHighWatermark(l.EndOffset())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s, open := forgetful(t, o)
	l = mustLog(t, s, compactConfig)
	before := content(t, l, 0, 1<<20)
	now, hw := time.UnixMilli(1_000_000), l.EndOffset()
	if c := l.Cleanable(now, hw); c.Due || c.DirtyBytes != 0 {
		t.Errorf("without a history there is something to compact: %+v", c)
	}
	if _, err := l.Compact(t.Context(), now, hw, CompactOptions{}); !errors.Is(err, ErrRebuilding) {
		t.Errorf("compaction without a history: %v", err)
	}
	aged := compactConfig
	aged.RetentionMs = 1
	l.SetConfig(aged)
	if n, err := l.Retain(now, hw); n != 0 || !errors.Is(err, ErrRebuilding) {
		t.Errorf("retention without a history: %d, %v", n, err)
	}
	l.SetConfig(compactConfig)
	if string(content(t, l, 0, 1<<20)) != string(before) {
		t.Fatal("the log was changed before its history was known")
	}

	open()
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustCompact(t, l, 1_000_000, CompactOptions{})
	var left []string
	for _, f := range logRecords(t, l) {
		if !f.control {
			left = append(left, f.key+"="+f.value)
		}
	}
	if got := fmt.Sprint(left); got != "[b=1 a=2 c=1]" {
		t.Errorf("compacted to %s", got)
	}
	l.SetConfig(aged)
	if n, err := l.Retain(now, hw); err != nil || n == 0 {
		t.Errorf("retention: %d, %v", n, err)
	}
}
