package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// FindCoordinator, versions 0 to 5.
//
//   - Groups (key type 0): the leader of the partition of __consumer_offsets
//     that the group's name hashes to. The topic is created at the first
//     question.
//   - Transactions (key type 1): the same with __transaction_state and the
//     transactional id.
//   - A group needs Describe, a transactional id too.
//
// v1 key type and message (KIP-98); v3 flexible; v4 many keys (KIP-699); v5
// nothing here (KIP-890).
//
// Not served: v6, whose only news is share groups (KIP-932).
func (s *Server) registerFindCoordinator() {
	s.register(10, 0, 5, s.findCoordinator)
}

const (
	coordinatorGroup       = 0
	coordinatorTransaction = 1
)

func (s *Server) findCoordinator(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.FindCoordinatorRequest)
	var resp kmsg.FindCoordinatorResponse
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, s.coordinatorOf(r, req.CoordinatorType, key))
		}
		return &resp, nil
	}
	c := s.coordinatorOf(r, req.CoordinatorType, req.CoordinatorKey)
	resp.ErrorCode, resp.ErrorMessage = c.ErrorCode, c.ErrorMessage
	resp.NodeID, resp.Host, resp.Port = c.NodeID, c.Host, c.Port
	return &resp, nil
}

func (s *Server) coordinatorOf(r *request, kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	c := kmsg.FindCoordinatorResponseCoordinator{Key: key, NodeID: -1, Port: -1}
	refuse := func(e *kerr.Error, format string, args ...any) kmsg.FindCoordinatorResponseCoordinator {
		text := fmt.Sprintf(format, args...)
		c.ErrorCode, c.ErrorMessage = e.Code, &text
		return c
	}
	t, index, err := s.coordinatorPartition(r, kind, key)
	if err != nil {
		code, text := errorCode(err)
		c.ErrorCode, c.ErrorMessage = code, text
		return c
	}
	p := t.Partition(index)
	if p == nil || p.Leader < 0 {
		return refuse(kerr.CoordinatorNotAvailable, "%s-%d has no leader", t.Name, index)
	}
	var e metadata.Endpoint
	b, ok := s.o.Controller.Image().Broker(p.Leader), false
	if b != nil && !b.Fenced {
		e, ok = r.conn.listener.endpointOf(b)
	}
	if !ok {
		return refuse(kerr.CoordinatorNotAvailable, "broker %d has no listener %s", p.Leader, r.conn.listener.Name)
	}
	c.NodeID, c.Host, c.Port = p.Leader, e.Host, e.Port
	c.ErrorMessage = new(string) // Kafka's "NONE" has an empty message too
	return c
}

// coordinatorPartition finds the partition whose leader coordinates a key. It
// makes the topic if need be.
func (s *Server) coordinatorPartition(r *request, kind int8, key string) (t *metadata.Topic, index int32, err error) {
	switch {
	case kind == coordinatorGroup && !s.allowed(r, authz.Describe, authz.Group, key):
		return nil, 0, errGroupDenied
	case kind == coordinatorGroup:
		if t, err = s.o.Groups.EnsureTopic(r.ctx, s.o.Controller); err == nil {
			index = group.PartitionFor(key, int32(len(t.Partitions)))
		}
	case kind == coordinatorTransaction && s.o.Transactions == nil:
		return nil, 0, txn.ErrNotAvailable
	case kind == coordinatorTransaction && key == "":
		return nil, 0, fmt.Errorf("%w: empty transactional id", txn.ErrInvalidRequest)
	case kind == coordinatorTransaction && !s.allowed(r, authz.Describe, authz.TransactionalID, key):
		return nil, 0, errTxnDenied
	case kind == coordinatorTransaction:
		if t, err = s.o.Transactions.EnsureTopic(r.ctx, s.o.Controller); err == nil {
			index = txn.PartitionFor(key, int32(len(t.Partitions)))
		}
	default:
		return nil, 0, fmt.Errorf("%w: coordinator type %d is not known", kerr.InvalidRequest, kind)
	}
	if errors.Is(err, group.ErrNotAvailable) || errors.Is(err, txn.ErrNotAvailable) {
		s.o.Logger.Warn("a coordinator's topic cannot be created", "err", err)
	}
	return t, index, err
}
