package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// AlterISR is partition.Options.AlterISR with a controller behind it. id and epoch
// are this broker's.
func AlterISR(c *controller.Controller, id int32, epoch func() int64) func(context.Context, []partition.ISRChange) []partition.ISRResult {
	return func(ctx context.Context, changes []partition.ISRChange) []partition.ISRResult {
		wishes := make([]controller.AlterISR, len(changes))
		for i, change := range changes {
			wishes[i] = controller.AlterISR{
				Topic: change.Topic, Partition: change.Partition,
				LeaderEpoch: change.LeaderEpoch, PartitionEpoch: change.PartitionEpoch,
				ISR: make([]controller.ISRMember, len(change.ISR)),
			}
			for j, m := range change.ISR {
				wishes[i].ISR[j] = controller.ISRMember{ID: m.ID, Epoch: m.Epoch}
			}
		}
		answers := c.AlterISRs(ctx, id, epoch(), wishes)
		results := make([]partition.ISRResult, len(answers))
		for i, a := range answers {
			results[i] = ISRResult(a)
		}
		return results
	}
}

// ISRResult is an answer of the controller as partitions take it. It tells what
// certainly changed nothing from what may have.
func ISRResult(a controller.AlterISRResult) partition.ISRResult {
	r := partition.ISRResult{PartitionEpoch: -1, Err: a.Err}
	if a.Partition != nil {
		r.PartitionEpoch = a.Partition.PartitionEpoch
	}
	for _, refusal := range []error{controller.ErrIneligibleReplica, controller.ErrInvalidRequest, controller.ErrUnknownTopic, controller.ErrUnknownTopicID} {
		if errors.Is(a.Err, refusal) {
			r.Err = fmt.Errorf("%w: %w", partition.ErrISRRefused, a.Err)
		}
	}
	return r
}
