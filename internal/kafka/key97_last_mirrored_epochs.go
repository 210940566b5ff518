package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// LastMirroredEpochs (v0)
//
// Behavior:
//   - Asked by a cluster that was our source and now becomes our mirror: up to
//     which of its leader epochs, and which offset, did we mirror it?
//   - Every broker answers from the metadata, which holds every record: -1
//     without an error is certain (P7). 145 while a partition is not STOPPED, 3
//     for a partition that does not exist here.
//   - With the requester's cluster id the name of the mirror does not matter; a
//     topic id goes before the topic's name.
//   - Needs Describe on the mirrors concerned, or the whole is refused with 144:
//     those whose source the requester is, or if it names no id, or is no source
//     of ours, the one that it names. Refusing is safe, -1 would cost it its log.
//
// Version notes:
//   - v0: KIP-1279 as of March 2026; the offset, the topic id and the
//     requester's id are tagged fields of ours
func (s *Server) registerLastMirroredEpochs() { s.register(97, 0, 0, s.lastMirroredEpochs) }

func (s *Server) lastMirroredEpochs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.LastMirroredEpochsRequest)
	resp := new(wire.LastMirroredEpochsResponse)
	if !s.mayTellEpochs(r, req.RequesterClusterID, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	for _, t := range req.Topics {
		out := wire.LastMirroredEpochsResponseTopic{Name: t.Name}
		for _, p := range t.Partitions {
			epoch, offset, err := s.o.Mirrors.LastMirroredEpoch(req.MirrorName, req.RequesterClusterID,
				mirror.EpochQuery{Topic: t.Name, ID: t.TopicID, Partition: p})
			answer := wire.LastMirroredEpochsResponsePartition{Partition: p, LastMirroredEpoch: epoch, LastMirroredOffset: offset}
			if err != nil {
				code, text := mirrorErrorCode(err)
				answer.ErrorCode, answer.ErrorMessage = code, &text
			}
			out.Partitions = append(out.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}
