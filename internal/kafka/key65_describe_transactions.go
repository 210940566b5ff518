package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// DescribeTransactions (v0)
//
// Behavior:
//   - State, producer, timeout and start of transactional ids, and the partitions
//     of their transactions: while one is being ended, those that have no marker
//     yet. TRANSACTIONAL_ID_NOT_FOUND for an id that is not known.
//   - Topics that the client may not describe are left out.
//
// Version notes:
//   - v0: flexible (KIP-664)
//
// Needs DESCRIBE of the transactional ids.
func (s *Server) registerDescribeTransactions() { s.register(65, 0, 0, s.describeTransactions) }

func (s *Server) describeTransactions(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeTransactionsRequest)
	var resp kmsg.DescribeTransactionsResponse
	for _, id := range req.TransactionalIDs {
		st := kmsg.DescribeTransactionsResponseTransactionState{TransactionalID: id, ProducerID: -1, ProducerEpoch: -1, StartTimestamp: -1}
		if !s.allowed(r, authz.Describe, authz.TransactionalID, id) {
			st.ErrorCode = groupCode(errTxnDenied)
			resp.TransactionStates = append(resp.TransactionStates, st)
			continue
		}
		d := s.o.Transactions.Describe(r.ctx, id)
		if gaveUp(r, d.Err) {
			return nil, d.Err
		}
		if st.ErrorCode, _ = errorCode(d.Err); d.Err == nil {
			st.State, st.TimeoutMillis = d.State.String(), int32(d.Timeout.Milliseconds())
			st.ProducerID, st.ProducerEpoch = d.ProducerID, d.Epoch
			if !d.Started.IsZero() {
				st.StartTimestamp = d.Started.UnixMilli()
			}
		}
		for _, tp := range d.Partitions {
			if n := len(st.Topics); n == 0 || st.Topics[n-1].Topic != tp.Topic {
				if !s.visible(r, authz.Describe, authz.Topic, tp.Topic) {
					continue
				}
				st.Topics = append(st.Topics, kmsg.DescribeTransactionsResponseTransactionStateTopic{Topic: tp.Topic})
			}
			last := &st.Topics[len(st.Topics)-1]
			last.Partitions = append(last.Partitions, tp.Partition)
		}
		resp.TransactionStates = append(resp.TransactionStates, st)
	}
	return &resp, nil
}
