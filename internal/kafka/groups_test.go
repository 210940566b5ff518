package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// groupServer serves the shared broker with consumer groups.
func groupServer(t *testing.T) (*Server, *group.Coordinator) {
	t.Helper()
	b := testBroker(t)
	store := group.NewPartitionStore(b.partitions, b.controller.Image)
	c, err := group.New(group.Options{
		NodeID: 1, Partitions: store.Partitions, Append: store.Append, Load: store.Load,
		AppendOffsets: store.AppendOffsets, AppendMarker: store.AppendMarker,
		InitialRebalanceDelay: -1, OffsetsTopicPartitions: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel := b.controller.Watch(c.Apply)
	s := anotherServer(t, func(o *Options) { o.Groups = c })
	t.Cleanup(func() { cancel(); c.Close() })
	return s, c
}

// groupClient speaks one version of everything, as far as each key has it.
type groupClient struct {
	t       *testing.T
	c       *wire.Client
	version int16
	topic   *metadata.Topic
	group   string
}

func groupAsk[R kmsg.Response](g *groupClient, req kmsg.Request, low, high int16) R {
	g.t.Helper()
	req.SetVersion(max(low, min(high, g.version)))
	return ask[R](g.t, g.c, req)
}

func (g *groupClient) join(id string) *kmsg.JoinGroupResponse {
	g.t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = g.group, id, 10_000, 10_000
	req.ProtocolType = "consumer"
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: g.subscription()}}
	return groupAsk[*kmsg.JoinGroupResponse](g, req, 0, 9)
}

func (g *groupClient) subscription() []byte {
	s := kmsg.NewConsumerMemberMetadata()
	s.Topics = []string{g.topic.Name}
	return s.AppendTo(nil)
}

func (g *groupClient) commit(generation int32, member string, offset int64) int16 {
	g.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = g.group, generation, member
	note := "note"
	req.Topics = []kmsg.OffsetCommitRequestTopic{{
		Topic: g.topic.Name, TopicID: g.topic.ID,
		Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 0, Offset: offset, LeaderEpoch: 3, Metadata: &note}, {Partition: 99}},
	}}
	resp := groupAsk[*kmsg.OffsetCommitResponse](g, req, 2, 10)
	p := resp.Topics[0].Partitions
	if p[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		g.t.Fatalf("partition 99: code %d", p[1].ErrorCode)
	}
	return p[0].ErrorCode
}

const notSaid = "?" // the version has no such field

// fetch answers partition 0's offset, epoch and metadata; asked for by name, or
// among all.
func (g *groupClient) fetch(all bool) string {
	g.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = g.group
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = g.group
	if !all {
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: g.topic.Name, Partitions: []int32{0}}}
		rg.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: g.topic.Name, TopicID: g.topic.ID, Partitions: []int32{0}}}
	}
	req.Groups = []kmsg.OffsetFetchRequestGroup{rg}
	resp := groupAsk[*kmsg.OffsetFetchResponse](g, req, 1, 10)
	var out []string
	row := func(name string, p kmsg.OffsetFetchResponseGroupTopicPartition) {
		epoch := notSaid
		if req.Version >= 5 {
			epoch = fmt.Sprint(p.LeaderEpoch)
		}
		out = append(out, fmt.Sprintf("%s-%d:%d@%s/%s code %d", name, p.Partition, p.Offset, epoch, *p.Metadata, p.ErrorCode))
	}
	for _, rt := range resp.Topics {
		for _, p := range rt.Partitions {
			row(rt.Topic, kmsg.OffsetFetchResponseGroupTopicPartition(p))
		}
	}
	for _, g2 := range resp.Groups {
		for _, rt := range g2.Topics {
			name := rt.Topic
			if req.Version >= 10 {
				if rt.TopicID != g.topic.ID {
					g.t.Fatalf("topic id %v", rt.TopicID)
				}
				name = g.topic.Name
			}
			for _, p := range rt.Partitions {
				row(name, p)
			}
		}
	}
	return strings.Join(out, ", ")
}

// One consumer's life in every version of every key.
func TestGroupVersions(t *testing.T) {
	s, _ := groupServer(t)
	topic := newTopic(t, 1)
	for version := range int16(11) {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			g := &groupClient{t: t, c: dial(t, addrOf(s)), version: version, topic: topic, group: fmt.Sprint("versions-", version)}
			g.find()

			j := g.join("")
			if version >= 4 {
				if j.ErrorCode != kerr.MemberIDRequired.Code || j.MemberID == "" {
					t.Fatalf("first join: %+v", j)
				}
				j = g.join(j.MemberID)
			}
			if j.ErrorCode != 0 || j.Generation != 1 || j.LeaderID != j.MemberID || *j.Protocol != "range" || len(j.Members) != 1 {
				t.Fatalf("join: %+v", j)
			}
			if version >= 7 && *j.ProtocolType != "consumer" {
				t.Fatalf("protocol type: %v", j.ProtocolType)
			}

			sync := kmsg.NewPtrSyncGroupRequest()
			sync.Group, sync.Generation, sync.MemberID = g.group, 1, j.MemberID
			sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: j.MemberID, MemberAssignment: []byte("all")}}
			if r := groupAsk[*kmsg.SyncGroupResponse](g, sync, 0, 5); r.ErrorCode != 0 || string(r.MemberAssignment) != "all" {
				t.Fatalf("sync: %+v", r)
			}

			beat := kmsg.NewPtrHeartbeatRequest()
			beat.Group, beat.Generation, beat.MemberID = g.group, 1, j.MemberID
			if r := groupAsk[*kmsg.HeartbeatResponse](g, beat, 0, 4); r.ErrorCode != 0 {
				t.Fatalf("heartbeat: %d", r.ErrorCode)
			}
			beat.Generation = 7
			if r := groupAsk[*kmsg.HeartbeatResponse](g, beat, 0, 4); r.ErrorCode != kerr.IllegalGeneration.Code {
				t.Fatalf("heartbeat of another generation: %d", r.ErrorCode)
			}

			if code := g.commit(1, j.MemberID, 42); code != 0 {
				t.Fatalf("commit: %d", code)
			}
			if code := g.commit(-1, "", 43); code != kerr.UnknownMemberID.Code {
				t.Fatalf("commit without membership: %d", code)
			}
			epoch, none := "3", "-1"
			switch {
			case version < 5:
				epoch, none = notSaid, notSaid
			case version < 6:
				epoch = none // the commit could not say it
			}
			want := fmt.Sprintf("%s-0:42@%s/note code 0", topic.Name, epoch)
			if got := g.fetch(false); got != want {
				t.Fatalf("fetch: %s, want %s", got, want)
			}
			if version >= 2 {
				if got := g.fetch(true); got != want {
					t.Fatalf("fetch all: %s, want %s", got, want)
				}
			}

			if d := g.describe(g.group); d.State != "Stable" || d.Protocol != "range" || len(d.Members) != 1 ||
				string(d.Members[0].MemberAssignment) != "all" || !strings.HasPrefix(d.Members[0].ClientHost, "/127.") {
				t.Fatalf("describe: %+v", d)
			}
			if got := g.list(nil, nil); got != "Stable" {
				t.Fatalf("list: %q", got)
			}

			leave := kmsg.NewPtrLeaveGroupRequest()
			leave.Group, leave.MemberID = g.group, j.MemberID
			leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: j.MemberID}, {MemberID: "nobody"}}
			l := groupAsk[*kmsg.LeaveGroupResponse](g, leave, 0, 5)
			if l.ErrorCode != 0 || version >= 3 && (l.Members[0].ErrorCode != 0 || l.Members[1].ErrorCode != kerr.UnknownMemberID.Code) {
				t.Fatalf("leave: %+v", l)
			}
			if l = groupAsk[*kmsg.LeaveGroupResponse](g, leave, 0, 2); l.ErrorCode != kerr.UnknownMemberID.Code {
				t.Fatalf("leave twice: %+v", l)
			}

			if code := g.commit(-1, "", 43); code != 0 {
				t.Fatalf("commit without membership, to an empty group: %d", code)
			}
			od := kmsg.NewPtrOffsetDeleteRequest()
			od.Group = g.group
			od.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: topic.Name, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}, {Partition: 5}}}}
			o := groupAsk[*kmsg.OffsetDeleteResponse](g, od, 0, 0)
			if p := o.Topics[0].Partitions; o.ErrorCode != 0 || p[0].ErrorCode != 0 || p[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
				t.Fatalf("offset delete: %+v", o)
			}
			if got, want := g.fetch(false), fmt.Sprintf("%s-0:-1@%s/ code 0", topic.Name, none); got != want {
				t.Fatalf("fetch after offset delete: %s, want %s", got, want)
			}

			del := kmsg.NewPtrDeleteGroupsRequest()
			del.Groups = []string{g.group, "nobody's"}
			r := groupAsk[*kmsg.DeleteGroupsResponse](g, del, 0, 2)
			if r.Groups[0].ErrorCode != 0 || r.Groups[1].ErrorCode != kerr.GroupIDNotFound.Code {
				t.Fatalf("delete: %+v", r)
			}
			d := g.describe(g.group)
			code := int16(0)
			if version >= 6 {
				code = kerr.GroupIDNotFound.Code
			}
			if d.State != "Dead" || d.ErrorCode != code {
				t.Fatalf("describe after delete: %+v", d)
			}
			if got := g.list(nil, nil); got != "" {
				t.Fatalf("list after delete: %q", got)
			}
		})
	}
}

// find waits for the coordinator as clients do: it answers at once, and the
// coordinator may still be loading.
func (g *groupClient) find() {
	g.t.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorKeys = g.group, []string{g.group, "another"}
	r := groupAsk[*kmsg.FindCoordinatorResponse](g, req, 0, 5)
	node, host, code := r.NodeID, r.Host, r.ErrorCode
	if req.Version >= 4 {
		if len(r.Coordinators) != 2 || r.Coordinators[1].Key != "another" {
			g.t.Fatalf("find: %+v", r)
		}
		c := r.Coordinators[0]
		node, host, code = c.NodeID, c.Host, c.ErrorCode
	}
	if code != 0 || node != 1 || host != "127.0.0.1" {
		g.t.Fatalf("find: %+v", r)
	}
	for {
		beat := kmsg.NewPtrHeartbeatRequest()
		beat.Group, beat.MemberID = g.group, "nobody"
		switch r := groupAsk[*kmsg.HeartbeatResponse](g, beat, 0, 4); r.ErrorCode {
		case kerr.UnknownMemberID.Code:
			return
		case kerr.CoordinatorLoadInProgress.Code, kerr.NotCoordinator.Code:
		default:
			g.t.Fatalf("heartbeat of nobody: %d", r.ErrorCode)
		}
	}
}

func (g *groupClient) describe(id string) kmsg.DescribeGroupsResponseGroup {
	g.t.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{id}, true
	d := groupAsk[*kmsg.DescribeGroupsResponse](g, req, 0, 6).Groups[0]
	if req.Version >= 3 && d.ErrorCode == 0 && d.AuthorizedOperations != int32(authz.Group.Operations()) {
		g.t.Fatalf("authorized operations: %b", d.AuthorizedOperations)
	}
	return d
}

// list tells the state under which the group is listed, or "".
func (g *groupClient) list(states, types []string) string {
	g.t.Helper()
	req := kmsg.NewPtrListGroupsRequest()
	req.StatesFilter, req.TypesFilter = states, types
	for _, l := range groupAsk[*kmsg.ListGroupsResponse](g, req, 0, 5).Groups {
		if l.Group == g.group {
			if req.Version < 4 {
				return "Stable" // not said
			}
			return l.GroupState
		}
	}
	return ""
}

func TestGroupFilters(t *testing.T) {
	s, _ := groupServer(t)
	topic := newTopic(t, 1)
	g := &groupClient{t: t, c: dial(t, addrOf(s)), version: 10, topic: topic, group: "filters"}
	g.find()
	if code := g.commit(-1, "", 1); code != 0 {
		t.Fatal(code)
	}
	for _, c := range []struct {
		states, types []string
		want          string
	}{
		{nil, nil, "Empty"},
		{[]string{"empty", "stable"}, []string{"classic"}, "Empty"},
		{[]string{"Stable"}, nil, ""},
		{nil, []string{"consumer"}, ""},
		{[]string{"nonsense"}, nil, ""},
	} {
		if got := g.list(c.states, c.types); got != c.want {
			t.Errorf("states %v, types %v: %q, want %q", c.states, c.types, got, c.want)
		}
	}
}

func TestGroupRefusals(t *testing.T) {
	s, c := groupServer(t)
	topic := newTopic(t, 1)
	g := &groupClient{t: t, c: dial(t, addrOf(s)), version: 10, topic: topic, group: "refusals"}
	g.find()

	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType, find.CoordinatorKeys = coordinatorTransaction, []string{"tx"}
	if r := groupAsk[*kmsg.FindCoordinatorResponse](g, find, 0, 5).Coordinators[0]; r.ErrorCode != kerr.CoordinatorNotAvailable.Code {
		t.Errorf("transaction coordinator: %+v", r)
	}

	// By id, what is not there is told apart from what is not committed.
	unknown := metadata.TopicID{0xFF, 1}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = g.group, -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{TopicID: unknown, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1}}}}
	if r := groupAsk[*kmsg.OffsetCommitResponse](g, commit, 10, 10); r.Topics[0].Partitions[0].ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("commit by unknown id: %+v", r)
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = g.group
	rg.Topics = []kmsg.OffsetFetchRequestGroupTopic{{TopicID: unknown, Partitions: []int32{0}}, {TopicID: topic.ID, Partitions: []int32{0}}}
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{rg}
	r := groupAsk[*kmsg.OffsetFetchResponse](g, fetch, 10, 10).Groups[0]
	if r.ErrorCode != 0 || r.Topics[0].Partitions[0].ErrorCode != kerr.UnknownTopicID.Code || r.Topics[0].Partitions[0].Offset != -1 ||
		r.Topics[1].Partitions[0].ErrorCode != 0 || r.Topics[1].Partitions[0].Offset != -1 {
		t.Errorf("fetch by unknown id: %+v", r)
	}

	bad := kmsg.NewPtrJoinGroupRequest()
	bad.Group, bad.SessionTimeoutMillis, bad.ProtocolType = g.group, 1, "consumer"
	bad.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	if r := groupAsk[*kmsg.JoinGroupResponse](g, bad, 0, 9); r.ErrorCode != kerr.InvalidSessionTimeout.Code {
		t.Errorf("session timeout of 1 ms: %+v", r)
	}
	bad.Group, bad.SessionTimeoutMillis = "", 10_000
	if r := groupAsk[*kmsg.JoinGroupResponse](g, bad, 0, 9); r.ErrorCode != kerr.InvalidGroupID.Code {
		t.Errorf("no group: %+v", r)
	}

	// A coordinator that went says so for every key, and with the code that
	// sends clients to find the new one.
	c.Close()
	if code := g.commit(-1, "", 1); code != kerr.NotCoordinator.Code {
		t.Errorf("commit after close: %d", code)
	}
	if got := g.fetch(false); !strings.HasSuffix(got, fmt.Sprint("code ", kerr.NotCoordinator.Code)) {
		t.Errorf("fetch after close: %s", got)
	}
	if d := g.describe(g.group); d.ErrorCode != kerr.NotCoordinator.Code {
		t.Errorf("describe after close: %+v", d)
	}
}
