package mirror

import (
	"context"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Source is a source cluster: a [source.Cluster], or one of a simulation. What its
// methods answer is written there.
type Source interface {
	ID(ctx context.Context) (string, error)
	Metadata(ctx context.Context, topics []string) (*source.Metadata, error)
	TopicConfigs(ctx context.Context, topics []string) (map[string]source.TopicConfigs, error)
	EpochEnd(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch, epoch int32) (sdk.EpochEnd, error)
	Offsets(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch int32) (earliest, latest int64, err error)
	ListMirrors(ctx context.Context, ask *source.OriginsAsk) (mirrors []source.MirrorListing, supported bool, err error)
	LastMirroredEpochs(ctx context.Context, mirror, ourClusterID string, keys []sdk.PartitionKey) (found map[sdk.PartitionKey]source.LastMirrored, supported bool, err error)
	Groups(ctx context.Context) ([]source.Group, error)
	GroupOffsets(ctx context.Context, group string) ([]source.GroupOffset, error)
	ACLs(ctx context.Context) ([]source.ACL, error)
	Range(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch int32, from, to int64) ([]byte, int64, error)
	Transport() sdk.Transport
	Close() error
}

var _ Source = (*source.Cluster)(nil)

// openSource opens a cluster that is reached over the network.
func openSource(configs map[string]string, o source.Options) (Source, error) {
	o.ClusterID = configs[metadata.MirrorSourceClusterID]
	c, err := source.Open(configs, o)
	if err != nil {
		return nil, err // not a nil *source.Cluster
	}
	return c, nil
}
