package segment

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// What is kept is bounded in bytes and in age, the two kinds apart; the newest
// file of a kind stays until it is too old, whatever its size, and what is not ours
// is left alone.
func TestQuarantineBounds(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	c := o.Clock.(*clock.Manual)
	o.QuarantineBytes, o.QuarantineAge = 250, 10*time.Hour
	o.KeepBytes, o.KeepAge = 150, 20*time.Hour
	s := mustOpen(t, o)
	q := s.quarantine
	dir := fs.PathJoin(o.Dir, quarantineDir)
	put := func(partition int32, kind string, size int) {
		t.Helper()
		path, err := q.begin(LogID{topicA, partition}, 7, kind, func(path string) error {
			writeTo(t, fs, path, make([]byte, size))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		q.came(kind, int64(size))
		q.end(path)
	}
	// In hours since the start, with kind and size.
	left := func() string {
		var all []string
		for _, k := range q.list() {
			all = append(all, fmt.Sprintf("%.0f%s:%d", k.at.Sub(time.Unix(1_700_000_000, 0)).Hours(), k.kind, k.size))
		}
		return strings.Join(all, " ")
	}
	for _, step := range []struct {
		after     time.Duration
		partition int32
		kind      string
		size      int
		want      string
	}{
		{0, 0, damagedKind, 100, "0.log:100"},
		{time.Hour, 1, damagedKind, 100, "0.log:100 1.log:100"},
		{time.Hour, 0, cutKind, 100, "0.log:100 1.log:100 2.cut:100"},
		{time.Hour, 0, damagedKind, 100, "1.log:100 2.cut:100 3.log:100"}, // too much: the oldest goes
		{time.Hour, 2, damagedKind, 900, "2.cut:100 4.log:900"},           // larger than the limit, and stays
		{time.Hour, 0, damagedKind, 10, "2.cut:100 5.log:10"},             // until the next one comes
		{time.Hour, 0, cutKind, 51, "5.log:10 6.cut:51"},                  // the kinds have limits of their own
		{10 * time.Hour, 0, cutKind, 1, "6.cut:51 16.cut:1"},              // too old
		{time.Hour, 0, damagedKind, 100, "6.cut:51 16.cut:1 17.log:100"},  // not too old for its kind
		{10*time.Hour + time.Minute, 0, cutKind, 1, "16.cut:1 27.cut:1"},  // both
		{time.Minute, 0, damagedKind, 1, "16.cut:1 27.cut:1 27.log:1"},    // sorted by age
		{11 * time.Hour, 3, cutKind, 1, "27.cut:1 38.cut:1"},              // what comes makes the others be looked at
		{0, 3, cutKind, 2, "27.cut:1 38.cut:1 38.cut:2"},                  // a name of its own in the same millisecond
		{40 * 24 * time.Hour, 3, damagedKind, 2, "998.log:2"},             // all old ones
	} {
		c.Advance(step.after)
		put(step.partition, step.kind, step.size)
		q.prune() // as the scrubber does it now and then, which once took the newest when it was too large
		if got := left(); got != step.want {
			t.Fatalf("%+v: %s", step, got)
		}
	}
	stranger := fs.PathJoin(dir, LogID{topicA, 3}.String(), "notes")
	writeTo(t, fs, stranger, []byte("mine"))
	writeTo(t, fs, fs.PathJoin(dir, "notes"), []byte("mine"))
	put(5, damagedKind, 1)
	c.Advance(1000 * time.Hour)
	q.prune()
	if got := left(); got != "" {
		t.Errorf("left: %s", got)
	}
	names, err := fs.List(dir)
	slices.Sort(names)
	if err != nil || fmt.Sprint(names) != fmt.Sprint([]string{LogID{topicA, 3}.String(), "notes"}) {
		t.Errorf("in quarantine are %v, %v", names, err)
	}
	if b, err := readFile(s.disk, stranger); err != nil || string(b) != "mine" {
		t.Errorf("a file that is not ours: %q, %v", b, err)
	}
}

func writeTo(t *testing.T, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, "")
	if err == nil {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Rule 11: what is kept before a cut is byte for byte what goes, from the batch
// on in which the cut lies, as far as the bound allows; and a dump prints it.
func TestKeep(t *testing.T) {
	const size = 3 // records per batch
	for _, tt := range []struct {
		name     string
		offset   int64
		bound    int64
		from, to int64 // offsets in the copy
	}{
		{"at a batch", 6, 0, 6, 60},
		{"inside a batch", 7, 0, 6, 60},
		{"below the start", 0, 0, 3, 60},
		{"the last batch", 59, 0, 57, 60},
		{"at the end", 60, 0, 0, 0},
		{"above the end", 99, 0, 0, 0},
		{"bound", 6, 1000, 6, 18},
		{"bound below a batch", 6, 1, 6, 9},
		{"switched off", 6, -1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fs := vfs.NewMem()
			o := testOptions(fs)
			o.KeepBytes = tt.bound
			s := mustOpen(t, o)
			l := mustLog(t, s, Config{SegmentBytes: 1500, RetentionMs: -1, RetentionBytes: -1})
			appendN(t, l, 20, 4)
			mustFlush(t, l)
			l.SetHighWatermark(60)
			if err := l.SetStartOffset(3); err != nil {
				t.Fatal(err)
			}
			want := make(map[int64]string)
			for _, b := range split(t, content(t, l, 3, 1<<20)) {
				want[b.BaseOffset()] = string(b)
			}
			k, err := l.Keep(tt.offset)
			if err != nil {
				t.Fatal(err)
			}
			if tt.to == 0 {
				if k != (Kept{}) || len(s.quarantine.list()) != 0 {
					t.Fatalf("kept %+v", k)
				}
				return
			}
			b, err := readFile(s.disk, k.Path)
			if err != nil || int64(len(b)) != k.Bytes {
				t.Fatalf("%d bytes in %+v, %v", len(b), k, err)
			}
			next := tt.from
			for _, batch := range split(t, b) {
				if batch.BaseOffset() != next || string(batch) != want[next] {
					t.Fatalf("batch at %d, want %d", batch.BaseOffset(), next)
				}
				next += size
			}
			if next != tt.to || k.To != tt.to {
				t.Errorf("copy ends at %d, says %+v", next, k)
			}
			// It is durable, and the cut does not touch it.
			if err := l.Truncate(max(tt.offset, 4)); err != nil {
				t.Fatal(err)
			}
			if after, err := readFile(s.disk, k.Path); err != nil || !bytes.Equal(after, b) {
				t.Errorf("after the cut: %d bytes, %v", len(after), err)
			}
		})
	}
}

// A copy needs room: it stops at the reserve, and where writing fails. With
// KeepRequired the cut must wait, else an event says what is lost. Nothing
// half-made stays.
func TestKeepOnAFullDisk(t *testing.T) {
	const kb = 1 << 10
	for _, tt := range []struct {
		name     string
		full     func(d *faultDisk)
		required bool
	}{
		{"reserve", func(d *faultDisk) { d.free(805 * kb) }, false},
		{"reserve, required", func(d *faultDisk) { d.free(805 * kb) }, true},
		{"ENOSPC", func(d *faultDisk) { d.fail(writesOf(cutKind, syscall.ENOSPC)) }, false},
		{"ENOSPC, required", func(d *faultDisk) { d.fail(writesOf(cutKind, syscall.ENOSPC)) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			disk := newFaultDisk()
			disk.usage = vfs.DiskUsage{AvailBytes: 2000 * kb, TotalBytes: 4000 * kb}
			o := testOptions(disk)
			o.ReserveBytes, o.KeepRequired = 800*kb, tt.required
			var said events
			o.Logger = slog.New(slog.NewTextHandler(&said, nil))
			s := mustOpen(t, o)
			l := mustLog(t, s, Config{})
			appendN(t, l, 20, 1)
			mustFlush(t, l)
			tt.full(disk)
			s.health.look()
			k, err := l.Keep(6)
			if k != (Kept{}) || len(s.quarantine.list()) != 0 {
				t.Errorf("kept %+v, and %v", k, s.quarantine.list())
			}
			switch {
			case tt.required && !errors.Is(err, ErrFull):
				t.Errorf("the cut does not wait: %v", err)
			case !tt.required && (err != nil || said.count("records cannot be kept and are cut all the same") != 1):
				t.Errorf("%v, events %v", err, said.said)
			}
			if h := s.Health(); h.State != Healthy {
				t.Errorf("the copy closed the directory for records: %v", h)
			}
			disk.fail(nil)
			disk.free(2000 * kb)
			s.health.look()
			if k, err := l.Keep(6); err != nil || k.From != 6 || k.To != 60 {
				t.Errorf("with room: %+v, %v", k, err)
			}
		})
	}
}

// writesOf lets writes to files with a part of a name fail.
func writesOf(part string, err error) func(errorfs.Op) error {
	return func(op errorfs.Op) error {
		if strings.Contains(op.Path, part) && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt) {
			return err
		}
		return nil
	}
}

// Neither a compaction nor a repair eats what is kept for records and metadata:
// they end with ErrFull, the log is as it was, and they are done once there is
// room.
func TestReplacementLeavesTheReserve(t *testing.T) {
	const kb = 1 << 10
	for name, full := range map[string]func(d *faultDisk){
		"reserve": func(d *faultDisk) { d.free(805 * kb) },
		"ENOSPC":  func(d *faultDisk) { d.fail(writesOf(cleanedSuffix, syscall.ENOSPC)) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := newFaultDisk()
			disk.usage = vfs.DiskUsage{AvailBytes: 2000 * kb, TotalBytes: 4000 * kb}
			o := testOptions(disk)
			o.ReserveBytes = 800 * kb
			w := &repairWorld{t: t, fs: disk.inner, o: o, c: Config{SegmentBytes: 2200, RetentionMs: -1, RetentionBytes: -1}}
			w.s = mustOpen(t, o)
			l := w.log(0)
			appendN(t, l, 40, 1)
			mustFlush(t, l)
			w.golden = content(t, l, 0, 1<<20)
			keyed, err := w.s.OpenLog(topicA, 1, compactConfig)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				appendKeyed(t, keyed, keyedBatch{recs: []kv{{key: "k", value: "v", ts: 1}}})
			}
			before := content(t, keyed, 0, 1<<20)
			full(disk)
			w.s.health.look()

			if _, err := keyed.Compact(t.Context(), ms(10), keyed.EndOffset(), CompactOptions{}); !errors.Is(err, ErrFull) {
				t.Errorf("compaction: %v", err)
			}
			if got := content(t, keyed, 0, 1<<20); !bytes.Equal(got, before) {
				t.Error("the compaction changed the log")
			}
			path := w.hurt(l.Segments(), 1, hurts[0])
			damaged := w.file(path)
			w.s.scrubber.pass()
			if l.Damage() == nil {
				t.Fatal("the damage was not found")
			}
			if _, err := l.Repair(t.Context(), w.fetch); !errors.Is(err, ErrFull) || l.Damage() == nil {
				t.Errorf("repair: %v, damage %v", err, l.Damage())
			}
			if got := w.file(path); !bytes.Equal(got, damaged) || len(w.s.quarantine.list()) != 0 {
				t.Error("the repair changed something")
			}
			for _, dir := range []string{l.dir, keyed.dir} {
				if names, _ := disk.List(dir); strings.Contains(fmt.Sprint(names), cleanedSuffix) {
					t.Errorf("left: %v", names)
				}
			}
			if h := w.s.Health(); h.State != Healthy {
				t.Errorf("the directory was closed for records: %v", h)
			}

			disk.fail(nil)
			disk.free(2000 * kb)
			w.s.health.look()
			if stats, err := keyed.Compact(t.Context(), ms(10), keyed.EndOffset(), CompactOptions{}); err != nil || stats.RecordsKept != 1 {
				t.Errorf("compaction with room: %+v, %v", stats, err)
			}
			if _, err := l.Repair(t.Context(), w.fetch); err != nil || !bytes.Equal(content(t, l, 0, 1<<20), w.golden) {
				t.Errorf("repair with room: %v", err)
			}
		})
	}
}
