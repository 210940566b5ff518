package kafka

import (
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// ConsumerGroupDescribe, versions 0 and 1 (KIP-848): consumer groups with their
// epochs, and of each member what it has and what it is to have.
//
//   - A group that does not exist, or is a classic one, is GROUP_ID_NOT_FOUND:
//     clients then ask with DescribeGroups.
//   - A group with a topic in it that the client may not describe is refused
//     whole, as Kafka does.
//
// v1 tells which protocol a member uses (KIP-1099).
//
// Rights: DESCRIBE on the group and on the topics of its members.
func (s *Server) registerConsumerGroupDescribe() {
	s.register(69, 0, 1, s.consumerGroupDescribe)
}

// Member types of v1.
const (
	memberTypeClassic  = 0
	memberTypeConsumer = 1
)

func (s *Server) consumerGroupDescribe(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ConsumerGroupDescribeRequest)
	var resp kmsg.ConsumerGroupDescribeResponse
	for _, id := range req.Groups {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group, g.AuthorizedOperations = id, math.MinInt32
		if !s.allowed(r, authz.Describe, authz.Group, id) {
			g.ErrorCode = kerr.GroupAuthorizationFailed.Code
			resp.Groups = append(resp.Groups, g)
			continue
		}
		d := s.o.Groups.DescribeConsumer(r.ctx, id)
		if gaveUp(r, d.Err) {
			return nil, d.Err
		}
		if g.ErrorCode, g.ErrorMessage = errorCode(d.Err); d.Err == nil {
			g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName = d.State.String(), d.Epoch, d.AssignmentEpoch, d.Assignor
			if req.IncludeAuthorizedOperations {
				g.AuthorizedOperations = s.operations(r, authz.Group, id)
			}
			for i := range d.Members {
				g.Members = append(g.Members, describedMember(&d.Members[i]))
			}
			if !s.maySeeMembers(r, d.Members) {
				text := "the group has topics that the client may not describe"
				g = kmsg.NewConsumerGroupDescribeResponseGroup()
				g.Group, g.ErrorCode, g.ErrorMessage = id, kerr.TopicAuthorizationFailed.Code, &text
				g.AuthorizedOperations = math.MinInt32
			}
		}
		resp.Groups = append(resp.Groups, g)
	}
	return &resp, nil
}

func describedMember(m *group.ConsumerMemberDescription) kmsg.ConsumerGroupDescribeResponseGroupMember {
	out := kmsg.NewConsumerGroupDescribeResponseGroupMember()
	out.MemberID, out.InstanceID, out.RackID = m.MemberID, orNil(m.InstanceID), orNil(m.Rack)
	out.MemberEpoch, out.ClientID, out.ClientHost = m.Epoch, m.ClientID, m.ClientHost
	out.SubscribedTopics, out.SubscribedTopicRegex = m.Names, orNil(m.Regex)
	out.Assignment, out.TargetAssignment = describedShare(m.Assignment), describedShare(m.Target)
	out.MemberType = memberTypeConsumer
	if m.Classic {
		out.MemberType = memberTypeClassic
	}
	return out
}

func describedShare(topics []group.TopicPartitions) kmsg.Assignment {
	var out kmsg.Assignment
	for _, t := range topics {
		out.TopicPartitions = append(out.TopicPartitions,
			kmsg.AssignmentTopicPartition{TopicID: t.TopicID, Topic: t.Topic, Partitions: t.Partitions})
	}
	return out
}

// maySeeMembers tells whether a client may describe all topics that members have
// or name.
func (s *Server) maySeeMembers(r *request, members []group.ConsumerMemberDescription) bool {
	if s.o.Authorizer == nil {
		return true
	}
	seen := map[string]struct{}{}
	for i := range members {
		for _, n := range members[i].Names {
			seen[n] = struct{}{}
		}
		for _, list := range [][]group.TopicPartitions{members[i].Assignment, members[i].Target} {
			for _, t := range list {
				seen[t.Topic] = struct{}{}
			}
		}
	}
	for topic := range seen {
		if !s.allowed(r, authz.Describe, authz.Topic, topic) {
			return false
		}
	}
	return true
}
