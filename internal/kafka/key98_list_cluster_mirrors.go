package kafka

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ListClusterMirrors (v0)
//
// Behavior:
//   - Lists all mirrors by name. The count is of topics that are asked to be
//     mirrored; the names, sent on request, are of those and the paused ones.
//     A destination reads them to find mirror loops. For loops over more than one
//     cluster a tagged field of ours tells from which clusters a topic comes beyond
//     the source, as the source tells it in turn (O12). On request of ours the sources of
//     the mirrors are asked for that first; a topic whose source does not answer in time is
//     marked as stale then.
//   - Mirrors without Describe are left out silently (spec 5.3).
//
// Version notes:
//   - v0: KIP-1279
func (s *Server) registerListClusterMirrors() { s.register(98, 0, 0, s.listClusterMirrors) }

func (s *Server) listClusterMirrors(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.ListClusterMirrorsRequest)
	resp := new(wire.ListClusterMirrorsResponse)
	for _, m := range s.listMirrors(r, req) {
		if !s.visible(r, authz.Describe, authz.ClusterMirror, m.Name) {
			continue
		}
		out := wire.ListedMirror{
			MirrorName: m.Name, SourceBootstrap: m.SourceBootstrap, SourceClusterID: m.SourceClusterID, TopicCount: int32(m.TopicCount),
		}
		if req.IncludeTopicNames {
			out.TopicNames = m.Topics
			for _, t := range m.Topics {
				if o := m.Origins[t]; o.Stale || len(o.ClusterIDs) > 0 {
					out.Origins = append(out.Origins, wire.TopicOrigins{TopicName: t, ClusterIDs: o.ClusterIDs, Stale: o.Stale})
				}
			}
		}
		resp.Mirrors = append(resp.Mirrors, out)
	}
	return resp, nil
}

func (s *Server) listMirrors(r *request, req *wire.ListClusterMirrorsRequest) []mirror.Listing {
	all := s.o.Mirrors.List()
	if !req.IncludeTopicNames || req.AskMillis <= 0 || !slices.ContainsFunc(all, func(m mirror.Listing) bool {
		return s.visible(r, authz.Describe, authz.ClusterMirror, m.Name)
	}) {
		return all // who may see no mirror has no source asked either
	}
	return s.o.Mirrors.ListAsking(r.ctx, source.OriginsAsk{Asked: req.AskedClusterIDs, Within: time.Duration(req.AskMillis) * time.Millisecond})
}
