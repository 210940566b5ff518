package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// ConsumerGroupHeartbeat, versions 0 and 1 (KIP-848): the one request by which a
// member of a consumer group joins, keeps its session, tells what it is
// subscribed to and what it has, learns what it may read, and leaves.
//
//   - The answer comes when the log has what it tells.
//   - A null list, a null string and a timeout of -1 say that nothing has changed.
//   - A pattern is in RE2's language and is held against the whole name of each
//     topic that is not internal and that the client may describe. Topics that
//     come later are found as soon as the broker knows of them.
//   - An empty classic group becomes a consumer group with its first member here;
//     one with members does if group.consumer.migration.policy allows it.
//
// v0: the broker gives out member ids; v1: clients choose them (KIP-1082), and
// subscribe by pattern.
//
// Rights: READ on the group; DESCRIBE on each topic subscribed to by name.
func (s *Server) registerConsumerGroupHeartbeat() {
	s.register(68, 0, 1, s.consumerGroupHeartbeat)
}

func (s *Server) consumerGroupHeartbeat(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ConsumerGroupHeartbeatRequest)
	if !s.allowed(r, authz.Read, authz.Group, req.Group) {
		return &kmsg.ConsumerGroupHeartbeatResponse{ErrorCode: kerr.GroupAuthorizationFailed.Code}, nil
	}
	for _, name := range req.SubscribedTopicNames {
		if !s.allowed(r, authz.Describe, authz.Topic, name) {
			return &kmsg.ConsumerGroupHeartbeatResponse{ErrorCode: kerr.TopicAuthorizationFailed.Code}, nil
		}
	}
	beat := &group.ConsumerHeartbeatRequest{
		Group: req.Group, MemberID: req.MemberID, Epoch: req.MemberEpoch, InstanceID: req.InstanceID, Rack: req.RackID,
		ClientID: r.clientID(), ClientHost: r.clientHost(),
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		Names:            req.SubscribedTopicNames, Assignor: req.ServerAssignor,
		OwnMemberID: req.Version >= 1,
		Visible:     s.visibleTopics(r),
	}
	if req.Version >= 1 {
		beat.Regex = req.SubscribedTopicRegex
	}
	if req.Topics != nil {
		beat.Owned = []group.TopicIDPartitions{}
		for _, t := range req.Topics {
			beat.Owned = append(beat.Owned, group.TopicIDPartitions{TopicID: t.TopicID, Partitions: t.Partitions})
		}
	}
	res := s.o.Groups.ConsumerHeartbeat(r.ctx, beat)
	if gaveUp(r, res.Err) {
		return nil, res.Err
	}
	code, message := errorCode(res.Err)
	resp := &kmsg.ConsumerGroupHeartbeatResponse{ErrorCode: code, ErrorMessage: message}
	if res.Err != nil {
		return resp, nil
	}
	resp.MemberID, resp.MemberEpoch = &res.MemberID, res.Epoch
	resp.HeartbeatIntervalMillis = int32(res.HeartbeatInterval.Milliseconds())
	if res.HasAssignment {
		resp.Assignment = &kmsg.ConsumerGroupHeartbeatResponseAssignment{}
		for _, t := range res.Assignment {
			resp.Assignment.Topics = append(resp.Assignment.Topics,
				kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{TopicID: t.TopicID, Partitions: t.Partitions})
		}
	}
	return resp, nil
}

// visibleTopics tells, also when the request is over, which topics its client may
// find by a pattern; nil: all.
func (s *Server) visibleTopics(r *request) func(string) bool {
	if s.o.Authorizer == nil {
		return nil
	}
	who, from := r.principal(), r.conn.ip
	return func(topic string) bool {
		return s.o.Authorizer.Allowed(s.o.Controller.Image(), who, from, authz.Describe, authz.Topic, topic)
	}
}
