package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// RemoveTopicsFromMirror (v0), also known as StopMirrorTopics: the failover.
//
// Behavior:
//   - Allowed from every state, and never asks the source. It answers when the
//     wish is durable; describe shows when the topics are STOPPED.
//   - Patterns match the topics of the mirror only, so ".*" means all of them;
//     they are kept away from discovery afterwards.
//   - No match is success.
//   - Rights as of key 95.
//
// Version notes:
//   - v0: KIP-1279; patterns are a tagged field
func (s *Server) registerRemoveTopicsFromMirror() { s.register(96, 0, 0, s.removeTopicsFromMirror) }

func (s *Server) removeTopicsFromMirror(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.RemoveTopicsFromMirrorRequest)
	resp := new(wire.RemoveTopicsFromMirrorResponse)
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	outcomes, err := s.mirrorsFor(r).Stop(r.ctx, req.MirrorName, req.Topics, req.Patterns)
	setMirrorOutcomes(resp, outcomes, err)
	return resp, nil
}
