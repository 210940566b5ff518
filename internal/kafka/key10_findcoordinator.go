package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// FindCoordinator, versions 0 to 5.
//
//   - Groups (key type 0): the leader of the partition of __consumer_offsets
//     that the group's name hashes to. The topic is created at the first
//     question.
//   - A group needs Describe, a transactional id too.
//   - Transactions (key type 1) are not served yet. The answer is a code that no
//     client tries again, with a message that says so.
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
	switch kind {
	case coordinatorGroup:
		if !s.allowed(r, authz.Describe, authz.Group, key) {
			c.ErrorCode, c.ErrorMessage = errorCode(errGroupDenied)
			return c
		}
	case coordinatorTransaction:
		code, text := errorCode(errTransactions)
		c.ErrorCode, c.ErrorMessage = code, text
		return c
	default:
		return refuse(kerr.InvalidRequest, "coordinator type %d is not known", kind)
	}

	t, err := s.o.Groups.EnsureTopic(r.ctx, s.o.Controller)
	if err != nil {
		s.o.Logger.Warn("offsets topic cannot be created", "err", err)
		return refuse(kerr.CoordinatorNotAvailable, "%v", err)
	}
	index := group.PartitionFor(key, int32(len(t.Partitions)))
	p := t.Partition(index)
	if p == nil || p.Leader < 0 {
		return refuse(kerr.CoordinatorNotAvailable, "%s-%d has no leader", group.TopicName, index)
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
