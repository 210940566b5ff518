package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Pages of partitions cover everything once, whatever their size (KIP-966).
func TestDescribeTopicPartitions(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	a, b := newTopic(t, 3), newTopic(t, 4)
	page := func(limit int32, cursor *kmsg.DescribeTopicPartitionsResponseNextCursor, names ...string) *kmsg.DescribeTopicPartitionsResponse {
		t.Helper()
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = limit
		for _, n := range names {
			rt := kmsg.NewDescribeTopicPartitionsRequestTopic()
			rt.Topic = n
			req.Topics = append(req.Topics, rt)
		}
		if cursor != nil {
			cur := kmsg.NewDescribeTopicPartitionsRequestCursor()
			cur.Topic, cur.Partition = cursor.Topic, cursor.Partition
			req.Cursor = &cur
		}
		return ask[*kmsg.DescribeTopicPartitionsResponse](t, c, req)
	}
	var want []string
	for p := range 3 {
		want = append(want, fmt.Sprint(a.Name, "-", p))
	}
	for p := range 4 {
		want = append(want, fmt.Sprint(b.Name, "-", p))
	}
	for _, limit := range []int32{1, 2, 3, 7, 2000, 5000} {
		var got []string
		var cursor *kmsg.DescribeTopicPartitionsResponseNextCursor
		for {
			resp := page(limit, cursor, b.Name, a.Name)
			n := 0
			for _, rt := range resp.Topics {
				for _, p := range rt.Partitions {
					got = append(got, fmt.Sprint(*rt.Topic, "-", p.Partition))
					n++
					if rt.ErrorCode != 0 || p.ErrorCode != 0 || p.LeaderID != 1 || p.LeaderEpoch < 0 || len(p.Replicas) != 1 || len(p.ISR) != 1 {
						t.Fatalf("%+v", rt)
					}
				}
			}
			if n > int(limit) {
				t.Fatalf("%d partitions in a page of %d", n, limit)
			}
			if cursor = resp.NextCursor; cursor == nil {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v", limit, got)
		}
	}
	if resp := page(10, nil, "no-such-topic"); resp.Topics[0].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("%+v", resp)
	}
	if resp := page(0, nil, a.Name); resp.Topics[0].ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("%+v", resp)
	}
	all := page(2000, nil)
	if !slices.ContainsFunc(all.Topics, func(rt kmsg.DescribeTopicPartitionsResponseTopic) bool { return *rt.Topic == a.Name }) {
		t.Error("not among all topics")
	}
}

func TestListConfigResources(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	topic := newTopic(t, 1)
	list := func(version int16, types ...int8) (int16, []string) {
		t.Helper()
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.SetVersion(version)
		req.ResourceTypes = types
		resp := ask[*kmsg.ListConfigResourcesResponse](t, c, req)
		var names []string
		for _, r := range resp.ConfigResources {
			names = append(names, fmt.Sprint(r.Type, " ", r.Name))
		}
		return resp.ErrorCode, names
	}
	if code, names := list(0); code != 0 || len(names) != 0 {
		t.Error(code, names)
	}
	code, names := list(1)
	if code != 0 || !slices.Contains(names, "2 "+topic.Name) || !slices.Contains(names, "4 1") || !slices.Contains(names, "8 1") {
		t.Error(code, names)
	}
	if code, names := list(1, 4, 4); code != 0 || strings.Join(names, ",") != "4 1" {
		t.Error(code, names)
	}
	if code, names := list(1, 2, 77); code != kerr.UnsupportedVersion.Code || len(names) != 0 {
		t.Error(code, names)
	}
}

// Levels of features are fixed: what is so already succeeds, all else is refused,
// and the words name the feature.
func TestUpdateFeatures(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	known := features[0]
	for _, tc := range []struct {
		name  string
		level int16
		how   int8
		want  *kerr.Error
	}{
		{known.name, known.finalized, 1, nil},
		{known.name, known.max + 1, 1, kerr.InvalidUpdateVersion},
		{known.name, known.finalized - 1, 1, kerr.InvalidUpdateVersion},
		{known.name, known.finalized - 1, 2, kerr.InvalidUpdateVersion},
		{known.name, known.finalized, 9, kerr.InvalidUpdateVersion},
		{"no.such.feature", 1, 1, kerr.InvalidUpdateVersion},
	} {
		for version := int16(1); version <= 2; version++ {
			for _, dry := range []bool{true, false} {
				req := kmsg.NewPtrUpdateFeaturesRequest()
				req.SetVersion(version)
				req.ValidateOnly = dry
				u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
				u.Feature, u.MaxVersionLevel, u.UpgradeType = tc.name, tc.level, tc.how
				req.FeatureUpdates = append(req.FeatureUpdates, u)
				resp := ask[*kmsg.UpdateFeaturesResponse](t, c, req)
				code, text := resp.ErrorCode, str(resp.ErrorMessage)
				if version < 2 {
					code, text = resp.Results[0].ErrorCode, str(resp.Results[0].ErrorMessage)
				}
				want := int16(0)
				if tc.want != nil {
					want = tc.want.Code
				}
				if code != want || want != 0 && !strings.Contains(text, tc.name) {
					t.Errorf("%+v in version %d: code %d %q", tc, version, code, text)
				}
			}
		}
	}
}

// With one replica there is nothing to elect and nothing to move.
func TestNoElectionsNoReassignments(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	topic := newTopic(t, 2)
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.SetVersion(2)
	if resp := ask[*kmsg.ElectLeadersResponse](t, c, elect); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Errorf("%+v", resp)
	}
	rt := kmsg.NewElectLeadersRequestTopic()
	rt.Topic, rt.Partitions = topic.Name, []int32{0, 7}
	elect.Topics = append(elect.Topics, rt)
	parts := ask[*kmsg.ElectLeadersResponse](t, c, elect).Topics[0].Partitions
	if parts[0].ErrorCode != kerr.ElectionNotNeeded.Code || parts[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("%+v", parts)
	}
	elect.ElectionType = 5
	if resp := ask[*kmsg.ElectLeadersResponse](t, c, elect); resp.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("%+v", resp)
	}

	move := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	mt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	mt.Topic = topic.Name
	want := []int16{0, kerr.InvalidReplicaAssignment.Code, kerr.NoReassignmentInProgress.Code, kerr.UnknownTopicOrPartition.Code}
	for i, replicas := range [][]int32{{1}, {1, 2}, nil, {1}} {
		p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		p.Replicas = replicas
		if i == 3 {
			p.Partition = 9
		}
		mt.Partitions = append(mt.Partitions, p)
	}
	move.Topics = append(move.Topics, mt)
	for i, p := range ask[*kmsg.AlterPartitionAssignmentsResponse](t, c, move).Topics[0].Partitions {
		if p.ErrorCode != want[i] {
			t.Errorf("%d: %+v, want %d", i, p, want[i])
		}
	}
	list := ask[*kmsg.ListPartitionReassignmentsResponse](t, c, kmsg.NewPtrListPartitionReassignmentsRequest())
	if list.ErrorCode != 0 || len(list.Topics) != 0 {
		t.Errorf("%+v", list)
	}
}

// A group's request may be larger than others.
func TestRequestLimits(t *testing.T) {
	o := Options{}
	o.EnsureDefaults()
	for key, want := range map[int16]int{keyProduce: 100 << 20, keySyncGroup: 16 << 20, keyOffsetCommit: 16 << 20, keyJoinGroup: 16 << 20, 3: 1 << 20} {
		if got := o.requestLimit(key); got != want {
			t.Errorf("key %d: %d, want %d", key, got, want)
		}
	}
}

// The names among timestamps are those of Kafka's versions, and what only tiered
// storage has does not exist.
func TestListOffsetsNames(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	topic := newTopic(t, 1, "durability", "replicated")
	put := produceTo(topic, 0, 1, batchOf("a", "b"))
	put.SetVersion(9)
	produced(t, ask[*kmsg.ProduceResponse](t, c, put))
	for _, tc := range []struct {
		version int16
		ts      int64
		code    int16
		offset  int64
		epoch   int32
	}{
		{4, -1, 0, 2, 0}, {4, -2, 0, 0, 0}, {6, -3, kerr.UnsupportedVersion.Code, -1, -1}, {7, -3, 0, 0, 0},
		{7, -4, kerr.UnsupportedVersion.Code, -1, -1}, {8, -4, 0, 0, 0}, {8, -5, kerr.UnsupportedVersion.Code, -1, -1}, {9, -5, 0, -1, -1},
		{10, -6, kerr.UnsupportedVersion.Code, -1, -1}, {11, -6, 0, -1, -1}, {11, -7, kerr.UnsupportedVersion.Code, -1, -1},
		{11, 0, 0, 0, 0}, {11, 1 << 60, 0, -1, -1},
	} {
		req := kmsg.NewPtrListOffsetsRequest()
		req.SetVersion(tc.version)
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic.Name
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Timestamp = tc.ts
		rt.Partitions = append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.ListOffsetsResponse](t, c, req).Topics[0].Partitions[0]
		if got.ErrorCode != tc.code || got.Offset != tc.offset || (got.LeaderEpoch < 0) != (tc.epoch < 0) {
			t.Errorf("%+v: %+v", tc, got)
		}
	}
}
