package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// events hands on what the cleaner logs, as "log: message".
type events struct {
	slog.Handler
	c chan string
}

func (e events) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "log compacted" && !strings.HasPrefix(r.Message, "log cannot be compacted") {
		return nil
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "log" {
			text = a.Value.String() + ": " + text
		}
		return true
	})
	e.c <- text
	return nil
}

func (e events) Enabled(context.Context, slog.Level) bool { return true }
func (e events) WithAttrs([]slog.Attr) slog.Handler       { return e }
func (e events) WithGroup(string) slog.Handler            { return e }

// cleanerWorld is a manager whose cleaner looks when the clock is moved.
type cleanerWorld struct {
	*dirsWorld
	events events
}

func newCleanerWorld(t *testing.T, o CleanerOptions) *cleanerWorld {
	t.Helper()
	w := &cleanerWorld{newDirsWorld(t, "a"), events{c: make(chan string, 100)}}
	w.logger = slog.New(w.events)
	w.cleaner = o
	w.cleaner.Enabled = true
	w.restart([]string{"a"})
	return w
}

// tick lets the cleaner look once.
func (w *cleanerWorld) tick() { w.clock.Advance(w.m.cleaner.o.Backoff) }

func (w *cleanerWorld) expect(want ...string) {
	w.t.Helper()
	for _, s := range want {
		select {
		case got := <-w.events.c:
			if !strings.Contains(got, s) {
				w.t.Fatalf("event %q, want %q", got, s)
			}
		case <-time.After(20 * time.Second):
			w.t.Fatalf("no event, want %q", s)
		}
	}
}

// quiet lets the cleaner look, and checks that it says nothing. That it has
// looked is told by the totals, which are new after each.
func (w *cleanerWorld) quiet() {
	w.t.Helper()
	before := w.m.cleaner.stats.totals.Load()
	for w.tick(); w.m.cleaner.stats.totals.Load() == before; time.Sleep(time.Millisecond) {
	}
	select {
	case got := <-w.events.c:
		w.t.Fatalf("event %q, want none", got)
	default:
	}
}

// keyed writes n batches of one record each, over few keys.
func (w *cleanerWorld) keyed(name string, n int) {
	w.t.Helper()
	p := w.get(name, 0)
	for i := range n {
		b := record.Build(record.NoProducer(w.clock.Now().UnixMilli()), []record.Record{{
			Key: fmt.Appendf(nil, "key-%d", i%3), Value: fmt.Appendf(nil, "%0200d", end(p)),
		}})
		if a := <-produce(p, b, -1); a.err != nil {
			w.t.Fatal(a.err)
		}
	}
}

// records reads the log: offset of the newest record of each key, and how many
// records there are.
func (w *cleanerWorld) records(name string) (newest map[string]int64, n int) {
	w.t.Helper()
	p := w.get(name, 0)
	newest = map[string]int64{}
	for at := p.Log().StartOffset(); at < p.HighWatermark(); {
		r, err := p.Read(ReadRequest{Offset: at, MaxBytes: 1 << 20, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
		if err != nil {
			w.t.Fatal(err)
		}
		b := make([]byte, r.View.Len())
		_, err = r.View.ReadAt(b, 0)
		r.View.Release()
		if err != nil || len(b) == 0 {
			w.t.Fatalf("read at %d: %d bytes, %v", at, len(b), err)
		}
		for len(b) > 0 {
			var batch record.Batch
			if batch, b, err = record.Next(b); err != nil {
				w.t.Fatal(err)
			}
			if err := segment.EachRecord(batch, 1<<20, func(r record.Record) error {
				newest[string(r.Key)] = batch.BaseOffset() + int64(r.OffsetDelta)
				n++
				return nil
			}); err != nil {
				w.t.Fatal(err)
			}
			at = batch.NextOffset()
		}
	}
	return newest, n
}

func compacted(more ...string) []string {
	return append([]string{"cleanup.policy", "compact", "segment.bytes", "2000", "min.cleanable.dirty.ratio", "0.1"}, more...)
}

// Logs that are due are compacted, one that waits too long before the others,
// then the dirtiest; the newest record of each key stays.
func TestCleanerOrder(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{})
	w.topic("half", 1, compacted()...)
	w.topic("late", 1, compacted("min.cleanable.dirty.ratio", "1", "max.compaction.lag.ms", "60000")...)
	w.topic("new", 1, compacted()...)
	w.topic("plain", 1, "segment.bytes", "2000")
	w.topic("clean", 1, compacted("min.cleanable.dirty.ratio", "0.999")...)

	w.keyed("half", 60)
	w.tick()
	w.expect("half-0: log compacted")
	if _, n := w.records("half"); n >= 60/2 {
		t.Fatalf("%d of 60 records are left", n)
	}
	w.keyed("half", 12) // less than what is clean? a part of it, at any rate
	w.keyed("late", 20)
	w.clock.Advance(time.Minute) // also a look, at what is there
	w.expect("half-0")
	w.keyed("half", 12)
	w.keyed("new", 30)
	w.keyed("plain", 30)
	w.clock.Advance(time.Minute)
	w.expect("late-0", "new-0", "half-0")
	for name, total := range map[string]int{"half": 84, "late": 20, "new": 30} {
		newest, n := w.records(name)
		if n >= total || len(newest) != 3 {
			t.Errorf("%s: %d of %d records are left, of %d keys", name, n, total, len(newest))
		}
	}
	if _, n := w.records("plain"); n != 30 {
		t.Errorf("a topic that is not compacted has %d of 30 records", n)
	}
	w.quiet()

	before, _ := w.records("new")
	w.restart([]string{"a"})
	if after, _ := w.records("new"); !maps.Equal(before, after) {
		t.Errorf("after a restart %v, before %v", after, before)
	}
}

// A log that cannot be compacted is told of once, counted, and set aside; the
// others are compacted, and clients go on with it.
func TestCleanerSetsAside(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{})
	w.topic("bad", 1, compacted()...)
	w.topic("good", 1, compacted()...)
	w.keyed("bad", 30)
	w.keyed("good", 30)
	first := w.get("bad", 0).Log().Segments()[1].Path
	f, err := w.fs.OpenReadWrite(first, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xff}, 100); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w.tick()
	got := map[string]bool{}
	for range 2 {
		select {
		case e := <-w.events.c:
			got[e] = true
		case <-time.After(20 * time.Second):
			t.Fatalf("events %v", got)
		}
	}
	if !got["good-0: log compacted"] || !got["bad-0: log cannot be compacted and is set aside"] {
		t.Fatalf("events %v", got)
	}
	w.quiet()
	if s := w.m.cleaner.stats.totals.Load(); s.uncleanable != 1 || s.uncleanableBytes == 0 || s.dirtyBytes < s.uncleanableBytes {
		t.Fatalf("%+v", s)
	}
	w.topic("bad", 0)
	w.quiet()
	if s := w.m.cleaner.stats.totals.Load(); s.uncleanable != 0 {
		t.Fatalf("after the topic was deleted: %+v", s)
	}
}

// Without damage a log that failed is tried again, but not at every look.
func TestCleanerTriesAgain(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{})
	w.topic("orders", 1, compacted()...)
	w.keyed("orders", 30)
	w.disks["a"].failCompaction(errors.New("too many links"))
	w.tick()
	w.expect("orders-0: log cannot be compacted")
	failures := w.m.cleaner.stats.failures.Get()
	w.quiet()
	w.quiet()
	if s := w.m.cleaner.stats.totals.Load(); s.uncleanable != 1 || w.m.cleaner.stats.failures.Get() != failures {
		t.Fatalf("%+v, %d failures more", s, w.m.cleaner.stats.failures.Get()-failures)
	}
	w.clock.Advance(asideFor) // it fails again, for the same cause: nothing new to tell
	for w.m.cleaner.stats.failures.Get() == failures {
		time.Sleep(time.Millisecond)
	}
	w.quiet()
	w.disks["a"].failCompaction(nil)
	w.clock.Advance(asideFor)
	w.expect("orders-0: log compacted")
	w.quiet()
	if s := w.m.cleaner.stats.totals.Load(); s.uncleanable != 0 {
		t.Fatalf("%+v", s)
	}
}

// A log with more keys than the memory holds takes several rounds, and they
// do not wait for the next look.
func TestCleanerRounds(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{Memory: 1 << 10})
	w.topic("orders", 1, compacted()...)
	for range 3 {
		for i := range 100 {
			b := record.Build(record.NoProducer(w.clock.Now().UnixMilli()), []record.Record{{
				Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Appendf(nil, "%0200d", i),
			}})
			if a := <-produce(w.get("orders", 0), b, -1); a.err != nil {
				t.Fatal(a.err)
			}
		}
	}
	w.tick()
	w.expect("orders-0: log compacted", "orders-0: log compacted", "orders-0: log compacted")
	for w.m.cleaner.stats.totals.Load().dirtyBytes > 0 { // the last look of a row finds nothing
		time.Sleep(time.Millisecond)
	}
	if newest, n := w.records("orders"); len(newest) != 100 || n >= 200 {
		t.Fatalf("%d records of %d keys", n, len(newest))
	}
}

// A mirrored topic is compacted by itself, and the mirror goes on at the log
// end. (L21, L22)
func TestCleanerOnAMirror(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{})
	w.topic("orders", 1, compacted()...)
	prev := w.image
	e := prev.Edit()
	topic := *prev.Topic("orders")
	topic.MirrorName = "m"
	e.PutTopic(&topic)
	w.image = e.Image(prev.Revision + 1)
	w.m.Apply(prev, w.image)
	p := w.get("orders", 0)
	mirror := func(offset int64) {
		t.Helper()
		b := record.Batch(record.Build(record.NoProducer(w.clock.Now().UnixMilli()), []record.Record{{
			Key: fmt.Appendf(nil, "key-%d", offset%3), Value: fmt.Appendf(nil, "%0200d", offset),
		}}))
		b.SetBaseOffset(offset)
		if _, err := p.MirrorAppend(0, b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(30) {
		mirror(100 + 2*i) // as the source's own compaction left it
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.tick()
	w.expect("orders-0: log compacted")
	if end(p) != 159 {
		t.Fatalf("log end %d", end(p))
	}
	mirror(160)
	if newest, n := w.records("orders"); n >= 31 || newest["key-0"] != 156 || newest["key-1"] != 160 || newest["key-2"] != 158 {
		t.Fatalf("%d records, newest %v", n, newest)
	}
}

// A failed fsync during a compaction takes the directory offline.
func TestCleanerMeetsABadDisk(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{})
	w.topic("orders", 1, compacted("durability", "replicated")...)
	w.topic("plain", 1)
	w.keyed("orders", 30)
	done := make(chan error, 1)
	w.get("orders", 0).Log().Flush(func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.disks["a"].fail(errors.New("input/output error"))
	w.tick()
	w.expect("orders-0: log cannot be compacted")
	if w.stores["a"].Err() == nil {
		t.Fatal("the directory did not fail")
	}
	for w.get("plain", 0).Info().Offline == nil {
		time.Sleep(time.Millisecond)
	}
}

// The budget bounds all threads; a wait for it ends when the server closes.
func TestCleanerThrottle(t *testing.T) {
	w := newCleanerWorld(t, CleanerOptions{BytesPerSecond: 1000})
	c := w.m.cleaner
	if err := c.throttle(t.Context(), 1000); err != nil { // the burst
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.throttle(t.Context(), 2500) }()
	for range 2 {
		waitForTimer(w, done)
		w.clock.Advance(time.Second)
	}
	waitForTimer(w, done)
	w.clock.Advance(500 * time.Millisecond)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.topic("orders", 1, compacted()...)
	w.keyed("orders", 30)
	w.tick() // and the round waits for ever, on a clock that stands still
}

// waitForTimer waits until the throttled goroutine sleeps again, and has not
// ended.
func waitForTimer(w *cleanerWorld, done chan error) {
	w.t.Helper()
	for w.clock.Timers() < 4 { // flusher, retention, cleaner, and the throttle
		select {
		case err := <-done:
			w.t.Fatalf("the budget was not kept: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// ants starts a pool of its own when the program does.
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}
