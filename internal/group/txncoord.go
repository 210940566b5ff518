package group

import (
	"context"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// TxnCommitRequest stores offsets that a producer's transaction will decide.
type TxnCommitRequest struct {
	Group         string
	ProducerID    int64
	ProducerEpoch int16
	// MemberID, InstanceID and Generation are those of the consumer whose offsets
	// these are (KIP-447); -1 and empty from clients that do not know them.
	MemberID   string
	InstanceID string
	Generation int32
	Offsets    []Offset

	// Verify: the offsets must be part of a transaction that is open in the
	// group's partition, or come with a Verification of it that no marker broke.
	Verify       bool
	Verification *partition.Verification
}

// verification goes with a write to the partition, which decides.
type verification struct {
	needed bool
	by     *partition.Verification
}

func (r *TxnCommitRequest) verification() verification { return verification{r.Verify, r.Verification} }

// CommitInTxn stores offsets that become the group's when the transaction
// commits. The errors match r.Offsets. A group that does not exist is made,
// unless the request speaks of a generation.
func (c *Coordinator) CommitInTxn(ctx context.Context, r *TxnCommitRequest) ([]error, error) {
	if r.Group == "" {
		return nil, ErrInvalidGroupID
	}
	s, err := c.shard(r.Group)
	if err != nil {
		return nil, err
	}
	res, err := ask[commitResult](ctx, s, func(now time.Time, to ticket) {
		if s.groups.Get(r.Group) == nil && r.Generation >= 0 {
			s.Answer(to, commitResult{err: ErrIllegalGeneration})
			return
		}
		sl, err := s.group(r.Group, true, now)
		if err != nil {
			s.Answer(to, commitResult{err: err})
			return
		}
		s.step(sl, now, txnCommitInput{to, r})
	})
	if err != nil {
		return nil, err
	}
	return res.errs, res.err
}

// PartitionOf is the partition of __consumer_offsets that holds a group; -1
// while the topic does not exist.
func (c *Coordinator) PartitionOf(group string) int32 {
	n := c.o.Partitions()
	if n <= 0 {
		return -1
	}
	return PartitionFor(group, n)
}

// CompleteTxn ends a producer's transaction in a partition of
// __consumer_offsets: it appends the marker, and once that is acknowledged the
// offsets in the transaction are their groups', or gone. Nothing is lost by
// doing it twice.
func (c *Coordinator) CompleteTxn(ctx context.Context, index int32, m partition.Marker) error {
	s, err := c.led.Of(index)
	if err != nil {
		return err
	}
	res, err := ask[error](ctx, s, func(now time.Time, to ticket) { s.appendMarker(now, m, to) })
	return first(err, res)
}

// endTxn tells the groups of the end of a transaction whose marker is stored.
func (s *shard) endTxn(now time.Time, m *partition.Marker) {
	ids := s.txns[m.ProducerID]
	delete(s.txns, m.ProducerID)
	for _, id := range sortedKeys(ids) {
		if sl := s.groups.Get(id); sl != nil {
			s.step(sl, now, endTxnInput{m.ProducerID, m.Commit})
		}
	}
}

// inTxn notes that a group has offsets of a producer's transaction.
func (s *shard) inTxn(producerID int64, group string) {
	if s.txns[producerID] == nil {
		s.txns[producerID] = map[string]struct{}{}
	}
	s.txns[producerID][group] = struct{}{}
}

func sortedKeys(set map[string]struct{}) []string {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
