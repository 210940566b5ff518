package segment

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// What TestCrash found, each as a story of its own.

// A file system may make the last rename of a replacement durable before the
// removals in front of it. The log then had a large new segment, and behind it
// old ones that did not follow, which looked like a torn tail above the noted
// durable end: flushed batches were cut off.
func TestReplaceRenameBeforeRemovals(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 700, RetentionMs: -1, RetentionBytes: -1})
	fillSegments(t, l, 40)
	from := fs.count()
	if err := everySecond(t, l, 0, 3); err != nil {
		t.Fatal(err)
	}
	want, _ := recordOffsets(t, l)
	renames := 0
	fs.eachPrefix(from, fs.count(), func(k int, d durableState) {
		if fs.ops[k-1].kind != opRename || !strings.HasSuffix(fs.ops[k-1].name, swapSuffix) {
			return
		}
		renames++
		o.FS = d.crashWith(func(o fsOp) bool { return o.kind == opRename })
		l := mustLog(t, mustOpen(t, o), Config{})
		if got, _ := recordOffsets(t, l); l.EndOffset() != 40 || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("log ends at %d with %v, want %v", l.EndOffset(), got, want)
		}
	})
	if renames != 1 {
		t.Fatalf("%d renames of a .swap", renames)
	}
}

// A replacement counted as synced, though a segment before it was not yet: the next
// flush stopped at it, acknowledged everything, and the power took the older segment.
// (The cleaner keeps below the durable end, so no server did it.)
func TestReplaceBehindUnsynced(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	l := mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 4, 1)
	if err := everySecond(t, l, 1, 2); err != nil {
		t.Fatal(err)
	}
	mustFlush(t, l)
	o.FS = fs.crashNow(loseAll, nil)
	if l = mustLog(t, mustOpen(t, o), Config{}); l.EndOffset() != 12 {
		t.Fatalf("log ends at %d", l.EndOffset())
	}
}

// A power cut took the name of a file above the durable end and left the one
// behind it. Recovery cut the latter, but had begun with its producer snapshot:
// the log knew a producer whose batches were gone.
func TestRecoverHoleForgetsProducers(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	mustAppend(t, l, testBatch{base: 0, n: 2, pid: 1}.build())
	mustFlush(t, l)
	s.flusher.checkpoint()
	mustAppend(t, l, testBatch{base: 2, n: 2, pid: 2}.build())
	mustAppend(t, l, testBatch{base: 4, n: 2, pid: 3}.build())
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil { // the index gets to the disk before the records
		t.Fatal(err)
	}
	n := fs.count()
	fs.eachPrefix(n, n, func(_ int, d durableState) {
		o.FS = d.crashWith(func(o fsOp) bool { return o.name != fileName(2) })
	})
	l = mustLog(t, mustOpen(t, o), Config{})
	if got := l.Producers(); l.EndOffset() != 2 || len(got) != 1 || got[0].ProducerID != 1 {
		t.Fatalf("log ends at %d and knows %v", l.EndOffset(), got)
	}
}

// The log start had been moved to 2, and a power cut left the mark of that and none
// of the records. The log began again at 0 and used the offsets anew; the next
// power cut came before the next checkpoint, and the old mark hid the first two of
// the acknowledged records.
func TestStartBelowAnOldMark(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	s.flusher.checkpoint()
	appendN(t, l, 3, 1)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(2); err != nil {
		t.Fatal(err)
	}
	records := l.active().path()
	reopen := func() {
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	}
	fs = fs.crashNow(loseNone, nil)
	if err := fs.Truncate(records, 0); err != nil {
		t.Fatal(err)
	}
	if reopen(); l.StartOffset() != 0 || l.EndOffset() != 0 {
		t.Fatalf("log is [%d, %d), the story goes on with an empty one", l.StartOffset(), l.EndOffset())
	}
	appendN(t, l, 3, 1)
	mustFlush(t, l)
	fs = fs.crashNow(loseAll, nil)
	if reopen(); l.StartOffset() != 0 || l.EndOffset() != 9 {
		t.Fatalf("log is [%d, %d), [0, 9) was acknowledged", l.StartOffset(), l.EndOffset())
	}
}

// A log was deleted, made anew and restarted at 6 before its first flush. Neither the
// end of the deletion nor the new directory was durable: after a power cut, recovery
// finished the deletion, forgot the mark with it, and the log began at 0.
func TestRestartOfANewLog(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 3, 1)
	mustFlush(t, l)
	if err := s.Delete(l.id.Topic, l.id.Partition); err != nil {
		t.Fatal(err)
	}
	l = mustLog(t, s, Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	if err := l.TruncateFully(6); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	if l.StartOffset() != 6 || l.EndOffset() != 6 {
		t.Fatalf("log is [%d, %d), want [6, 6)", l.StartOffset(), l.EndOffset())
	}
}

// A log was deleted, and one with the same id made while the clock stood still. A power
// cut took the end of the deletion from the index; what that knew of the old log's
// segments bore the number of the new one's life, and those files were called missing.
func TestIndexOfADeletedLog(t *testing.T) {
	for _, restart := range []bool{false, true} {
		fs := newCrashFS()
		o := testOptions(fs)
		s := mustOpen(t, o)
		l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
		appendN(t, l, 3, 1)
		mustFlush(t, l)
		s.flusher.checkpoint()
		if err := s.index.db.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(l.id.Topic, l.id.Partition); err != nil {
			t.Fatal(err)
		}
		reopen := func() {
			fs = fs.crashNow(loseAll, nil)
			o.FS = fs
			s = mustOpen(t, o)
		}
		if restart {
			reopen()
		}
		c := Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1}
		appendN(t, mustLog(t, s, c), 4, 1)
		s.flusher.background()
		s.flusher.checkpoint()
		reopen()
		if l = mustLog(t, s, c); l.EndOffset() != 12 {
			t.Fatalf("restart %v: log ends at %d, 12 was durable", restart, l.EndOffset())
		}
	}
}

// The index got to the disk before the records that it spoke of, and a power cut took
// those with the names of their files: nothing looked torn. When the log had grown as
// far again, in one file, what the index knew counted: a file was called missing.
func TestIndexAheadOfALostTail(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 1, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	appendN(t, l, 2, 1)
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	n := fs.count()
	fs.eachPrefix(n, n, func(_ int, d durableState) {
		fs = d.crashWith(func(o fsOp) bool { return o.name != fileName(3) && o.name != fileName(6) })
	})
	reopen := func() {
		o.FS = fs
		s = mustOpen(t, o)
		l = mustLog(t, s, Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	}
	if reopen(); l.EndOffset() != 3 {
		t.Fatalf("log ends at %d, the story goes on at 3", l.EndOffset())
	}
	appendN(t, l, 4, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	fs = fs.crashNow(loseAll, nil)
	if reopen(); l.EndOffset() != 15 {
		t.Fatalf("log ends at %d, 15 was durable", l.EndOffset())
	}
}

// A transaction was open whose records retention had taken; only the index knew of it.
// A recovery cut a torn tail, and the next one believed what the index knew up to the
// lowest cut ever, which lay below all that was left of the log: the transaction was
// forgotten, and the last stable offset passed it.
func TestRecoverTwiceAboveAnOldCut(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	appendN(t, l, 2, 1)
	if err := l.Truncate(3); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, testBatch{base: 3, n: 3, epoch: 1, pid: 7, txn: true}.build())
	appendN(t, l, 2, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(12)
	if err := l.SetStartOffset(6); err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 1, 1)
	fs = fs.crashNow(loseNone, nil)
	if err := fs.Truncate(logFile(12), 70); err != nil { // inside of its batch
		t.Fatal(err)
	}
	for round := range 3 {
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), c)
		if got := fmt.Sprint(l.OpenTxns()); l.StartOffset() != 6 || l.EndOffset() != 12 || got != "[{7 0 3 -1}]" {
			t.Fatalf("recovery %d: log is [%d, %d), open transactions %s", round, l.StartOffset(), l.EndOffset(), got)
		}
		fs = fs.crashNow(loseAll, nil)
	}
}

// A power cut tore an append so that its first bytes, the base offset, were zeros. The
// CRC leaves these out: it was a batch that goes back behind the one before it, one of
// the two was wrong, and the acknowledged one was called damaged with it. What the marks
// have a proof of is not doubted.
func TestTornOffset(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	appendN(t, l, 1, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	at := l.Size()
	appendN(t, l, 1, 1)
	o.FS = fs.crashNow(loseNone, nil)
	f, err := newDisk(o.FS).open(logFile(0), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 8), at); err != nil {
		t.Fatal(err)
	}
	if l = mustLog(t, mustOpen(t, o), c); l.EndOffset() != 3 {
		t.Fatalf("log ends at %d, 3 was durable", l.EndOffset())
	}
}

// The high watermark had been written down, and a power cut took the records below it.
// The log went on at its end with records that no other replica had yet; the next power
// cut came before the next checkpoint, and the old mark called them replicated.
func TestHighWatermarkBelowAnOldMark(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	l := mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 1, 1)
	mustFlush(t, l)
	appendN(t, l, 2, 1) // on the other replicas, and on no disk of this broker
	l.SetHighWatermark(l.EndOffset())
	l.store.flusher.checkpoint()
	reopen := func() {
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	}
	fs = fs.crashNow(loseAll, nil)
	if reopen(); l.EndOffset() != 3 || l.HighWatermark() != 3 {
		t.Fatalf("log ends at %d, high watermark %d; 3 was durable", l.EndOffset(), l.HighWatermark())
	}
	appendN(t, l, 2, 2)
	mustFlush(t, l)
	fs = fs.crashNow(loseAll, nil)
	if reopen(); l.EndOffset() != 9 || l.HighWatermark() != 3 {
		t.Fatalf("log ends at %d, high watermark %d; nothing above 3 was ever replicated", l.EndOffset(), l.HighWatermark())
	}
}

// A kill came in the middle of TruncateFully, and the next start finished it, but did not
// sync that it had. Records were flushed, a power cut came before the next checkpoint,
// and the start after that finished the same cut again, and removed them.
func TestCutIsFinishedOnce(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, mustOpen(t, o), c)
	appendN(t, l, 2, 1)
	mustFlush(t, l)
	if err := l.putMark(true, 0); err != nil { // as TruncateFully begins
		t.Fatal(err)
	}
	fs = fs.crashNow(loseNone, nil)
	o.FS = fs
	if l = mustLog(t, mustOpen(t, o), c); l.StartOffset() != 0 || l.EndOffset() != 0 {
		t.Fatalf("log is [%d, %d) after the cut was finished", l.StartOffset(), l.EndOffset())
	}
	appendN(t, l, 1, 1)
	mustFlush(t, l)
	o.FS = fs.crashNow(loseAll, nil)
	if l = mustLog(t, mustOpen(t, o), c); l.EndOffset() != 3 {
		t.Fatalf("log is [%d, %d), [0, 3) was acknowledged", l.StartOffset(), l.EndOffset())
	}
}

// A segment began in a hole, at the log start. What the index was told of it when it was
// closed counted the epoch in front of the hole, a walk over the file did not: a recovery
// that walked and the one behind it, which believed the index, found different epochs.
func TestEpochOfAHole(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	mustAppend(t, l, testBatch{base: 0, n: 3, epoch: 1}.build())
	mustFlush(t, l)
	l.SetHighWatermark(3)
	if err := l.SetStartOffset(3); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, testBatch{base: 4, n: 2, epoch: 2}.build())
	mustAppend(t, l, testBatch{base: 6, n: 2, epoch: 2}.build())
	if err := s.index.db.Flush(); err != nil { // the index gets to the disk before the marks
		t.Fatal(err)
	}
	fs = fs.crashNow(loseNone, nil)
	for round := range 3 {
		o.FS = fs
		l = mustLog(t, mustOpen(t, o), c)
		if got := fmt.Sprint(l.Epochs()); l.StartOffset() != 3 || l.EndOffset() != 8 || got != "[{2 4}]" {
			t.Fatalf("recovery %d: log is [%d, %d) with the epochs %s", round, l.StartOffset(), l.EndOffset(), got)
		}
		if err := l.putMark(true, -1); err != nil {
			t.Fatal(err)
		}
		fs = fs.crashNow(loseAll, nil)
	}
}

// The log start had been moved into a segment, which was closed then, and a power cut took
// the move back. What the index had been told of the segment left out what was below the
// start: an epoch whose batches could be read again was forgotten, and a follower was told
// that it ended where the log start had been.
func TestEpochsBelowAForgottenStart(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	for e := range int32(2) {
		mustAppend(t, l, testBatch{base: 2 * int64(e), n: 2, epoch: 1 + e}.build())
	}
	mustFlush(t, l)
	s.flusher.checkpoint()
	l.SetHighWatermark(4)
	if err := l.SetStartOffset(3); err != nil {
		t.Fatal(err)
	}
	c.SegmentBytes = 1
	l.SetConfig(c)
	mustAppend(t, l, testBatch{base: 4, n: 2, epoch: 3}.build())
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), c)
	if got := fmt.Sprint(l.Epochs()); l.StartOffset() != 0 || l.EndOffset() != 4 || got != "[{1 0} {2 2}]" {
		t.Fatalf("log is [%d, %d) with the epochs %s", l.StartOffset(), l.EndOffset(), got)
	}
	if e, end := l.EpochEnd(1); e != 1 || end != 2 {
		t.Fatalf("epoch 1 ends at %d of %d, want 2", end, e)
	}
}

// After the first truncation of a log nothing that the index knew from before
// was believed any more: each start read the whole log. What lies below every
// truncation is as true as ever. Damage that nobody sees proves that nothing is read.
func TestIndexBelievedBelowTruncation(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	c := Config{SegmentBytes: 600, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, s, c)
	appendN(t, l, 10, 1)
	mustFlush(t, l)
	if err := l.Truncate(20); err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 2, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(logFile(6), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 100); err != nil {
		t.Fatal(err)
	}
	l = mustLog(t, mustOpen(t, o), c)
	if l.EndOffset() != 24 {
		t.Fatalf("log ends at %d", l.EndOffset())
	}
}

// What the index knows of a log before TruncateFully is not true of the log
// that begins there, not even at the offset where it begins. A crash may forget
// that the index was told.
func TestRestartForgetsProducers(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, s, c)
	mustAppend(t, l, testBatch{base: 0, n: 2, pid: 1}.build())
	mustAppend(t, l, testBatch{base: 2, n: 2, pid: 2}.build())
	mustFlush(t, l)
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := l.TruncateFully(2); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, testBatch{base: 2, n: 2, pid: 3}.build(), testBatch{base: 4, n: 2, pid: 4}.build())
	mustFlush(t, l)
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), c)
	if got := fmt.Sprint(l.Producers()); !strings.HasPrefix(got, "[{3 ") || len(l.Producers()) != 2 {
		t.Fatalf("producers %v", got)
	}
	if err := l.Truncate(4); err != nil {
		t.Fatal(err)
	}
	if got := l.Producers(); len(got) != 1 || got[0].ProducerID != 3 {
		t.Fatalf("producers after a truncation: %v", got)
	}
}

// A transaction that began in a deleted segment, and idempotent producers
// whose batches are all deleted, are known after a crash as before it.
func TestRecoverProducersOfDeletedSegments(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	s := mustOpen(t, o)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	l := mustLog(t, s, c)
	mustAppend(t, l, testBatch{base: 0, n: 2, pid: 7, txn: true}.build())
	mustAppend(t, l, testBatch{base: 2, n: 2, pid: 8}.build())
	mustAppend(t, l, stamped(record.Marker(record.Abort, 7, 0, 1, 5), 4, 0))
	mustFlush(t, l)
	s.flusher.checkpoint()
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	l.SetHighWatermark(5)
	if err := l.SetStartOffset(4); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(l.Producers(), l.Aborted(4, 5))
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), c)
	if got := fmt.Sprint(l.Producers(), l.Aborted(4, 5)); got != want {
		t.Fatalf("%s, was %s", got, want)
	}
}

// An index entry that outlived its file may point into a record whose value
// looks like a batch.
func TestStaleIndexEntry(t *testing.T) {
	o := testOptions(newCrashFS())
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	inner := record.Batch(testBatch{base: 1, n: 5}.build())
	h := record.NoProducer(5)
	h.BaseOffset = 2
	outer := record.Build(h, []record.Record{{Value: inner}})
	first, last := testBatch{base: 0, n: 2}.build(), testBatch{base: 3, n: 1}.build()
	mustAppend(t, l, first, outer, last)
	mustAppend(t, l, testBatch{base: 4, n: 1}.build()) // rolls
	at := bytes.Index(outer, inner)
	s.index.putEntries(l.id, 0, []entry{{offset: 2, pos: int64(len(first) + at)}})
	v, err := l.Read(3, 1, 5, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := viewBytes(t, &v); !bytes.Equal(got, last) {
		t.Fatalf("%d bytes, want the batch at 3", len(got))
	}
}

// A restart that finished an interrupted TruncateFully noted that it was done
// before the removals were durable. Another log's cut made the note durable, the
// power went, and the old files were back behind it: the log looked damaged. The
// restart tells what it removed.
func TestRestartFinishedBeforeItIsNoted(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	l := mustLog(t, mustOpen(t, o), Config{SegmentBytes: 600, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 6, 1)
	mustFlush(t, l)
	from := fs.count()
	if err := l.TruncateFully(20); err != nil {
		t.Fatal(err)
	}
	marked := 0
	fs.eachPrefix(from, fs.count(), func(k int, d durableState) {
		if o := fs.ops[k-1]; marked > 0 || o.kind != opSync || !strings.HasPrefix(o.name, "watermarks") {
			return
		}
		marked++
		var said events
		again := d.crash(loseAll, nil)
		o.FS, o.Logger = again, slog.New(slog.NewTextHandler(&said, nil))
		s := mustOpen(t, o)
		if l := mustLog(t, s, Config{}); l.StartOffset() != 20 || l.EndOffset() != 20 {
			t.Errorf("log has %d to %d", l.StartOffset(), l.EndOffset())
		}
		if n := said.count("files=3 first=" + logFile(0) + " last=" + logFile(12)); n != 1 {
			t.Errorf("the removal was told %d times: %v", n, said.said)
		}
		if err := s.marks.sync(); err != nil { // another log's cut
			t.Fatal(err)
		}
		o.FS = again.crashNow(loseAll, nil)
		if l := mustLog(t, mustOpen(t, o), Config{}); l.StartOffset() != 20 || l.EndOffset() != 20 {
			t.Errorf("after the power cut log has %d to %d", l.StartOffset(), l.EndOffset())
		}
	})
	if marked != 1 {
		t.Fatal("no mark was noted")
	}
}

// A loss was accepted, the power went, and the start that finished it gathered
// producers from the files: the transaction that began in what was lost begins
// later now. A start after a kill took them from a snapshot of before the loss.
func TestAcceptedLossForgetsProducers(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	c := Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	mustAppend(t, l, testBatch{base: 0, n: 2}.build())
	mustAppend(t, l, testBatch{base: 2, n: 2, pid: 7, txn: true}.build())
	mustAppend(t, l, testBatch{base: 4, n: 2, pid: 7, seq: 2, txn: true}.build())
	mustAppend(t, l, testBatch{base: 6, n: 2}.build())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenReadWrite(logFile(2), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), record.HeaderSize); err != nil {
		t.Fatal(err)
	}
	found, err := Inspect(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := fs.count()
	if _, err := AcceptLoss(t.Context(), o, found); err != nil {
		t.Fatal(err)
	}
	renames := 0
	fs.eachPrefix(from, fs.count(), func(k int, d durableState) {
		if fs.ops[k-1].kind != opRename || !strings.HasSuffix(fs.ops[k-1].newName, swapSuffix) {
			return
		}
		renames++
		next := d.crash(loseNone, nil)
		for start := range 3 {
			o.FS = next
			s := mustOpen(t, o)
			l := mustLog(t, s, c)
			if open := l.OpenTxns(); len(open) != 1 || open[0].First != 4 {
				t.Errorf("start %d: open transactions %v, want one from 4", start, open)
			}
			if start > 0 { // a kill
				next = next.crashNow(loseAll, nil)
			} else if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	if renames != 1 {
		t.Fatalf("%d renames to a .swap", renames)
	}
}
