package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// TxnOffsetCommit (v0-v5)
//
// Behavior:
//   - Stores a group's offsets in a producer's transaction: they become the
//     group's when it commits, and are dropped when it aborts. Until then
//     OffsetFetch with require_stable answers UNSTABLE_OFFSET_COMMIT.
//   - Asks the transaction's coordinator first, as Produce does: see
//     produce_txn.go. Here the group's partition of __consumer_offsets is what has
//     to be in the transaction.
//   - Partitions of topics that do not exist are answered each on its own.
//   - Needs Write on the transactional id, Read on the group and on each topic.
//
// Version notes:
//   - v2: leader epoch (KIP-320); before, a coordinator that is loading is told
//     as not available, which clients of Kafka 0.11 and 1.x need
//   - v3: flexible; member, instance and generation, which fence a consumer that
//     has lost its partitions (KIP-447)
//   - v4: TRANSACTION_ABORTABLE for a group that is not in the transaction (KIP-890)
//   - v5: adds the group to the transaction (KIP-890, transaction version 2)
//
// Not done: v6, topics by id.
func (s *Server) registerTxnOffsetCommit() {
	s.register(28, 0, 5, s.txnOffsetCommit)
}

// versionImplicitGroup is the version from which on clients do not add the group
// to their transaction themselves.
const versionImplicitGroup = 5

func (s *Server) txnOffsetCommit(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.TxnOffsetCommitRequest)
	resp := &kmsg.TxnOffsetCommitResponse{}
	var whole error
	switch {
	case !s.allowed(r, authz.Write, authz.TransactionalID, req.TransactionalID):
		whole = errTxnDenied
	case !s.allowed(r, authz.Read, authz.Group, req.Group):
		whole = errGroupDenied
	}

	img := s.o.Controller.Image()
	commit := &group.TxnCommitRequest{
		Group: req.Group, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch,
		MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
		Verify: !s.o.UnverifiedTransactions,
	}
	if req.Version < 3 {
		commit.Generation = -1
	}
	var stored []*int16 // where the answer for each of commit.Offsets goes
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.TxnOffsetCommitResponseTopic{
			Topic: rt.Topic, Partitions: make([]kmsg.TxnOffsetCommitResponseTopicPartition, len(rt.Partitions)),
		}
		topicErr := whole
		topic := img.Topic(rt.Topic)
		if topicErr == nil && !s.allowedTopic(r, authz.Read, rt.Topic) {
			topicErr = errTopicDenied
		}
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			err := topicErr
			if err == nil && topic.Partition(rp.Partition) == nil {
				err = errUnknownPartition
			}
			out.Partitions[j] = kmsg.TxnOffsetCommitResponseTopicPartition{Partition: rp.Partition, ErrorCode: groupCode(err)}
			if err != nil {
				continue
			}
			o := group.Offset{Topic: rt.Topic, Partition: rp.Partition, Offset: rp.Offset, LeaderEpoch: -1, Metadata: orEmpty(rp.Metadata)}
			if req.Version >= 2 {
				o.LeaderEpoch = rp.LeaderEpoch
			}
			commit.Offsets = append(commit.Offsets, o)
			stored = append(stored, &out.Partitions[j].ErrorCode)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(stored) == 0 {
		return resp, nil
	}
	errs, err := s.commitInTxn(r, req, commit)
	if gaveUp(r, err) {
		return nil, err
	}
	for i, code := range stored {
		if *code = groupCode(err); err == nil {
			*code = groupCode(errs[i])
		}
		if req.Version < 2 && *code == kerr.CoordinatorLoadInProgress.Code {
			*code = kerr.CoordinatorNotAvailable.Code
		}
	}
	return resp, nil
}

// commitInTxn asks the transaction's coordinator, where that is needed, and
// stores the offsets.
func (s *Server) commitInTxn(r *request, req *kmsg.TxnOffsetCommitRequest, commit *group.TxnCommitRequest) ([]error, error) {
	if req.Group == "" {
		return nil, group.ErrInvalidGroupID
	}
	index := s.o.Groups.PartitionOf(req.Group)
	p := s.o.Partitions.Get(group.TopicName, index)
	if p == nil {
		return nil, group.ErrNotCoordinator
	}
	g, err := p.BeginVerification(req.ProducerID, req.ProducerEpoch)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", group.ErrNotCoordinator, err)
	}
	defer p.EndVerification(g)
	add := req.Version >= versionImplicitGroup
	if g != nil && (add || commit.Verify) {
		parts := []txn.TopicPartition{{Topic: group.TopicName, Partition: index}}
		errs, err := s.joinTxn(r, req.TransactionalID, req.ProducerID, req.ProducerEpoch, parts, add)
		if err == nil {
			err = errs[0]
		}
		if err != nil {
			return nil, offsetTxnError(err, req.Version)
		}
		commit.Verification = g
	}
	return s.o.Groups.CommitInTxn(r.ctx, commit)
}

// offsetTxnError puts a transaction coordinator's refusal in the words that
// producers know from a group's coordinator.
func offsetTxnError(err error, version int16) error {
	switch {
	case errors.Is(err, txn.ErrFenced):
		return fmt.Errorf("%w: %v", producer.ErrFencedEpoch, err)
	case errors.Is(err, txn.ErrNotInTransaction) && version < 4:
		return fmt.Errorf("%w: %v", partition.ErrUnverified, err)
	case errors.Is(err, txn.ErrConcurrent), errors.Is(err, txn.ErrLoading), errors.Is(err, txn.ErrNotAvailable), errors.Is(err, txn.ErrNotCoordinator):
		return fmt.Errorf("%w: the transaction's: %v", group.ErrLoading, err)
	}
	return err
}
