package kafka

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ListPartitionReassignments (v0)
//
// Behavior:
//   - Lists the moves of replicas that are under way, of the partitions asked about
//     or of all. What is not being moved, or does not exist, is left out, as in
//     Kafka. Needs Describe on the cluster.
func (s *Server) registerListPartitionReassignments() {
	s.register(46, 0, 0, s.listPartitionReassignments)
}

func (s *Server) listPartitionReassignments(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ListPartitionReassignmentsRequest)
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	if !s.allowedCluster(r, authz.Describe) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	add := func(t *metadata.Topic, wanted func(int32) bool) {
		out := kmsg.NewListPartitionReassignmentsResponseTopic()
		out.Topic = t.Name
		for _, p := range t.Partitions {
			if !p.Reassigning() || !wanted(p.Index) {
				continue
			}
			m := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
			m.Partition, m.Replicas = p.Index, p.Replicas
			// Who is in both is on its way out.
			m.AddingReplicas = slices.DeleteFunc(slices.Clone(p.AddingReplicas), func(id int32) bool { return slices.Contains(p.RemovingReplicas, id) })
			m.RemovingReplicas = p.RemovingReplicas
			out.Partitions = append(out.Partitions, m)
		}
		if len(out.Partitions) > 0 {
			resp.Topics = append(resp.Topics, out)
		}
	}
	img := s.o.Controller.Image()
	if req.Topics == nil {
		for t := range img.AllTopics() {
			add(t, func(int32) bool { return true })
		}
	}
	for i := range req.Topics {
		if t := img.Topic(req.Topics[i].Topic); t != nil {
			add(t, func(index int32) bool { return slices.Contains(req.Topics[i].Partitions, index) })
		}
	}
	return resp, nil
}
