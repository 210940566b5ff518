package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memOptions is a store in memory with a dense index.
func memOptions(fs *vfs.MemFS) Options {
	o := testOptions(fs)
	o.IndexInterval = 200
	return o
}

// clone is the file system as a killed process leaves it.
func clone(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

func logFile(base int64) string { return logDir + "/" + fileName(base) }

var logDir = "data/" + logsDir + "/" + LogID{topicA, 0}.String()

func editFile(t *testing.T, fs *vfs.MemFS, path string, edit func([]byte) []byte) {
	t.Helper()
	b, err := readFile(newDisk(fs), path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(edit(b)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// killed makes a store with eight batches of three records in segments of two
// batches each: offsets 0 to 18 are flushed, 18 to 24 are not, and the process
// is gone. It returns the files and what the log holds.
func killed(t *testing.T) (fs *vfs.MemFS, all []byte) {
	t.Helper()
	fs = vfs.NewCrashableMem()
	s := mustOpen(t, memOptions(fs))
	l := mustLog(t, s, Config{SegmentBytes: 600, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 6, 1)
	mustFlush(t, l)
	s.flusher.checkpoint()
	appendN(t, l, 2, 2)
	l.SetHighWatermark(15)
	all = content(t, l, 0, 1<<20)
	if got := fmt.Sprint(bases(l)); got != "[0 6 12 18]" {
		t.Fatalf("segments at %s", got)
	}
	return clone(fs), all
}

func bases(l *Log) (list []int64) {
	for _, s := range l.Segments() {
		list = append(list, s.Base)
	}
	return list
}

func TestRecoverAfterKill(t *testing.T) {
	fs, all := killed(t)
	l := mustLog(t, mustOpen(t, memOptions(fs)), Config{})
	if !bytes.Equal(content(t, l, 0, 1<<20), all) || l.EndOffset() != 24 || l.DurableEnd() != 24 {
		t.Fatalf("end %d durable %d", l.EndOffset(), l.DurableEnd())
	}
	if got := fmt.Sprint(l.Epochs()); got != "[{1 0} {2 18}]" {
		t.Fatalf("epochs %s", got)
	}
}

// Damage and torn tails look alike; the durable end tells them apart. Nothing
// is deleted for damage, and the same error comes again.
func TestDamage(t *testing.T) {
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 0x10; return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for _, c := range []struct {
		name  string
		base  int64
		edit  func([]byte) []byte
		end   int64  // log end when it opens
		error string // or what the error says
	}{
		{name: "bit in the last batch, not durable", base: 18, edit: flip(300), end: 21},
		{name: "bit in the first batch that is not durable", base: 18, edit: flip(20), end: 18},
		{name: "torn in a header", base: 18, edit: cut(260), end: 21},
		{name: "torn in a batch", base: 18, edit: cut(400), end: 21},
		{name: "zeros at the end", base: 18, edit: func(b []byte) []byte { return append(b, make([]byte, 5000)...) }, end: 24},
		{name: "garbage at the end", base: 18, edit: func(b []byte) []byte { return append(b, bytes.Repeat([]byte("x"), 70)...) }, end: 24},
		{name: "whole file not durable", base: 18, edit: cut(0), end: 18},
		{name: "length in a durable batch", base: 12, edit: flip(8), error: "position 0, offset 12"},
		{name: "durable file is short", base: 12, edit: cut(100), error: "position 0, offset 12"},
		{name: "durable file is shorter by one batch", base: 12, edit: func(b []byte) []byte { return b[:len(b)/2] }, error: "offset 15"},
		{name: "durable file is empty", base: 6, edit: cut(0), error: "offset 6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, all := killed(t)
			editFile(t, fs, logFile(c.base), c.edit)
			before := files(t, fs)
			for try := range 2 {
				s := mustOpen(t, memOptions(fs))
				l, err := s.OpenLog(topicA, 0, Config{})
				if c.error != "" {
					var damage *DamageError
					if !errors.As(err, &damage) || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.error) || !strings.Contains(err.Error(), fileName(c.base)) {
						t.Fatalf("try %d: %v, want %s in %s", try, err, c.error, fileName(c.base))
					}
					if after := files(t, fs); after != before {
						t.Fatalf("files changed: %s, were %s", after, before)
					}
					// Its neighbours go on.
					if _, err := s.OpenLog(topicA, 1, Config{}); err != nil {
						t.Fatal(err)
					}
					if err := s.Delete(topicA, 1); err != nil {
						t.Fatal(err)
					}
				} else {
					if err != nil {
						t.Fatal(err)
					}
					got := content(t, l, 0, 1<<20)
					if l.EndOffset() != c.end || !bytes.HasPrefix(all, got) || len(split(t, got)) != int(c.end/3) {
						t.Fatalf("log ends at %d with %d bytes, want %d", l.EndOffset(), len(got), c.end)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func files(t *testing.T, fs *vfs.MemFS) string {
	t.Helper()
	names, err := fs.List(logDir)
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(names)
	var s string
	for _, name := range names {
		fi, err := fs.Stat(logDir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprint(name, " ", fi.Size(), "; ")
	}
	return s
}

// After a clean stop the index knows every segment: one that is gone, or a
// directory that is, is damage and not a shorter log.
func TestMissingFiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		remove string
		want   string
	}{
		{"first segment", logFile(0), "offsets 0 to 6 were durable"},
		{"middle segment", logFile(6), "offsets 6 to 12 were durable"},
		{"last segment", logFile(18), "offsets 18 to 24 were durable"},
		{"directory", logDir, "directory is missing, offsets 0 to 24 were durable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, _ := killed(t)
			s := mustOpen(t, memOptions(fs))
			mustLog(t, s, Config{})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := fs.RemoveAll(c.remove); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s = mustOpen(t, memOptions(fs))
				if _, err := s.OpenLog(topicA, 0, Config{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%v, want %q", err, c.want)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The index is a cache: gone, full of garbage, or from another time, all
// answers stay the same.
//
// MIR-093: the epochs are found again in the batches.
func TestIndexIsACache(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, fs *vfs.MemFS)
	}{
		{"gone", func(t *testing.T, fs *vfs.MemFS) {
			if err := fs.RemoveAll("data/" + indexDir); err != nil {
				t.Fatal(err)
			}
		}},
		{"garbage", func(t *testing.T, fs *vfs.MemFS) {
			tables := glob(t, fs, "*.sst")
			if len(tables) == 0 {
				t.Fatal("no tables")
			}
			for _, path := range tables {
				editFile(t, fs, path, func(b []byte) []byte {
					for i := 0; i < len(b); i += 97 {
						b[i] ^= 0x55
					}
					return b
				})
			}
		}},
		{"no manifest", func(t *testing.T, fs *vfs.MemFS) {
			for _, n := range glob(t, fs, "M*") {
				editFile(t, fs, n, func([]byte) []byte { return nil })
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, all := killed(t)
			s := mustOpen(t, memOptions(fs))
			l := mustLog(t, s, Config{})
			epochs := fmt.Sprint(l.Epochs())
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, fs)
			for try := range 2 {
				s = mustOpen(t, memOptions(fs))
				l = mustLog(t, s, Config{})
				if !bytes.Equal(content(t, l, 0, 300), all) {
					t.Fatalf("try %d: content differs", try)
				}
				for o := range int64(24) {
					v, err := l.Read(o, 1, 24, true)
					if err != nil || v.Base != o/3*3 {
						t.Fatalf("try %d: read at %d: base %d, %v", try, o, v.Base, err)
					}
					v.Release()
				}
				if o, _, _, ok, err := l.OffsetForTime(1010); !ok || err != nil || o != 10 {
					t.Fatalf("offset for time: %d %v %v", o, ok, err)
				}
				if got := fmt.Sprint(l.Epochs()); got != epochs || len(l.Epochs()) < 2 {
					t.Fatalf("try %d: epochs %s, they were %s", try, got, epochs)
				}
				_ = s.Close()
			}
		})
	}
}

func glob(t *testing.T, fs *vfs.MemFS, pattern string) (paths []string) {
	t.Helper()
	names, err := fs.List("data/" + indexDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if ok, _ := path.Match(pattern, name); ok {
			paths = append(paths, "data/"+indexDir+"/"+name)
		}
	}
	return paths
}

// One slot of the watermarks is enough; without any, what was closed counts as
// durable and the last segment is checked to its end.
func TestWatermarkSlots(t *testing.T) {
	spoil := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	fs, all := killed(t)
	newer := func() string {
		a, _ := readFile(newDisk(fs), "data/"+slotNames[0])
		b, _ := readFile(newDisk(fs), "data/"+slotNames[1])
		sa, errA := decodeSlot(a)
		sb, errB := decodeSlot(b)
		if errA != nil || errB == nil && sb.seq > sa.seq {
			return slotNames[1]
		}
		return slotNames[0]
	}
	s := mustOpen(t, memOptions(fs))
	mustLog(t, s, Config{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	editFile(t, fs, "data/"+newer(), spoil)
	s = mustOpen(t, memOptions(fs))
	if l := mustLog(t, s, Config{}); l.EndOffset() != 24 {
		t.Fatalf("log end %d with one slot", l.EndOffset())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range slotNames {
		editFile(t, fs, "data/"+name, func(b []byte) []byte { return b[:3] })
	}
	editFile(t, fs, logFile(18), func(b []byte) []byte { return b[:len(b)-1] })
	copied := clone(fs)
	s = mustOpen(t, memOptions(fs))
	l := mustLog(t, s, Config{})
	if got := content(t, l, 0, 1<<20); l.EndOffset() != 21 || !bytes.HasPrefix(all, got) {
		t.Fatalf("log end %d without marks, want the torn batch cut", l.EndOffset())
	}
	editFile(t, copied, logFile(6), func(b []byte) []byte { return b[:len(b)-1] })
	if _, err := mustOpen(t, memOptions(copied)).OpenLog(topicA, 0, Config{}); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a closed segment without marks: %v", err)
	}
}

// A crash in the middle of TruncateFully: recovery goes through with it.
func TestInterruptedReset(t *testing.T) {
	fs, _ := killed(t)
	s := mustOpen(t, memOptions(fs))
	l := mustLog(t, s, Config{})
	if err := s.marks.put(true, change{id: l.id, mark: mark{start: 50, durable: 50, hw: 50, reset: 50, generation: 9, floor: 50}}); err != nil {
		t.Fatal(err)
	}
	fs = clone(fs)
	l = mustLog(t, mustOpen(t, memOptions(fs)), Config{})
	if l.StartOffset() != 50 || l.EndOffset() != 50 || fmt.Sprint(bases(l)) != "[50]" {
		t.Fatalf("[%d, %d) in %v", l.StartOffset(), l.EndOffset(), bases(l))
	}
}

// recoverBytes opens a log whose only file has the given bytes, of which
// nothing is durable, twice. Never a panic nor an error: whatever they are, they
// are a torn tail. What comes back is whole batches with right CRCs from the
// beginning of the bytes, the same both times.
func recoverBytes(t *testing.T, p []byte) []byte {
	t.Helper()
	fs, o := memWithFile(t, p)
	var first []byte
	for try := range 2 {
		o.FS = fs
		s := mustOpen(t, o)
		l := mustLog(t, s, Config{})
		got := content(t, l, 0, 1000)
		split(t, got)
		if try == 1 && !bytes.Equal(got, first) {
			t.Fatal("recovering twice differs")
		}
		if first = got; !bytes.HasPrefix(p, got) {
			t.Fatal("bytes that were not there")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return first
}

func TestRecoverGarbage(t *testing.T) {
	var good []byte
	for i := range int64(4) {
		good = append(good, testBatch{base: 3 * i, n: 3, epoch: 1, ts: 5, value: 20, pid: 4, seq: int32(3 * i), txn: true}.build()...)
	}
	rng := newRng(5)
	for range 60 {
		p := bytes.Clone(good)
		switch rng.IntN(4) {
		case 0:
			p[rng.IntN(len(p))] ^= 1 << rng.IntN(8)
		case 1:
			p = p[:rng.IntN(len(p))]
		case 2:
			at := rng.IntN(len(p))
			clear(p[at:min(len(p), at+rng.IntN(500))])
		case 3: // a piece of the log at another place
			copy(p[rng.IntN(len(p)):], good[rng.IntN(len(good)):])
		}
		recoverBytes(t, p)
	}
	if got := recoverBytes(t, good); !bytes.Equal(got, good) {
		t.Fatal("good bytes do not come back")
	}
}

// The walk that recovery, truncation and rebuilding stand on, over any bytes:
// no panic, and what it says of them is true. (Through a whole store the fuzzer
// cannot steer, because Pebble's goroutines make coverage random.)
func FuzzRecovery(f *testing.F) {
	good := testBatch{base: 0, n: 3, epoch: 1, ts: 5, value: 20}.build()
	f.Add(good, int64(0))
	f.Add(append(append([]byte(nil), good...), testBatch{base: 3, n: 1, epoch: 1, pid: 4, txn: true}.build()...), int64(2))
	f.Add(append(append([]byte(nil), good...), good[:40]...), int64(3))
	f.Add(stamped(record.AbortMarker(4, 1, 1, 1), 0, 1), int64(0))
	f.Fuzz(func(t *testing.T, p []byte, end int64) {
		table := producer.New()
		w, err := walk(bytes.NewReader(p), 0, int64(len(p)), walkOptions{interval: 1, end: end, each: table.Apply})
		if err != nil && !isBadBatch(err) {
			t.Fatal(err)
		}
		if err == nil && w.cutBatch < 0 && w.size != int64(len(p)) {
			t.Fatalf("stopped at %d of %d without a reason", w.size, len(p))
		}
		last := int64(0)
		for _, b := range split(t, p[:w.size]) {
			if b.BaseOffset() < last {
				t.Fatal("offsets go back")
			}
			last = b.NextOffset()
		}
		if w.end != last || end > 0 && last > end {
			t.Fatalf("ends at %d, batches at %d", w.end, last)
		}
		for _, e := range w.entries {
			if b, _, err := record.Next(p[e.pos:]); err != nil || b.BaseOffset() != e.offset {
				t.Fatalf("index entry %+v: %v", e, err)
			}
		}
	})
}

func FuzzDecodeSlot(f *testing.F) {
	id := LogID{topicA, 3}
	f.Add(appendFrame(change{id: id, mark: mark{start: 1, durable: 2, hw: 3, generation: 4, floor: 5, reset: -1}}.append(nil), []byte("S")))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := decodeSlot(appendFrame(nil, p))
		if err == nil && len(s.marks) > len(p)/entrySize+1 {
			t.Fatal("more marks than bytes")
		}
		if s, err := decodeSlot(p); err == nil && s == nil {
			t.Fatal("nothing")
		}
		_, _ = decodeSummary(p)
	})
}

// A start after a kill told the index of each log to forget a range of keys, mostly an
// empty one. Pebble looks at all ranges in its memory anew at the first lookup after
// each, so that 5 000 logs took minutes to open: four times as long for twice as many.
// Neither a recovery nor a cut deletes ranges now.
func TestRecoveryDeletesNoRanges(t *testing.T) {
	fs := vfs.NewCrashableMem()
	config := Config{SegmentBytes: 600, RetentionMs: -1, RetentionBytes: -1}
	const logs = 20
	open := func(s *Store) (all []*Log) {
		for p := range int32(logs) {
			l, err := s.OpenLog(topicA, p, config)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		return all
	}
	for _, l := range open(mustOpen(t, memOptions(fs))) {
		appendN(t, l, 7, 1)
		mustFlush(t, l)
		appendN(t, l, 1, 2)
	}
	s := mustOpen(t, memOptions(clone(fs)))
	for i, l := range open(s) {
		if got := l.EndOffset(); got != 24 {
			t.Fatalf("log %d ends at %d", i, got)
		}
		appendN(t, l, 1, 2)
		if err := l.Truncate(14); err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 5, 3)
	}
	if err := s.index.db.Flush(); err != nil {
		t.Fatal(err)
	}
	levels, err := s.index.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	entries, ranges := uint64(0), uint64(0)
	for _, level := range levels {
		for _, table := range level {
			entries, ranges = entries+table.Properties.NumEntries, ranges+table.Properties.NumRangeDeletions
		}
	}
	if entries == 0 || ranges > 0 {
		t.Errorf("the index has %d entries, of which %d delete ranges", entries, ranges)
	}
}
