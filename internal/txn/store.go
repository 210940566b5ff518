package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// PartitionStore keeps transactional ids in the partitions of __transaction_state that this
// broker leads. Its methods are what Options wants.
type PartitionStore struct {
	partitions *partition.Manager
	image      func() *metadata.Image
}

// NewPartitionStore makes a store over the broker's partitions; img tells the
// current metadata.
func NewPartitionStore(pm *partition.Manager, img func() *metadata.Image) *PartitionStore {
	return &PartitionStore{partitions: pm, image: img}
}

// Partitions is Options.Partitions.
func (s *PartitionStore) Partitions() int32 {
	img := s.image()
	if img == nil {
		return 0
	}
	t := img.Topic(TopicName)
	if t == nil {
		return 0
	}
	return int32(len(t.Partitions))
}

// Append is Options.Append. done hears of the batch once it is on every replica
// in sync, and on disk where the topic's durability says so.
func (s *PartitionStore) Append(index, leaderEpoch int32, batch []byte, done func(error)) {
	p := s.partitions.Get(TopicName, index)
	if p == nil {
		done(ErrNotCoordinator)
		return
	}
	p.AppendInternal(leaderEpoch, batch, func(_ int64, err error) { done(storeError(err)) })
}

// storeError puts a partition's refusal in the words of this package, and in
// those alone: a client that asked a coordinator must not be told that a
// partition has another leader.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, partition.ErrNotLeader), errors.Is(err, partition.ErrFencedEpoch),
		errors.Is(err, partition.ErrUnknownEpoch), errors.Is(err, partition.ErrUnknown), errors.Is(err, partition.ErrClosed):
		return fmt.Errorf("%w: %v", ErrNotCoordinator, err)
	case errors.Is(err, partition.ErrTooLarge):
		return fmt.Errorf("%w: %v", ErrTooLarge, err)
	default:
		return fmt.Errorf("%w: %v", ErrNotAvailable, err)
	}
}

// loadBytes is what one read of a replay asks for: large enough that the disk
// reads in order, small beside 50 partitions loading at once.
const loadBytes = 1 << 20

// Load is Options.Load: it reads up to the log end, waiting for the high
// watermark to get there. What the log holds at that moment may be acknowledged
// later, so it must not be missed.
func (s *PartitionStore) Load(ctx context.Context, index, leaderEpoch int32, fn func(record.Batch) error) error {
	p := s.partitions.Get(TopicName, index)
	if p == nil {
		return fmt.Errorf("%s-%d: %w", TopicName, index, partition.ErrUnknown)
	}
	w := partition.NewWaiter()
	p.AddWaiter(w)
	defer p.RemoveWaiter(w)

	info := p.Info()
	end := info.LogEnd
	var buf []byte
	for at := info.LogStart; at < end && ctx.Err() == nil; {
		r := replayRead{at: at, buf: buf}
		if err := r.run(p, leaderEpoch, fn); err != nil {
			return err
		}
		if buf = r.buf; r.next > at {
			at = r.next
			continue
		}
		if r.highWatermark >= end {
			// Nothing to read below the high watermark of that read: compaction
			// has taken the log's last records.
			return nil
		}
		select {
		case <-w.C: // also at loss of leadership and when the partition closes
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// replayRead is one read of a replay. The high watermark is that of the read
// itself: asked for afterwards, it might have passed what the read could not see.
type replayRead struct {
	at            int64
	buf           []byte // reused from read to read
	next          int64  // where to go on
	highWatermark int64
}

func (r *replayRead) run(p *partition.Partition, leaderEpoch int32, fn func(record.Batch) error) error {
	r.next = r.at
	res, err := p.Read(partition.ReadRequest{
		Offset: r.at, MaxBytes: loadBytes, AtLeastOne: true,
		Isolation: partition.ReadUncommitted, CurrentLeaderEpoch: leaderEpoch, LastFetchedEpoch: -1,
	})
	if err != nil {
		return err
	}
	r.highWatermark = res.HighWatermark
	n := res.View.Len()
	if n == 0 {
		return nil
	}
	defer res.View.Release()
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	r.buf = r.buf[:n]
	if _, err := res.View.ReadAt(r.buf, 0); err != nil {
		return fmt.Errorf("%s at %d: %w", p.Key(), r.at, err)
	}
	for rest := r.buf; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			return fmt.Errorf("%s at %d: %w", p.Key(), r.next, err)
		}
		if b.NextOffset() <= r.next { // the read begins with the batch that holds the offset
			continue
		}
		if err := b.VerifyCRC(); err != nil {
			return fmt.Errorf("%s: %w", p.Key(), err)
		}
		if err := fn(b); err != nil {
			return err
		}
		r.next = b.NextOffset()
	}
	return nil
}
