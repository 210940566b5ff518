package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ElectLeaders (v0-v2)
//
// Behavior:
//   - A partition has one replica, which leads it: there is nothing to elect, and
//     the answer says so as Apache Kafka's does (ELECTION_NOT_NEEDED), or that the
//     one replica is not there. Asked for all partitions, those that need no
//     election are left out.
//
// Version notes:
//   - v1: the kind of election: preferred (0) or unclean (1) (KIP-460)
//   - v2: flexible
func (s *Server) registerElectLeaders() {
	s.register(43, 0, 2, s.electLeaders)
}

func (s *Server) electLeaders(r *request, body kmsg.Request) (kmsg.Response, error) {
	const preferred, unclean = 0, 1
	req := body.(*kmsg.ElectLeadersRequest)
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	img := s.o.Controller.Image()
	var refused error
	switch {
	case !s.allowedCluster(r, authz.Alter):
		refused = kerr.ClusterAuthorizationFailed
	case req.ElectionType != preferred && req.ElectionType != unclean:
		refused = fmt.Errorf("%w: election type %d", kerr.InvalidRequest, req.ElectionType)
	}
	resp.ErrorCode, _ = errorCode(refused)
	topics := req.Topics
	if topics == nil && refused == nil {
		for t := range img.AllTopics() {
			rt := kmsg.NewElectLeadersRequestTopic()
			rt.Topic = t.Name
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, p.Index)
			}
			topics = append(topics, rt)
		}
	}
	for i := range topics {
		out := kmsg.NewElectLeadersResponseTopic()
		out.Topic = topics[i].Topic
		for _, index := range topics[i].Partitions {
			err := refused
			if err == nil {
				err = elect(img, out.Topic, index, req.ElectionType == unclean)
			}
			p := kmsg.NewElectLeadersResponseTopicPartition()
			p.Partition = index
			if p.ErrorCode, p.ErrorMessage = errorCode(err); req.Topics != nil || p.ErrorCode != kerr.ElectionNotNeeded.Code {
				out.Partitions = append(out.Partitions, p)
			}
		}
		if len(out.Partitions) > 0 {
			resp.Topics = append(resp.Topics, out)
		}
	}
	return resp, nil
}

// elect tells why no leader is elected.
func elect(img *metadata.Image, topic string, index int32, unclean bool) error {
	p := img.Topic(topic).Partition(index)
	switch {
	case p == nil:
		return fmt.Errorf("%w: %s-%d", errUnknownPartition, topic, index)
	case p.Leader >= 0:
		return kerr.ElectionNotNeeded
	case unclean:
		return kerr.EligibleLeadersNotAvailable
	}
	return kerr.PreferredLeaderNotAvailable
}
