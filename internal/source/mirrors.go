package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Keys of KIP-1279 that are asked of a source, and error codes of its own.
const (
	keyLastMirroredEpochs = 97
	keyListMirrors        = 98
	keyDescribeMirrors    = 99

	codeMirrorAuthorization = 144
)

// MirrorListing is one mirror that lives on the source.
type MirrorListing struct {
	Name, SourceClusterID string
	Topics                []string // mirrored or paused
	// Origins are the ids of the clusters from which a topic comes beyond that source.
	Origins map[string]Origin
}

// Origin is from where a topic comes: the ids of clusters. It is stale if it was asked for
// and somebody on the way did not answer.
type Origin struct {
	ClusterIDs []string
	Stale      bool
}

// OriginsAsk has a source ask its own sources from where their topics come, before it
// lists its mirrors, and they theirs.
type OriginsAsk struct {
	Asked  []string      // the clusters that have been asked, or ask
	Within time.Duration // how long it may take for that
}

// ListMirrors lists the source's own mirrors, for the loop check (W23);
// supported is false when the source does not know the request. Without an ask it says
// what it knows.
func (c *Cluster) ListMirrors(ctx context.Context, ask *OriginsAsk) (mirrors []MirrorListing, supported bool, err error) {
	supported = true
	do := c.with
	if ask != nil {
		do = c.alone // the answer takes a while, and two asks that meet would wait for each other
	}
	err = do(ctx, anyBroker, "list mirrors", func(conn *wire.Client) error {
		mirrors = nil
		if _, _, ok := conn.Versions(keyListMirrors); !ok {
			supported = false
			return nil
		}
		req := &wire.ListClusterMirrorsRequest{IncludeTopicNames: true}
		if ask != nil {
			req.AskedClusterIDs, req.AskMillis = ask.Asked, int32(ask.Within.Milliseconds())
		}
		resp, err := conn.Request(ctx, req)
		if err != nil {
			return err
		}
		listed := resp.(*wire.ListClusterMirrorsResponse)
		if err := codeError(listed.ErrorCode, listed.ErrorMessage); err != nil {
			return err
		}
		for _, m := range listed.Mirrors {
			listing := MirrorListing{Name: m.MirrorName, SourceClusterID: m.SourceClusterID, Topics: m.TopicNames}
			for _, o := range m.Origins {
				if listing.Origins == nil {
					listing.Origins = make(map[string]Origin)
				}
				listing.Origins[o.TopicName] = Origin{o.ClusterIDs, o.Stale}
			}
			mirrors = append(mirrors, listing)
		}
		return nil
	})
	return mirrors, supported, err
}

// LastMirrored is how far the source had mirrored one of our partitions. -1 is
// "certainly never" for the epoch, and "not told" for the offset.
type LastMirrored struct {
	Epoch  int32
	Offset int64
}

// LastMirroredEpochs asks the source, which may have been our destination, for
// the last epoch it mirrored from us, per partition: key 97, else key 99 (W24).
// supported is false when it knows neither. found holds the keys that were
// answered; err tells about the others, of which nothing may be concluded.
func (c *Cluster) LastMirroredEpochs(ctx context.Context, mirror, ourClusterID string, keys []sdk.PartitionKey) (found map[sdk.PartitionKey]LastMirrored, supported bool, err error) {
	supported = true
	err = c.with(ctx, anyBroker, "last mirrored epochs", func(conn *wire.Client) (err error) {
		if _, _, ok := conn.Versions(keyLastMirroredEpochs); ok {
			found, err = askLastMirrored(ctx, conn, mirror, ourClusterID, keys)
		} else if _, _, ok := conn.Versions(keyDescribeMirrors); ok {
			found, err = lookUpLastMirrored(ctx, conn, ourClusterID, keys)
		} else {
			supported = false
		}
		return err
	})
	return found, supported, err
}

func askLastMirrored(ctx context.Context, conn *wire.Client, mirror, ourClusterID string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]LastMirrored, error) {
	req := &wire.LastMirroredEpochsRequest{MirrorName: mirror, RequesterClusterID: kmsg.StringPtr(ourClusterID)}
	byTopic := map[string]int{}
	for _, k := range keys {
		i, ok := byTopic[k.Topic]
		if !ok {
			i = len(req.Topics)
			byTopic[k.Topic] = i
			req.Topics = append(req.Topics, wire.LastMirroredEpochsTopic{Name: k.Topic, TopicID: k.TopicID})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, k.Partition)
	}
	got, err := conn.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := got.(*wire.LastMirroredEpochsResponse)
	if err := codeError(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return nil, err
	}
	type place struct {
		topic     string
		partition int32
	}
	answers := map[place]*wire.LastMirroredEpochsResponsePartition{}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			p := &resp.Topics[i].Partitions[j]
			answers[place{resp.Topics[i].Name, p.Partition}] = p
		}
	}
	found := make(map[sdk.PartitionKey]LastMirrored, len(keys))
	var first error
	for _, k := range keys {
		p := answers[place{k.Topic, k.Partition}]
		err := errMissing // an omission is no -1 (P7)
		if p != nil {
			err = codeError(p.ErrorCode, p.ErrorMessage)
		}
		if err == nil && (p.LastMirroredEpoch < -1 || p.LastMirroredOffset < -1) {
			err = fmt.Errorf("source answers epoch %d, offset %d", p.LastMirroredEpoch, p.LastMirroredOffset)
		}
		if err != nil {
			if first == nil {
				first = fmt.Errorf("%s: %w", k, err)
			}
			continue
		}
		found[k] = LastMirrored{Epoch: p.LastMirroredEpoch, Offset: p.LastMirroredOffset}
	}
	return found, first
}

// lookUpLastMirrored asks an older peer through DescribeClusterMirrors. That
// answer has no per-partition errors, so the states are checked too: an epoch
// counts only if the peer has stopped mirroring from us. Its mirrors sourced
// from us are those that key 98 lists with our cluster id.
func lookUpLastMirrored(ctx context.Context, conn *wire.Client, ourClusterID string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]LastMirrored, error) {
	ours, err := mirrorsFromUs(ctx, conn, ourClusterID)
	if err != nil {
		return nil, err
	}
	req := &wire.DescribeClusterMirrorsRequest{ClusterID: kmsg.StringPtr(ourClusterID)}
	byTopic := map[[16]byte]int{}
	for _, k := range keys {
		i, ok := byTopic[k.TopicID]
		if !ok {
			i = len(req.Lookups)
			byTopic[k.TopicID] = i
			req.Lookups = append(req.Lookups, wire.EpochLookupTopic{TopicID: k.TopicID})
		}
		req.Lookups[i].Partitions = append(req.Lookups[i].Partitions, k.Partition)
	}
	got, err := conn.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := got.(*wire.DescribeClusterMirrorsResponse)
	if err := codeError(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return nil, err
	}
	epochs := map[sdk.PartitionKey]int32{}
	for _, t := range resp.LookupResults {
		for _, p := range t.Partitions {
			epochs[sdk.PartitionKey{TopicID: t.TopicID, Partition: p.Partition}] = p.LastMirrorEpoch
		}
	}
	found := make(map[sdk.PartitionKey]LastMirrored, len(keys))
	var first error
	for _, k := range keys {
		err := stillMirrored(resp.Mirrors, ours, k)
		epoch, ok := epochs[sdk.PartitionKey{TopicID: k.TopicID, Partition: k.Partition}]
		if err == nil && !ok {
			err = errMissing
		}
		if err != nil {
			if first == nil {
				first = fmt.Errorf("%s: %w", k, err)
			}
			continue
		}
		found[k] = LastMirrored{Epoch: max(epoch, -1), Offset: -1}
	}
	return found, first
}

func mirrorsFromUs(ctx context.Context, conn *wire.Client, ourClusterID string) (map[string]bool, error) {
	got, err := conn.Request(ctx, &wire.ListClusterMirrorsRequest{})
	if err != nil {
		return nil, err
	}
	resp := got.(*wire.ListClusterMirrorsResponse)
	if err := codeError(resp.ErrorCode, resp.ErrorMessage); err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, m := range resp.Mirrors {
		if m.SourceClusterID == ourClusterID {
			ours[m.MirrorName] = true
		}
	}
	return ours, nil
}

// errStillMirrored is the equivalent of error 145 for a peer without key 97.
var errStillMirrored = errors.New("source still mirrors it from us")

func stillMirrored(mirrors []wire.DescribedMirror, ours map[string]bool, key sdk.PartitionKey) error {
	for _, m := range mirrors {
		if !ours[m.MirrorName] {
			continue
		}
		if err := codeError(m.ErrorCode, nil); err != nil {
			return fmt.Errorf("mirror %s: %w", m.MirrorName, err)
		}
		for _, t := range m.Topics {
			if t.TopicName != key.Topic {
				continue
			}
			for _, p := range t.Partitions {
				if p.Partition == key.Partition && p.StateValue != "STOPPED" {
					return fmt.Errorf("%w: state %s in mirror %s", errStillMirrored, p.StateValue, m.MirrorName)
				}
			}
		}
	}
	return nil
}
