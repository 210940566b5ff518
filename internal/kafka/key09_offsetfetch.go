package kafka

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
)

// OffsetFetch, versions 1 to 10.
//
//   - A null list of topics asks for everything the group has committed (v2).
//   - Nothing committed is offset -1 without an error, also for groups and
//     topics that do not exist.
//   - Needs Describe on the group, and on each topic; "everything" leaves out
//     the topics without.
//   - Only acknowledged commits are told. With require_stable (v7, KIP-447) a
//     partition in which an open transaction has committed is answered with
//     UNSTABLE_OFFSET_COMMIT, and clients ask again until it has ended.
//
// v2 null topics and an error for the whole; v3 throttle; v5 leader epoch
// (KIP-320); v6 flexible; v7 require stable; v8 many groups (KIP-709); v9 member
// id and epoch, which consumer groups check (KIP-848); v10 topic ids.
//
// Not served: v0, which read offsets from ZooKeeper.
func (s *Server) registerOffsetFetch() {
	s.register(9, 1, 10, s.offsetFetch)
}

func (s *Server) offsetFetch(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.OffsetFetchRequest)
	var resp kmsg.OffsetFetchResponse
	if req.Version >= 8 {
		for i := range req.Groups {
			g, err := s.fetchGroup(r, &req.Groups[i], req.Version, req.RequireStable)
			if gaveUp(r, err) {
				return nil, err
			}
			resp.Groups = append(resp.Groups, g)
		}
		return &resp, nil
	}

	// One group, in the shape of old.
	one := kmsg.OffsetFetchRequestGroup{Group: req.Group}
	if req.Topics != nil || req.Version < 2 {
		one.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
	}
	for _, t := range req.Topics {
		one.Topics = append(one.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: t.Topic, Partitions: t.Partitions})
	}
	g, err := s.fetchGroup(r, &one, req.Version, req.RequireStable)
	if gaveUp(r, err) {
		return nil, err
	}
	resp.ErrorCode = g.ErrorCode
	for _, t := range g.Topics {
		old := kmsg.OffsetFetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			old.Partitions = append(old.Partitions, kmsg.OffsetFetchResponseTopicPartition(p))
		}
		resp.Topics = append(resp.Topics, old)
	}
	return &resp, nil
}

// fetchGroup answers for one group. The error is in the answer already.
func (s *Server) fetchGroup(r *request, req *kmsg.OffsetFetchRequestGroup, version int16, stable bool) (kmsg.OffsetFetchResponseGroup, error) {
	names := topicNames{s.o.Controller.Image(), version >= 10}
	if !s.allowed(r, authz.Describe, authz.Group, req.Group) {
		return deniedGroup(req, version), nil
	}
	if version >= 9 && (req.MemberID != nil || req.MemberEpoch >= 0) {
		if err := s.o.Groups.MayFetch(r.ctx, req.Group, orEmpty(req.MemberID), req.MemberEpoch); err != nil {
			return kmsg.OffsetFetchResponseGroup{Group: req.Group, ErrorCode: groupCode(err)}, err
		}
	}
	if req.Topics == nil {
		find := s.o.Groups.Committed
		if stable {
			find = s.o.Groups.Stable
		}
		all, err := find(r.ctx, req.Group)
		all = slices.DeleteFunc(all, func(o group.Offset) bool { return !s.visible(r, authz.Describe, authz.Topic, o.Topic) })
		return kmsg.OffsetFetchResponseGroup{Group: req.Group, ErrorCode: groupCode(err), Topics: allTopics(all, names)}, err
	}

	g := kmsg.OffsetFetchResponseGroup{Group: req.Group}
	var ask []group.TopicPartition
	for _, t := range req.Topics {
		name := t.Topic
		if names.byID {
			// An unknown id is answered by its partitions; any other topic's
			// name is looked up in the offsets, whether the topic still exists
			// or not.
			_, name, _ = names.find("", t.TopicID)
		}
		for _, p := range t.Partitions {
			ask = append(ask, group.TopicPartition{Topic: name, Partition: p})
		}
	}
	find := s.o.Groups.CommittedIn
	if stable {
		find = s.o.Groups.StableIn
	}
	found, err := find(r.ctx, req.Group, ask)
	code := groupCode(err)
	g.ErrorCode = code
	for _, t := range req.Topics {
		unknown, name := code, t.Topic
		if names.byID {
			var c int16
			if _, name, c = names.find("", t.TopicID); c != 0 {
				unknown = c
			}
		}
		if name != "" && !s.allowedTopic(r, authz.Describe, name) {
			unknown = groupCode(errTopicDenied)
		}
		out := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			o := group.Offset{Partition: p, Offset: -1, LeaderEpoch: -1}
			if err == nil {
				o, found = found[0], found[1:]
			}
			if unknown != 0 {
				o = group.Offset{Partition: p, Offset: -1, LeaderEpoch: -1}
			}
			row := fetchedOffset(o)
			if unknown != 0 {
				row.ErrorCode = unknown
			}
			out.Partitions = append(out.Partitions, row)
		}
		g.Topics = append(g.Topics, out)
	}
	return g, err
}

// deniedGroup is the answer for a group that the client may not describe. Before
// v8 partitions have the error too: v1 has no other place for it.
func deniedGroup(req *kmsg.OffsetFetchRequestGroup, version int16) kmsg.OffsetFetchResponseGroup {
	g := kmsg.OffsetFetchResponseGroup{Group: req.Group, ErrorCode: groupCode(errGroupDenied)}
	if version >= 2 {
		return g
	}
	for _, t := range req.Topics {
		out := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			row := fetchedOffset(group.Offset{Partition: p, Offset: -1, LeaderEpoch: -1})
			row.ErrorCode = g.ErrorCode
			out.Partitions = append(out.Partitions, row)
		}
		g.Topics = append(g.Topics, out)
	}
	return g
}

// allTopics groups sorted offsets by topic. By id, only topics that exist can
// be named.
func allTopics(all []group.Offset, names topicNames) []kmsg.OffsetFetchResponseGroupTopic {
	var out []kmsg.OffsetFetchResponseGroupTopic
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(o group.Offset) bool { return o.Topic != all[0].Topic })
		if n < 0 {
			n = len(all)
		}
		same := all[:n]
		all = all[n:]
		t := kmsg.OffsetFetchResponseGroupTopic{Topic: same[0].Topic}
		if names.byID {
			known := names.img.Topic(t.Topic)
			if known == nil {
				continue
			}
			t.TopicID = known.ID
		}
		for _, o := range same {
			t.Partitions = append(t.Partitions, fetchedOffset(o))
		}
		out = append(out, t)
	}
	return out
}

func fetchedOffset(o group.Offset) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := kmsg.OffsetFetchResponseGroupTopicPartition{
		Partition: o.Partition, Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: &o.Metadata,
	}
	if o.Unstable {
		p.ErrorCode = groupCode(group.ErrUnstable)
	}
	return p
}
