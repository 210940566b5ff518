package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// endless serves one batch per partition for ever, and breaks now and then.
type endless struct {
	fetches *atomic.Int64
	rnd     *rand.Rand
}

func (e *endless) Close() error { return nil }

func (e *endless) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	e.fetches.Add(1)
	for i := range req.Partitions {
		p := &req.Partitions[i]
		b := batch(p.Offset, p.Offset+int64(e.rnd.IntN(3)), 1)
		hdr := &sdk.PartitionHeader{Key: p.PartitionKey, HighWatermark: p.Offset + 10, Diverging: sdk.Undefined, RecordBytes: len(b)}
		if err := h.Partition(hdr, bytes.NewReader(b)); err != nil {
			return err
		}
	}
	if e.rnd.IntN(50) == 0 {
		return errors.New("connection broke")
	}
	return ctx.Err()
}

// guarded is a log that notices an append after Remove and a hole.
type guarded struct {
	t       *testing.T
	removed atomic.Bool
	end     atomic.Int64
}

func (g *guarded) LogEnd() (int64, int32)             { return g.end.Load(), 1 }
func (g *guarded) HighWatermark() int64               { return g.end.Load() }
func (g *guarded) AdvanceLogStart(int32, int64) error { return nil }

func (g *guarded) MirrorAppend(_ int32, b []byte) (int64, error) {
	if g.removed.Load() {
		g.t.Error("append after Remove returned")
	}
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil || batch.VerifyCRC() != nil || batch.BaseOffset() != g.end.Load() {
			g.t.Errorf("bad append at %d: %v", g.end.Load(), err)
			return 0, errors.New("bad append")
		}
		g.end.Store(batch.NextOffset())
		b = rest
	}
	return g.end.Load(), nil
}

// tally counts the ends and takes part in the game: it adds a new pipeline
// from the worker's own goroutine.
type tally struct {
	ended  atomic.Int64
	reopen func()
}

func (o *tally) Progress(*Pipeline, Position) {}
func (o *tally) NearEpoch(*Pipeline, int32)   {}
func (o *tally) Ended(*Pipeline, End) {
	o.ended.Add(1)
	o.reopen()
}

// Many goroutines add, remove and move epochs while bytes flow and connections
// break: no append after Remove, none twice, none with a hole; Close leaves
// nothing running.
func TestWorkerUnderContention(t *testing.T) {
	var fetches atomic.Int64
	seed := uint64(1)
	w := NewWorker(WorkerOptions{
		Open: func(context.Context) (sdk.Session, error) {
			seed++
			return &endless{&fetches, rand.New(rand.NewPCG(seed, 2))}, nil
		},
		Budget: NewBudget(0),
	})
	observer := &tally{}
	var extra atomic.Int32
	observer.reopen = func() {
		if n := extra.Add(1); n < 50 {
			w.Add(New(Options{Key: sdk.PartitionKey{Topic: "extra", Partition: n}, Target: &guarded{t: t}, LeaderEpoch: 9, SourceEpoch: -1, Observer: observer}))
		}
	}
	var players sync.WaitGroup
	for player := range 4 {
		players.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(player), 1))
			for range 100 {
				g := &guarded{t: t}
				p := New(Options{
					Key: sdk.PartitionKey{Topic: fmt.Sprint("t", player), Partition: rnd.Int32N(5)}, Target: g, LeaderEpoch: 9, SourceEpoch: -1, Observer: observer,
				})
				w.Add(p)
				for start := fetches.Load(); fetches.Load() < start+rnd.Int64N(4); {
					w.SetEpochs(p, 9+rnd.Int32N(3), -1)
					_ = p.Position()
				}
				w.Remove(p)
				g.removed.Store(true)
				w.Remove(p) // a second time does nothing
			}
		})
	}
	players.Wait()
	w.Close()
	at := fetches.Load()
	w.Add(New(Options{Key: sdk.PartitionKey{Topic: "late"}, Target: &guarded{t: t}, Observer: observer}))
	if fetches.Load() != at {
		t.Error("fetch after Close")
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(3 << 20)
	one, two := piece{budget: b, limit: 64 << 20}, piece{budget: b, limit: 64 << 20}
	ctx, cancel := context.WithCancel(t.Context())
	buf, err := one.bytes(ctx)
	if err != nil || len(buf) != pieceBytes {
		t.Fatal(len(buf), err)
	}
	copy(buf, "head")
	if _, err := two.bytes(ctx); err != nil {
		t.Fatal(err)
	}
	// Two pieces are out of three: another may have two only if one gives its
	// own back first.
	if buf, err = one.grow(ctx, 2<<20-5, 4); err != nil || len(buf) != 2<<20 || string(buf[:4]) != "head" {
		t.Fatal(len(buf), err)
	}
	cancel()
	if _, err := two.grow(ctx, 2<<20, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("above the budget: %v", err)
	}
	two.release()
	one.shrink()
	// More than the whole budget is the whole budget: such a batch passes alone.
	if buf, err = one.grow(t.Context(), 8<<20, 0); err != nil || len(buf) != 8<<20 {
		t.Error(len(buf), err)
	}
	if b.sem.TryAcquire(1) {
		t.Error("something is left")
	}
	one.release()
	if !b.sem.TryAcquire(3 << 20) {
		t.Error("something is missing")
	}
	if _, err := one.grow(t.Context(), 65<<20, 0); err == nil {
		t.Error("above the limit")
	}
}

// A pooled piece shows a use after release as damage.
func TestPieceIsPoisoned(t *testing.T) {
	p := piece{limit: 1 << 20}
	buf, _ := p.bytes(t.Context())
	copy(buf, batch(0, 3, 1))
	p.release()
	s := VerifyState{MaxEpoch: -1}
	if good, err := VerifyMirror(buf[:200], &s); good != 0 || err == nil {
		t.Errorf("released bytes still pass: %d, %v", good, err)
	}
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := EpochAhead; r <= Local; r++ {
		if name := r.String(); name == "" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
}

// removing is a session whose record reader removes the pipeline while its
// bytes arrive, which is the worst moment.
type removing struct {
	w    *Worker
	p    *Pipeline
	g    *guarded
	done chan struct{}
	once sync.Once
	b    *bytes.Reader
}

func (r *removing) Close() error { return nil }

func (r *removing) Read(p []byte) (int, error) {
	r.w.Remove(r.p)
	r.g.removed.Store(true)
	return r.b.Read(p)
}

func (r *removing) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	b := batch(0, 3, 1)
	r.b = bytes.NewReader(b)
	err := h.Partition(&sdk.PartitionHeader{Key: r.p.Key(), HighWatermark: 9, Diverging: sdk.Undefined, RecordBytes: len(b)}, r)
	r.once.Do(func() { close(r.done) })
	return err
}

func TestNoAppendAfterRemove(t *testing.T) {
	r := &removing{g: &guarded{t: t}, done: make(chan struct{})}
	r.p = New(Options{Key: sdk.PartitionKey{Topic: "t"}, Target: r.g, LeaderEpoch: 9, SourceEpoch: -1, Observer: &tally{reopen: func() { t.Error("Ended after Remove") }}})
	r.w = NewWorker(WorkerOptions{Open: func(context.Context) (sdk.Session, error) { return r, nil }})
	r.w.Add(r.p)
	<-r.done
	r.w.Close()
	if r.g.end.Load() != 0 {
		t.Error("appended")
	}
}
