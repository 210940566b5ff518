package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// hurt is one kind of damage to a segment file. at is the position of a batch in
// the middle of it.
type hurt struct {
	name string
	do   func(b []byte, at int) []byte // nil: the file goes
}

func flip(pos int, bit byte) func([]byte, int) []byte {
	return func(b []byte, at int) []byte { b[at+pos] ^= bit; return b }
}

var hurts = []hurt{
	{"record byte", flip(record.HeaderSize+20, 0x10)},
	{"last byte of the file", func(b []byte, _ int) []byte { b[len(b)-1] ^= 1; return b }},
	{"base offset up", flip(7, 0x40)},
	{"base offset down", flip(7, 0x02)},
	{"base offset far up", flip(3, 0x01)},
	{"length up", flip(11, 0x40)},
	{"length down", flip(11, 0x04)},
	{"length zero", func(b []byte, at int) []byte { clear(b[at+8:][:4]); return b }},
	{"leader epoch up", flip(15, 0x08)},
	{"leader epoch negative", flip(12, 0x80)},
	{"magic", flip(16, 0x01)},
	{"crc", flip(18, 0x01)},
	{"last offset delta", flip(26, 0x01)},
	{"zeroed page", func(b []byte, at int) []byte { clear(b[at-100 : min(at+300, len(b))]); return b }},
	{"garbage", func(b []byte, at int) []byte {
		for i := range min(200, len(b)-at) {
			b[at+i] = byte(i * 7)
		}
		return b
	}},
	{"first header", func(b []byte, _ int) []byte { clear(b[:30]); return b }},
	{"all zero", func(b []byte, _ int) []byte { clear(b); return b }},
	{"cut in a batch", func(b []byte, at int) []byte { return b[:at+10] }},
	{"cut between batches", func(b []byte, at int) []byte { return b[:at] }},
	{"empty", func([]byte, int) []byte { return b0 }},
	{"longer", func(b []byte, _ int) []byte { return append(b, make([]byte, 100)...) }},
	{"missing", func([]byte, int) []byte { return nil }},
}

var b0 = []byte{}

// repairWorld is a store in memory with a log of six segments and a neighbour.
type repairWorld struct {
	t      *testing.T
	fs     *vfs.MemFS
	o      Options
	c      Config
	s      *Store
	golden []byte
	told   []*DamageError
}

func newRepairWorld(t *testing.T) *repairWorld {
	t.Helper()
	w := &repairWorld{t: t, fs: vfs.NewMem(), c: Config{SegmentBytes: 2200, RetentionMs: -1, RetentionBytes: -1}}
	w.o = testOptions(w.fs)
	w.o.OnDamage = func(_ LogID, d *DamageError) { w.told = append(w.told, d) }
	w.s = mustOpen(t, w.o)
	for p := range int32(2) {
		l := w.log(p)
		appendN(t, l, 16, 1)
		appendN(t, l, 16, 3)
		appendN(t, l, 16, 4)
		mustFlush(t, l)
		l.SetHighWatermark(l.EndOffset())
		w.golden = content(t, l, 0, 1<<20)
		if n := len(l.Segments()); n < 6 {
			t.Fatalf("%d segments", n)
		}
	}
	return w
}

func (w *repairWorld) log(p int32) *Log {
	w.t.Helper()
	l, err := w.s.OpenLog(topicA, p, w.c)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *repairWorld) reopen() {
	w.t.Helper()
	if err := w.s.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.s = mustOpen(w.t, w.o)
}

// hurt damages the i-th segment file of log 0, and returns its path.
func (w *repairWorld) hurt(segments []SegmentInfo, i int, h hurt) string {
	w.t.Helper()
	path := segments[i].Path
	b := w.file(path)
	at := 0
	for range len(split(w.t, b)) / 2 {
		at += record.Batch(b[at:]).Size()
	}
	b = h.do(b, at)
	if err := w.fs.Remove(path); err != nil {
		w.t.Fatal(err)
	}
	if b != nil {
		w.write(path, b)
	}
	// Descriptors that are open see the old file in this file system.
	if l := w.s.openLogs(); len(l) > 0 {
		for _, seg := range l[0].mu.segments {
			w.s.files.drop(seg, false)
		}
	}
	return path
}

func (w *repairWorld) file(path string) []byte {
	w.t.Helper()
	b, err := readFile(w.s.disk, path)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *repairWorld) write(path string, b []byte) {
	w.t.Helper()
	f, err := w.fs.Create(path, "")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := f.Write(bytes.Clone(b)); err != nil {
		w.t.Fatal(err)
	}
	_ = f.Close()
}

// fetch gives what the log held.
func (w *repairWorld) fetch(_ context.Context, from, to int64) ([]byte, int64, error) {
	var all []byte
	for _, b := range split(w.t, w.golden) {
		if b.BaseOffset() >= from && b.NextOffset() <= to {
			all = append(all, b...)
		}
	}
	return all, to, nil
}

// TestDamageAndRepair damages each file in each way, in a store that runs and in one
// that is opened again, with its index and without. It must be found, never be
// served, and be healed so that the bytes are those from before; what is not
// damaged stays as it is.
func TestDamageAndRepair(t *testing.T) {
	for _, h := range hurts {
		for place, i := range map[string]int{"first": 0, "middle": 2, "last": -1} {
			for _, when := range []string{"running", "opened", "opened without index"} {
				t.Run(h.name+"/"+place+"/"+when, func(t *testing.T) {
					w := newRepairWorld(t)
					testDamage(t, w, h, i, when)
				})
			}
		}
	}
}

func testDamage(t *testing.T, w *repairWorld, h hurt, i int, when string) {
	segments := w.log(0).Segments()
	if i < 0 {
		i = len(segments) - 1
	}
	before := make(map[string][]byte)
	for _, s := range segments {
		before[s.Path] = w.file(s.Path)
	}
	if when != "running" {
		if err := w.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	path := w.hurt(segments, i, h)
	if when == "opened without index" {
		if err := w.fs.RemoveAll(w.fs.PathJoin(w.o.Dir, indexDir)); err != nil {
			t.Fatal(err)
		}
	}
	if when != "running" {
		w.s = mustOpen(t, w.o)
	}
	l, err := w.s.OpenLog(topicA, 0, w.c)
	if l == nil {
		t.Fatalf("no log with %v", err)
	}
	if err == nil {
		w.s.scrubber.pass()
		w.s.scrubber.pass() // tells nothing new
		if len(w.told) != 1 {
			if got := content(t, l, 0, 1<<20); len(w.told) == 0 && bytes.Equal(got, w.golden) {
				return // harmless: what was there has gone with the recovery
			}
			t.Fatalf("told of %v", w.told)
		}
	} else if !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	checkOutOfUse(t, l)
	if got := content(t, w.log(1), 0, 1<<20); !bytes.Equal(got, w.golden) {
		t.Error("the neighbour has other bytes")
	}
	checkOthers(t, w, before, path)

	// Damage is not forgotten.
	w.reopen()
	if l, err = w.s.OpenLog(topicA, 0, w.c); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("opened again: %v", err)
	}
	done, err := l.Repair(t.Context(), w.fetch)
	if err != nil {
		t.Fatal(err)
	}
	checkOthers(t, w, before, path)
	for range 2 {
		if got := content(t, l, 0, 1<<20); !bytes.Equal(got, w.golden) {
			t.Fatalf("%d bytes after the repair, %d before the damage", len(got), len(w.golden))
		}
		if l.HighWatermark() != l.EndOffset() || l.DurableEnd() != l.EndOffset() {
			t.Errorf("high watermark %d, durable %d, end %d", l.HighWatermark(), l.DurableEnd(), l.EndOffset())
		}
		w.reopen()
		l = w.log(0)
	}
	if b := h.do(bytes.Clone(before[path]), 500); len(b) > 0 && len(done.Quarantine) != 1 && !strings.HasPrefix(h.name, "cut") {
		t.Errorf("in quarantine: %v", done.Quarantine)
	}
	appendN(t, l, 1, 5)
	mustFlush(t, l)
}

func checkOutOfUse(t *testing.T, l *Log) {
	t.Helper()
	for _, offset := range []int64{0, 3, l.EndOffset() - 1} {
		if v, err := l.Read(offset, 1<<20, math.MaxInt64, true); !errors.Is(err, ErrCorrupt) {
			t.Errorf("read at %d gave %d bytes and %v", offset, v.N, err)
			v.Release()
		}
	}
	for name, err := range map[string]error{
		"append":   func() error { _, err := l.Append(testBatch{base: l.EndOffset(), n: 1}.build()); return err }(),
		"truncate": l.Truncate(5), "truncate fully": l.TruncateFully(5), "start": l.SetStartOffset(10), "flush": flush(l),
		"time": func() error { _, _, _, _, err := l.OffsetForTime(1); return err }(),
	} {
		var d *DamageError
		if !errors.As(err, &d) || !strings.Contains(err.Error(), "lockstep repair --dir data --log "+l.id.String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// checkOthers holds every file but the damaged one against what it was.
func checkOthers(t *testing.T, w *repairWorld, before map[string][]byte, damaged string) {
	t.Helper()
	for path, want := range before {
		if path == damaged {
			continue
		}
		got, err := readFile(w.s.disk, path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s changed: %d bytes, was %d, %v", path, len(got), len(want), err)
		}
	}
}

// TestAcceptLoss puts holes where nobody has the bytes.
func TestAcceptLoss(t *testing.T) {
	for _, h := range hurts {
		for place, i := range map[string]int{"first": 0, "middle": 2, "last": -1} {
			t.Run(h.name+"/"+place, func(t *testing.T) {
				w := newRepairWorld(t)
				segments := w.log(0).Segments()
				if i < 0 {
					i = len(segments) - 1
				}
				if err := w.s.Close(); err != nil {
					t.Fatal(err)
				}
				w.hurt(segments, i, h)
				testAcceptLoss(t, w)
			})
		}
	}
}

func testAcceptLoss(t *testing.T, w *repairWorld) {
	found, err := Inspect(w.o, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Inspect(w.o, nil)
	if err != nil || fmt.Sprint(found[0].Damages) != fmt.Sprint(again[0].Damages) {
		t.Fatalf("looking changed something: %v\n%v\n%v", err, found, again)
	}
	lost := int64(0)
	for _, v := range found {
		lost += v.Lost()
	}
	done, err := AcceptLoss(t.Context(), w.o, found)
	if err != nil {
		t.Fatal(err)
	}
	accepted := int64(0)
	for _, d := range done {
		accepted += d.Lost
	}
	if accepted != lost {
		t.Errorf("listed %d offsets, lost %d", lost, accepted)
	}
	if found, err = Inspect(w.o, nil); err != nil || found[0].Damages != nil || found[1].Damages != nil {
		t.Fatalf("afterwards: %v %v", found, err)
	}
	w.s = mustOpen(t, w.o)
	l := w.log(0)
	good := make(map[int64]string)
	for _, b := range split(t, w.golden) {
		good[b.BaseOffset()] = string(b)
	}
	next, holes := int64(0), int64(0)
	for _, b := range split(t, content(t, l, 0, 1<<20)) {
		if b.BaseOffset() != next {
			t.Errorf("%d comes behind %d", b.BaseOffset(), next)
		}
		next = b.NextOffset()
		if b.NumRecords() == 0 {
			holes += b.NextOffset() - b.BaseOffset()
		} else if good[b.BaseOffset()] != string(b) {
			t.Errorf("other bytes at %d", b.BaseOffset())
		}
	}
	if next != 144 || holes != lost {
		t.Errorf("ends at %d with %d offsets in holes, lost %d", next, holes, lost)
	}
	if got := content(t, w.log(1), 0, 1<<20); !bytes.Equal(got, w.golden) {
		t.Error("the neighbour has other bytes")
	}
	appendN(t, l, 1, 5)
}
