package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Store reads and appends in the partitions of an internal topic that this
// broker leads.
type Store struct {
	topic      string
	partitions *partition.Manager
	image      func() *metadata.Image
}

// NewStore makes a store over the broker's partitions; img tells the current
// metadata.
func NewStore(topic string, pm *partition.Manager, img func() *metadata.Image) *Store {
	return &Store{topic: topic, partitions: pm, image: img}
}

// Partitions tells how many partitions the topic has; 0 while it does not exist.
func (s *Store) Partitions() int32 {
	img := s.image()
	if img == nil {
		return 0
	}
	t := img.Topic(s.topic)
	if t == nil {
		return 0
	}
	return int32(len(t.Partitions))
}

// Partition is nil when it is not on this broker.
func (s *Store) Partition(index int32) *partition.Partition { return s.partitions.Get(s.topic, index) }

// Append is ShardOptions.Append. done hears of the batch once it is on every
// replica in sync, and on disk where the topic's durability says so.
func (s *Store) Append(index, leaderEpoch int32, batch []byte, done func(error)) {
	p := s.Partition(index)
	if p == nil {
		done(ErrNotCoordinator)
		return
	}
	p.AppendInternal(leaderEpoch, batch, func(_ int64, err error) { done(Refusal(err)) })
}

// Refusal puts a partition's refusal in the words of this package, and in those
// alone: a client that asked a coordinator must not be told that a partition has
// another leader. Too few replicas in sync is ErrNotAvailable, as with Kafka.
func Refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, partition.ErrMayCommit):
		return fmt.Errorf("%w: %v", ErrUnsettled, err)
	case errors.Is(err, partition.ErrNotLeader), errors.Is(err, partition.ErrFencedEpoch),
		errors.Is(err, partition.ErrUnknownEpoch), errors.Is(err, partition.ErrUnknown), errors.Is(err, partition.ErrClosed):
		return fmt.Errorf("%w: %v", ErrNotCoordinator, err)
	default:
		return fmt.Errorf("%w: %v", ErrNotAvailable, err)
	}
}

// loadBytes is what one read of a replay asks for: large enough that the disk
// reads in order, small beside 50 partitions loading at once.
const loadBytes = 1 << 20

// Load calls fn for each batch of a partition up to the log end, waiting for the
// high watermark to get there: what the log holds at that moment may be
// acknowledged later, so it must not be missed. The partition must have taken up
// its leadership in just that epoch: before, the log may be behind what the epoch
// begins with. Batches are valid during the call only.
func (s *Store) Load(ctx context.Context, index, leaderEpoch int32, fn func(record.Batch) error) error {
	p := s.Partition(index)
	if p == nil {
		return fmt.Errorf("%s-%d: %w", s.topic, index, partition.ErrUnknown)
	}
	w := partition.NewWaiter()
	p.AddWaiter(w)
	defer p.RemoveWaiter(w)

	info := p.Info() // the log's end is looked at after the leadership
	if !info.Leader || info.LeaderEpoch != leaderEpoch {
		return fmt.Errorf("%s: %w: it is in epoch %d, not leader in %d", p.Key(), partition.ErrNotLeader, info.LeaderEpoch, leaderEpoch)
	}
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
