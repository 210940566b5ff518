package source

import (
	"context"
	"errors"
	"log/slog"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

var errSkeleton = errors.New("not built yet")

// Options are the caller's part of opening a Cluster.
type Options struct {
	Logger   *slog.Logger // nil: discard
	ClientID string       // default "lockstep"
}

// Cluster is one source cluster. Its methods may be called from several
// goroutines.
type Cluster struct{}

// Open prepares a Cluster from a mirror's configs; nothing is dialled yet.
func Open(props map[string]string, o Options) (*Cluster, error) { return nil, errSkeleton }

// Close ends all connections; running calls fail.
func (c *Cluster) Close() error { return nil }

// ID is the source's cluster id.
func (c *Cluster) ID(ctx context.Context) (string, error) { return "", errSkeleton }

// Metadata is what the source says about itself and some of its topics.
type Metadata struct {
	Brokers map[int32]sdk.BrokerAddr
	Topics  map[string]*Topic
}

// Topic is one topic of the source.
type Topic struct {
	Name       string
	ID         [16]byte // zero: the source has no topic ids
	Err        error    // the source's answer for this topic; UNKNOWN_TOPIC_OR_PARTITION if it is gone
	Internal   bool
	Partitions []Partition // by index
}

// Partition is one partition of a topic of the source.
type Partition struct {
	Index       int32
	Leader      int32 // -1: none
	LeaderEpoch int32 // -1: the source does not say
	Err         error
}

// Metadata describes topics, all of them when topics is nil.
func (c *Cluster) Metadata(ctx context.Context, topics []string) (*Metadata, error) {
	return nil, errSkeleton
}

// ConfigEntry is one topic config of the source. Dynamic says that it was set
// on the topic itself.
type ConfigEntry struct {
	Name    string
	Value   *string
	Dynamic bool
}

// TopicConfigs are the configs of one topic, or why they cannot be read.
type TopicConfigs struct {
	Entries []ConfigEntry
	Err     error
}

// TopicConfigs reads the configs of topics.
func (c *Cluster) TopicConfigs(ctx context.Context, topics []string) (map[string]TopicConfigs, error) {
	return nil, errSkeleton
}

// Group is one group of the source.
type Group struct {
	ID       string
	State    string
	Protocol string // "consumer" for consumer groups
}

// Groups lists the groups of all brokers.
func (c *Cluster) Groups(ctx context.Context) ([]Group, error) { return nil, errSkeleton }

// GroupOffset is one committed offset.
type GroupOffset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Metadata    *string
}

// GroupOffsets reads what a group has committed.
func (c *Cluster) GroupOffsets(ctx context.Context, group string) ([]GroupOffset, error) {
	return nil, errSkeleton
}

// Offsets are the first offset and the high watermark of a partition.
func (c *Cluster) Offsets(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch int32) (earliest, latest int64, err error) {
	return 0, 0, errSkeleton
}

// EpochEnd asks the leader where a leader epoch ends (OffsetForLeaderEpoch).
func (c *Cluster) EpochEnd(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch, epoch int32) (sdk.EpochEnd, error) {
	return sdk.Undefined, errSkeleton
}

// MirrorListing is one mirror that lives on the source.
type MirrorListing struct {
	Name, SourceClusterID string
	Topics                []string
}

// ListMirrors lists the source's own mirrors; supported is false when the
// source does not know the request.
func (c *Cluster) ListMirrors(ctx context.Context) (mirrors []MirrorListing, supported bool, err error) {
	return nil, false, errSkeleton
}

// LastMirrored is how far the source had mirrored one of our partitions; -1 is
// "certainly never".
type LastMirrored struct {
	Epoch  int32
	Offset int64
}

// LastMirroredEpochs asks key 97, then 99 (W24).
func (c *Cluster) LastMirroredEpochs(ctx context.Context, mirror, ourClusterID string, keys []sdk.PartitionKey) (found map[sdk.PartitionKey]LastMirrored, supported bool, err error) {
	return nil, false, errSkeleton
}

// Transport fetches record bytes over the Kafka protocol.
func (c *Cluster) Transport() sdk.Transport { return nil }

// Class is the kind of a failure, for the operator and for the retry rules.
type Class int8

const (
	Other          Class = iota
	Unreachable          // no connection, or it broke, or no answer in time
	Authentication       // wrong user, password or mechanism
	TLS                  // certificates, names, protocol versions
	Authorization        // the source's ACLs refuse us
	Unsupported          // the source does not know the request
)

// ErrorClass tells what kind of failure err is.
func ErrorClass(err error) Class { return Other }
