package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// InitProducerId (v0-v5)
//
// Behavior:
//   - Gives an idempotent producer an id that no other producer of the cluster
//     has. Ids come in blocks from the controller, so most requests write
//     nothing; what is left of a block at a restart is never used.
//   - With a transactional id it gives that id's producer id with the next epoch,
//     which fences the producer before. That one's open transaction is aborted
//     first; meanwhile the answer is CONCURRENT_TRANSACTIONS. A producer id whose
//     epochs are used up is replaced.
//   - An id that expired is not known here, so a producer that asks to go on
//     with its own (KIP-360, without a transactional id) gets a new one.
//   - Allowed while topics are mirrored (spec 10.5).
//
// Version notes:
//   - v2: flexible
//   - v3: producer id and epoch in the request (KIP-360)
//   - v4: PRODUCER_FENCED (KIP-588); INVALID_PRODUCER_EPOCH before
//   - v5: no change of the message (KIP-890)
//
// Needs WRITE of the transactional id. Not done: v6, two-phase commit (KIP-939).
func (s *Server) registerInitProducerID() {
	ids := txn.NewProducerIDs(s.o.Controller.AllocateProducerIDs)
	s.register(22, 0, 5, func(r *request, body kmsg.Request) (kmsg.Response, error) {
		req := body.(*kmsg.InitProducerIDRequest)
		if req.TransactionalID != nil {
			return s.initTransactionalID(r, req)
		}
		resp := &kmsg.InitProducerIDResponse{ProducerID: -1, ProducerEpoch: -1}
		if !s.allowedIdempotent(r) {
			resp.ErrorCode, _ = errorCode(errClusterDenied)
			return resp, nil
		}
		id, err := ids.Next(r.ctx)
		if err != nil {
			s.o.Logger.Warn("no producer id", "client", r.clientID(), "err", err)
			resp.ErrorCode, _ = errorCode(err)
			return resp, nil
		}
		resp.ProducerID, resp.ProducerEpoch = id, 0
		return resp, nil
	})
}

func (s *Server) initTransactionalID(r *request, req *kmsg.InitProducerIDRequest) (kmsg.Response, error) {
	resp := &kmsg.InitProducerIDResponse{ProducerID: -1, ProducerEpoch: -1}
	switch {
	case s.o.Transactions == nil:
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp, nil
	case !s.allowed(r, authz.Write, authz.TransactionalID, *req.TransactionalID):
		resp.ErrorCode = groupCode(errTxnDenied)
		return resp, nil
	}
	p, err := s.o.Transactions.InitProducer(r.ctx, &txn.InitRequest{
		ID: *req.TransactionalID, Timeout: time.Duration(req.TransactionTimeoutMillis) * time.Millisecond,
		Principal:  r.principal().String(),
		ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch,
	})
	if gaveUp(r, err) {
		return nil, err
	}
	resp.ErrorCode = fencedCode(err, req.Version, 4)
	resp.ProducerID, resp.ProducerEpoch = p.ID, p.Epoch
	return resp, nil
}
