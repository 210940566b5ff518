package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// peerError turns a code of another broker into the one of ours that errorTable
// makes such a code of; what is none of them is an error all the same.
func peerError(code int16, ours []error) error {
	if code == 0 {
		return nil
	}
	for _, err := range ours {
		if c, _ := errorCode(err); c == code {
			return fmt.Errorf("%w, says the other broker", err)
		}
	}
	if err := kerr.ErrorForCode(code); err != nil {
		return err
	}
	return fmt.Errorf("code %d of the other broker", code)
}

// txnErrors are the codes of a transaction's coordinator that a partition's
// leader tells apart.
var txnErrors = []error{
	txn.ErrNotCoordinator, txn.ErrLoading, txn.ErrNotAvailable, txn.ErrConcurrent, txn.ErrFenced, txn.ErrUnknownProducer,
	txn.ErrNotInTransaction, txn.ErrInvalidState, txn.ErrInvalidRequest, txn.ErrTooManyIDs, partition.ErrReadOnly,
}

// joinTimeout is how long the coordinator of a transaction is waited for, on
// another broker: as long as it waits for its own log.
const joinTimeout = 5 * time.Second

// joinTxn adds partitions that this broker leads to a transaction, or asks whether
// they are in it; the errors match parts. The coordinator may be another broker
// (KIP-890).
func (s *Server) joinTxn(r *request, id string, producerID int64, epoch int16, parts []txn.TopicPartition, add bool) ([]error, error) {
	version := 0
	if add {
		version = partition.EpochBump
	}
	errs, err := s.addToTxn(r, id, producerID, epoch, parts, version, !add)
	if !errors.Is(err, txn.ErrNotCoordinator) || s.o.Peers == nil {
		return errs, err
	}
	t := s.o.Controller.Image().Topic(txn.TopicName)
	if t == nil {
		return nil, fmt.Errorf("%w: %s does not exist", txn.ErrNotAvailable, txn.TopicName)
	}
	p := t.Partition(txn.PartitionFor(id, int32(len(t.Partitions))))
	if p == nil || p.Leader < 0 || p.Leader == s.o.NodeID { // the leadership is on its way
		return nil, err
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	rt := kmsg.NewAddPartitionsToTxnRequestTransaction()
	rt.TransactionalID, rt.ProducerID, rt.ProducerEpoch, rt.VerifyOnly = id, producerID, epoch, !add
	for _, tp := range parts { // those of one topic may stand apart
		one := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
		one.Topic, one.Partitions = tp.Topic, []int32{tp.Partition}
		rt.Topics = append(rt.Topics, one)
	}
	req.Transactions = append(req.Transactions, rt)
	ctx, cancel := context.WithTimeout(r.ctx, joinTimeout)
	defer cancel()
	resp, err := s.o.Peers.Request(ctx, p.Leader, req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", txn.ErrNotAvailable, err)
	}
	return joinAnswers(resp, id, parts)
}

// joinAnswers finds what another broker says about each partition.
func joinAnswers(resp kmsg.Response, id string, parts []txn.TopicPartition) ([]error, error) {
	answer, ok := resp.(*kmsg.AddPartitionsToTxnResponse)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the answer is %T", txn.ErrNotAvailable, resp)
	case answer.ErrorCode != 0:
		return nil, fmt.Errorf("%w: %w", txn.ErrNotAvailable, peerError(answer.ErrorCode, nil))
	}
	codes := map[txn.TopicPartition]int16{}
	for _, t := range answer.Transactions {
		for _, topic := range t.Topics {
			for _, p := range topic.Partitions {
				if t.TransactionalID == id {
					codes[txn.TopicPartition{Topic: topic.Topic, Partition: p.Partition}] = p.ErrorCode
				}
			}
		}
	}
	errs := make([]error, len(parts))
	for i, tp := range parts {
		code, told := codes[tp]
		switch {
		case !told:
			errs[i] = fmt.Errorf("%w: no answer about %s-%d", txn.ErrNotAvailable, tp.Topic, tp.Partition)
		case code == kerr.UnknownTopicOrPartition.Code, code == kerr.OperationNotAttempted.Code:
			// It has not heard of the topic yet: we lead it, so it is there.
			errs[i] = fmt.Errorf("%w: %w", txn.ErrNotAvailable, peerError(code, nil))
		default:
			errs[i] = peerError(code, txnErrors)
		}
	}
	return errs, nil
}
