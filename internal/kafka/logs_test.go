package kafka

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// DeleteRecords as an admin client sends it, with the answers of Apache Kafka.
func TestDeleteRecords(t *testing.T) {
	adm := newAdmin(t)
	topic := newTopic(t, 2)
	c := dial(t, testBroker(t).addr)
	for range 3 {
		resp := ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, -1, batchOf("a", "b")))
		if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Fatal(kerr.ErrorForCode(code))
		}
	}
	raw := func(version int16, name string, index int32, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
		t.Helper()
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.SetVersion(version)
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = index, offset
		rt.Topic, rt.Partitions = name, append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.DeleteRecordsResponse](t, c, req).Topics[0].Partitions[0]
	}
	for _, tc := range []struct {
		index       int32
		offset, low int64
		err         error
	}{
		{0, 3, 3, nil}, {0, 1, 3, nil}, {0, 7, -1, kerr.OffsetOutOfRange}, {0, -2, -1, kerr.OffsetOutOfRange},
		{1, 1, -1, kerr.OffsetOutOfRange}, {1, -1, 0, nil}, {2, 0, -1, kerr.UnknownTopicOrPartition},
	} {
		got := raw(2, topic.Name, tc.index, tc.offset)
		if err := kerr.ErrorForCode(got.ErrorCode); got.LowWatermark != tc.low || !errors.Is(err, tc.err) {
			t.Errorf("partition %d to %d: %d, %v; want %d, %v", tc.index, tc.offset, got.LowWatermark, err, tc.low, tc.err)
		}
		if tc.low < 0 || tc.index != 0 {
			continue
		}
		if starts, err := adm.ListStartOffsets(t.Context(), topic.Name); err != nil || starts[topic.Name][0].Offset != tc.low {
			t.Errorf("earliest %+v, %v; want %d", starts[topic.Name][0], err, tc.low)
		}
		resp := ask[*kmsg.FetchResponse](t, c, fetchFrom(topic, 0, tc.low-1))
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != kerr.OffsetOutOfRange.Code || p.LogStartOffset != tc.low {
			t.Errorf("fetch below the start: %+v", p)
		}
	}

	// As an admin client does it.
	all := kadm.Offsets{}
	all.Add(kadm.Offset{Topic: topic.Name, Partition: 0, At: -1})
	if res, err := adm.DeleteRecords(t.Context(), all); err != nil || res[topic.Name][0].LowWatermark != 6 {
		t.Fatalf("%+v, %v", res, err)
	}

	internal := "__internal-" + uniqueName(t)
	if res := testBroker(t).controller.CreateTopics(t.Context(), []controller.CreateTopic{
		{Name: internal, Internal: true, Partitions: 1, ReplicationFactor: 1},
	}, false); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	for v, want := range map[string]int16{internal: kerr.InvalidTopicException.Code, topic.Name + "-not": kerr.UnknownTopicOrPartition.Code} {
		for version := range int16(3) {
			if p := raw(version, v, 0, 0); p.ErrorCode != want || p.LowWatermark != -1 {
				t.Errorf("%s version %d: %+v, want %d", v, version, p, want)
			}
		}
	}
	if code, _ := errorCode(partition.ErrMirrored); code != 145 {
		t.Errorf("mirrored: %d", code)
	}
	if code, _ := errorCode(partition.ErrPolicy); code != kerr.PolicyViolation.Code {
		t.Errorf("compacted: %d", code)
	}
}

// DescribeLogDirs names every directory with the logs that were asked for.
func TestDescribeLogDirs(t *testing.T) {
	adm := newAdmin(t)
	topic, other := newTopic(t, 2), newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 1, -1, batchOf("a", "b")))

	all, err := adm.DescribeAllLogDirs(t.Context(), nil)
	if err != nil || len(all) != 1 || len(all[1]) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	for dir, d := range all[1] {
		if d.Err != nil || !filepath.IsAbs(dir) || !strings.HasPrefix(dir, testDir) {
			t.Fatalf("%+v", d)
		}
		if p, ok := d.Topics.Lookup(topic.Name, 1); !ok || p.Size == 0 || p.OffsetLag != 0 || p.IsFuture {
			t.Fatalf("%+v", p)
		}
		if _, ok := d.Topics.Lookup(other.Name, 0); !ok {
			t.Fatal("a topic is missing")
		}
	}
	for version := range int16(5) {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.SetVersion(version)
		rt := kmsg.NewDescribeLogDirsRequestTopic()
		rt.Topic, rt.Partitions = topic.Name, []int32{1, 7}
		req.Topics = []kmsg.DescribeLogDirsRequestTopic{rt}
		resp := ask[*kmsg.DescribeLogDirsResponse](t, c, req)
		d := resp.Dirs[0]
		if len(resp.Dirs) != 1 || len(d.Topics) != 1 || len(d.Topics[0].Partitions) != 1 || d.Topics[0].Partitions[0].Partition != 1 {
			t.Fatalf("version %d: %+v", version, resp)
		}
		if known := d.TotalBytes > 0 && d.UsableBytes > 0; known != (version >= 4) {
			t.Fatalf("version %d: %d of %d bytes are usable", version, d.UsableBytes, d.TotalBytes)
		}
	}
}
