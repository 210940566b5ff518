package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// image is what lies in a data directory: path to content.
type image map[string][]byte

// takeImage reads all files below dir.
func takeImage(t testing.TB, fs vfs.FS, dir string, into image) image {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		fi, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi.IsDir() {
			takeImage(t, fs, path, into)
			continue
		}
		f, err := fs.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		into[path] = b
	}
	return into
}

// put makes a file system of an image. Directories that hold nothing are not
// in an image, but those of logs always do.
func (m image) put() (*vfs.MemFS, error) {
	fs := vfs.NewMem()
	made := map[string]bool{}
	for path, b := range m {
		dir := fs.PathDir(path)
		if !made[dir] {
			if err := fs.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			made[dir] = true
		}
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(bytes.Clone(b)); err != nil { // Write may change what it is given
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return fs, nil
}

// eventLog counts what the store tells an operator.
type eventLog struct {
	mu   sync.Mutex
	text []string
}

func (e *eventLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (e *eventLog) WithAttrs([]slog.Attr) slog.Handler           { return e }
func (e *eventLog) WithGroup(string) slog.Handler                { return e }
func (e *eventLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = append(e.text, b.String())
	return nil
}

func (e *eventLog) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.text)
}

// The logs of a tortured directory, all of one topic; the partition says the kind.
const (
	plainLog      = iota // cut inside a segment, its start moved inside one
	idempotentLog        // its first segments deleted
	txnLog               // transactions, committed, aborted and open; cut
	purgedLog            // emptied, then transactions
)

// fixture is a finished data directory and what it answers.
type fixture struct {
	name  string
	o     Options
	c     Config
	clean bool
	files image
	paths []string
	older []image // the directory at earlier moments
	logs  []int32
	want  map[int32]*answers
}

// fixtureRun makes one: several logs with epochs, idempotent and transactional
// data, aborted transactions, a truncation inside a segment, a log that was
// emptied, a moved log start, two clean stops on the way.
type fixtureRun struct {
	t     testing.TB
	fs    *vfs.MemFS
	s     *Store
	logs  map[int32]*Log
	seq   map[int64]int32
	f     *fixture
	ts    int64
	value int
}

func newFixture(t testing.TB, name string, segment int64, value, batches int, clean bool, logs ...int32) *fixture {
	f := &fixture{name: name, clean: clean, logs: logs, want: map[int32]*answers{}, c: Config{SegmentBytes: segment, RetentionMs: -1, RetentionBytes: -1}}
	r := &fixtureRun{t: t, fs: vfs.NewCrashableMem(), seq: map[int64]int32{}, f: f, ts: 10_000, value: value, logs: map[int32]*Log{}}
	f.o = testOptions(r.fs)
	f.o.IndexInterval, f.o.tail = segment/6, 4
	r.open()
	r.fill(batches, 1)
	r.snapshot()
	r.reopen()
	r.snapshot()
	r.fill(batches, 3)
	r.snapshot()
	r.cutAndMove()
	r.snapshot()
	r.fill(batches, 6)
	r.reopen()
	r.fill(max(batches/4, 2), 7)
	for p, l := range r.logs {
		f.want[p] = &answers{hw: -1, confirmed: l.DurableEnd()} // hw -1: as the log has it
	}
	r.s.flusher.checkpoint()
	r.snapshot()
	if clean {
		r.close()
	} else {
		r.unsynced()
	}
	f.files = r.image()
	f.o.FS = nil
	for path := range f.files {
		f.paths = append(f.paths, path)
	}
	slices.Sort(f.paths)
	f.measure(t)
	return f
}

func (r *fixtureRun) open() {
	r.s = mustOpen(r.t, r.f.o)
	for _, p := range r.f.logs {
		l, err := r.s.OpenLog(topicA, p, r.f.c)
		if err != nil {
			r.t.Fatal(err)
		}
		r.logs[p] = l
	}
}

func (r *fixtureRun) close() {
	if err := r.s.Close(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *fixtureRun) reopen() {
	r.close()
	r.open()
}

// image is the directory as a kill would leave it now. The room that watermark
// slots keep for a full disk is cut to a little: no byte of it is looked at.
func (r *fixtureRun) image() image {
	clone := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	m := takeImage(r.t, clone, r.f.o.Dir, image{})
	for path, b := range m {
		if strings.Contains(path, "watermarks-") {
			m[path] = b[:min(len(b), len(bytes.TrimRight(b, "\x00"))+24)]
		}
	}
	return m
}

func (r *fixtureRun) snapshot() { r.f.older = append(r.f.older, r.image()) }

func (r *fixtureRun) fill(batches int, epoch int32) {
	for _, p := range r.f.logs {
		l := r.logs[p]
		for i := range batches {
			r.append(l, p, i, epoch+int32(i*2/batches))
		}
		mustFlush(r.t, l)
		l.SetHighWatermark(l.EndOffset() - 1)
	}
	r.s.flusher.checkpoint()
}

func (r *fixtureRun) append(l *Log, p int32, i int, epoch int32) {
	r.ts += int64(i%5) * 7
	b := testBatch{base: l.EndOffset(), n: 1 + i%3, epoch: epoch, ts: r.ts, value: r.value}
	if p != plainLog {
		b.pid = 100*int64(p) + int64(i%3)
		b.txn = p != idempotentLog
		b.seq = r.seq[b.pid]
	}
	raw := record.Batch(b.build())
	if p != plainLog {
		r.seq[b.pid] = record.AddSequence(raw.LastSequence(), 1)
	}
	mustAppend(r.t, l, raw)
	if b.txn && i%3 == 2 {
		kind := record.Commit
		if i%2 == 0 {
			kind = record.Abort
		}
		mustAppend(r.t, l, stamped(record.Marker(kind, b.pid, 0, 1, r.ts), l.EndOffset(), epoch))
	}
}

func (r *fixtureRun) cutAndMove() {
	for p, l := range r.logs {
		var err error
		switch p {
		case plainLog:
			err = errors.Join(l.Truncate(l.EndOffset()-5), l.SetStartOffset(2))
		case idempotentLog:
			err = l.SetStartOffset(l.Segments()[1].Base + 1)
		case txnLog:
			err = l.Truncate(l.EndOffset() - 2)
		case purgedLog:
			err = l.TruncateFully(40)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	clear(r.seq)
}

// unsynced leaves what an unclean stop may: bytes that no fsync has confirmed.
func (r *fixtureRun) unsynced() {
	for _, p := range r.f.logs[:1] {
		r.append(r.logs[p], p, 1, 8)
		r.append(r.logs[p], p, 2, 8)
	}
}

// measure asks the undamaged directory, twice, and looks that it tells nothing.
func (f *fixture) measure(t testing.TB) {
	for range 2 {
		run := f.open(f.files)
		if run.err != nil || len(run.events) > 0 {
			t.Fatalf("%s undamaged: %v, events %q", f.name, run.err, run.events)
		}
		for _, p := range f.logs {
			want, got := f.want[p], run.got[p]
			if got.err != nil || run.scrub[p] != nil {
				t.Fatalf("%s undamaged, log %d: %v, scrub %v", f.name, p, got.err, run.scrub[p])
			}
			if want.content != nil && want.difference(got) != "" {
				t.Fatalf("%s undamaged, log %d: answers differ from one time to the next: %s", f.name, p, want.difference(got))
			}
			got.confirmed = want.confirmed
			f.want[p] = got
		}
	}
}
