package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// tellOf tells what was done of its own accord, or what an operator has to know of
// afterwards: one line each. prev is the image before.
func (c *Controller) tellOf(prev *metadata.Image, cmds []Command, items []outcome) {
	for i, it := range items {
		if it.err != nil || len(it.changes) == 0 {
			continue
		}
		switch cmd := cmds[i].(type) {
		case fenceBrokers:
			c.meters.fenced.Add(len(cmd.Brokers))
			c.o.Logger.Warn("brokers fenced: others lead what they led", "brokers", idsOf(cmd.Brokers), "partitions", partitionsIn(it.changes))
		case unfenceBroker:
			c.o.Logger.Info("broker let in", "broker", cmd.ID, "broker_epoch", cmd.Epoch, "partitions", partitionsIn(it.changes))
		case drainBroker:
			c.o.Logger.Info("leaders move away from a broker that stops", "broker", cmd.ID, "partitions", partitionsIn(it.changes))
		case resignReplicas:
			c.o.Logger.Warn("replicas whose logs cannot be used are taken out: others lead what they led", "broker", cmd.ID, "partitions", partitionsIn(it.changes))
		case electUnclean:
			c.meters.unclean.Inc()
			logUnclean(c.o.Logger, prev, cmd)
		case unregisterBroker:
			logUnregistered(c.o.Logger, prev, cmd.ID)
		case electLongest:
			c.o.Logger.Warn("leader elected by the length of its log, after every replica in sync stopped uncleanly: records that only reached memory may be lost",
				"topic", topicName(prev, cmd.Topic), "partition", cmd.Partition, "new_leader", cmd.Leader, "asked", cmd.Reported)
		}
	}
}

// logUnregistered tells of the partitions that do not wait any more for a broker which
// may be the only one to have all of their records (GI-45).
func logUnregistered(l *slog.Logger, prev *metadata.Image, id int32) {
	var names []string
	n := 0
	for t := range prev.AllTopics() {
		for _, p := range t.Partitions {
			known := union(p.ISR, p.ELR, p.LastKnownELR)
			if p.Leader != metadata.NoLeader || !slices.Contains(known, id) || len(known) == 1 {
				continue
			}
			if n++; n <= 20 {
				names = append(names, fmt.Sprintf("%s-%d", t.Name, p.Index))
			}
		}
	}
	if n > 0 {
		l.Error("broker unregistered, for which partitions without a leader waited: acknowledged records that only it has are lost", "broker", id, "partitions", n, "first", names)
	} else {
		l.Info("broker unregistered", "broker", id)
	}
}

// logUnclean tells of an unclean election what GI-45 asks for: where, who, and what
// may be lost.
func logUnclean(l *slog.Logger, prev *metadata.Image, cmd electUnclean) {
	var knew []int32
	epoch := int32(-1)
	if p := prev.Partition(cmd.Topic, cmd.Partition); p != nil {
		knew, epoch = union(p.ISR, p.ELR, p.LastKnownELR), p.LeaderEpoch
	}
	l.Error("unclean leader election: acknowledged records that the new leader lacks are lost",
		"topic", topicName(prev, cmd.Topic), "partition", cmd.Partition, "old_leader", metadata.NoLeader, "new_leader", cmd.Leader,
		"up_to_leader_epoch", epoch, "known_to", knew,
		"lost", fmt.Sprintf("what brokers %v have behind the end of the log of broker %d; they cut it off when they are back", minus(knew, []int32{cmd.Leader}), cmd.Leader))
}

func topicName(img *metadata.Image, id metadata.TopicID) string {
	if t := img.TopicByID(id); t != nil {
		return t.Name
	}
	return id.String()
}

func idsOf(brokers []BrokerEpoch) []int32 {
	ids := make([]int32, len(brokers))
	for i, b := range brokers {
		ids[i] = b.ID
	}
	return ids
}

func partitionsIn(changes []Change) int {
	n := 0
	for _, ch := range changes {
		if _, ok := ch.(putPartition); ok {
			n++
		}
	}
	return n
}

var errPolicyRefuses = errors.New("the policy refuses an unclean election")

// decideUnclean asks the policy about a partition that only an unclean election can
// give a leader (D19). Without one, the config decides, and the first of those that
// could lead does. The policy may take its time.
func decideUnclean(ctx context.Context, policy sdk.UncleanElectionPolicy, u uncleanChoice) (int32, error) {
	if policy == nil {
		if !u.Allowed {
			return 0, errPolicyRefuses
		}
		return u.Live[0], nil
	}
	d, err := policy.DecideUncleanElection(ctx, &sdk.UncleanElectionQuestion{
		Kind: sdk.UncleanDestination, Mirror: u.Topic.Attachment().Mirror,
		Key:            sdk.PartitionKey{Topic: u.Topic.Name, TopicID: u.Topic.ID, Partition: u.Partition.Index},
		UncleanSupport: u.Topic.ConfigBool(metadata.MirrorULEConfig), UncleanAllowed: u.Allowed,
		Live: slices.Clone(u.Live),
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("policy %s: %w", policy.Name(), err)
	case d.Action != sdk.UncleanElect:
		return 0, fmt.Errorf("policy %s: %w: %s", policy.Name(), errPolicyRefuses, d.Text)
	case !slices.Contains(u.Live, d.Leader):
		return 0, fmt.Errorf("policy %s: it wants %d, which is not among %v", policy.Name(), d.Leader, u.Live)
	}
	return d.Leader, nil
}
