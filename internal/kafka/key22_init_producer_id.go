package kafka

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerId (v0-v5)
//
// Behavior:
//   - Gives an idempotent producer an id that no other producer of the cluster
//     has. Ids come in blocks from the controller, so most requests write
//     nothing; what is left of a block at a restart is never used.
//   - With a transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED. There is
//     no transaction coordinator, and this is the code that every client takes
//     as final (errors.go).
//   - An id that expired is not known here, so a producer that asks to go on
//     with its own (KIP-360, without a transactional id) gets a new one.
//   - Allowed while topics are mirrored (spec 10.5).
//
// Version notes:
//   - v2: flexible
//   - v3: producer id and epoch in the request (KIP-360)
//   - v4: PRODUCER_FENCED, v5: no change of the message (KIP-890)
func (s *Server) registerInitProducerID() {
	ids := &producerIDs{allocate: s.o.Controller.AllocateProducerIDs}
	s.register(22, 0, 5, func(r *request, body kmsg.Request) (kmsg.Response, error) {
		req := body.(*kmsg.InitProducerIDRequest)
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ProducerID, resp.ProducerEpoch = -1, -1
		if req.TransactionalID != nil {
			resp.ErrorCode, _ = errorCode(errTransactions)
			return resp, nil
		}
		if !s.allowedIdempotent(r) {
			resp.ErrorCode, _ = errorCode(errClusterDenied)
			return resp, nil
		}
		id, err := ids.next(r.ctx)
		if err != nil {
			s.o.Logger.Warn("no producer id", "client", r.clientID(), "err", err)
			resp.ErrorCode, _ = errorCode(err)
			return resp, nil
		}
		resp.ProducerID, resp.ProducerEpoch = id, 0
		return resp, nil
	})
}

// producerIDBlock is Kafka's: 1 000 ids per write to the metadata.
const producerIDBlock = 1000

// producerIDs hands out the ids of a block.
type producerIDs struct {
	allocate func(ctx context.Context, n int32) (first int64, err error)

	mu        sync.Mutex // held across allocate: who waits needs its result
	free, end int64      // [free, end) are ours to give
}

func (p *producerIDs) next(ctx context.Context) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == p.end {
		first, err := p.allocate(ctx, producerIDBlock)
		if err != nil {
			return -1, err
		}
		p.free, p.end = first, first+producerIDBlock
	}
	id := p.free
	p.free++
	return id, nil
}
