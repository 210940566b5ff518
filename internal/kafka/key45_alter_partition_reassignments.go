package kafka

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// AlterPartitionReassignments (v0-v1)
//
// Behavior:
//   - Replicas do not move while a cluster has one broker. The replicas that a
//     partition has already are a success, others INVALID_REPLICA_ASSIGNMENT, and a
//     cancellation finds nothing to cancel, as in Apache Kafka.
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
	img := s.o.Controller.Image()
	for i := range req.Topics {
		out := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		out.Topic = req.Topics[i].Topic
		for _, in := range req.Topics[i].Partitions {
			p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			p.Partition = in.Partition
			p.ErrorCode, p.ErrorMessage = errorCode(reassign(img, out.Topic, in.Partition, in.Replicas))
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}

// reassign tells why replicas cannot be a partition's; nil replicas cancel.
func reassign(img *metadata.Image, topic string, index int32, replicas []int32) error {
	p := img.Topic(topic).Partition(index)
	switch {
	case p == nil:
		return fmt.Errorf("%w: %s-%d", errUnknownPartition, topic, index)
	case replicas == nil:
		return kerr.NoReassignmentInProgress
	case slices.Equal(replicas, p.Replicas):
		return nil
	}
	return fmt.Errorf("%w: replicas %v: a partition stays where it is, on %v, while a cluster has one broker", kerr.InvalidReplicaAssignment, replicas, p.Replicas)
}
