package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Replicas is the replication factor that an internal topic gets. With strict it is
// the one that was asked for, and the controller refuses while there are fewer
// brokers: the topic would keep too few replicas for good. Else it is lowered.
func Replicas(factor int16, live int, strict bool) int16 {
	if strict {
		return factor
	}
	return min(factor, int16(max(live, 1)))
}

// Topic makes an internal topic when somebody asks for it first: as Kafka does,
// so that a cluster without groups or transactions has no partitions for them.
type Topic struct {
	clock    clock.Clock
	name     string
	shape    func(live int) controller.CreateTopic
	creating chan struct{} // one token: the right to create the topic
}

// NewTopic is a topic that may not exist yet. shape is what it looks like in a
// cluster with so many live brokers.
func NewTopic(c clock.Clock, name string, shape func(live int) controller.CreateTopic) *Topic {
	return &Topic{clock: c, name: name, shape: shape, creating: make(chan struct{}, 1)}
}

// Ensure returns the topic, and creates it when it is not there. Who has created
// it waits for the shards of this broker.
func (t *Topic) Ensure(ctx context.Context, ctrl *controller.Controller, await func(context.Context, clock.Clock)) (*metadata.Topic, error) {
	if mt := ctrl.Image().Topic(t.name); mt != nil {
		return mt, nil
	}
	// Many clients ask at once when a cluster starts; one creates.
	select {
	case t.creating <- struct{}{}:
		defer func() { <-t.creating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	img := ctrl.Image()
	if mt := img.Topic(t.name); mt != nil {
		return mt, nil
	}
	live := 0
	for _, b := range img.Brokers() {
		if !b.Fenced {
			live++
		}
	}
	res := ctrl.CreateTopics(ctx, []controller.CreateTopic{t.shape(live)}, false)
	if mt := ctrl.Image().Topic(t.name); mt != nil { // also when another broker was faster
		await(ctx, t.clock)
		return mt, nil
	}
	err := errors.New("the controller gave no answer")
	if len(res) == 1 && res[0].Err != nil {
		err = res[0].Err
	}
	// Whatever the reason, the client has to ask again: it did not ask for a topic.
	return nil, fmt.Errorf("%w: create %s: %v", ErrNotAvailable, t.name, err)
}

// takeOver is how long the creator of the topic waits until this broker
// coordinates: longer than opening 50 empty logs takes, no longer than a client
// waits for an answer.
const takeOver = 5 * time.Second

// Await waits until this broker serves the partitions it was given by the
// topic's creation, so that what is asked next (by the client that looked for
// its coordinator, or by a mirror) is not refused at first. It is a courtesy:
// whoever is refused all the same asks again.
func (x *Shards[S]) Await(ctx context.Context, c clock.Clock) {
	late := c.NewTimer(takeOver)
	defer late.Stop()
	wait := func(ready <-chan struct{}) bool {
		select {
		case <-ready:
			return true
		case <-ctx.Done():
		case <-late.C():
		}
		return false
	}
	if !wait(x.seen) {
		return
	}
	for _, s := range x.All() {
		loaded := make(chan struct{})
		// Tasks run once the shard is loaded; a refusal means it has ended.
		if s.Base().Post(func(time.Time) { close(loaded) }) == nil && !wait(loaded) {
			return
		}
	}
}
