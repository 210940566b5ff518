package segment

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

var crashCount = flag.Int("crashes", 100, "power cuts that TestCrash recovers from")

// crashState is what may be found after a power cut: the log as it was before
// the operation that was cut short, or as it would have been after it.
type crashState struct {
	batches    []record.Batch
	start, end int64
}

// crash is a file system as a power cut would leave it, and what must hold.
type crash struct {
	fs            *vfs.MemFS
	point         string
	percent       int
	before, after crashState
	durable       int64 // what flushes had confirmed, and the operation does not cut
}

// crashRun does random operations and takes clones at fault points.
type crashRun struct {
	t   *testing.T
	rng *rand.Rand
	o   Options
	fs  *vfs.MemFS
	s   *Store
	l   *Log

	mu      sync.Mutex // the hook runs on the flusher's goroutine too
	op      string
	before  crashState
	after   crashState
	durable int64
	crashes []crash
	want    int
}

// TestCrash cuts the power at fault points inside appends, rolls, flushes,
// truncations, deletions and restarts, with none, half or all of the unsynced
// blocks and names reaching the disk. Whatever a flush had confirmed must be
// there, byte for byte; nothing may be there that was never written; recovery
// must need no hand and give the same when done twice.
func TestCrash(t *testing.T) {
	for seed, left := uint64(1), *crashCount; left > 0; seed++ {
		r := &crashRun{t: t, rng: newRng(seed), want: min(left, 25)}
		r.run()
		if len(r.crashes) == 0 {
			continue
		}
		left -= len(r.crashes)
		for i, c := range r.crashes {
			c.check(t, fmt.Sprintf("seed %d crash %d at %s, %d%% of unsynced", seed, i, c.point, c.percent), r.o)
		}
	}
}

func (r *crashRun) run() {
	r.fs = vfs.NewCrashableMem()
	r.o = testOptions(r.fs)
	r.o.IndexInterval, r.o.tail = 500, 4
	c := Config{SegmentBytes: []int64{700, 3000, 20000}[r.rng.IntN(3)], RetentionMs: -1, RetentionBytes: -1}
	r.s = mustOpen(r.t, r.o)
	r.l = mustLog(r.t, r.s, c)
	defer invariants.SetFault(r.fault)()
	for range 60 {
		if len(r.crashes) >= r.want {
			break
		}
		r.step(c)
	}
	_ = r.s.Close()
}

// fault is where the power may go.
func (r *crashRun) fault(point string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.op == "" || len(r.crashes) >= r.want || r.rng.IntN(6) != 0 {
		return
	}
	percent := []int{0, 50, 100}[r.rng.IntN(3)]
	durable := r.durable
	if r.op == "truncate" {
		durable = min(durable, r.after.end)
	}
	r.crashes = append(r.crashes, crash{
		fs:    r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(r.rng.Uint64(), 3))}),
		point: r.op + " " + point, percent: percent, before: r.before, after: r.after, durable: durable,
	})
}

func (r *crashRun) begin(op string, after crashState) {
	r.mu.Lock()
	r.op, r.after = op, after
	r.mu.Unlock()
}

func (r *crashRun) done(err error) {
	if err != nil {
		r.t.Fatalf("%s: %v", r.op, err)
	}
	// The crash between two operations.
	r.fault("done")
	r.mu.Lock()
	r.op, r.before = "", r.after
	r.durable = min(r.durable, r.before.end)
	r.mu.Unlock()
}

func (r *crashRun) step(c Config) {
	now := r.before
	switch k := r.rng.IntN(20); {
	case k < 9:
		b := testBatch{base: now.end + int64(r.rng.IntN(2)*r.rng.IntN(3)), n: 1 + r.rng.IntN(4), epoch: int32(1 + now.end/20), ts: now.end, value: r.rng.IntN(300)}.build()
		after := now
		after.batches = append(now.batches[:len(now.batches):len(now.batches)], b)
		after.end = record.Batch(b).NextOffset()
		r.begin("append", after)
		_, err := r.l.Append(b)
		r.done(err)
	case k < 14:
		r.begin("flush", now)
		err := flush(r.l)
		r.mu.Lock()
		r.durable = now.end
		r.mu.Unlock()
		r.done(err)
	case k < 16 && now.end > now.start:
		m := model{batches: now.batches, start: now.start, end: now.end, first: r.l.Segments()[0].Base}
		end := now.end - r.rng.Int64N(min(now.end-now.start, 30)+1)
		m.truncate(end)
		r.begin("truncate", crashState{m.batches, m.start, m.end})
		r.done(r.l.Truncate(end))
	case k == 16 && r.rng.IntN(2) == 0:
		start := r.rng.Int64N(now.end + 10)
		r.begin("truncate", crashState{nil, start, start})
		r.mu.Lock()
		r.durable = min(r.durable, start)
		r.mu.Unlock()
		r.done(r.l.TruncateFully(start))
	case k == 17 && now.end > now.start:
		after := now
		after.start = now.start + r.rng.Int64N(now.end-now.start+1)
		if r.rng.IntN(3) == 0 {
			after.start = now.end
		}
		r.begin("start", after)
		r.done(r.l.SetStartOffset(after.start))
	case k == 18:
		r.begin("checkpoint", now)
		r.s.flusher.checkpoint()
		r.done(nil)
	case k == 19:
		r.begin("restart", now)
		err := r.s.Close()
		if err == nil {
			r.mu.Lock()
			r.durable = now.end
			r.mu.Unlock()
			if r.s, err = Open(r.o); err == nil {
				r.l, err = r.s.OpenLog(topicA, 0, c)
			}
		}
		r.done(err)
	}
}

func (c *crash) check(t *testing.T, name string, o Options) {
	t.Helper()
	first := c.recover(t, name, o)
	if again := c.recover(t, name+", second recovery", o); !bytes.Equal(first, again) {
		t.Fatalf("%s: recovering twice differs", name)
	}
}

func (c *crash) recover(t *testing.T, name string, o Options) []byte {
	t.Helper()
	o.FS = c.fs
	s, err := Open(o)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	l, err := s.OpenLog(topicA, 0, Config{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	start, end := l.StartOffset(), l.EndOffset()
	got := content(t, l, start, 1000)
	if !c.before.explains(got, start, end) && !c.after.explains(got, start, end) {
		t.Fatalf("%s: log [%d, %d) with %d bytes is neither a beginning of [%d, %d) nor of [%d, %d)",
			name, start, end, len(got), c.before.start, c.before.end, c.after.start, c.after.end)
	}
	if end < c.durable {
		t.Fatalf("%s: log ends at %d, flushed was %d", name, end, c.durable)
	}
	if l.HighWatermark() > end || l.DurableEnd() != end {
		t.Fatalf("%s: high watermark %d, durable end %d, log end %d", name, l.HighWatermark(), l.DurableEnd(), end)
	}
	// It must be alive.
	if _, err := l.Append(testBatch{base: end, n: 1, epoch: 100}.build()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := l.Truncate(end); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return got
}

// explains says that a log may be the beginning of this state. The start may
// be an older one: moving it is durable only when something is deleted.
func (s crashState) explains(got []byte, start, end int64) bool {
	if start > s.start && len(s.batches) > 0 || end > s.end || end < start {
		return false
	}
	if len(s.batches) == 0 {
		return len(got) == 0 && end == s.end
	}
	for _, b := range s.batches {
		if b.NextOffset() <= start {
			continue
		}
		if len(got) == 0 {
			return end <= b.BaseOffset() || end <= s.end && end >= start
		}
		if !bytes.HasPrefix(got, b) {
			return false
		}
		got = got[len(b):]
	}
	return len(got) == 0
}

func newRng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }
