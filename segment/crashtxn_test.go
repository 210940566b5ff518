package segment

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// A low cut, then a higher one between two segments, then retention took all below that,
// and only the index knew of a transaction that was open: from before the higher cut,
// and that counted up to the lowest one. A power cut, and the transaction was forgotten.
func TestOpenTransactionBehindTwoCuts(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	appendN(t, l, 2, 1)
	if err := l.Truncate(3); err != nil { // the low one
		t.Fatal(err)
	}
	mustAppend(t, l, testBatch{base: 3, n: 3, epoch: 1, pid: 7, txn: true}.build())
	appendN(t, l, 3, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := l.Truncate(9); err != nil { // the higher one
		t.Fatal(err)
	}
	appendN(t, l, 1, 2)
	mustFlush(t, l)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(9); err != nil {
		t.Fatal(err)
	}
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	fs = fs.crashNow(loseAll, nil)
	for round := range 3 {
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), c)
		if got := fmt.Sprint(l.OpenTxns()); l.StartOffset() != 9 || l.EndOffset() != 12 || got != "[{7 0 3 -1}]" {
			t.Fatalf("recovery %d: log is [%d, %d), open transactions %s", round, l.StartOffset(), l.EndOffset(), got)
		}
		fs = fs.crashNow(loseAll, nil)
	}
}

// Retention took a segment moments after it was closed. What the index was told of its
// producers was still in memory, and went with the power.
func TestOpenTransactionOfAYoungSegment(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, mustOpen(t, o), c)
	mustAppend(t, l, testBatch{base: 0, n: 3, pid: 7, txn: true}.build())
	appendN(t, l, 1, 0)
	mustFlush(t, l)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(3); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), c)
	if got := fmt.Sprint(l.OpenTxns()); l.StartOffset() != 3 || l.EndOffset() != 6 || got != "[{7 0 0 -1}]" {
		t.Fatalf("log is [%d, %d), open transactions %s", l.StartOffset(), l.EndOffset(), got)
	}
}

// The log start was moved to the log end, and a power cut took the name of the segment
// that was begun there: the log went on behind its start in the old one, and left it. Nobody
// deleted that one before the next power cut; the recovery behind it did, without reading it.
func TestOpenTransactionBelowTheStart(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, mustOpen(t, o), c)
	mustAppend(t, l, testBatch{base: 0, n: 3, pid: 7, txn: true}.build())
	mustFlush(t, l)
	l.SetHighWatermark(3)
	from := fs.count()
	if err := l.SetStartOffset(3); err != nil {
		t.Fatal(err)
	}
	var next *crashFS
	fs.eachPrefix(from, fs.count(), func(k int, d durableState) {
		if o := fs.ops[k-1]; o.kind == opSync && strings.HasPrefix(o.name, "watermarks") {
			next = d.crash(loseAll, nil) // the last of them: roll noted a mark as well
		}
	})
	if next == nil {
		t.Fatal("no mark was noted")
	}
	o.FS = next
	if l = mustLog(t, mustOpen(t, o), c); l.StartOffset() != 3 || l.EndOffset() != 3 {
		t.Fatalf("log is [%d, %d), the story goes on with an empty one", l.StartOffset(), l.EndOffset())
	}
	appendN(t, l, 1, 1)
	mustFlush(t, l)
	o.FS = next.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), c)
	if got := fmt.Sprint(l.OpenTxns()); l.StartOffset() != 3 || l.EndOffset() != 6 || got != "[{7 0 0 -1}]" {
		t.Fatalf("log is [%d, %d), open transactions %s", l.StartOffset(), l.EndOffset(), got)
	}
}

// The log start was moved inside a segment, behind an aborted transaction, and the segment
// was closed: the index was told of its producers without that transaction. Moves inside a
// segment are not synced, so a power cut took this one back, and what had been aborted was
// read as committed.
func TestAbortedBehindAStartThatIsTakenBack(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	mustAppend(t, l, testBatch{base: 0, n: 3, pid: 7, txn: true}.build())
	mustAppend(t, l, stamped(record.Marker(record.Abort, 7, 0, 1, 1), 3, 0))
	appendN(t, l, 3, 0)
	mustFlush(t, l)
	l.SetHighWatermark(l.EndOffset())
	s.flusher.checkpoint()
	if err := l.SetStartOffset(7); err != nil {
		t.Fatal(err)
	}
	l.wr.Lock()
	_, err := l.roll()
	l.wr.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		fs = fs.crashNow(loseAll, nil)
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), c)
		if got := fmt.Sprint(l.Aborted(0, l.EndOffset())); l.StartOffset() != 0 || got != "[{7 0}]" {
			t.Errorf("recovery %d: log is [%d, %d), aborted transactions %s", round, l.StartOffset(), l.EndOffset(), got)
		}
	}
}
