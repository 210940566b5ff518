package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// PauseMirrorTopics (v0)
//
// Behavior:
//   - Stops fetching; the topics stay attached and read-only. 145 for a topic
//     with a partition that is not mirroring, 142 for one that is stopped;
//     success for one that is paused already.
//   - Patterns match the topics of the mirror that are not stopped.
//   - Rights as of key 95.
//
// Version notes:
//   - v0: KIP-1279; patterns are a tagged field of ours, because the tool
//     leaves their expansion to the broker (K3)
func (s *Server) registerPauseMirrorTopics() { s.register(102, 0, 0, s.pauseMirrorTopics) }

func (s *Server) pauseMirrorTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.PauseMirrorTopicsRequest)
	resp := new(wire.PauseMirrorTopicsResponse)
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	outcomes, err := s.mirrorsFor(r).Pause(r.ctx, req.MirrorName, req.Topics, req.Patterns)
	setMirrorOutcomes(resp, outcomes, err)
	return resp, nil
}
