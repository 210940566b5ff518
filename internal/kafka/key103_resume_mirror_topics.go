package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ResumeMirrorTopics (v0)
//
// Behavior:
//   - Goes on at the log end, after a check of the log against the source. 145
//     for a topic with a partition that is not paused, 141 for one that is
//     stopped; success for one that is mirroring already.
//   - Patterns match the topics of the mirror that are not stopped.
//   - Rights as of key 95.
//
// Version notes:
//   - v0: KIP-1279; patterns are a tagged field of ours, as in key 102
func (s *Server) registerResumeMirrorTopics() { s.register(103, 0, 0, s.resumeMirrorTopics) }

func (s *Server) resumeMirrorTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.ResumeMirrorTopicsRequest)
	resp := new(wire.ResumeMirrorTopicsResponse)
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	outcomes, err := s.mirrorsFor(r).Resume(r.ctx, req.MirrorName, req.Topics, req.Patterns)
	setMirrorOutcomes(resp, outcomes, err)
	return resp, nil
}
