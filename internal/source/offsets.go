package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Timestamps with a meaning of their own in ListOffsets.
const (
	latestTimestamp   = -1
	earliestTimestamp = -2
)

var errMissing = errors.New("partition is missing in the answer")

// patience is how often a leader is asked again that is not ready yet.
const patience = 10

// patiently is with for questions to a partition's leader. A broker that has
// just started or just been elected may not know of it yet, or not know its
// high watermark (KIP-320, KIP-207): that is no failure of the source (9.7).
func (c *Cluster) patiently(ctx context.Context, addr, op string, fn func(*wire.Client) error) error {
	for try := 1; ; try++ {
		err := c.with(ctx, addr, op, fn)
		if err == nil || try == patience || !notYet(err) {
			return err
		}
		if !c.wait(ctx) {
			return err // says more than that time is up
		}
	}
}

// wait passes the time between two questions; false means that ctx ended.
func (c *Cluster) wait(ctx context.Context) bool {
	timer := time.NewTimer(c.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func notYet(err error) bool {
	return errors.Is(err, kerr.UnknownLeaderEpoch) || errors.Is(err, kerr.OffsetNotAvailable) || errors.Is(err, kerr.LeaderNotAvailable)
}

// Offsets are the first offset and the high watermark of a partition, asked of
// its leader.
func (c *Cluster) Offsets(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch int32) (earliest, latest int64, err error) {
	err = c.patiently(ctx, leader.Addr(), fmt.Sprintf("list offsets of %s", key), func(conn *wire.Client) (err error) {
		if earliest, err = listOffset(ctx, conn, key, currentEpoch, earliestTimestamp); err != nil {
			return err
		}
		latest, err = listOffset(ctx, conn, key, currentEpoch, latestTimestamp)
		return err
	})
	if err != nil {
		return -1, -1, err
	}
	return earliest, latest, nil
}

func listOffset(ctx context.Context, conn *wire.Client, key sdk.PartitionKey, currentEpoch int32, timestamp int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = key.Topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.Timestamp = key.Partition, currentEpoch, timestamp
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := conn.Request(ctx, req)
	if err != nil {
		return -1, err
	}
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if t.Topic != key.Topic || p.Partition != key.Partition {
				continue
			}
			if err := codeError(p.ErrorCode, nil); err != nil {
				return -1, err
			}
			if len(p.OldStyleOffsets) > 0 { // version 0
				return p.OldStyleOffsets[0], nil
			}
			return p.Offset, nil
		}
	}
	return -1, errMissing
}

// EpochEnd asks the leader where a leader epoch ends (OffsetForLeaderEpoch,
// KIP-101, KIP-279, KIP-320): the largest epoch it knows that is not above
// epoch, and that epoch's end. Undefined is an answer, not an error (9.6.3).
func (c *Cluster) EpochEnd(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch, epoch int32) (sdk.EpochEnd, error) {
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1 // a consumer, which needs no more than DESCRIBE on the topic
	t := kmsg.NewOffsetForLeaderEpochRequestTopic()
	t.Topic = key.Topic
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = key.Partition, currentEpoch, epoch
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	end := sdk.Undefined
	err := c.patiently(ctx, leader.Addr(), fmt.Sprintf("end of epoch %d of %s", epoch, key), func(conn *wire.Client) error {
		resp, err := conn.Request(ctx, req)
		if err != nil {
			return err
		}
		for _, t := range resp.(*kmsg.OffsetForLeaderEpochResponse).Topics {
			for _, p := range t.Partitions {
				if t.Topic != key.Topic || p.Partition != key.Partition {
					continue
				}
				end = sdk.EpochEnd{Epoch: p.LeaderEpoch, End: p.EndOffset}
				return codeError(p.ErrorCode, nil)
			}
		}
		return errMissing
	})
	if err != nil || !end.Defined() {
		return sdk.Undefined, err
	}
	return end, nil
}
