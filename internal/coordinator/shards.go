package coordinator

import (
	"fmt"
	"slices"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Shards are those of one topic whose partitions this broker leads. S embeds a
// *Shard. Its methods are safe for use by several goroutines.
type Shards[S interface{ Base() *Shard }] struct {
	topic    string
	nodeID   int32
	newShard func(partition, epoch int32) S

	mu struct {
		sync.RWMutex
		byPartition map[int32]S
		id          metadata.TopicID // of the topic whose partitions these are; Follow's
		closed      bool
	}
	running sync.WaitGroup // the shards' goroutines

	// seen is closed once Follow has seen the topic.
	seen chan struct{}
	see  func()
}

// NewShards leads nothing yet.
func NewShards[S interface{ Base() *Shard }](topic string, nodeID int32, newShard func(partition, epoch int32) S) *Shards[S] {
	seen := make(chan struct{})
	x := &Shards[S]{topic: topic, nodeID: nodeID, newShard: newShard, seen: seen, see: sync.OnceFunc(func() { close(seen) })}
	x.mu.byPartition = map[int32]S{}
	return x
}

// Close drops every partition and waits for their goroutines. What waits is
// answered with ErrNotCoordinator.
func (x *Shards[S]) Close() {
	x.mu.Lock()
	x.mu.closed = true
	for p, s := range x.mu.byPartition {
		s.Base().stop()
		delete(x.mu.byPartition, p)
	}
	x.mu.Unlock()
	x.running.Wait()
}

// BecomeLeader takes over a partition: its names answer ErrLoading until the log
// has been replayed. An epoch that is not newer than the one already led changes
// nothing.
func (x *Shards[S]) BecomeLeader(partition, leaderEpoch int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return
	}
	if old, ok := x.mu.byPartition[partition]; ok {
		if old.Base().Epoch >= leaderEpoch {
			return
		}
		old.Base().stop()
	}
	x.startLocked(partition, leaderEpoch)
}

func (x *Shards[S]) startLocked(partition, leaderEpoch int32) {
	s := x.newShard(partition, leaderEpoch)
	s.Base().replace = func() { x.replace(s.Base()) }
	x.mu.byPartition[partition] = s
	x.running.Go(s.Base().run)
}

// replace ends a shard and begins another one in its place and epoch.
func (x *Shards[S]) replace(old *Shard) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old.stop()
	if s, ok := x.mu.byPartition[old.Partition]; ok && s.Base() == old && !x.mu.closed {
		x.startLocked(old.Partition, old.Epoch)
	}
}

// Resign drops a partition; those who wait find the new coordinator.
func (x *Shards[S]) Resign(partition int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s, ok := x.mu.byPartition[partition]; ok {
		s.Base().stop()
		delete(x.mu.byPartition, partition)
	}
}

// Follow takes and drops partitions with their leadership in the metadata. The
// partitions themselves must have seen next before.
func (x *Shards[S]) Follow(next *metadata.Image) {
	lead := map[int32]int32{}
	t := next.Topic(x.topic)
	if t != nil {
		if x.another(t.ID) {
			for _, s := range x.All() {
				x.Resign(s.Base().Partition) // its epochs say nothing about the new topic's
			}
		}
		for _, p := range t.Partitions {
			if p.Leader == x.nodeID {
				lead[p.Index] = p.LeaderEpoch
			}
		}
	}
	for _, s := range x.All() {
		if p := s.Base().Partition; !has(lead, p) {
			x.Resign(p)
		}
	}
	for p, epoch := range lead {
		x.BecomeLeader(p, epoch)
	}
	if t != nil {
		x.see()
	}
}

// another notes which topic has the name, and tells whether that is another one.
func (x *Shards[S]) another(id metadata.TopicID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.mu.id
	x.mu.id = id
	return was != id
}

func has(set map[int32]int32, p int32) bool {
	_, ok := set[p]
	return ok
}

// All are the shards there are, by partition.
func (x *Shards[S]) All() []S {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]S, 0, len(x.mu.byPartition))
	for _, s := range x.mu.byPartition {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b S) int { return int(a.Base().Partition) - int(b.Base().Partition) })
	return all
}

// Of is the shard of a partition.
func (x *Shards[S]) Of(partition int32) (S, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s, ok := x.mu.byPartition[partition]
	if !ok {
		return s, fmt.Errorf("%w of %s-%d", ErrNotCoordinator, x.topic, partition)
	}
	return s, nil
}

// For is the shard of a name; partitions is how many the topic has.
func (x *Shards[S]) For(name string, partitions int32) (S, error) {
	if partitions <= 0 {
		var none S
		return none, fmt.Errorf("%w: %s does not exist yet", ErrNotAvailable, x.topic)
	}
	return x.Of(PartitionFor(name, partitions))
}
