package segment

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// producersLog is a log whose first two segments say something of producers, one of which has a
// transaction open, and nothing else does; then deleted up to start.
func producersLog(t *testing.T, s *Store, before func(l *Log), starts ...int64) *Log {
	l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	mustAppend(t, l, testBatch{base: 0, n: 3, pid: 7, txn: true}.build())
	mustAppend(t, l, testBatch{base: 3, n: 3, pid: 8, pepoch: 2, seq: 11}.build())
	appendN(t, l, 3, 1)
	mustFlush(t, l)
	l.SetHighWatermark(l.EndOffset())
	if before != nil {
		before(l)
	}
	for _, start := range starts {
		if err := l.SetStartOffset(start); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func knownProducers(l *Log) string { return fmt.Sprint(l.OpenTxns(), l.Producers()) }

// producersFiles are the names in a log's directory.
func producersFiles(t *testing.T, l *Log) (names []string) {
	all, err := l.store.disk.List(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasSuffix(name, producersSuffix) {
			names = append(names, name)
		}
	}
	return names
}

// A full disk had ended the index, and retention went on to make room: nothing but the
// index that would never be written again knew of the producers of what it deleted. The
// same where somebody removed the index of a stopped server, which is only a cache.
func TestProducersOutliveTheIndex(t *testing.T) {
	tests := map[string]struct {
		before  func(l *Log) // deletions
		deleted bool         // the index, after them
	}{
		"index broken, then power cut":  {before: func(l *Log) { l.store.index.breakDown(fmt.Errorf("no space left on device")) }},
		"index deleted after power cut": {deleted: true},
		"both":                          {before: func(l *Log) { l.store.index.breakDown(fmt.Errorf("no space left on device")) }, deleted: true},
	}
	for name, tt := range tests {
		for _, starts := range [][]int64{{6}, {3, 6}, {3, 7, 12}} {
			t.Run(fmt.Sprint(name, starts), func(t *testing.T) {
				fs := newCrashFS()
				o := testOptions(fs)
				l := producersLog(t, mustOpen(t, o), tt.before, starts...)
				want := knownProducers(l)
				if !strings.Contains(want, "{7 0 0 -1}") {
					t.Fatalf("open transactions and producers %s", want)
				}
				for range 2 { // and recovering twice gives what once gives
					fs = fs.crashNow(loseAll, nil)
					o.FS = fs
					if tt.deleted {
						if err := fs.RemoveAll(fs.PathJoin(o.Dir, indexDir)); err != nil {
							t.Fatal(err)
						}
					}
					l = mustLog(t, mustOpen(t, o), l.mu.config)
					if err := l.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
					if got := knownProducers(l); got != want {
						t.Fatalf("open transactions and producers %s, were %s", got, want)
					}
					if got := producersFiles(t, l); len(got) != 1 || got[0] != producersFile(l.mu.segments[0].base) {
						t.Fatalf("files %v", got)
					}
				}
			})
		}
	}
}

// The log was so young that nothing of it had been flushed, not even the name of its
// directory: the mark of the deletion outlived that, and what the producers had done went.
func TestProducersOfAYoungLog(t *testing.T) {
	fs := newCrashFS()
	o := testOptions(fs)
	l := mustLog(t, mustOpen(t, o), Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	mustAppend(t, l, testBatch{base: 0, n: 3, pid: 7, txn: true}.build())
	appendN(t, l, 1, 1)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(3); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.crashNow(loseAll, nil)
	l = mustLog(t, mustOpen(t, o), l.mu.config)
	if got := fmt.Sprint(l.OpenTxns()); l.StartOffset() != 3 || got != "[{7 0 0 -1}]" {
		t.Fatalf("log is [%d, %d), open transactions %s", l.StartOffset(), l.EndOffset(), got)
	}
}

// A log that nobody wrote to with a producer id has no such file, and one that begins
// anew has none of its earlier life.
func TestProducersFileIsForProducers(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewMem()))
	l := mustLog(t, s, Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 3, 1)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(6); err != nil {
		t.Fatal(err)
	}
	if got := producersFiles(t, l); len(got) != 0 {
		t.Fatalf("nobody has an id, and there is %v", got)
	}
	mustAppend(t, l, testBatch{base: l.EndOffset(), n: 3, pid: 7}.build())
	appendN(t, l, 1, 1)
	l.SetHighWatermark(l.EndOffset())
	if err := l.SetStartOffset(l.EndOffset() - 3); err != nil {
		t.Fatal(err)
	}
	if got := producersFiles(t, l); len(got) != 1 {
		t.Fatalf("of a producer with an id there is %v", got)
	}
	if err := l.TruncateFully(100); err != nil {
		t.Fatal(err)
	}
	if got := producersFiles(t, l); len(got) != 0 {
		t.Fatalf("the log is empty, and there is %v", got)
	}
}

// A damaged file is told of. The index' copy is as good, while there is one.
func TestProducersFileDamaged(t *testing.T) {
	for _, index := range []bool{true, false} {
		fs := vfs.NewMem()
		o := testOptions(fs)
		var told eventLog
		s := mustOpen(t, o)
		l := producersLog(t, s, nil, 6)
		want := knownProducers(l)
		path := fs.PathJoin(l.dir, producersFile(6))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xFF}, 9); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if !index {
			if err := fs.RemoveAll(fs.PathJoin(o.Dir, indexDir)); err != nil {
				t.Fatal(err)
			}
		}
		o.Logger = slog.New(&told)
		s = mustOpen(t, o)
		l = mustLog(t, s, l.mu.config)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := knownProducers(l); index != (got == want) {
			t.Errorf("index %v: producers %s, were %s", index, got, want)
		}
		if !index && !strings.Contains(strings.Join(told.all(), "\n"), path) {
			t.Errorf("nobody was told: %q", told.all())
		}
	}
}
