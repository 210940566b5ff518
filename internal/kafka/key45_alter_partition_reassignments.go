package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// AlterPartitionReassignments (v0-v1)
//
// Behavior:
//   - Moves partitions to other replicas, replaces a move under way, or takes it
//     back with null replicas. The answer says that the moves have begun; key 46
//     lists those under way. Needs Alter on the cluster.
//   - A move that is replaced goes from where the partition was first; replicas that
//     only the old target had are dropped at once.
//
// Version notes:
//   - v0: KIP-455
//   - v1: whether the replication factor may change (KIP-860)
func (s *Server) registerAlterPartitionReassignments() {
	s.register(45, 0, 1, s.alterPartitionReassignments)
}

func (s *Server) alterPartitionReassignments(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AlterPartitionAssignmentsRequest)
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	if !s.allowedCluster(r, authz.Alter) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	var moves []controller.Reassign
	for i := range req.Topics {
		for _, in := range req.Topics[i].Partitions {
			moves = append(moves, controller.Reassign{Topic: req.Topics[i].Topic, Partition: in.Partition, Replicas: in.Replicas})
		}
	}
	errs := s.o.Controller.Reassign(r.ctx, moves, req.Version < 1 || req.AllowReplicationFactorChange)
	for i := range req.Topics {
		out := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		out.Topic = req.Topics[i].Topic
		for _, in := range req.Topics[i].Partitions {
			p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			p.Partition = in.Partition
			p.ErrorCode, p.ErrorMessage = errorCode(errs[0])
			errs = errs[1:]
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}
