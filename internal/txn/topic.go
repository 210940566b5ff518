package txn

import (
	"context"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// EnsureTopic returns __transaction_state, and creates it when it is not there:
// at the first question for a coordinator.
func (c *Coordinator) EnsureTopic(ctx context.Context, ctrl *controller.Controller) (*metadata.Topic, error) {
	return c.topic.Ensure(ctx, ctrl, c.led.Await)
}

// stateTopic is what __transaction_state looks like in a cluster with so many live
// brokers. Configs are Kafka's, but for durability: a transaction that a power cut
// took from here, and left in the partitions that it wrote to, is one that nobody
// ends. So what says that they belong to it is on disks before they are written to,
// also where the broker's default is that records need not be.
func (o *Options) stateTopic(live int) controller.CreateTopic {
	factor := coordinator.Replicas(o.TopicReplicationFactor, live, o.TopicStrict)
	return controller.CreateTopic{
		Name: TopicName, Internal: true, Partitions: o.TopicPartitions, ReplicationFactor: factor,
		Configs: map[string]string{
			"cleanup.policy":                 "compact",
			"compression.type":               "uncompressed",
			metadata.DurabilityConfig:        "fsync",
			"min.insync.replicas":            strconv.Itoa(int(min(o.TopicMinISR, factor))),
			"segment.bytes":                  strconv.Itoa(int(o.TopicSegmentBytes)),
			"unclean.leader.election.enable": "false",
		},
	}
}
