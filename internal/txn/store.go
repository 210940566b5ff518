package txn

import (
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// NewPartitionStore keeps transactional ids in the partitions of
// __transaction_state that this broker leads. Its methods are what Options wants;
// img tells the current metadata.
func NewPartitionStore(pm *partition.Manager, img func() *metadata.Image) *coordinator.Store {
	return coordinator.NewStore(TopicName, pm, img)
}
