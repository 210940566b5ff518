package kafka

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// TestRightsOfTwo: requests that need two rights need no third.
func TestRightsOfTwo(t *testing.T) {
	w := newSecured(t)
	w.commitSome()
	two := map[string][2]right{
		"offset-commit":             {{authz.Group, authz.Read}, {authz.Topic, authz.Read}},
		"offset-fetch":              {{authz.Group, authz.Describe}, {authz.Topic, authz.Describe}},
		"offset-delete":             {{authz.Group, authz.Delete}, {authz.Topic, authz.Read}},
		"remove-topics-from-mirror": {{authz.ClusterMirror, authz.Alter}, {authz.Topic, authz.AlterConfigs}},
		"pause-mirror-topics":       {{authz.ClusterMirror, authz.Alter}, {authz.Topic, authz.AlterConfigs}},
		"resume-mirror-topics":      {{authz.ClusterMirror, authz.Alter}, {authz.Topic, authz.AlterConfigs}},
		"recover-mirror-topics":     {{authz.ClusterMirror, authz.Alter}, {authz.Topic, authz.AlterConfigs}},
		"start-mirror-topics":       {{authz.ClusterMirror, authz.Alter}, {authz.Topic, authz.AlterConfigs}},
	}
	i := 0
	for _, r := range w.requests() {
		rights, ok := two[r.name]
		if !ok {
			continue
		}
		i++
		host := fmt.Sprintf("127.0.3.%d", i)
		w.grant(w.acl(rights[0], host), w.acl(rights[1], host))
		if got := w.outcome(host, r.request()); got != "ok" {
			t.Errorf("%s with %v: %s", r.name, rights, got)
		}
	}
	if i != len(two) {
		t.Errorf("%d requests of %d", i, len(two))
	}
}

// TestNothingLeaks: a client without a right cannot tell what exists from what
// does not, and sees no name that it did not give.
func TestNothingLeaks(t *testing.T) {
	w := newSecured(t)
	c := w.from(hostNone)
	missing := w.topic.Name + "x"
	ask1 := func(version int16, topics ...kmsg.MetadataRequestTopic) []kmsg.MetadataResponseTopic {
		req := &kmsg.MetadataRequest{Version: version, Topics: topics}
		return ask[*kmsg.MetadataResponse](t, c, req).Topics
	}
	named := ask1(12, kmsg.MetadataRequestTopic{Topic: &w.topic.Name}, kmsg.MetadataRequestTopic{Topic: &missing})
	for _, rt := range named {
		if rt.ErrorCode != kerr.TopicAuthorizationFailed.Code || rt.TopicID != [16]byte{} || len(rt.Partitions) > 0 || rt.IsInternal {
			t.Errorf("by name: %+v", rt)
		}
	}
	byID := ask1(12, kmsg.MetadataRequestTopic{TopicID: w.topic.ID}, kmsg.MetadataRequestTopic{TopicID: [16]byte{1, 2, 3}})
	if byID[0].ErrorCode != kerr.TopicAuthorizationFailed.Code || byID[0].Topic != nil || byID[1].ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("by id: %+v", byID)
	}
	if all := ask1(9); len(all) > 0 {
		t.Errorf("all topics: %+v", all)
	}
	// Auto creation neither happens nor tells.
	auto := &kmsg.MetadataRequest{Version: 9, AllowAutoTopicCreation: true, Topics: []kmsg.MetadataRequestTopic{{Topic: &missing}}}
	if got := ask[*kmsg.MetadataResponse](t, c, auto).Topics[0].ErrorCode; got != kerr.TopicAuthorizationFailed.Code {
		t.Errorf("auto creation: code %d", got)
	}
	// Who may see it but not create it is refused too, and who may do both gets it.
	i := slices.Index(allRights(), right{authz.Topic, authz.Describe})
	if got := ask[*kmsg.MetadataResponse](t, w.from(hostOfRight(i)), auto).Topics[0].ErrorCode; got != kerr.TopicAuthorizationFailed.Code {
		t.Errorf("auto creation with Describe alone: code %d", got)
	}
	if w.server.o.Controller.Image().Topic(missing) != nil {
		t.Error("a topic was created without the right")
	}
	if got := ask[*kmsg.MetadataResponse](t, w.from(hostAll), auto).Topics[0].ErrorCode; got != 0 {
		t.Errorf("auto creation with all rights: code %d", got)
	}

	for _, name := range []string{w.topic.Name, w.topic.Name + "y"} {
		p := produced(t, ask[kmsg.Response](t, c, produceTo(&metadata.Topic{Name: name}, 0, 1, batchOf("a"))))
		if p.ErrorCode != kerr.TopicAuthorizationFailed.Code {
			t.Errorf("produce to %s: code %d", name, p.ErrorCode)
		}
		req := fetchFrom(&metadata.Topic{Name: name}, 0, 0)
		req.SetVersion(12)
		if p := fetched(t, ask[kmsg.Response](t, c, req)); p.ErrorCode != kerr.TopicAuthorizationFailed.Code {
			t.Errorf("fetch from %s: code %d", name, p.ErrorCode)
		}
	}
	del := &kmsg.DeleteTopicsRequest{Version: 6, Topics: []kmsg.DeleteTopicsRequestTopic{{TopicID: w.topic.ID}}}
	if got := ask[*kmsg.DeleteTopicsResponse](t, c, del).Topics[0]; got.Topic != nil || got.ErrorCode != kerr.TopicAuthorizationFailed.Code {
		t.Errorf("delete by id: %+v", got)
	}

	// A commit's metadata is not told either.
	w.commitSome()
	i = slices.Index(allRights(), right{authz.Group, authz.Describe})
	offsets := &kmsg.OffsetFetchRequest{Version: 8, Groups: []kmsg.OffsetFetchRequestGroup{{Group: w.prefix, MemberEpoch: -1}}}
	if got := ask[*kmsg.OffsetFetchResponse](t, w.from(hostOfRight(i)), offsets).Groups[0]; got.ErrorCode != 0 || len(got.Topics) > 0 {
		t.Errorf("all offsets: %+v", got)
	}
	if got := ask[*kmsg.OffsetFetchResponse](t, w.from(hostAll), offsets).Groups[0]; len(got.Topics) != 1 {
		t.Errorf("all offsets with all rights: %+v", got)
	}
}

// TestAuthorizedOperations: the bits of KIP-430 in every answer that has them.
func TestAuthorizedOperations(t *testing.T) {
	w := newSecured(t)
	w.commitSome()
	w.joinConsumerGroup()
	host := "127.0.4.1"
	w.grant(
		w.acl(right{authz.Topic, authz.Read}, host), w.acl(right{authz.Group, authz.Read}, host),
		w.acl(right{authz.Cluster, authz.Alter}, host), w.acl(right{authz.ClusterMirror, authz.AlterConfigs}, host),
		w.acl(right{authz.ClusterMirror, authz.Describe}, host))
	bits := func(ops ...authz.Operation) int32 { return int32(metadata.OperationsOf(ops...)) }
	ask1 := func(host string) map[string]int32 {
		c := w.from(host)
		md := ask[*kmsg.MetadataResponse](t, c, &kmsg.MetadataRequest{Version: 10, IncludeClusterAuthorizedOperations: true,
			IncludeTopicAuthorizedOperations: true, Topics: []kmsg.MetadataRequestTopic{{Topic: &w.topic.Name}}})
		return map[string]int32{
			"metadata cluster": md.AuthorizedOperations,
			"metadata topic":   md.Topics[0].AuthorizedOperations,
			"describe cluster": ask[*kmsg.DescribeClusterResponse](t, c, &kmsg.DescribeClusterRequest{Version: 1, EndpointType: 1,
				IncludeClusterAuthorizedOperations: true}).ClusterAuthorizedOperations,
			"describe groups": ask[*kmsg.DescribeGroupsResponse](t, c, &kmsg.DescribeGroupsRequest{Version: 5, Groups: []string{w.prefix},
				IncludeAuthorizedOperations: true}).Groups[0].AuthorizedOperations,
			"describe consumer groups": ask[*kmsg.ConsumerGroupDescribeResponse](t, c, &kmsg.ConsumerGroupDescribeRequest{Version: 1,
				Groups: []string{w.consumerGroup()}, IncludeAuthorizedOperations: true}).Groups[0].AuthorizedOperations,
			"describe mirrors": ask[*wire.DescribeClusterMirrorsResponse](t, c, &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{w.prefix},
				IncludeAuthorizedOperations: true}).Mirrors[0].AuthorizedOperations,
		}
	}
	for host, want := range map[string]map[string]int32{
		host: {
			"metadata cluster": bits(authz.Alter, authz.Describe), "describe cluster": bits(authz.Alter, authz.Describe),
			"metadata topic": bits(authz.Read, authz.Describe), "describe groups": bits(authz.Read, authz.Describe),
			"describe consumer groups": bits(authz.Read, authz.Describe),
			"describe mirrors":         bits(authz.Describe, authz.AlterConfigs, authz.DescribeConfigs),
		},
		hostNone: {
			"metadata cluster": 0, "describe cluster": 0, "metadata topic": math.MinInt32, "describe groups": math.MinInt32,
			"describe consumer groups": math.MinInt32, "describe mirrors": math.MinInt32,
		},
		hostAll: {
			"metadata cluster": int32(authz.Cluster.Operations()), "describe cluster": int32(authz.Cluster.Operations()),
			"metadata topic": int32(authz.Topic.Operations()), "describe groups": int32(authz.Group.Operations()),
			"describe consumer groups": int32(authz.Group.Operations()),
			"describe mirrors":         int32(authz.ClusterMirror.Operations()),
		},
	} {
		for name, got := range ask1(host) {
			if got != want[name] {
				t.Errorf("from %s: %s: %b, want %b", host, name, got, want[name])
			}
		}
	}
}

// TestACLKeys creates, finds and removes ACLs as an administrator's client does.
func TestACLKeys(t *testing.T) {
	w := newSecured(t)
	admin := kadm.NewClient(newClient(t, kgo.SeedBrokers(addrOf(w.server))))
	ctx := t.Context()
	// The admin's address is 127.0.0.1, which has no right so far.
	list := func() (int, error) {
		n := 0
		res, err := admin.DescribeACLs(ctx, kadm.NewACLs().Topics(w.prefix).Allow("User:bob").AllowHosts().Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternMatch))
		for _, r := range res {
			n += len(r.Described)
			if r.Err != nil {
				err = r.Err
			}
		}
		return n, err
	}
	if _, err := list(); err == nil {
		t.Error("described without a right")
	}
	add := kadm.NewACLs().Topics(w.prefix).Allow("User:bob").AllowHosts("10.0.0.7").Operations(kadm.OpRead, kadm.OpWrite).ResourcePatternType(kadm.ACLPatternPrefixed)
	created, err := admin.CreateACLs(ctx, add)
	if err != nil || len(created) != 2 || created[0].Err != kerr.ClusterAuthorizationFailed {
		t.Fatalf("created without a right: %v, %v", created, err)
	}
	w.grant(w.acl(right{authz.Cluster, authz.Alter}, "127.0.0.1"))
	for range 2 { // again is a success
		if created, err = admin.CreateACLs(ctx, add); err != nil || created[0].Err != nil || created[1].Err != nil {
			t.Fatalf("%v, %v", created, err)
		}
	}
	if n, err := list(); n != 2 || err != nil {
		t.Errorf("%d ACLs, %v", n, err)
	}
	a := authz.New(authz.Options{})
	img := w.server.o.Controller.Image()
	bob := authz.Principal{Type: "User", Name: "bob"}
	if !a.Allowed(img, bob, "10.0.0.7", authz.Read, authz.Topic, w.topic.Name) || a.Allowed(img, bob, "10.0.0.8", authz.Read, authz.Topic, w.topic.Name) {
		t.Error("what was created is not what was asked for")
	}
	bad := &kmsg.CreateACLsRequest{Version: 3, Creations: []kmsg.CreateACLsRequestCreation{
		{ResourceType: 2, ResourceName: w.prefix, ResourcePatternType: 2, Principal: "User:bob", Host: "*", Operation: 3, PermissionType: 3},
		{ResourceType: 8, ResourceName: w.prefix, ResourcePatternType: 3, Principal: "User:bob", Host: "*", Operation: 7, PermissionType: 3},
	}}
	res := ask[*kmsg.CreateACLsResponse](t, dial(t, addrOf(w.server)), bad).Results
	if res[0].ErrorCode != kerr.InvalidRequest.Code || res[0].ErrorMessage == nil || res[1].ErrorCode != 0 {
		t.Errorf("a match pattern and a mirror: %+v", res)
	}
	deleted, err := admin.DeleteACLs(ctx, kadm.NewACLs().AnyResource(w.prefix).Allow("User:bob").AllowHosts().Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny))
	if err != nil || len(deleted) != 1 || len(deleted[0].Deleted) != 3 {
		t.Errorf("%+v, %v", deleted, err)
	}
	if n, err := list(); n != 0 || err != nil {
		t.Errorf("%d ACLs are left, %v", n, err)
	}
}

// TestNoAuthorizer: ACLs that would protect nothing cannot be made.
func TestNoAuthorizer(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	if got := ask[*kmsg.DescribeACLsResponse](t, c, &kmsg.DescribeACLsRequest{Version: 3, ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1}); got.ErrorCode != kerr.SecurityDisabled.Code {
		t.Errorf("describe: %+v", got)
	}
	if got := ask[*kmsg.CreateACLsResponse](t, c, &kmsg.CreateACLsRequest{Version: 3, Creations: []kmsg.CreateACLsRequestCreation{{}}}); got.Results[0].ErrorCode != kerr.SecurityDisabled.Code {
		t.Errorf("create: %+v", got)
	}
	if got := ask[*kmsg.DeleteACLsResponse](t, c, &kmsg.DeleteACLsRequest{Version: 3, Filters: []kmsg.DeleteACLsRequestFilter{{}}}); got.Results[0].ErrorCode != kerr.SecurityDisabled.Code {
		t.Errorf("delete: %+v", got)
	}
}
