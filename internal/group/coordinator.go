package group

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// TopicName is the internal topic that holds groups and offsets.
const TopicName = "__consumer_offsets"

// Coordinator coordinates the groups whose partitions of __consumer_offsets
// this broker leads. Its methods are safe for use by several goroutines.
type Coordinator struct {
	o Options
}

// New makes a coordinator that leads nothing yet.
func New(o Options) (*Coordinator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Coordinator{o: o}, nil
}

// Close ends every goroutine of the coordinator.
func (c *Coordinator) Close() {}

// Apply follows the metadata.
func (c *Coordinator) Apply(prev, next *metadata.Image) {}

// BecomeLeader loads a partition of __consumer_offsets.
func (c *Coordinator) BecomeLeader(partition, leaderEpoch int32) {}

// Resign drops a partition.
func (c *Coordinator) Resign(partition int32) {}

func (c *Coordinator) Join(ctx context.Context, r *JoinRequest) JoinResult {
	return JoinResult{Err: ErrNotAvailable}
}

func (c *Coordinator) Sync(ctx context.Context, r *SyncRequest) SyncResult {
	return SyncResult{Err: ErrNotAvailable}
}

func (c *Coordinator) Heartbeat(ctx context.Context, r *HeartbeatRequest) error {
	return ErrNotAvailable
}

func (c *Coordinator) Leave(ctx context.Context, r *LeaveRequest) LeaveResult {
	return LeaveResult{Err: ErrNotAvailable}
}

// Commit stores offsets; the errors match r.Offsets.
func (c *Coordinator) Commit(ctx context.Context, r *CommitRequest) ([]error, error) {
	return nil, ErrNotAvailable
}

// CommitFromMirror stores offsets that a source cluster's group has reached.
func (c *Coordinator) CommitFromMirror(ctx context.Context, group string, offsets []Offset) ([]error, error) {
	return nil, ErrNotAvailable
}

// Committed returns a group's committed offsets, sorted by topic and partition.
func (c *Coordinator) Committed(ctx context.Context, group string) ([]Offset, error) {
	return nil, ErrNotAvailable
}

func (c *Coordinator) DeleteOffsets(ctx context.Context, group string, partitions []TopicPartition) DeleteOffsetsResult {
	return DeleteOffsetsResult{Err: ErrNotAvailable}
}

func (c *Coordinator) List(ctx context.Context) ([]Listing, error) { return nil, ErrNotAvailable }

func (c *Coordinator) Describe(ctx context.Context, group string) Description {
	return Description{Group: group, State: Dead, Err: ErrNotAvailable}
}

// Delete removes an empty group with its offsets.
func (c *Coordinator) Delete(ctx context.Context, group string) error { return ErrNotAvailable }

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
