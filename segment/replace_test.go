package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// everySecond replaces segments [i, j) of the log by a file with every second
// of their batches.
func everySecond(t testing.TB, l *Log, i, j int) error {
	t.Helper()
	n := 0
	return thinOut(t, l, i, j, func(record.Batch) bool { n++; return n%2 == 1 })
}

// thinOut replaces the segments from i to j by one with the batches that keep says.
func thinOut(t testing.TB, l *Log, i, j int, keep func(b record.Batch) bool) error {
	t.Helper()
	l.mu.RLock()
	old, cuts := l.mu.segments[i:j:j], l.cuts.Load()
	l.mu.RUnlock()
	r, err := l.replace(old, cuts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.abort()
	for _, s := range old {
		if err := eachBatch(l, s, func(b record.Batch) error {
			if keep(b) {
				return r.write(b)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.finish(); err != nil {
		return err
	}
	return r.swap()
}

// eachBatch walks a segment, on any file system.
func eachBatch(l *Log, s *segment, fn func(b record.Batch) error) error {
	h, err := l.store.files.acquire(s)
	if err != nil {
		return err
	}
	defer h.release()
	return dump(h, s.size, s.path(), func(_ int64, b record.Batch) error { return fn(b) })
}

// fillSegments appends n batches of one record each, a few to a segment, with a
// new epoch now and then.
func fillSegments(t testing.TB, l *Log, n int) {
	t.Helper()
	for i := range n {
		b := testBatch{base: l.EndOffset(), n: 1, epoch: int32(1 + i/7), ts: int64(1000 + i), value: 50}.build()
		if _, err := l.Append(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := flush(l); err != nil {
		t.Fatal(err)
	}
}

// readOffsets are the base offsets of the batches with records, read one by one
// through the index.
func readOffsets(t testing.TB, l *Log) []int64 {
	t.Helper()
	var got []int64
	for o := l.StartOffset(); o < l.EndOffset(); {
		v, err := l.Read(o, 1, l.EndOffset(), true)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, v.Len())
		if _, err := v.ReadAt(buf, 0); err != nil {
			t.Fatal(err)
		}
		v.Release()
		if len(buf) == 0 {
			break
		}
		b, _, err := record.Next(buf)
		if err != nil || b.VerifyCRC() != nil {
			t.Fatal(err, b.VerifyCRC())
		}
		if b.NumRecords() > 0 {
			got = append(got, b.BaseOffset())
		}
		o = v.End
	}
	return got
}

func TestReplace(t *testing.T) {
	o := testOptions(vfs.NewCrashableMem())
	o.IndexInterval, o.tail = 1, 2
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{SegmentBytes: 700, RetentionMs: -1, RetentionBytes: -1})
	fillSegments(t, l, 40)
	before := l.Segments()
	view, err := l.Read(0, 300, 40, true) // holds the old file
	if err != nil {
		t.Fatal(err)
	}
	if err := everySecond(t, l, 0, 4); err != nil { // the last batch goes too
		t.Fatal(err)
	}
	after := l.Segments()
	if len(after) != len(before)-3 || after[0].Base != 0 || after[0].End != before[4].Base {
		t.Fatalf("segments %v, before %v", after, before)
	}
	var want []int64
	for o := range int64(40) {
		if o >= before[4].Base || o%2 == 0 {
			want = append(want, o)
		}
	}
	if got := readOffsets(t, l); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, want %v", got, want)
	}
	buf := make([]byte, view.Len())
	if _, err := view.ReadAt(buf, 0); err != nil {
		t.Fatalf("view of the old file: %v", err)
	}
	if b, _, err := record.Next(buf[len(buf)/2:]); err != nil || b.BaseOffset()%2 != 1 {
		t.Fatalf("view of the old file shows batch %v, %v", b.BaseOffset(), err)
	}
	view.Release()
	epochs := l.Epochs()
	for _, clean := range []bool{true, false} {
		if clean {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			o.FS = o.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
		}
		s = mustOpen(t, o)
		l = mustLog(t, s, Config{})
		if got := readOffsets(t, l); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("clean %v: offsets %v, want %v", clean, got, want)
		}
		if got := l.Epochs(); clean && fmt.Sprint(got) != fmt.Sprint(epochs) {
			t.Fatalf("epochs %v, want %v", got, epochs)
		}
	}
}

// A truncation, retention or another replacement that comes between is not
// overwritten.
func TestReplaceOvertaken(t *testing.T) {
	for name, change := range map[string]func(l *Log) error{
		"truncate": func(l *Log) error { return l.Truncate(10) },
		"cut": func(l *Log) error {
			if err := l.Truncate(13); err != nil {
				return err
			}
			fillSegments(t, l, 20)
			return nil
		},
		"start":    func(l *Log) error { return l.SetStartOffset(12) },
		"empty":    func(l *Log) error { return l.TruncateFully(100) },
		"replaced": func(l *Log) error { return everySecond(t, l, 0, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(vfs.NewCrashableMem())
			s := mustOpen(t, o)
			l := mustLog(t, s, Config{SegmentBytes: 700, RetentionMs: -1, RetentionBytes: -1})
			fillSegments(t, l, 40)
			once := false
			defer invariants.SetFault(func(at string) {
				if at == "segment.replaceForgotten" && !once {
					once = true
					if err := change(l); err != nil {
						t.Error(err)
					}
				}
			})()
			if err := everySecond(t, l, 0, 3); !errors.Is(err, errOvertaken) {
				t.Fatalf("error %v, want errOvertaken", err)
			}
			names, err := o.FS.List(l.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				if _, ok := parseFileName(n); !ok {
					t.Errorf("%s was left behind", n)
				}
			}
			content(t, l, l.StartOffset(), 1000)
		})
	}
}

// Whatever a power cut leaves of a replacement is the old segments or the new
// one, whole, also when recovery is cut again.
func TestReplaceCrash(t *testing.T) {
	for seed := range uint64(40) {
		mem := vfs.NewCrashableMem()
		o := testOptions(mem)
		o.IndexInterval = 1
		s := mustOpen(t, o)
		l := mustLog(t, s, Config{SegmentBytes: 700, RetentionMs: -1, RetentionBytes: -1})
		fillSegments(t, l, 40)
		if err := s.index.db.Flush(); err != nil { // what it knows of the old files must be forgotten durably
			t.Fatal(err)
		}
		old, _ := recordOffsets(t, l)
		type clone struct {
			at string
			fs *vfs.MemFS
		}
		var clones []clone
		restore := invariants.SetFault(func(at string) {
			percent := []int{0, 50, 100}[seed%3]
			clones = append(clones, clone{at, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))})})
		})
		if err := everySecond(t, l, 1, 5); err != nil {
			t.Fatal(err)
		}
		restore()
		replaced, _ := recordOffsets(t, l)
		if len(clones) < 6 {
			t.Fatalf("only %d points", len(clones))
		}
		for _, c := range clones {
			o.FS = c.fs
			var first []byte
			for round := range 2 {
				s := mustOpen(t, o)
				l := mustLog(t, s, Config{})
				got, bytesRead := recordOffsets(t, l)
				if fmt.Sprint(got) != fmt.Sprint(old) && fmt.Sprint(got) != fmt.Sprint(replaced) {
					t.Fatalf("seed %d, crash at %s, recovery %d: offsets %v", seed, c.at, round, got)
				}
				if round == 0 {
					first = bytesRead
				} else if !bytes.Equal(first, bytesRead) {
					t.Fatalf("seed %d, crash at %s: recovering twice differs", seed, c.at)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func recordOffsets(t testing.TB, l *Log) ([]int64, []byte) {
	return readOffsets(t, l), content(t, l, l.StartOffset(), 1000)
}
