package kafka

import (
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// addToTxn takes partitions into the transaction of a transactional id, or with
// verifyOnly tells which of them are in it: for AddPartitionsToTxn and
// AddOffsetsToTxn, and for the writes that a transaction begins with (Produce
// since v12, TxnOffsetCommit since v5; version 2 of KIP-890). It waits for the
// record of the coordinator. The error is for all partitions, the errors with
// verifyOnly match parts.
//
// This broker coordinates every transactional id while clusters have one broker;
// txn.ErrNotCoordinator tells of the others.
func (s *Server) addToTxn(r *request, id string, producerID int64, epoch int16, parts []txn.TopicPartition,
	version int, verifyOnly bool) ([]error, error) {
	if s.o.Transactions == nil {
		return nil, txn.ErrNotAvailable
	}
	return s.o.Transactions.AddPartitions(r.ctx, id, producerID, epoch, parts, version, verifyOnly)
}
