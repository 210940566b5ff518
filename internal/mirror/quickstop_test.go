package mirror

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// bumpCounter counts how often the manager asks for another leader epoch.
type bumpCounter struct {
	Controller
	asked atomic.Int32
}

func (c *bumpCounter) BumpLeaderEpochs(ctx context.Context, bumps []controller.Bump) []error {
	c.asked.Add(int32(len(bumps)))
	return c.Controller.BumpLeaderEpochs(ctx, bumps)
}

// A failover asks the controller for a leader epoch above the mirrored ones only where it
// has none: at thousands of partitions each round of questions keeps writers waiting.
func TestStopRaisesEpochsOnlyWhereNeeded(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a")
	count := &bumpCounter{}
	w := newWorld(t, func(o *Options) { count.Controller = o.Controller; o.Controller = count })
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	w.until("its epoch is far from the source's (W43)", func() bool { return w.parts.Get("orders", 0).Info().LeaderEpoch > 1 })
	w.until("nothing more is asked", func() bool { return !w.m.replicaOf(nameKey{"orders", 0}).bumping.Load() })
	count.asked.Store(0)
	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	p := w.ctrl.Image().Topic("orders").Partitions[0]
	if got := count.asked.Load(); got != 0 || p.LeaderEpoch <= p.Mirror.LME || p.Mirror.LMO != 1 {
		t.Errorf("the controller was asked %d times; led in epoch %d, mirrored in %d, to %d", got, p.LeaderEpoch, p.Mirror.LME, p.Mirror.LMO)
	}

	r := w.m.replicaOf(nameKey{"orders", 0})
	task := &task{r: r, peer: w.m.peer("m"), action: actStop, leaderEpoch: p.LeaderEpoch, ctx: w.ctx}
	for least, questions := range map[int32]int32{p.LeaderEpoch: 1, p.LeaderEpoch - 1: 0} {
		count.asked.Store(0)
		res := task.raiseEpoch(least)
		if got := w.parts.Get("orders", 0).Info().LeaderEpoch; res.err != nil || got <= least || count.asked.Load() != questions {
			t.Errorf("epoch %d is to be above %d: %d questions, %v", got, least, count.asked.Load(), res.err)
		}
	}
}

// A connection that breaks says at once that the source is not heard any more: neither a
// plan nor a failover takes the last answer for a new one until the next is overdue.
func TestBrokenConnectionIsStale(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = time.Hour })
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	w.until("the source is heard", func() bool { return w.partition("orders", 0).Progress.Contact == string(ContactCurrent) })
	begin := time.Now()
	src.Close()
	w.until("nobody takes it for heard", func() bool {
		return w.partition("orders", 0).Progress.Contact == string(ContactStale) && !w.m.peer("m").answers(w.ctrl.Image().MirrorTopics("m"))
	})
	if took := time.Since(begin); took >= stalePatience {
		t.Errorf("it was taken for heard for %v", took)
	}
}

// The rate of a source is that of its last seconds, and the larger one of two spans.
func TestRateOfASource(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	for name, test := range map[string]struct {
		ends []int64 // one a second
		rate float64
	}{
		"one answer says nothing":          {[]int64{7}, -1},
		"steady":                           {[]int64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120}, 10},
		"nothing comes":                    {[]int64{7, 7, 7, 7, 7, 7, 7}, 0},
		"it has begun to take more":        {[]int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100}, 100},
		"it takes less, and took more":     {[]int64{0, 100, 200, 300, 400, 500, 500, 500}, 500.0 / 7},
		"what was long ago does not count": {[]int64{0, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500}, 0},
		"it lost records, and began anew":  {[]int64{100, 200, 300, 0, 5, 10}, 5},
	} {
		r := &replica{}
		for i, end := range test.ends {
			r.remember(pipeline.Position{SourceHighWatermark: end, End: end, FetchedAt: begin.Add(time.Duration(i) * time.Second)})
		}
		r.seen.mu.Lock()
		got := r.seen.rateLocked()
		r.seen.mu.Unlock()
		if math.Abs(got-test.rate) > 0.001 {
			t.Errorf("%s: %g records a second, want %g", name, got, test.rate)
		}
	}
}
