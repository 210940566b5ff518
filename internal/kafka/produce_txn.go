package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// A transaction in a log that its coordinator knows nothing of is never ended,
// and stops every reader of committed records (KIP-890). So the first batch of a
// transaction in a partition waits for the coordinator: clients of transaction
// version 2 (Produce v12) have the partition added to the transaction by their
// write, of others it is asked whether they have added it. A verification spans
// the question and the append: see partition.Verification.
//
// The connection waits meanwhile, as with Apache Kafka, so its batches stay in
// order. Batches of a transaction that is open in the partition, and all others,
// do not come here at all.

// versionImplicitAdd is the Produce version from which on clients do not add
// partitions to their transaction themselves.
const versionImplicitAdd = 12

// Fields of a batch header, which VerifyProduce has not seen yet.
const (
	atAttributes    = 21
	atProducerID    = 43
	atProducerEpoch = 51
)

// isTransactional looks at the attributes of the first batch header. Message sets
// of older formats have other fields there, and are refused for their format.
func isTransactional(records []byte) bool {
	return len(records) >= record.HeaderSize && record.Batch(records).Magic() == record.Magic && binary.BigEndian.Uint16(records[atAttributes:])&(1<<4) != 0
}

// producerOf reads a header's producer id and epoch.
func producerOf(records []byte) (id int64, epoch int16) {
	return int64(binary.BigEndian.Uint64(records[atProducerID:])), int16(binary.BigEndian.Uint16(records[atProducerEpoch:]))
}

// verify sees to it that the partitions with transactional batches are in the
// transaction of id; nil is none given. What is wrong with one partition is noted
// there, what is wrong with the request is returned.
func (p *produceCall) verify(s *Server, r *request, id *string) error {
	first := -1
	for i := range p.parts {
		if !isTransactional(p.parts[i].records) {
			continue
		}
		p.parts[i].transactional = true
		if first < 0 {
			first = i
		}
	}
	switch {
	case first < 0:
		return nil
	case s.o.Transactions == nil:
		return fmt.Errorf("%w: this server has none", txn.ErrNotAvailable)
	case id == nil || !s.allowed(r, authz.Write, authz.TransactionalID, *id):
		return errTxnDenied
	}
	producerID, epoch := producerOf(p.parts[first].records)
	for i := range p.parts[first:] {
		part := &p.parts[first+i]
		if !part.transactional {
			continue
		}
		if id, e := producerOf(part.records); id != producerID || e != epoch {
			return fmt.Errorf("%w: batches of producers %d epoch %d and %d epoch %d in one request", txn.ErrUnknownProducer, producerID, epoch, id, e)
		}
	}

	p.checkTxn = !s.o.UnverifiedTransactions
	var ask []txn.TopicPartition
	var asked []int
	for i := range p.parts[first:] {
		part := &p.parts[first+i]
		if !part.transactional || part.err != nil || producerID < 0 {
			continue
		}
		g, err := part.partition.BeginVerification(producerID, epoch)
		if err != nil {
			part.err = err
			continue
		}
		if part.verification = g; g != nil {
			ask, asked = append(ask, txn.TopicPartition{Topic: part.topic, Partition: part.index}), append(asked, first+i)
		}
	}
	if len(ask) == 0 || !p.checkTxn && p.version < versionImplicitAdd {
		return nil
	}
	if err := p.conn.flush(); err != nil { // what was answered before must not wait
		return err
	}
	errs, err := s.joinTxn(r, *id, producerID, epoch, ask, p.version >= versionImplicitAdd)
	for i, at := range asked {
		switch {
		case err != nil:
			p.parts[at].err = produceTxnError(err, p.version)
		case errs[i] != nil:
			p.parts[at].err = produceTxnError(errs[i], p.version)
		}
	}
	return nil
}

// endVerifications follows the appends.
func (p *produceCall) endVerifications() {
	for i := range p.parts {
		if part := &p.parts[i]; part.verification != nil {
			part.partition.EndVerification(part.verification)
			part.verification = nil
		}
	}
}

// produceTxnError puts a coordinator's refusal in the words that producers know
// from a partition's leader.
func produceTxnError(err error, version int16) error {
	switch {
	case errors.Is(err, txn.ErrFenced):
		return fmt.Errorf("%w: %v", producer.ErrFencedEpoch, err)
	case errors.Is(err, txn.ErrNotInTransaction) && version < 11: // does not know the abortable error
		return fmt.Errorf("%w: %v", partition.ErrUnverified, err)
	case errors.Is(err, txn.ErrConcurrent), errors.Is(err, txn.ErrLoading), errors.Is(err, txn.ErrNotAvailable), errors.Is(err, txn.ErrNotCoordinator):
		return fmt.Errorf("%w: %v", errTxnUnsettled, err)
	}
	return err
}
