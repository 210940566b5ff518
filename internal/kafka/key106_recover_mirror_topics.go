package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// RecoverMirrorTopics (v0)
//
// Behavior:
//   - Takes FAILED partitions back to where they failed, or through PREPARING
//     after a failure that no retry can mend, with a clean count of attempts.
//     145 for a named topic without a FAILED partition.
//   - No topic and no pattern means every topic of the mirror; then, and for
//     patterns, topics without a FAILED partition are left out.
//   - Rights as of key 95.
//
// Version notes:
//   - v0: KIP-1279; patterns are a tagged field of ours, as in key 102
func (s *Server) registerRecoverMirrorTopics() { s.register(106, 0, 0, s.recoverMirrorTopics) }

func (s *Server) recoverMirrorTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.RecoverMirrorTopicsRequest)
	resp := new(wire.RecoverMirrorTopicsResponse)
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	outcomes, err := s.mirrorsFor(r).Recover(r.ctx, req.MirrorName, req.Topics, req.Patterns)
	setMirrorOutcomes(resp, outcomes, err)
	return resp, nil
}
