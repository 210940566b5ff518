package kafka

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// txnServer serves the shared broker with groups and transactions.
func txnServer(t *testing.T) *Server {
	t.Helper()
	b := testBroker(t)
	gs := group.NewPartitionStore(b.partitions, b.controller.Image)
	groups, err := group.New(group.Options{
		NodeID: 1, Partitions: gs.Partitions, Append: gs.Append, Load: gs.Load,
		AppendOffsets: gs.AppendOffsets, AppendMarker: gs.AppendMarker,
		InitialRebalanceDelay: -1, OffsetsTopicPartitions: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	ts := txn.NewPartitionStore(b.partitions, b.controller.Image)
	markers := MarkerWriter{Partitions: b.partitions, Groups: groups}
	txns, err := txn.New(txn.Options{
		NodeID: 1, Partitions: ts.Partitions, Append: ts.Append, Load: ts.Load,
		NewProducerID: txn.NewProducerIDs(b.controller.AllocateProducerIDs).Next,
		WriteMarkers:  markers.WriteMarkers(b.controller.Image), TopicPartitions: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel := b.controller.Watch(func(prev, next *metadata.Image) { groups.Apply(prev, next); txns.Apply(next) })
	s := anotherServer(t, func(o *Options) { o.Groups, o.Transactions = groups, txns })
	t.Cleanup(func() { cancel(); txns.Close(); groups.Close() })
	return s
}

// toServer makes a franz-go client stay with one server of the shared broker,
// whose metadata names another.
func toServer(s *Server, opts ...kgo.Opt) []kgo.Opt {
	addr := addrOf(s)
	return append(opts, kgo.SeedBrokers(addr), kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}), kgo.RecordDeliveryTimeout(time.Minute), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
}

// Records go from one topic to another in transactions of two group members,
// every third of which aborts, and one member leaves in the middle. Each record
// arrives once, whatever was tried again.
func TestExactlyOnce(t *testing.T) {
	s := txnServer(t)
	in, out := newTopic(t, 3), newTopic(t, 3)
	const n = 300
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	source, err := kgo.NewClient(toServer(s, kgo.DefaultProduceTopic(in.Name))...)
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

	member := func(name string, rounds int, stop <-chan struct{}) error {
		sess, err := kgo.NewGroupTransactSession(toServer(s,
			kgo.TransactionalID(in.Name+name), kgo.ConsumerGroup(in.Name), kgo.ConsumeTopics(in.Name), kgo.DefaultProduceTopic(out.Name),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
			kgo.FetchMaxWait(50*time.Millisecond),
		)...)
		if err != nil {
			return err
		}
		defer sess.Close()
		for round := 0; round < rounds; round++ {
			select {
			case <-stop:
				return nil
			default:
			}
			poll, done := context.WithTimeout(ctx, 200*time.Millisecond)
			f := sess.PollRecords(poll, 20)
			done()
			if f.NumRecords() == 0 {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				continue
			}
			if err := sess.Begin(); err != nil {
				return fmt.Errorf("begin: %w", err)
			}
			f.EachRecord(func(r *kgo.Record) {
				sess.Produce(ctx, &kgo.Record{Value: r.Value}, nil)
			})
			try := kgo.TryCommit
			if round%3 == 2 {
				try = kgo.TryAbort
			}
			if _, err := sess.End(ctx, try); err != nil {
				return fmt.Errorf("end: %w", err)
			}
		}
		return nil
	}
	stop := make(chan struct{})
	errs := make(chan error, 2)
	var running sync.WaitGroup
	running.Go(func() { errs <- member("-a", 1<<30, stop) })
	running.Go(func() { errs <- member("-b", 6, stop) }) // leaves: a rebalance in the middle

	reader, err := kgo.NewClient(toServer(s, kgo.ConsumeTopics(out.Name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	seen := map[string]int{}
	for len(seen) < n {
		f := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records arrived; %d members failed: %v", len(seen), n, len(errs), failed(errs))
		}
		f.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
	}
	close(stop)
	running.Wait()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for v, times := range seen {
		if times != 1 {
			t.Errorf("record %s arrived %d times", v, times)
		}
	}
}

func failed(errs chan error) error {
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// A batch of a transaction that the coordinator does not know of is refused, in
// the words that each version knows; one of two producers in a request, too.
func TestUnverifiedBatch(t *testing.T) {
	s := txnServer(t)
	topic := newTopic(t, 2)
	c := dial(t, addrOf(s))
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.SetVersion(4)
	find.CoordinatorType, find.CoordinatorKeys = 1, []string{topic.Name}
	init := kmsg.NewPtrInitProducerIDRequest()
	init.SetVersion(4)
	init.TransactionalID, init.TransactionTimeoutMillis, init.ProducerID, init.ProducerEpoch = &topic.Name, 60_000, -1, -1
	ask[*kmsg.FindCoordinatorResponse](t, c, find)
	id := ask[*kmsg.InitProducerIDResponse](t, c, init)
	if id.ErrorCode != 0 {
		t.Fatalf("init: %v", kerr.ErrorForCode(id.ErrorCode))
	}
	for _, v := range []struct{ version, code int16 }{
		{9, kerr.InvalidTxnState.Code}, {11, kerr.TransactionAbortable.Code}, {12, 0},
	} {
		b := record.Build(record.BuildHeader{ProducerID: id.ProducerID, ProducerEpoch: id.ProducerEpoch, BaseTimestamp: time.Now().UnixMilli(), Transactional: true},
			[]record.Record{{Value: []byte("a")}})
		req := produceTo(topic, 0, -1, b)
		req.TransactionID = &topic.Name
		req.SetVersion(v.version)
		if p := produced(t, ask[*kmsg.ProduceResponse](t, c, req)); p.ErrorCode != v.code {
			t.Errorf("version %d: %v %s, want %d", v.version, kerr.ErrorForCode(p.ErrorCode), str(p.ErrorMessage), v.code)
		}
	}
	// What v12 began is open: describe, and end it as an operator would.
	describe := kmsg.NewPtrDescribeProducersRequest()
	describe.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic.Name, Partitions: []int32{0}}}
	open := func() string {
		r := ask[*kmsg.DescribeProducersResponse](t, c, describe)
		var out []string
		for _, p := range r.Topics[0].Partitions[0].ActiveProducers {
			out = append(out, fmt.Sprint(p.CurrentTxnStartOffset))
		}
		return strings.Join(out, ",")
	}
	if got := open(); got != "0" {
		t.Errorf("the open transaction begins at %q", got)
	}
	mark := kmsg.NewPtrWriteTxnMarkersRequest()
	mark.SetVersion(1)
	mark.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: id.ProducerID, ProducerEpoch: id.ProducerEpoch,
		Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: topic.Name, Partitions: []int32{0, 9}}}}}
	r := ask[*kmsg.WriteTxnMarkersResponse](t, c, mark)
	if p := r.Markers[0].Topics[0].Partitions; p[0].ErrorCode != 0 || p[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("markers: %+v", p)
	}
	if got := open(); got != "-1" {
		t.Errorf("after the marker a transaction is open at %q", got)
	}
}
