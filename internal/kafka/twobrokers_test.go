package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/txn"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/segment"
)

// brokerNode is one of several brokers of a cluster in this process, which share a
// controller. Each topic has one replica, so nothing is replicated.
type brokerNode struct {
	id         int32
	store      *segment.Store
	partitions *partition.Manager
	groups     *group.Coordinator
	txns       *txn.Coordinator
	markers    *MarkerSender
	server     *Server
	served     chan error
}

// wirePeers asks other brokers as a peer.Pool does, on a connection per request.
type wirePeers struct{ image func() *metadata.Image }

func (w wirePeers) Request(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	b := w.image().Broker(broker)
	c, err := new(wire.Dialer).Dial(ctx, fmt.Sprintf("%s:%d", b.Endpoints[0].Host, b.Endpoints[0].Port))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Request(ctx, req)
}

func startNode(t *testing.T, c *controller.Controller, id int32) *brokerNode {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.New(slog.DiscardHandler)
	n, peers := &brokerNode{id: id, served: make(chan error, 1)}, wirePeers{c.Image}
	var err error
	n.store, err = segment.Open(segment.Options{Dir: t.TempDir(), Logger: logger})
	must(err)
	n.partitions = partition.NewManager(partition.Options{NodeID: id, Stores: []*segment.Store{n.store}, Logger: logger})
	gs := group.NewPartitionStore(n.partitions, c.Image)
	n.groups, err = group.New(group.Options{
		NodeID: id, Partitions: gs.Partitions, Append: gs.Append, Load: gs.Load, AppendOffsets: gs.AppendOffsets, AppendMarker: gs.AppendMarker,
		InitialRebalanceDelay: -1, OffsetsTopicPartitions: 4, OffsetsTopicReplicationFactor: 1,
	})
	must(err)
	n.markers = NewMarkerSender(MarkerSenderOptions{
		NodeID: id, Local: MarkerWriter{n.partitions, n.groups}, Image: c.Image, Peers: peers,
	})
	ts := txn.NewPartitionStore(n.partitions, c.Image)
	n.txns, err = txn.New(txn.Options{
		NodeID: id, Partitions: ts.Partitions, Append: ts.Append, Load: ts.Load, WriteMarkers: n.markers.WriteMarkers,
		NewProducerID:   txn.NewProducerIDs(c.AllocateProducerIDs).Next,
		TopicPartitions: 4, TopicReplicationFactor: 1, TopicMinISR: 1,
	})
	must(err)
	n.server, err = NewServer(Options{
		NodeID: id, Controller: c, Partitions: n.partitions, Groups: n.groups, Transactions: n.txns, Peers: peers, Logger: logger,
		Listeners: []Listener{{Name: testListener, Protocol: "PLAINTEXT", Address: "127.0.0.1:0"}},
	})
	must(err)
	must(join(c, controller.RegisterBroker{ID: id, Incarnation: [16]byte{byte(id)}, Endpoints: n.server.Endpoints()}))
	unwatch := c.Watch(func(prev, next *metadata.Image) {
		n.partitions.Apply(prev, next)
		n.groups.Apply(prev, next)
		n.txns.Apply(next)
	})
	go func() { n.served <- n.server.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		must(n.server.Close(ctx))
		must(<-n.served)
		unwatch()
		n.txns.Close()
		n.markers.Close()
		n.groups.Close()
		n.partitions.Close()
		must(n.store.Close())
	})
	return n
}

// Transactions over two brokers: their coordinators, the groups' coordinators and
// the partitions that take part are led by either, and so have to speak to each
// other. Each record arrives once, with both versions of the protocol.
func TestTransactionsOfTwoBrokers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := controller.Open(ctx, controller.Options{Dir: t.TempDir(), NodeID: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	var seeds []string
	for _, id := range []int32{1, 2} {
		seeds = append(seeds, addrOf(startNode(t, c, id).server))
	}
	both := map[int32][]int32{0: {1}, 1: {2}}
	for _, res := range c.CreateTopics(ctx, []controller.CreateTopic{{Name: "in", Assignment: both}, {Name: "out", Assignment: both}}, false) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	client := func(opts ...kgo.Opt) []kgo.Opt {
		return append(opts, kgo.SeedBrokers(seeds...), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	}
	const n = 40
	source, err := kgo.NewClient(client(kgo.DefaultProduceTopic("in"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	for i := range n {
		source.Produce(ctx, &kgo.Record{Value: []byte(strconv.Itoa(i))}, nil)
	}
	if err := source.Flush(ctx); err != nil {
		t.Fatal(err)
	}

	want := map[string]int{}
	led := map[string]map[int32]bool{group.TopicName: {}, txn.TopicName: {}} // by which brokers
	for version, versions := range protocols {
		for i := range 6 {
			name := fmt.Sprint(version, "-", i)
			sess, err := kgo.NewGroupTransactSession(client(
				kgo.MaxVersions(versions), kgo.TransactionalID(name), kgo.ConsumerGroup(name), kgo.ConsumeTopics("in"), kgo.DefaultProduceTopic("out"),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
				kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
			)...)
			if err != nil {
				t.Fatal(err)
			}
			for read := 0; read < n; {
				f := sess.PollRecords(ctx, n/4)
				if ctx.Err() != nil {
					t.Fatalf("%s: %d of %d records read: %v", name, read, n, f.Err())
				}
				if err := sess.Begin(); err != nil {
					t.Fatal(err)
				}
				f.EachRecord(func(r *kgo.Record) { sess.Produce(ctx, &kgo.Record{Value: []byte(name + " " + string(r.Value))}, nil) })
				committed, err := sess.End(ctx, kgo.TryCommit)
				if err != nil || !committed {
					t.Fatalf("%s: committed %v: %v", name, committed, err)
				}
				read += f.NumRecords()
			}
			sess.Close()
			for i := range n {
				want[fmt.Sprint(name, " ", i)] = 1
			}
			for topic, brokers := range led {
				parts := c.Image().Topic(topic).Partitions
				brokers[parts[group.PartitionFor(name, int32(len(parts)))].Leader] = true
			}
		}
	}
	for topic, brokers := range led {
		if len(brokers) != 2 {
			t.Fatalf("%s: only brokers %v had anything to do", topic, brokers)
		}
	}

	reader, err := kgo.NewClient(client(kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got := map[string]int{}
	for len(got) < len(want) {
		f := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records arrived", len(got), len(want))
		}
		f.EachRecord(func(r *kgo.Record) { got[string(r.Value)]++ })
	}
	var wrong []string
	for value, times := range got {
		if want[value] != times {
			wrong = append(wrong, fmt.Sprintf("%s × %d", value, times))
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		t.Fatalf("not once each: %v", wrong)
	}
}
