package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// StartMirrorTopics (v0)
//
// Behavior:
//   - The broker expands the patterns on the source and fills in ids, partition
//     counts and configs. What a client sends in their place, and its
//     validation offset, is not looked at: only brokers know them.
//   - A named topic must not match an exclude list (42). The patterns are kept
//     in the mirror for discovery, so no match is success.
//   - Needs Alter on the mirror (144), and AlterConfigs on each topic that is
//     named or matched (29 for the whole).
//   - Outcomes are per topic; the head carries only what concerns the request.
//
// Version notes:
//   - v0: KIP-1279; patterns are tagged fields
func (s *Server) registerStartMirrorTopics() { s.register(95, 0, 0, s.startMirrorTopics) }

func (s *Server) startMirrorTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.StartMirrorTopicsRequest)
	names := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		names[i] = t.TopicName
	}
	resp := new(wire.StartMirrorTopicsResponse)
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	outcomes, err := s.mirrorsFor(r).Start(r.ctx, mirror.StartRequest{
		Mirror: req.MirrorName, Topics: names, Include: req.IncludePatterns, Exclude: req.ExcludePatterns,
	})
	s.settle(r.ctx) // W60: who reads "started" must not get a write in any more
	setMirrorOutcomes(resp, outcomes, err)
	return resp, nil
}
