package txn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// EnsureTopic returns __transaction_state, and creates it when it is not there:
// at the first question for a coordinator, as Kafka does, so that a cluster
// without transactions has no partitions for them.
func (c *Coordinator) EnsureTopic(ctx context.Context, ctrl *controller.Controller) (*metadata.Topic, error) {
	if t := ctrl.Image().Topic(TopicName); t != nil {
		return t, nil
	}
	// Many clients ask at once when a cluster starts; one creates.
	select {
	case c.creating <- struct{}{}:
		defer func() { <-c.creating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	img := ctrl.Image()
	if t := img.Topic(TopicName); t != nil {
		return t, nil
	}
	live := 0
	for _, b := range img.Brokers() {
		if !b.Fenced {
			live++
		}
	}
	res := ctrl.CreateTopics(ctx, []controller.CreateTopic{c.topic(live)}, false)
	if t := ctrl.Image().Topic(TopicName); t != nil { // also when another broker was faster
		c.awaitShards(ctx)
		return t, nil
	}
	err := errors.New("the controller gave no answer")
	if len(res) == 1 && res[0].Err != nil {
		err = res[0].Err
	}
	return nil, fmt.Errorf("%w: create %s: %w", ErrNotAvailable, TopicName, err)
}

// takeOver is how long the creator of the topic waits until this broker
// coordinates: longer than opening 50 empty logs takes, no longer than a client
// waits for an answer.
const takeOver = 5 * time.Second

// awaitShards waits until this broker serves the partitions it was given by the
// topic's creation, so that what is asked next (by the client that looked for
// its coordinator, or by a mirror) is not refused at first. It is a courtesy:
// whoever is refused all the same asks again.
func (c *Coordinator) awaitShards(ctx context.Context) {
	late := c.o.Clock.NewTimer(takeOver)
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
	if !wait(c.topicSeen) {
		return
	}
	for _, s := range c.shards() {
		loaded := make(chan struct{})
		// Tasks run once the shard is loaded; a refusal means it has ended.
		if s.post(false, func(time.Time) { close(loaded) }) == nil && !wait(loaded) {
			return
		}
	}
}

// topic is what __transaction_state looks like in a cluster with so many live
// brokers. Configs are Kafka's.
func (c *Coordinator) topic(live int) controller.CreateTopic {
	factor := min(c.o.TopicReplicationFactor, int16(max(live, 1)))
	return controller.CreateTopic{
		Name: TopicName, Internal: true, Partitions: c.o.TopicPartitions, ReplicationFactor: factor,
		Configs: map[string]string{
			"cleanup.policy":                 "compact",
			"compression.type":               "uncompressed",
			"min.insync.replicas":            strconv.Itoa(int(min(c.o.TopicMinISR, factor))),
			"segment.bytes":                  strconv.Itoa(int(c.o.TopicSegmentBytes)),
			"unclean.leader.election.enable": "false",
		},
	}
}
