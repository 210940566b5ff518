package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// ListTransactions (v0-v2)
//
// Behavior:
//   - The transactional ids that this broker coordinates, and that the client may
//     describe. While one of the partitions is loading, the code says so and the
//     list is empty.
//   - Filters: states (names that do not exist are told), producer ids.
//
// Version notes:
//   - v0: flexible (KIP-664)
//   - v1: filter by how long a transaction has been going on (KIP-994)
//   - v2: filter by a pattern of the transactional id (KIP-1152); one that is no
//     regular expression is INVALID_REGULAR_EXPRESSION
func (s *Server) registerListTransactions() { s.register(66, 0, 2, s.listTransactions) }

func (s *Server) listTransactions(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ListTransactionsRequest)
	f := txn.Filter{States: req.StateFilters, ProducerIDs: req.ProducerIDFilters, LongerThan: -1}
	if req.Version >= 1 && req.DurationFilterMillis >= 0 {
		f.LongerThan = time.Duration(min(req.DurationFilterMillis, maxMillis)) * time.Millisecond
	}
	if req.Version >= 2 {
		f.Pattern = orEmpty(req.TransactionalIDPattern)
	}
	all, unknown, err := s.o.Transactions.List(r.ctx, f)
	if gaveUp(r, err) {
		return nil, err
	}
	resp := &kmsg.ListTransactionsResponse{UnknownStateFilters: unknown}
	if resp.ErrorCode, _ = errorCode(err); err != nil {
		return resp, nil
	}
	for _, l := range all {
		if s.visible(r, authz.Describe, authz.TransactionalID, l.ID) {
			resp.TransactionStates = append(resp.TransactionStates, kmsg.ListTransactionsResponseTransactionState{
				TransactionalID: l.ID, ProducerID: l.ProducerID, TransactionState: l.State.String(),
			})
		}
	}
	return resp, nil
}
