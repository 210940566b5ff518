package group

import (
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

// PartitionStore keeps groups in the partitions of __consumer_offsets that this
// broker leads. Its methods are what Options wants.
type PartitionStore struct{ *coordinator.Store }

// NewPartitionStore makes a store over the broker's partitions; img tells the
// current metadata.
func NewPartitionStore(pm *partition.Manager, img func() *metadata.Image) PartitionStore {
	return PartitionStore{coordinator.NewStore(TopicName, pm, img)}
}

// AppendOffsets is Options.AppendOffsets.
func (s PartitionStore) AppendOffsets(index, leaderEpoch int32, batch []byte, verify bool, v *partition.Verification, done func(error)) {
	p := s.Partition(index)
	if p == nil {
		done(ErrNotCoordinator)
		return
	}
	p.AppendOffsets(leaderEpoch, batch, verify, v, func(_ int64, err error) { done(refusal(err)) })
}

// AppendMarker is Options.AppendMarker.
func (s PartitionStore) AppendMarker(index, leaderEpoch int32, m partition.Marker, done func(error)) {
	p := s.Partition(index)
	if p == nil {
		done(ErrNotCoordinator)
		return
	}
	p.AppendMarker(leaderEpoch, m, func(err error) { done(refusal(err)) })
}

// refusal is coordinator.Refusal, but what concerns a producer stays as it is.
func refusal(err error) error {
	if errors.Is(err, producer.ErrFencedEpoch) || errors.Is(err, producer.ErrCoordinatorFenced) || errors.Is(err, partition.ErrUnverified) {
		return err
	}
	return coordinator.Refusal(err)
}
