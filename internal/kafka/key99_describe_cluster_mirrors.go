package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// DescribeClusterMirrors (v0)
//
// Behavior:
//   - Tells state, offsets and lag of every partition of the named mirrors, or
//     of all. Offsets are the high watermarks of both sides, -1 while nothing
//     is known (P9). A mirror that does not exist is an entry with error 137.
//   - States come from the metadata; offsets from the leaders, which are asked
//     (key 107). Those of a leader that does not answer in two seconds are -1.
//   - In tagged fields of ours: what each partition's leader knows of the source,
//     whatever the state, so that a lag of zero can be told from a source that does
//     not answer; and how each recurring task of the mirror does.
//   - Retry attempt and message stay until the failure is really over, so a
//     partition that is trying again still shows why.
//   - The lookup of last mirrored epochs by cluster id serves peers that do not
//     know key 97 (P13). A partition that is not STOPPED is left out of it: an
//     absent answer is an error to the asker, -1 would cost it its log.
//   - In tagged fields of ours, in place of all that: what a start of topics would do
//     to the logs here, which needs the rights of that start (key 95) and changes
//     nothing.
//   - A named mirror without Describe is an entry with error 144, "all" leaves it
//     out; a lookup needs it on every mirror of that source (P13), as key 97.
//
// Version notes:
//   - v0: KIP-1279 as of July 2026
func (s *Server) registerDescribeClusterMirrors() { s.register(99, 0, 0, s.describeClusterMirrors) }

func (s *Server) describeClusterMirrors(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.DescribeClusterMirrorsRequest)
	resp := new(wire.DescribeClusterMirrorsResponse)
	if req.Plan != nil {
		var err error
		resp.Plan, err = s.planStart(r, req)
		setMirrorStatus(resp, err)
		return resp, nil
	}
	for _, m := range s.o.Mirrors.Describe(r.ctx, req.MirrorNames) {
		out := wire.DescribedMirror{MirrorName: m.Name, AuthorizedOperations: wire.UnknownAuthorizedOperations}
		if len(req.MirrorNames) == 0 {
			if !s.visible(r, authz.Describe, authz.ClusterMirror, m.Name) {
				continue
			}
		} else if !s.allowed(r, authz.Describe, authz.ClusterMirror, m.Name) {
			out.ErrorCode = codeMirrorDenied
			resp.Mirrors = append(resp.Mirrors, out)
			continue
		}
		if req.IncludeAuthorizedOperations && m.Err == nil {
			out.AuthorizedOperations = s.operations(r, authz.ClusterMirror, m.Name)
		}
		out.ErrorCode, _ = mirrorErrorCode(m.Err)
		out.Syncs = m.Syncs
		for _, t := range m.Topics {
			topic := wire.DescribedMirrorTopic{TopicName: t.Name, Partitions: make([]wire.DescribedMirrorPartition, len(t.Partitions))}
			for i, p := range t.Partitions {
				topic.Partitions[i] = wire.DescribedMirrorPartition{
					Partition: p.Index, SourceOffset: p.SourceOffset, DestinationOffset: p.DestinationOffset, Lag: p.Lag,
					StateValue: p.State.String(), RetryAttempt: p.RetryAttempt, Progress: p.Progress,
				}
				if p.ErrorMessage != "" {
					topic.Partitions[i].ErrorMessage = &p.ErrorMessage
				}
			}
			out.Topics = append(out.Topics, topic)
		}
		resp.Mirrors = append(resp.Mirrors, out)
	}
	if req.ClusterID != nil && s.mayTellEpochs(r, req.ClusterID, "") {
		resp.LookupResults = s.lookupMirroredEpochs(*req.ClusterID, req.Lookups)
	}
	return resp, nil
}

func (s *Server) planStart(r *request, req *wire.DescribeClusterMirrorsRequest) (*wire.StartPlan, error) {
	if len(req.MirrorNames) != 1 {
		return nil, fmt.Errorf("%w: a plan is of one mirror, not of %d", controller.ErrInvalidRequest, len(req.MirrorNames))
	}
	name := req.MirrorNames[0]
	if !s.allowed(r, authz.Alter, authz.ClusterMirror, name) {
		return nil, errMirrorDenied
	}
	topics, err := s.mirrorsFor(r).PlanStart(r.ctx, mirror.StartRequest{Mirror: name, Include: req.Plan.IncludePatterns, Exclude: req.Plan.ExcludePatterns})
	if err != nil {
		return nil, err
	}
	plan := new(wire.StartPlan)
	for _, t := range topics {
		out := wire.PlannedTopic{Name: t.Name, Partitions: t.Partitions}
		if t.Err != nil {
			code, text := mirrorErrorCode(t.Err)
			out.ErrorCode, out.ErrorMessage = code, &text
		}
		plan.Topics = append(plan.Topics, out)
	}
	return plan, nil
}

func (s *Server) lookupMirroredEpochs(requester string, lookups []wire.EpochLookupTopic) []wire.EpochLookupResult {
	var results []wire.EpochLookupResult
	for _, t := range lookups {
		out := wire.EpochLookupResult{TopicID: t.TopicID}
		for _, p := range t.Partitions {
			epoch, _, err := s.o.Mirrors.LastMirroredEpoch("", &requester, mirror.EpochQuery{ID: t.TopicID, Partition: p})
			if err == nil {
				out.Partitions = append(out.Partitions, wire.EpochLookupPartition{Partition: p, LastMirrorEpoch: epoch})
			}
		}
		results = append(results, out)
	}
	return results
}
