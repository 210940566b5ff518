package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ReadMirrorOffsets (v0)
//
// Behavior:
//   - What one broker of the cluster asks another: how far are the mirror
//     partitions that it leads. Those that it does not lead are left out; an offset
//     that it does not know is -1.
//   - Beside the high watermarks of both sides it tells start and end of the log
//     and its last leader epoch, in tagged fields of ours: whoever copies group
//     offsets keeps them inside of the log (W52). What is known of the source, and how
//     the mirror's recurring tasks do on the broker that does them, is told there too,
//     and on request the leader epochs of the logs, for the plan of a start.
//   - Needs ClusterAction on the cluster.
//
// Version notes:
//   - v0: KIP-1279 as of September 2026
func (s *Server) registerReadMirrorOffsets() { s.register(107, 0, 0, s.readMirrorOffsets) }

func (s *Server) readMirrorOffsets(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.ReadMirrorOffsetsRequest)
	resp := new(wire.ReadMirrorOffsetsResponse)
	if !s.allowedCluster(r, authz.ClusterAction) {
		resp.SetStatus(kerr.ClusterAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Description)
		return resp, nil
	}
	for _, t := range req.Topics {
		out := wire.ReadMirrorOffsetsResponseTopic{TopicName: t.TopicName}
		for _, p := range t.Partitions {
			if o, ok := s.o.Mirrors.LocalOffsets(t.TopicName, p, req.Epochs); ok {
				out.Partitions = append(out.Partitions, o)
			}
		}
		resp.Topics = append(resp.Topics, out)
	}
	resp.Syncs = s.o.Mirrors.LocalSyncs(req.MirrorName)
	return resp, nil
}
