package kafka

import (
	"net"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// metadataTopic is what Kafka calls the log of the metadata. Nobody can read it here:
// it is etcd's.
const metadataTopic = "__cluster_metadata"

// controllerListener is the name of the listener at which controllers reach each other.
const controllerListener = "CONTROLLER"

// DescribeQuorum (v0-v2)
//
// Behavior:
//   - Tells who has the metadata and how far (KIP-595, KIP-836). Offsets are those of
//     etcd's log, the epoch is its term, and the leader is the member that leads it,
//     which is not always the active controller.
//   - Every broker answers: it asks the controllers. One that does not answer has
//     offset -1 and no times.
//   - Needs Describe on the cluster.
//
// Version notes:
//   - v1: times of the last fetch and of having caught up; here both are now, as each
//     controller is asked
//   - v2: directory ids, which controllers do not have here, and their listeners
//     (KIP-853)
func (s *Server) registerDescribeQuorum() {
	s.register(55, 0, 2, s.describeQuorum)
}

func (s *Server) describeQuorum(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeQuorumRequest)
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	if !s.allowedCluster(r, authz.Describe) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	q, err := s.o.Controller.DescribeQuorum(r.ctx)
	if err != nil {
		code, text := errorCode(err)
		resp.ErrorCode, resp.ErrorMessage = code, text
		return resp, nil
	}
	for i := range req.Topics {
		t := kmsg.NewDescribeQuorumResponseTopic()
		t.Topic = req.Topics[i].Topic
		for _, p := range req.Topics[i].Partitions {
			out := kmsg.NewDescribeQuorumResponseTopicPartition()
			out.Partition = p.Partition
			if t.Topic != metadataTopic || p.Partition != 0 {
				out.ErrorCode, out.LeaderID = kerr.UnknownTopicOrPartition.Code, -1
			} else {
				out.LeaderID, out.LeaderEpoch, out.HighWatermark = q.Leader, int32(q.Term), q.End
				out.CurrentVoters, out.Observers = quorumReplicas(q.Voters), quorumReplicas(q.Learners)
			}
			t.Partitions = append(t.Partitions, out)
		}
		resp.Topics = append(resp.Topics, t)
	}
	for _, m := range append(q.Voters, q.Learners...) {
		n := kmsg.NewDescribeQuorumResponseNode()
		n.NodeID = m.Node
		if host, port, err := net.SplitHostPort(m.Addr); err == nil {
			number, _ := strconv.ParseUint(port, 10, 16) // it is an address that works
			l := kmsg.NewDescribeQuorumResponseNodeListener()
			l.Name, l.Host, l.Port = controllerListener, host, uint16(number)
			n.Listeners = append(n.Listeners, l)
		}
		resp.Nodes = append(resp.Nodes, n)
	}
	return resp, nil
}

func quorumReplicas(members []controller.QuorumMember) []kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	var out []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	for _, m := range members {
		r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		r.ReplicaID, r.LogEndOffset = m.Node, m.End
		if !m.Seen.IsZero() {
			r.LastFetchTimestamp, r.LastCaughtUpTimestamp = m.Seen.UnixMilli(), m.Seen.UnixMilli()
		}
		out = append(out, r)
	}
	return out
}
