package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// With fewer brokers than replicas an internal topic is not made, and who asks for
// a coordinator is told to ask again, not that a topic of theirs is wrong; unless
// it may make do with those that there are.
func TestEnsureTopic(t *testing.T) {
	ctx := t.Context()
	c, err := controller.Open(ctx, controller.Options{Dir: t.TempDir(), NodeID: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	epoch, err := c.RegisterBroker(ctx, controller.RegisterBroker{ID: 1, Incarnation: [16]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Heartbeat(ctx, controller.Heartbeat{Broker: 1, Epoch: epoch, Revision: c.Image().Revision}); err != nil {
		t.Fatal(err)
	}
	awaited := 0
	await := func(context.Context, clock.Clock) { awaited++ }
	topic := func(strict bool) *Topic {
		return NewTopic(clock.System(), "__internal", func(live int) controller.CreateTopic {
			return controller.CreateTopic{Name: "__internal", Internal: true, Partitions: 2, ReplicationFactor: Replicas(3, live, strict)}
		})
	}
	if _, err := topic(true).Ensure(ctx, c, await); !errors.Is(err, ErrNotAvailable) || errors.Is(err, controller.ErrInvalidReplicationFactor) || awaited != 0 {
		t.Fatalf("three replicas on one broker: %v", err)
	}
	for range 2 {
		mt, err := topic(false).Ensure(ctx, c, await)
		if err != nil || len(mt.Partitions) != 2 || len(mt.Partitions[0].Replicas) != 1 || awaited != 1 {
			t.Fatalf("%+v, %v, awaited %d", mt, err, awaited)
		}
	}
}
