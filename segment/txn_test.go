package segment

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Compaction has dropped an aborted transaction from the list, between the two
// halves of a committed read and before the file with its records is exchanged:
// the view has records that the list does not tell of. The read is made again.
func TestReadCommittedMeetsCompaction(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, txn: true, recs: []kv{{"a", "aborted", 2}, {"b", "aborted", 2}}})
	appendMarker(t, l, record.AbortMarker(9, 0, 1, 3), 1)
	reads := 0
	v, _, err := l.readCommitted(0, 1<<20, l.LastStable(l.EndOffset()), true, func() {
		if reads++; reads == 1 {
			l.forgetAborted(map[int64]bool{2: true})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	if reads != 2 || len(l.Aborted(0, l.EndOffset())) != 0 {
		t.Errorf("%d reads, want another one after the list changed", reads)
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
