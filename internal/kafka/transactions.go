package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// registerTransactions adds the keys of the transaction coordinator.
func (s *Server) registerTransactions() {
	if s.o.Transactions == nil {
		return
	}
	s.registerAddPartitionsToTxn()
	s.registerAddOffsetsToTxn()
	s.registerEndTxn()
	s.registerDescribeTransactions()
	s.registerListTransactions()
}

// Transaction versions (KIP-890): from 2 on, producers raise their epoch with
// every transaction, and partitions join by being written to.
const (
	txnVersionExplicit = 0
	txnVersionImplicit = 2
)

// addToTxn takes partitions into the transaction of a transactional id, or with
// verifyOnly tells which of them are in it: for AddPartitionsToTxn and
// AddOffsetsToTxn, and for the writes that a transaction begins with (Produce
// since v12, TxnOffsetCommit since v5; version 2 of KIP-890). It waits for the
// record of the coordinator. The error is for all partitions, the errors with
// verifyOnly match parts.
//
// txn.ErrNotCoordinator tells that another broker coordinates the id; see joinTxn.
func (s *Server) addToTxn(r *request, id string, producerID int64, epoch int16, parts []txn.TopicPartition,
	version int, verifyOnly bool) ([]error, error) {
	if s.o.Transactions == nil {
		return nil, txn.ErrNotAvailable
	}
	return s.o.Transactions.AddPartitions(r.ctx, id, producerID, epoch, parts, version, verifyOnly)
}

// WriteMarkers is txn.Options.WriteMarkers over the partitions of this broker
// alone. img tells the current metadata: a partition that is only not open yet,
// after a start say, is not one that was deleted.
func (w MarkerWriter) WriteMarkers(img func() *metadata.Image) func(context.Context, txn.Marker, []txn.TopicPartition) []error {
	return NewMarkerSender(MarkerSenderOptions{Local: w, Image: img}).WriteMarkers
}

// markerOutcome sorts a partition's refusal of a marker into what is final and
// what is tried again.
func markerOutcome(err error, exists bool) error {
	switch {
	case err == nil:
		return nil
	case !exists:
		return txn.ErrPartitionGone
	case errors.Is(err, partition.ErrReadOnly):
		// It became a mirror, whose records are the source's. What was open here
		// was cut, or is aborted when the mirror stops (spec 9.14).
		return txn.ErrPartitionGone
	case errors.Is(err, producer.ErrFencedEpoch):
		return txn.ErrMarkerOutdated
	case errors.Is(err, producer.ErrCoordinatorFenced):
		return txn.ErrCoordinatorFenced
	}
	return err
}

// mayJoin tells why partitions cannot join a transaction: they do not exist, or
// a mirror has them (spec 10.5). When one cannot, none does.
func (s *Server) mayJoin(parts []txn.TopicPartition, authorized func(topic string) bool) (codes []int16, ok bool) {
	img := s.o.Controller.Image()
	codes, ok = make([]int16, len(parts)), true
	for i, tp := range parts {
		t := img.Topic(tp.Topic)
		p := t.Partition(tp.Partition)
		switch {
		case !authorized(tp.Topic):
			codes[i] = groupCode(errTopicDenied)
		case p == nil:
			codes[i] = kerr.UnknownTopicOrPartition.Code
		case t.ReadOnly(p):
			codes[i] = codeReadOnlyTopic
		default:
			continue
		}
		ok = false
	}
	if !ok {
		for i := range codes {
			if codes[i] == 0 {
				codes[i] = kerr.OperationNotAttempted.Code
			}
		}
	}
	return codes, ok
}
