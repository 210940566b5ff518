package segment

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Compaction comes between the two halves of a committed read: the view of a
// file that is no more has records of an aborted transaction that the list does
// not tell of. The read is made again, and either both have it or neither.
func TestReadCommittedMeetsCompaction(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, txn: true, recs: []kv{{"a", "aborted", 2}, {"b", "aborted", 2}}})
	appendMarker(t, l, record.AbortMarker(9, 0, 1, 3), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, seq: 2, txn: true, recs: []kv{{"c", "later", 4}}})
	appendMarker(t, l, record.CommitMarker(9, 0, 1, 5), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 6}}})

	reads := 0
	v, aborted, err := l.readCommitted(0, 1<<20, l.LastStable(l.EndOffset()), true, func() {
		if reads++; reads > 1 {
			return
		}
		for i := range 3 {
			mustCompact(t, l, int64((i+1)*10_000), CompactOptions{})
		}
		if n := len(l.Aborted(0, l.EndOffset())); n != 0 {
			t.Fatalf("%d entries are left, the test has no case", n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	p := make([]byte, v.Len())
	if _, err := v.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	records := 0
	for len(p) > 0 {
		b, rest, err := record.Next(p)
		if err != nil {
			t.Fatal(err)
		}
		if b.BaseOffset() == 0 {
			records += int(b.NumRecords())
		}
		p = rest
	}
	if reads != 2 || (records > 0) != (len(aborted) > 0) {
		t.Errorf("after %d reads: %d records of the aborted transaction and the list %v", reads, records, aborted)
	}
}

// The list goes as far as the view, not to the log end.
func TestReadCommittedTellsOfItsView(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.SegmentBytes = 1 << 20
	l := mustLog(t, s, c)
	for pid := int64(1); pid <= 3; pid++ {
		appendKeyed(t, l, keyedBatch{epoch: 1, pid: pid, txn: true, recs: []kv{{"a", "x", 1}}})
		appendMarker(t, l, record.AbortMarker(pid, 0, 1, 1), 1)
	}
	v, aborted, err := l.ReadCommitted(2, 1, l.EndOffset(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if got := fmt.Sprint(aborted); v.End != 3 || got != "[{2 2}]" {
		t.Errorf("the view ends at %d with %s, want 3 and producer 2 alone", v.End, got)
	}
}
