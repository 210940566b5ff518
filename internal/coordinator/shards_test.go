package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// counter is the least driver: how often it was asked.
type counter struct {
	*Shard
	asked int
}

func (c *counter) Replay(context.Context) (func(time.Time) int, error) {
	return func(time.Time) int { return 0 }, nil
}

func (c *counter) End() {}

// count asks once; write, if not nil, goes to the log first.
func (c *counter) count(ctx context.Context, write *Write) (int, error) {
	return Ask[int](ctx, c.Shard, 0, func(now time.Time, to Ticket) {
		c.asked++
		n := c.asked
		if write == nil {
			c.Answer(to, n)
			return
		}
		w := *write
		w.Done = func(time.Time, error) { c.Answer(to, n) }
		c.Enqueue(w, now)
	})
}

func newCounters(t *testing.T, appendTo func(batch []byte, done func(error))) *Shards[*counter] {
	x := NewShards("topic", 1, func(partition, epoch int32) *counter {
		c, set := &counter{}, metrics.NewSet()
		c.Shard = NewShard(ShardOptions{
			Clock: clock.NewManual(time.Unix(0, 0)), Logger: slog.New(slog.DiscardHandler), BeforeAppend: func() {},
			Append:        func(_, _ int32, batch []byte, done func(error)) { appendTo(batch, done) },
			MaxWriteBytes: maxUnsettledBytes, MaxQueued: 10,
			Loads: set.NewPrometheusHistogram("loads"), Refusals: set.NewCounter("refusals"),
		}, partition, epoch, c)
		return c
	})
	t.Cleanup(x.Close)
	return x
}

// follow is an image in which broker leader leads the only partition.
func follow(x *Shards[*counter], id byte, leader, epoch int32) {
	e := metadata.NewImage().Edit()
	e.PutTopic(&metadata.Topic{ID: metadata.TopicID{id}, Name: "topic", Configs: map[string]string{}, Partitions: []*metadata.Partition{
		{Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: leader, LeaderEpoch: epoch},
	}})
	x.Follow(e.Image(1))
	if s, err := x.Of(0); err == nil {
		loaded := make(chan struct{})
		if s.Post(func(time.Time) { close(loaded) }) == nil {
			<-loaded
		}
	}
}

// A shard is there exactly while this broker leads, and is another one in each
// epoch, and in each topic of the name.
func TestFollow(t *testing.T) {
	ctx := t.Context()
	x := newCounters(t, nil)
	for _, step := range []struct {
		what          string
		id            byte
		leader, epoch int32
		want          int // what the next question is answered; 0: not coordinator
	}{
		{"leader", 1, 1, 5, 1},
		{"the same again", 1, 1, 5, 2},
		{"an older image", 1, 1, 4, 3},
		{"another leader", 1, 2, 6, 0},
		{"leader again", 1, 1, 7, 1},
		{"the next epoch", 1, 1, 8, 1},
		{"no leader", 1, -1, 9, 0},
		{"back", 1, 1, 10, 1},
		{"the topic was deleted and made anew, between two images", 2, 1, 0, 1},
	} {
		follow(x, step.id, step.leader, step.epoch)
		s, err := x.Of(0)
		if err == nil {
			var n int
			if n, err = s.count(ctx, nil); n != step.want {
				t.Fatalf("%s: %d, want %d", step.what, n, step.want)
			}
		}
		if (step.want == 0) != errors.Is(err, ErrNotCoordinator) {
			t.Fatalf("%s: %v", step.what, err)
		}
	}
	x.Follow(metadata.NewImage())
	if _, err := x.Of(0); !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("without the topic: %v", err)
	}
}

// What the log does not acknowledge has a bound: requests are refused beyond it,
// until it has.
func TestUnsettledBound(t *testing.T) {
	ctx := t.Context()
	acks := make(chan func(error), 2)
	x := newCounters(t, func(_ []byte, done func(error)) { acks <- done })
	follow(x, 1, 1, 1)
	s, _ := x.Of(0)
	one := &Write{Records: []record.Record{{Key: []byte("k")}}, Size: maxUnsettledBytes/2 + 1}
	answers := make(chan error, 2)
	var appended []func(error)
	for range 2 {
		go func() { _, err := s.count(ctx, one); answers <- err }()
		appended = append(appended, <-acks)
	}
	if _, err := s.count(ctx, one); !errors.Is(err, ErrNotAvailable) {
		t.Fatalf("beyond the bound: %v", err)
	}
	for _, done := range appended {
		done(nil)
	}
	for range 2 {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.count(ctx, nil); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if got := s.batch.unsettled.Load(); got != 0 {
		t.Fatalf("%d bytes are left", got)
	}
}
