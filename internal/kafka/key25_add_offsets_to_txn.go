package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// AddOffsetsToTxn (v0-v4)
//
// Behavior:
//   - Takes the partition of __consumer_offsets that a group's name hashes to into
//     the transaction; the offsets themselves come by TxnOffsetCommit (key 28).
//   - Creates __consumer_offsets when it is not there: a producer may commit for
//     a group before anyone has asked for the group's coordinator.
//
// Version notes:
//   - v2: PRODUCER_FENCED (KIP-588); INVALID_PRODUCER_EPOCH before
//   - v3: flexible
//   - v4: no change of the message (KIP-890)
//
// Needs WRITE of the transactional id and READ of the group.
func (s *Server) registerAddOffsetsToTxn() { s.register(25, 0, 4, s.addOffsetsToTxn) }

func (s *Server) addOffsetsToTxn(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AddOffsetsToTxnRequest)
	var resp kmsg.AddOffsetsToTxnResponse
	switch {
	case !s.allowed(r, authz.Write, authz.TransactionalID, req.TransactionalID):
		resp.ErrorCode = groupCode(errTxnDenied)
	case !s.allowed(r, authz.Read, authz.Group, req.Group):
		resp.ErrorCode = groupCode(errGroupDenied)
	default:
		err := s.addGroupToTxn(r, req)
		resp.ErrorCode = fencedCode(err, req.Version, 2)
	}
	return &resp, r.ctx.Err()
}

func (s *Server) addGroupToTxn(r *request, req *kmsg.AddOffsetsToTxnRequest) error {
	if s.o.Groups == nil {
		return fmt.Errorf("%w: there is no group coordinator", txn.ErrNotAvailable)
	}
	if _, err := s.o.Groups.EnsureTopic(r.ctx, s.o.Controller); err != nil {
		return err
	}
	part := txn.TopicPartition{Topic: group.TopicName, Partition: s.o.Groups.PartitionOf(req.Group)}
	_, err := s.addToTxn(r, req.TransactionalID, req.ProducerID, req.ProducerEpoch, []txn.TopicPartition{part},
		txnVersionExplicit, false)
	return err
}
