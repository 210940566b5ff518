package segment

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// A snapshot of the producers that was taken inside a transaction needs the
// marker behind it. Once compaction had removed the marker, a recovery that
// began there had the transaction open for ever, or, where a producer reset
// followed, aborted, so that consumers dropped later records of that producer.
// And one taken before a reset that was removed brought the producers back.
// A crash may take what the index learned last, so recovery may begin anywhere.
func TestCompactSnapshots(t *testing.T) {
	o := testOptions(vfs.NewCrashableMem())
	s := mustOpen(t, o)
	l := mustLog(t, s, compactConfig)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 9, txn: true, recs: []kv{{"a", "aborted", 1}}})
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"b", "1", 2}}}) // its segment's snapshot is inside the transaction
	appendMarker(t, l, record.AbortMarker(9, 0, 1, 3), 1)
	appendMarker(t, l, record.PIDReset("source", 5), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 8, txn: true, recs: []kv{{"c", "1", 4}}})
	appendMarker(t, l, record.CommitMarker(8, 0, 1, 5), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"d", "1", 7}}})
	for round := range 8 {
		mustCompact(t, l, int64((round+1)*10_000), CompactOptions{})
		want := logAnswersOf(t, l, l.EndOffset())
		segments := l.Segments()
		for i := len(segments) - 1; i >= 0; i-- {
			crashed := o
			crashed.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
			less := mustOpen(t, crashed)
			less.index.write(func(b *pebble.Batch) {
				_ = b.DeleteRange(l.id.key(kindSummary, segments[i].Base), after(l.id.key(kindSummary)), nil)
				_ = b.DeleteRange(l.id.key(kindProducer, segments[i].Base+1), after(l.id.key(kindProducer)), nil)
			})
			again := mustLog(t, less, compactConfig)
			if got := logAnswersOf(t, again, again.EndOffset()); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("round %d, recovered from segment %d on: %+v\nwant %+v", round, i, got, want)
			}
		}
	}
	for _, b := range logBatches(t, l) {
		if kind, _, err := b.Control(); err == nil && kind != record.Commit {
			t.Fatalf("%s at %d is still there", kind, b.BaseOffset())
		}
	}
}
