package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// rangeBytes is what one request of Range asks for: large enough for the batch of
// any sensible max.message.bytes beside others, small enough to hold in memory.
const rangeBytes = 8 << 20

// ErrGone: the source does not have the offsets any more, or not yet.
var ErrGone = errors.New("the source does not have the records")

// Range fetches batches of the offsets [from, to) once more, outside of the stream
// of the mirror: a damaged log is repaired with them. It returns as many as one
// request brings; next is where to go on, everything in front of it that the
// source has is among the batches. Their CRCs are the caller's to check.
func (c *Cluster) Range(ctx context.Context, leader sdk.BrokerAddr, key sdk.PartitionKey, currentEpoch int32, from, to int64) (batches []byte, next int64, err error) {
	op := fmt.Sprintf("fetch offsets %d to %d of %s", from, to, key)
	err = c.patiently(ctx, leader.Addr(), op, func(conn *wire.Client) error {
		resp, err := conn.Request(ctx, rangeRequest(key, currentEpoch, from))
		if err != nil {
			return err
		}
		fetched := resp.(*kmsg.FetchResponse)
		if err := codeError(fetched.ErrorCode, nil); err != nil {
			return err
		}
		for _, t := range fetched.Topics {
			for _, p := range t.Partitions {
				if p.Partition == key.Partition && (t.Topic == key.Topic || t.TopicID == key.TopicID) {
					batches, next, err = cutRange(&p, from, to)
					return err
				}
			}
		}
		return errMissing
	})
	if err != nil {
		return nil, 0, err
	}
	return batches, next, nil
}

// repairReplica is the replica id with which a broker of the cluster reads up to the
// log's end, without saying by it how far its own log is (internal/kafka, Fetch).
const repairReplica = -2

// ReplicaRange is Range of a leader in our own cluster, for a replica that is damaged.
// What the leader has deleted the replica does not need any more: its log start
// follows the leader's as soon as it is whole.
func ReplicaRange(ctx context.Context, ask func(context.Context, kmsg.Request) (kmsg.Response, error), key sdk.PartitionKey, leaderEpoch int32, from, to int64) (batches []byte, next int64, err error) {
	req := rangeRequest(key, leaderEpoch, from)
	req.ReplicaID, req.ReplicaState.ID = repairReplica, repairReplica
	resp, err := ask(ctx, req)
	if err == nil {
		fetched := resp.(*kmsg.FetchResponse)
		if err = codeError(fetched.ErrorCode, nil); err == nil {
			batches, next, err = replicaRange(fetched, key, from, to)
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("fetch offsets %d to %d of %s from the leader: %w", from, to, key, err)
	}
	return batches, next, nil
}

func replicaRange(fetched *kmsg.FetchResponse, key sdk.PartitionKey, from, to int64) (batches []byte, next int64, err error) {
	for _, t := range fetched.Topics {
		for _, p := range t.Partitions {
			if p.Partition != key.Partition || t.Topic != key.Topic && t.TopicID != key.TopicID {
				continue
			}
			err := codeError(p.ErrorCode, nil)
			if p.LogStartOffset > from && (err == nil || errors.Is(err, kerr.OffsetOutOfRange)) {
				return nil, min(p.LogStartOffset, to), nil
			}
			return cutRange(&p, from, to)
		}
	}
	return nil, 0, errMissing
}

func rangeRequest(key sdk.PartitionKey, currentEpoch int32, from int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, 0, 1, rangeBytes
	req.SessionEpoch = -1 // outside of any session (KIP-227)
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = key.Topic, key.TopicID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.FetchOffset, p.PartitionMaxBytes = key.Partition, currentEpoch, from, rangeBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// cutRange takes what lies in [from, to) out of an answer.
func cutRange(p *kmsg.FetchResponseTopicPartition, from, to int64) (batches []byte, next int64, err error) {
	err = codeError(p.ErrorCode, nil)
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return nil, 0, fmt.Errorf("%w at offset %d: %w", ErrGone, from, err)
	case err != nil:
		return nil, 0, err
	case p.LogStartOffset > from:
		return nil, 0, fmt.Errorf("%w at offset %d: its log begins at %d", ErrGone, from, p.LogStartOffset)
	}
	next = from
	for rest := p.RecordBatches; len(rest) > 0; {
		var b record.Batch
		b, rest, err = record.Next(rest)
		if errors.Is(err, record.ErrShort) {
			break // the answer ends inside a batch, as it may
		}
		if err != nil {
			return nil, 0, err
		}
		if b.NextOffset() <= from {
			continue
		}
		if b.BaseOffset() >= to {
			return batches, to, nil
		}
		batches, next = append(batches, b...), b.NextOffset()
	}
	if next == from {
		return nil, 0, fmt.Errorf("%w at offset %d: what it gives ends there, its high watermark is %d", ErrGone, from, p.HighWatermark)
	}
	return batches, next, nil
}
