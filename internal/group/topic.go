package group

import (
	"context"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// EnsureTopic returns __consumer_offsets, and creates it when it is not there:
// at the first question for a coordinator.
func (c *Coordinator) EnsureTopic(ctx context.Context, ctrl *controller.Controller) (*metadata.Topic, error) {
	return c.topic.Ensure(ctx, ctrl, c.led.Await)
}

// offsetsTopic is what __consumer_offsets looks like in a cluster with so many
// live brokers. Configs are Kafka's.
func (o *Options) offsetsTopic(live int) controller.CreateTopic {
	return controller.CreateTopic{
		Name: TopicName, Internal: true, Partitions: o.OffsetsTopicPartitions,
		ReplicationFactor: coordinator.Replicas(o.OffsetsTopicReplicationFactor, live, o.OffsetsTopicStrict),
		Configs: map[string]string{
			"cleanup.policy":   "compact",
			"compression.type": "producer",
			"segment.bytes":    strconv.Itoa(int(o.OffsetsTopicSegmentBytes)),
		},
	}
}
