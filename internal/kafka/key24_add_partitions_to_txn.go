package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// AddPartitionsToTxn (v0-v5)
//
// Behavior:
//   - Takes partitions into the transaction of a transactional id, before the
//     producer writes to them. All of them or none: beside one that does not
//     exist the others answer OPERATION_NOT_ATTEMPTED.
//   - Up to v3, which clients send, topics of the coordinators are refused as
//     TOPIC_AUTHORIZATION_FAILED, whatever the client may do.
//   - A partition of a mirrored topic answers 134 READ_ONLY_TOPIC (spec 10.5).
//   - While the last transaction is being ended the request waits for that, up
//     to a second, and then answers CONCURRENT_TRANSACTIONS. Apache Kafka answers
//     that at once, and clients ask again after a pause.
//
// Version notes:
//   - v2: PRODUCER_FENCED (KIP-588); INVALID_PRODUCER_EPOCH before
//   - v3: flexible
//   - v4: many transactions, and verify_only; for brokers (KIP-890)
//   - v5: TRANSACTION_ABORTABLE (KIP-890)
//
// Needs WRITE of the transactional id and of the topics; from v4 on
// CLUSTER_ACTION instead.
func (s *Server) registerAddPartitionsToTxn() { s.register(24, 0, 5, s.addPartitionsToTxn) }

func (s *Server) addPartitionsToTxn(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AddPartitionsToTxnRequest)
	var resp kmsg.AddPartitionsToTxnResponse
	if req.Version < 4 {
		var parts []txn.TopicPartition
		for _, t := range req.Topics {
			for _, p := range t.Partitions {
				parts = append(parts, txn.TopicPartition{Topic: t.Topic, Partition: p})
			}
		}
		img := s.o.Controller.Image()
		writable := func(topic string) bool {
			t := img.Topic(topic)
			return (t == nil || !t.Internal) && s.allowed(r, authz.Write, authz.Topic, topic)
		}
		codes := make([]int16, len(parts))
		if s.allowed(r, authz.Write, authz.TransactionalID, req.TransactionalID) {
			codes = s.addOne(r, req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, parts, false, writable)
		} else {
			fill(codes, groupCode(errTxnDenied))
		}
		for _, t := range req.Topics {
			out := kmsg.AddPartitionsToTxnResponseTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: p, ErrorCode: codes[0]})
				codes = codes[1:]
			}
			resp.Topics = append(resp.Topics, out)
		}
		return &resp, r.ctx.Err()
	}

	if !s.allowedCluster(r, authz.ClusterAction) {
		resp.ErrorCode = groupCode(errClusterDenied)
		return &resp, nil
	}
	for _, t := range req.Transactions {
		var parts []txn.TopicPartition
		for _, rt := range t.Topics {
			for _, p := range rt.Partitions {
				parts = append(parts, txn.TopicPartition{Topic: rt.Topic, Partition: p})
			}
		}
		codes := s.addOne(r, req.Version, t.TransactionalID, t.ProducerID, t.ProducerEpoch, parts, t.VerifyOnly,
			func(string) bool { return true })
		ot := kmsg.AddPartitionsToTxnResponseTransaction{TransactionalID: t.TransactionalID}
		for _, rt := range t.Topics {
			out := kmsg.AddPartitionsToTxnResponseTransactionTopic{Topic: rt.Topic}
			for _, p := range rt.Partitions {
				out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: codes[0]})
				codes = codes[1:]
			}
			ot.Topics = append(ot.Topics, out)
		}
		resp.Transactions = append(resp.Transactions, ot)
	}
	return &resp, r.ctx.Err()
}

// addOne adds to, or verifies, one transaction; the codes match parts.
func (s *Server) addOne(r *request, version int16, id string, producerID int64, epoch int16, parts []txn.TopicPartition,
	verifyOnly bool, authorized func(topic string) bool) []int16 {
	codes, ok := s.mayJoin(parts, authorized)
	if !ok {
		return codes
	}
	txnVersion := txnVersionExplicit
	if version >= 5 {
		txnVersion = txnVersionImplicit
	}
	errs, err := s.addToTxn(r, id, producerID, epoch, parts, txnVersion, verifyOnly)
	if err != nil {
		fill(codes, fencedCode(err, version, 2))
		return codes
	}
	for i, err := range errs {
		codes[i] = fencedCode(err, version, 2)
		if codes[i] == kerr.TransactionAbortable.Code && version < 5 {
			codes[i] = kerr.InvalidTxnState.Code
		}
	}
	return codes
}

func fill(codes []int16, code int16) {
	for i := range codes {
		codes[i] = code
	}
}
