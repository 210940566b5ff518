package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// DescribeLogDirs (v0-v4)
//
// Behavior:
//   - All log directories, those that are offline with KAFKA_STORAGE_ERROR, each
//     with the logs in it that were asked for. Needs Describe on the cluster.
//
// Version notes:
//   - v2: flexible
//   - v3: an error for the whole answer, which is empty before
//   - v4: size of the file system and what of it is usable (KIP-827)
//
// Not done: v5, cordoned directories. Nor AlterReplicaLogDirs (34): logs are
// moved between directories by hand, while the server is stopped.
func (s *Server) registerDescribeLogDirs() {
	s.register(35, 0, 4, s.describeLogDirs)
}

func (s *Server) describeLogDirs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeLogDirsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	if !s.allowedCluster(r, authz.Describe) {
		resp.ErrorCode, _ = errorCode(errClusterDenied)
		return resp, nil
	}
	type wanted struct {
		topic string
		index int32
	}
	var only map[wanted]bool // nil: all
	if req.Topics != nil {
		only = map[wanted]bool{}
		for i := range req.Topics {
			for _, index := range req.Topics[i].Partitions {
				only[wanted{req.Topics[i].Topic, index}] = true
			}
		}
	}
	for _, dir := range s.o.Partitions.LogDirs() {
		out := kmsg.NewDescribeLogDirsResponseDir()
		out.Dir, out.TotalBytes, out.UsableBytes = dir.Path, dir.Total, dir.Usable
		if dir.Err != nil {
			out.ErrorCode, _ = errorCode(partition.ErrDirOffline)
			resp.Dirs = append(resp.Dirs, out)
			continue
		}
		for _, p := range dir.Partitions { // sorted by topic
			key := p.Key()
			if p.Log() == nil || only != nil && !only[wanted{key.Topic, key.Partition}] {
				continue
			}
			if n := len(out.Topics); n == 0 || out.Topics[n-1].Topic != key.Topic {
				rt := kmsg.NewDescribeLogDirsResponseDirTopic()
				rt.Topic = key.Topic
				out.Topics = append(out.Topics, rt)
			}
			rt := &out.Topics[len(out.Topics)-1]
			rp := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
			rp.Partition, rp.Size = key.Partition, p.Log().Size()
			rp.OffsetLag = max(p.HighWatermark()-p.Log().EndOffset(), 0)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp, nil
}
