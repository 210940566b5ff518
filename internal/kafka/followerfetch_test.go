package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/replica"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/segment"
)

// pair is a broker, and a second one that only follows it, over TCP.
type pair struct {
	*broker
	second *partition.Manager
	repl   *replica.Manager
	conn   *wire.Client
}

// newPair has the follower's long polls last an hour: what is not told before
// their end hangs the test.
func newPair(t testing.TB, change ...func(*Options)) *pair {
	t.Helper()
	b, err := startBroker(t.TempDir(), change...)
	if err != nil {
		t.Fatal(err)
	}
	if err := join(b.controller, controller.RegisterBroker{ID: 2, Incarnation: [16]byte{2}}); err != nil {
		t.Fatal(err)
	}
	store, err := segment.Open(segment.Options{Dir: "data", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{broker: b, second: partition.NewManager(partition.Options{NodeID: 2, Stores: []*segment.Store{store}, Logger: slog.New(slog.DiscardHandler)})}
	p.repl = replica.NewManager(replica.Options{
		NodeID: 2, Partitions: p.second, MaxWait: time.Hour,
		BrokerEpoch: func() int64 { return b.controller.Image().Broker(2).Epoch },
		Dial: func(ctx context.Context, id int32) (*wire.Client, error) {
			if id != 1 {
				return nil, fmt.Errorf("broker %d", id)
			}
			return new(wire.Dialer).Dial(ctx, b.addr)
		},
	})
	unwatch := b.controller.Watch(func(prev, next *metadata.Image) {
		p.second.Apply(prev, next)
		p.repl.Apply(next)
	})
	p.conn = dial(t, b.addr)
	t.Cleanup(func() {
		unwatch()
		p.repl.Close()
		p.second.Close()
		store.Close()
		p.conn.Close()
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// topic is one whose partitions broker 1 leads.
func (p *pair) topic(t testing.TB, partitions int, configs map[string]string) *metadata.Topic {
	t.Helper()
	ct := controller.CreateTopic{Name: uniqueName(t), Configs: configs, Assignment: map[int32][]int32{}}
	for i := range partitions {
		ct.Assignment[int32(i)] = []int32{1, 2}
	}
	res := p.controller.CreateTopics(t.Context(), []controller.CreateTopic{ct}, false)
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	if err := p.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return res[0].Topic
}

// Writes with acks=all are answered by what a follower fetches over the network,
// in one session that grows, with and without fsync; nothing waits for the end of a
// long poll.
func TestFollowerFetch(t *testing.T) {
	p := newPair(t)
	for _, durability := range []string{"fsync", "replicated", "fsync"} {
		topic := p.topic(t, 3, map[string]string{"durability": durability, "min.insync.replicas": "2"})
		for i := range 30 {
			r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, int32(i%3), -1, batchOf("a", "b"))))
			if r.ErrorCode != 0 || r.BaseOffset != int64(i/3*2) {
				t.Fatalf("%s, write %d: %+v", durability, i, r)
			}
			end, _ := p.second.ByID(topic.ID, int32(i%3)).LogEnd()
			if end != int64(i/3*2+2) {
				t.Fatalf("%s, write %d was answered, the follower ends at %d", durability, i, end)
			}
			if durable := p.second.ByID(topic.ID, int32(i%3)).Log().DurableEnd(); durability == "fsync" && durable != end {
				t.Fatalf("write %d was answered, the follower has %d of %d on its disk", i, durable, end)
			}
		}
		// Much at once: the answer has no room for all of it.
		for i := range 3 {
			big := batchOf(string(make([]byte, 900<<10)))
			for range 4 {
				if r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, int32(i), 1, big))); r.ErrorCode != 0 {
					t.Fatalf("%+v", r)
				}
			}
		}
		for i := range 3 {
			if r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, int32(i), -1, batchOf("z")))); r.ErrorCode != 0 {
				t.Fatalf("%+v", r)
			}
		}
	}
}

// Who fetches as a follower without being one is told so.
func TestFollowerFetchRefused(t *testing.T) {
	p := newPair(t)
	topic := p.topic(t, 1, nil)
	as := func(id int32, epoch int64, change func(*kmsg.FetchRequest)) *kmsg.FetchResponse {
		req := fetchFrom(topic, 0, 0)
		req.SetVersion(17)
		req.ReplicaID, req.ReplicaState.ID, req.ReplicaState.Epoch = -1, id, epoch
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = -1
		if change != nil {
			change(req)
		}
		return ask[*kmsg.FetchResponse](t, p.conn, req)
	}
	if r := fetched(t, as(2, -1, nil)); r.ErrorCode != 0 {
		t.Errorf("the follower: %+v", r)
	}
	if r := fetched(t, as(9, -1, nil)); r.ErrorCode != kerr.UnknownLeaderEpoch.Code {
		t.Errorf("no replica: %+v", r)
	}
	if r := fetched(t, as(2, 0, nil)); r.ErrorCode != kerr.NotLeaderForPartition.Code {
		t.Errorf("an old registration: %+v", r)
	}
	if r := fetched(t, as(2, -1, func(req *kmsg.FetchRequest) { req.Topics[0].TopicID = [16]byte{1} })); r.ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("unknown topic: %+v", r)
	}
	if r := as(2, -1, func(req *kmsg.FetchRequest) { req.SessionID, req.SessionEpoch = 5, 3 }); r.ErrorCode != kerr.FetchSessionIDNotFound.Code {
		t.Errorf("unknown session: %+v", r)
	}
	// A session, its next request out of turn, and its end.
	r := as(2, -1, func(req *kmsg.FetchRequest) { req.SessionEpoch = 0 })
	if r.SessionID == 0 {
		t.Fatalf("no session: %+v", r)
	}
	if r := as(2, -1, func(req *kmsg.FetchRequest) { req.SessionID, req.SessionEpoch = r.SessionID, 7 }); r.ErrorCode != kerr.InvalidFetchSessionEpoch.Code {
		t.Errorf("out of turn: %+v", r)
	}
	if r := as(2, -1, func(req *kmsg.FetchRequest) { req.SessionID, req.SessionEpoch, req.Topics = r.SessionID, 1, nil }); r.ErrorCode != 0 || len(r.Topics) != 0 {
		t.Errorf("nothing new: %+v", r)
	}
}

// A broker that repairs its replica reads up to the log's end, and proves nothing by it:
// the high watermark stays where the ISR is. A consumer does not see that far.
func TestFetchToRepair(t *testing.T) {
	p := newPair(t)
	topic := p.topic(t, 1, map[string]string{"min.insync.replicas": "2"})
	p.repl.Close() // the follower gets nothing from here on
	if r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, 0, 1, batchOf("a", "b")))); r.ErrorCode != 0 {
		t.Fatalf("write: %+v", r)
	}
	for _, tt := range []struct {
		replica int32
		version int16
		records bool
	}{{-1, 17, false}, {repairReplica, 17, true}, {repairReplica, 12, true}, {-1, 12, false}} {
		for range 2 {
			req := fetchFrom(topic, 0, 0)
			req.SetVersion(tt.version)
			req.ReplicaID, req.ReplicaState.ID = tt.replica, tt.replica
			r := fetched(t, ask[*kmsg.FetchResponse](t, p.conn, req))
			if r.ErrorCode != 0 || (len(r.RecordBatches) > 0) != tt.records || r.HighWatermark != 0 {
				t.Errorf("replica %d, version %d: %d bytes, %+v", tt.replica, tt.version, len(r.RecordBatches), r)
			}
		}
	}
}

// DeleteRecords is answered when the follower in sync has deleted too, which is told at
// once and not at the end of its long poll, an hour here. One that is silent lets the
// request run out of time; out of the ISR it is not waited for.
func TestDeleteRecordsWaitsForFollowers(t *testing.T) {
	p := newPair(t)
	for _, durability := range []string{"fsync", "replicated"} {
		topic := p.topic(t, 2, map[string]string{"durability": durability, "min.insync.replicas": "2"})
		for i := range 2 {
			for range 3 {
				if r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, int32(i), -1, batchOf("a", "b")))); r.ErrorCode != 0 {
					t.Fatalf("write: %+v", r)
				}
			}
		}
		for _, below := range []int64{2, 3, -1} {
			for _, r := range deleteRecords(t, p.conn, topic, below, time.Minute) {
				want := below
				if below < 0 {
					want = 6
				}
				if follower := p.second.ByID(topic.ID, r.Partition).Info().LogStart; r.ErrorCode != 0 || r.LowWatermark != want || follower != want {
					t.Errorf("%s, below %d: %+v; the follower's log begins at %d", durability, below, r, follower)
				}
			}
		}
	}
	topic := p.topic(t, 2, map[string]string{"min.insync.replicas": "1"})
	for i := range 2 {
		if r := produced(t, ask[*kmsg.ProduceResponse](t, p.conn, produceTo(topic, int32(i), -1, batchOf("a", "b")))); r.ErrorCode != 0 {
			t.Fatalf("write: %+v", r)
		}
	}
	p.repl.Close()
	for _, r := range deleteRecords(t, p.conn, topic, 1, 50*time.Millisecond) {
		if r.ErrorCode != kerr.RequestTimedOut.Code || r.LowWatermark != -1 {
			t.Errorf("a silent follower: %+v", r)
		}
	}
	wish := controller.AlterISR{Topic: topic.ID, Partition: 0, ISR: []controller.ISRMember{{ID: 1, Epoch: -1}},
		LeaderEpoch: topic.Partitions[0].LeaderEpoch, PartitionEpoch: topic.Partitions[0].PartitionEpoch}
	if a := p.controller.AlterISRs(t.Context(), 1, p.controller.Image().Broker(1).Epoch, []controller.AlterISR{wish}); a[0].Err != nil {
		t.Fatal(a[0].Err)
	}
	if err := p.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := deleteRecords(t, p.conn, topic, 1, 50*time.Millisecond); r[0].ErrorCode != 0 || r[0].LowWatermark != 1 || r[1].ErrorCode != kerr.RequestTimedOut.Code {
		t.Errorf("without the follower in the ISR of partition 0: %+v", r)
	}
}

func deleteRecords(t *testing.T, c *wire.Client, topic *metadata.Topic, below int64, timeout time.Duration) []kmsg.DeleteRecordsResponseTopicPartition {
	t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.SetVersion(2)
	req.TimeoutMillis = int32(timeout.Milliseconds())
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic.Name
	for i := range topic.Partitions {
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = int32(i), below
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.DeleteRecordsResponse](t, c, req).Topics[0].Partitions
}

// What acks=all costs with a follower, one write after the other and many at once.
func BenchmarkAcksAll(b *testing.B) {
	for _, durability := range []string{"fsync", "replicated"} {
		for _, writers := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", durability, writers), func(b *testing.B) {
				p := newPair(b)
				topic := p.topic(b, 1, map[string]string{"durability": durability, "min.insync.replicas": "2"})
				part := p.partitions.ByID(topic.ID, 0)
				var failed atomic.Int64
				next := make(chan struct{}, writers)
				for range writers {
					next <- struct{}{}
				}
				b.ResetTimer()
				for range b.N {
					<-next
					part.Produce(batchOf("v"), partition.ProduceOptions{Acks: -1}, func(_ partition.ProduceResult, err error) {
						if err != nil {
							failed.Add(1)
						}
						next <- struct{}{}
					})
				}
				for range writers {
					<-next
				}
				if failed.Load() > 0 {
					b.Fatal(failed.Load())
				}
			})
		}
	}
}
