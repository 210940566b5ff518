package segment

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// belowTheStart is a compacted log whose start was moved behind its first batch, which
// next writes, so that the index alone knows what it said of producers; with a
// transaction of producer 8 behind it of which compaction leaves nothing, the marker
// included.
func belowTheStart(t *testing.T, first []keyedBatch, then ...func(l *Log)) (Options, *Log) {
	t.Helper()
	o := testOptions(vfs.NewCrashableMem())
	l := mustLog(t, mustOpen(t, o), compactConfig)
	appendKeyed(t, l, first...)
	start := l.EndOffset()
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 8, txn: true, recs: []kv{{"b", "1", 2}}})
	gone := l.EndOffset()
	appendMarker(t, l, record.CommitMarker(8, 0, 1, 3), 1)
	appendKeyed(t, l, keyedBatch{epoch: 1, pid: 8, seq: 1, txn: true, recs: []kv{{"b", "2", 4}}})
	appendMarker(t, l, record.CommitMarker(8, 0, 1, 5), 1)
	for _, f := range then {
		f(l)
	}
	appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"z", "1", 9}}})
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(start); err != nil {
		t.Fatal(err)
	}
	c := compactConfig
	c.SegmentBytes = 1 << 20 // all closed segments become one
	l.SetConfig(c)
	for round := range 6 {
		mustCompact(t, l, int64((round+1)*10_000), CompactOptions{})
	}
	for _, b := range logBatches(t, l) {
		if b.IsControl() && b.BaseOffset() == gone {
			t.Fatalf("the marker at %d is still there", gone)
		}
	}
	return o, l
}

// Retention had taken all that a producer wrote, and compaction then removed the marker
// of somebody else's transaction. With it went what the index knew of the producers at
// the log's beginning, and a truncation, which has to begin there, forgot the first
// one: its batch could be appended twice, and an instance that was fenced write again.
func TestCompactKeepsProducersBelowTheStart(t *testing.T) {
	_, l := belowTheStart(t, []keyedBatch{{epoch: 1, pid: 7, pepoch: 3, recs: []kv{{"a", "1", 1}}}})
	want := fmt.Sprint(l.Producers())
	if err := l.Truncate(l.EndOffset() - 1); err != nil { // producer 8 wrote nothing there
		t.Fatal(err)
	}
	if got := fmt.Sprint(l.Producers()); got != want {
		t.Fatalf("after the cut producers are %s, were %s", got, want)
	}
	if err := l.Truncate(l.EndOffset() - 1); err != nil { // in the file that compaction made
		t.Fatal(err)
	}
	if got := l.Producers(); len(got) != 2 || got[0].ProducerID != 7 || got[0].Epoch != 3 || got[0].LastSequence != 0 {
		t.Fatalf("after the second cut producers are %+v", got)
	}
}

// The same, and the producer had a transaction open, which a marker behind all that
// ended. The cut took the marker: the transaction is open again.
func TestCompactKeepsOpenTransactionBelowTheStart(t *testing.T) {
	var marker int64
	_, l := belowTheStart(t, []keyedBatch{{epoch: 1, pid: 7, txn: true, recs: []kv{{"a", "1", 1}}}}, func(l *Log) {
		marker = l.EndOffset()
		appendMarker(t, l, record.CommitMarker(7, 0, 1, 6), 1)
	})
	if got := l.OpenTxns(); len(got) != 0 {
		t.Fatalf("open transactions %v", got)
	}
	for range 2 {
		if err := l.Truncate(marker); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(l.OpenTxns()); got != "[{7 0 0 -1}]" || l.LastStable(l.EndOffset()) != l.StartOffset() {
			t.Fatalf("open transactions %s, last stable offset %d", got, l.LastStable(l.EndOffset()))
		}
	}
}

// What the index knows of the beginning ends where it ended: a transaction whose
// marker went is over, one whose marker stays is open up to there, and after a producer
// reset that went nobody is known. So it is behind a cut, and after a recovery that has
// to begin there.
func TestCompactEndsWhatWasBelowTheStart(t *testing.T) {
	keyed := func(pid int64, seq int32, key, value string) func(*Log) {
		return func(l *Log) {
			appendKeyed(t, l, keyedBatch{epoch: 1, pid: pid, seq: seq, txn: pid == 7, recs: []kv{{key, value, 7}}})
		}
	}
	control := func(b []byte) func(*Log) { return func(l *Log) { appendMarker(t, l, b, 1) } }
	abort, commit := control(record.AbortMarker(7, 0, 1, 6)), control(record.CommitMarker(7, 0, 1, 6))
	first := []keyedBatch{
		{epoch: 1, pid: 7, txn: true, recs: []kv{{"a", "1", 1}}},
		{epoch: 1, pid: 6, recs: []kv{{"a", "2", 1}}},
	}
	for _, c := range []struct {
		name  string
		then  []func(*Log)
		cut   int64  // how far behind the log start
		open  string // transactions, before the cut none
		known string // producers
	}{
		{"the marker goes", []func(*Log){abort, keyed(7, 1, "c", "1"), commit}, 5, "[]", "[6 7 8]"},
		{"the marker stays and a later one goes", []func(*Log){
			keyed(7, 1, "c", "1"), commit, keyed(7, 2, "d", "1"), commit, keyed(7, 3, "d", "2"), commit,
		}, 5, "[{7 0 0 -1}]", "[6 7 8]"},
		{"a reset goes", []func(*Log){abort, control(record.PIDReset("source", 7)), keyed(0, 0, "b", "3")}, 6, "[]", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, l := belowTheStart(t, first, c.then...)
			if got := fmt.Sprint(l.OpenTxns(), producerIDs(l)); got != "[] "+c.known {
				t.Fatalf("compacted: open transactions and producers are %s, want [] %s", got, c.known)
			}
			want := logAnswersOf(t, l, l.EndOffset())
			base := l.Segments()[0].Base
			o.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
			less := mustOpen(t, o)
			less.index.write(func(b *pebble.Batch) {
				_ = b.DeleteRange(l.id.key(kindSummary, base), after(l.id.key(kindSummary)), nil)
				_ = b.DeleteRange(l.id.key(kindProducer, base+1), after(l.id.key(kindProducer)), nil)
			})
			again := mustLog(t, less, compactConfig)
			if got := logAnswersOf(t, again, again.EndOffset()); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("recovered from the beginning: %+v\nwant %+v", got, want)
			}
			if err := again.Truncate(again.StartOffset() + c.cut); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(again.OpenTxns(), producerIDs(again)); got != c.open+" "+c.known {
				t.Fatalf("cut at %d: open transactions and producers are %s, want %s %s", again.EndOffset(), got, c.open, c.known)
			}
		})
	}
}

// producerIDs are the ids of the producers that a log knows.
func producerIDs(l *Log) (ids []int64) {
	ids = []int64{}
	for _, p := range l.Producers() {
		ids = append(ids, p.ProducerID)
	}
	return ids
}
