package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// ElectLeaders (v0-v2)
//
// Behavior:
//   - Makes the preferred leader, which is the first replica, lead again, or with
//     type 1 elects a living replica that may lack records, if nobody else is left;
//     that needs no unclean.leader.election.enable, as in Kafka, but a plugin for
//     unclean elections is asked. Needs Alter on the cluster.
//   - Asked for all partitions, those that need no election are left out.
//   - The answer comes when the elections are decided, so the timeout has no use.
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
	var refused error
	switch {
	case !s.allowedCluster(r, authz.Alter):
		refused = kerr.ClusterAuthorizationFailed
	case req.ElectionType != preferred && req.ElectionType != unclean:
		refused = fmt.Errorf("%w: election type %d", kerr.InvalidRequest, req.ElectionType)
	}
	resp.ErrorCode, _ = errorCode(refused)
	wanted := s.wantedElections(req, refused != nil)
	errs := make([]error, len(wanted))
	if refused == nil {
		errs = s.o.Controller.ElectLeaders(r.ctx, wanted)
	}
	for i, w := range wanted {
		p := kmsg.NewElectLeadersResponseTopicPartition()
		p.Partition = w.Partition
		if errs[i] == nil {
			errs[i] = refused
		}
		if p.ErrorCode, p.ErrorMessage = errorCode(errs[i]); req.Topics == nil && p.ErrorCode == kerr.ElectionNotNeeded.Code {
			continue
		}
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != w.Topic {
			out := kmsg.NewElectLeadersResponseTopic()
			out.Topic = w.Topic
			resp.Topics = append(resp.Topics, out)
		}
		last := &resp.Topics[len(resp.Topics)-1]
		last.Partitions = append(last.Partitions, p)
	}
	return resp, nil
}

// wantedElections is what the request names. Null topics are all partitions, of which
// only those are asked about that may need an election: there can be very many.
func (s *Server) wantedElections(req *kmsg.ElectLeadersRequest, refused bool) []controller.ElectLeader {
	var wanted []controller.ElectLeader
	isUnclean := req.ElectionType == 1
	if req.Topics == nil && !refused {
		for t := range s.o.Controller.Image().AllTopics() {
			for _, p := range t.Partitions {
				if isUnclean && p.Leader < 0 || !isUnclean && p.Leader != p.Replicas[0] {
					wanted = append(wanted, controller.ElectLeader{Topic: t.Name, Partition: p.Index, Unclean: isUnclean})
				}
			}
		}
	}
	for i := range req.Topics {
		for _, index := range req.Topics[i].Partitions {
			wanted = append(wanted, controller.ElectLeader{Topic: req.Topics[i].Topic, Partition: index, Unclean: isUnclean})
		}
	}
	return wanted
}
