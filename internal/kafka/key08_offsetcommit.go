package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// OffsetCommit, versions 2 to 10.
//
//   - Partitions of topics that do not exist are answered each on its own; the
//     others are stored in one write, and answered when it is acknowledged.
//   - Mirror topics are no exception: what is written is not their log.
//   - A consumer without membership (generation -1, no member id) may commit
//     while the group has no members.
//   - Needs Read on the group, and on each topic.
//   - With a private tagged field it is a mirror's, from another broker of this
//     cluster: see mirrorgroups.go. It needs ClusterAction instead.
//
// v2–v4 carry a retention time, which the offsets keep; v5 drops it (KIP-211);
// v6 leader epoch (KIP-320); v7 group instance id (KIP-345); v8 flexible; v9
// the generation may be a member epoch (KIP-848): members of the consumer
// protocol need this version; v10 topic ids (KIP-848).
//
// Not served: v0 and v1, which clients older than 0.9 send.
func (s *Server) registerOffsetCommit() {
	s.register(8, 2, 10, s.offsetCommit)
}

func (s *Server) offsetCommit(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.OffsetCommitRequest)
	commit := &group.CommitRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID),
		Generation: req.Generation, NoMemberEpochs: req.Version < 9, Retention: -1,
	}
	if v := req.Version; v >= 2 && v <= 4 && req.RetentionTimeMillis >= 0 {
		commit.Retention = time.Duration(min(req.RetentionTimeMillis, maxMillis)) * time.Millisecond
	}

	_, mirror := tagOf(&req.UnknownTags, tagFromMirror)
	inGroup := mirror && s.allowedCluster(r, authz.ClusterAction) || !mirror && s.allowed(r, authz.Read, authz.Group, req.Group)
	names := topicNames{s.o.Controller.Image(), req.Version >= 10}
	var resp kmsg.OffsetCommitResponse
	var stored []*int16 // where the answer for each of commit.Offsets goes
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.OffsetCommitResponseTopic{
			Topic: rt.Topic, TopicID: rt.TopicID,
			Partitions: make([]kmsg.OffsetCommitResponseTopicPartition, len(rt.Partitions)),
		}
		t, name, code := names.find(rt.Topic, rt.TopicID)
		switch {
		case !inGroup:
			code = groupCode(errGroupDenied)
		case !mirror && (t != nil || !names.byID) && !s.allowedTopic(r, authz.Read, name):
			code = groupCode(errTopicDenied)
		}
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			out.Partitions[j] = kmsg.OffsetCommitResponseTopicPartition{Partition: rp.Partition, ErrorCode: code}
			switch {
			case code != 0:
			case t.Partition(rp.Partition) == nil:
				out.Partitions[j].ErrorCode = kerr.UnknownTopicOrPartition.Code
			case mirror && failedOver(t):
				out.Partitions[j].ErrorCode, _ = errorCode(controller.ErrTopicNotInMirror)
			default:
				stored = append(stored, &out.Partitions[j].ErrorCode)
				o := group.Offset{
					Topic: name, Partition: rp.Partition, Offset: rp.Offset, LeaderEpoch: -1, Metadata: orEmpty(rp.Metadata),
				}
				if req.Version >= 6 {
					o.LeaderEpoch = rp.LeaderEpoch
				}
				commit.Offsets = append(commit.Offsets, o)
			}
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(stored) == 0 {
		return &resp, nil
	}
	var errs []error
	var err error
	if mirror {
		errs, err = s.o.Groups.CommitFromMirror(r.ctx, commit.Group, commit.Offsets)
	} else {
		errs, err = s.o.Groups.Commit(r.ctx, commit)
	}
	if gaveUp(r, err) {
		return nil, err
	}
	for i, code := range stored {
		if err != nil {
			*code = groupCode(err)
		} else {
			*code = groupCode(errs[i])
		}
	}
	return &resp, nil
}

// maxMillis keeps a client's milliseconds within time.Duration: a century.
const maxMillis = 100 * 365 * 24 * 60 * 60 * 1000
