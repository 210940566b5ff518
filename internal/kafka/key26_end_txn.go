package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// EndTxn (v0-v5)
//
// Behavior:
//   - Commits or aborts the transaction of a transactional id. It answers when the
//     decision is durable; readers of committed records see it when the markers
//     are, which follow at once.
//   - Asked again, because the answer was lost, it answers CONCURRENT_TRANSACTIONS
//     until every partition has its marker, and success from then on.
//   - An end that does not fit the state is INVALID_TXN_STATE.
//
// Version notes:
//   - v2: PRODUCER_FENCED (KIP-588); INVALID_PRODUCER_EPOCH before
//   - v3: flexible
//   - v4: TRANSACTION_ABORTABLE (KIP-890)
//   - v5: every end raises the producer's epoch, and gives a new producer id when
//     the epochs are used up; the answer tells both. An abort without a
//     transaction is allowed (KIP-890, part 2)
//
// Needs WRITE of the transactional id.
func (s *Server) registerEndTxn() { s.register(26, 0, 5, s.endTxn) }

func (s *Server) endTxn(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.EndTxnRequest)
	resp := &kmsg.EndTxnResponse{ProducerID: -1, ProducerEpoch: -1}
	if !s.allowed(r, authz.Write, authz.TransactionalID, req.TransactionalID) {
		resp.ErrorCode = groupCode(errTxnDenied)
		return resp, nil
	}
	end := &txn.EndRequest{
		ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Commit: req.Commit,
		Version: txnVersionExplicit,
	}
	if req.Version >= 5 {
		end.Version = txnVersionImplicit
	}
	p, err := s.o.Transactions.End(r.ctx, end)
	if gaveUp(r, err) {
		return nil, err
	}
	resp.ErrorCode = fencedCode(err, req.Version, 2)
	resp.ProducerID, resp.ProducerEpoch = p.ID, p.Epoch
	return resp, nil
}
