package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/txn"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/segment"
)

// txnBroker is a broker of its own, with groups and transactions, that can be
// started again on its directory.
type txnBroker struct {
	t      *testing.T
	dir    string
	change func(*txn.Options)

	*broker
	groups *group.Coordinator
	txns   *txn.Coordinator
	topic  string
	starts byte // each is another incarnation, with another port
}

func newTxnBroker(t *testing.T, change func(*txn.Options)) *txnBroker {
	t.Helper()
	b := &txnBroker{t: t, dir: t.TempDir(), change: change, topic: "orders"}
	b.start()
	t.Cleanup(b.close)
	for _, res := range b.controller.CreateTopics(t.Context(), []controller.CreateTopic{
		{Name: b.topic, Partitions: 2, ReplicationFactor: 1}, {Name: "output", Partitions: 1, ReplicationFactor: 1},
	}, false) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	if err := b.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *txnBroker) start() {
	b.t.Helper()
	if err := b.open(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *txnBroker) open() (err error) {
	logger := slog.New(slog.DiscardHandler)
	b.broker = &broker{served: make(chan error, 1)}
	b.starts++
	if b.store, err = segment.Open(segment.Options{Dir: b.dir + "/data", Logger: logger}); err != nil {
		return err
	}
	if b.controller, err = controller.Open(context.Background(), controller.Options{Dir: b.dir + "/metadata", NodeID: 1, SessionTimeout: time.Hour, Logger: logger}); err != nil {
		return err
	}
	b.partitions = partition.NewManager(partition.Options{NodeID: 1, Stores: []*segment.Store{b.store}, Logger: logger})
	gs := group.NewPartitionStore(b.partitions, b.controller.Image)
	if b.groups, err = group.New(group.Options{
		NodeID: 1, Partitions: gs.Partitions, Append: gs.Append, Load: gs.Load,
		AppendOffsets: gs.AppendOffsets, AppendMarker: gs.AppendMarker, InitialRebalanceDelay: -1, OffsetsTopicPartitions: 2,
	}); err != nil {
		return err
	}
	ts := txn.NewPartitionStore(b.partitions, b.controller.Image)
	o := txn.Options{
		NodeID: 1, Partitions: ts.Partitions, Append: ts.Append, Load: ts.Load,
		NewProducerID: txn.NewProducerIDs(b.controller.AllocateProducerIDs).Next,
		WriteMarkers:  MarkerWriter{b.partitions, b.groups}.WriteMarkers(b.controller.Image), TopicPartitions: 2,
	}
	if b.change != nil {
		b.change(&o)
	}
	if b.txns, err = txn.New(o); err != nil {
		return err
	}
	so := b.options(logger)
	so.Groups, so.Transactions = b.groups, b.txns
	if b.server, err = NewServer(so); err != nil {
		return err
	}
	if err = join(b.controller, controller.RegisterBroker{ID: 1, Incarnation: [16]byte{b.starts}, Endpoints: b.server.Endpoints()}); err != nil {
		return err
	}
	b.controller.Watch(func(prev, next *metadata.Image) {
		b.partitions.Apply(prev, next)
		b.groups.Apply(prev, next)
		b.txns.Apply(next)
	})
	if err := b.controller.WaitWatchers(context.Background()); err != nil {
		return err
	}
	b.addr = addrOf(b.server)
	go func() { b.served <- b.server.Serve() }()
	return nil
}

func (b *txnBroker) close() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := errors.Join(b.server.Close(ctx), <-b.served)
	b.txns.Close()
	b.groups.Close()
	b.partitions.Close()
	if err = errors.Join(err, b.controller.Close(), b.store.Close()); err != nil {
		b.t.Error(err)
	}
}

// protocols are those of transactions: with partitions that are added by a
// request of their own, and (KIP-890) by the write.
var protocols = map[string]*kversion.Versions{"v1": kversion.V3_7_0(), "v2": kversion.Stable()}

func (b *txnBroker) client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cl.Close)
	return cl
}

// write begins a transaction with a record in each partition.
func (b *txnBroker) write(cl *kgo.Client, value string) {
	b.t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		b.t.Fatal(err)
	}
	if err := b.produce(cl, value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *txnBroker) produce(cl *kgo.Client, value string) error {
	return cl.ProduceSync(b.t.Context(),
		&kgo.Record{Topic: b.topic, Partition: 0, Value: []byte(value)},
		&kgo.Record{Topic: b.topic, Partition: 1, Value: []byte(value)}).FirstErr()
}

func (b *txnBroker) end(cl *kgo.Client, commit kgo.TransactionEndTry) {
	b.t.Helper()
	if err := cl.EndTransaction(b.t.Context(), commit); err != nil {
		b.t.Fatal(err)
	}
}

// read is what a reader finds in partition 0 until it meets last, which is in
// each.
func (b *txnBroker) read(isolation kgo.IsolationLevel, last string) []string {
	b.t.Helper()
	cl := b.client(kgo.FetchIsolationLevel(isolation), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.topic: {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second) // a broken server must not hang the test
	defer cancel()
	var out []string
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			b.t.Fatalf("after %v: %v", out, err)
		}
		for r := range fetches.RecordsAll() {
			if out = append(out, string(r.Value)); out[len(out)-1] == last {
				return out
			}
		}
	}
}

// Commit and abort, in both protocols, as readers of either isolation see them;
// a zombie is fenced, and a producer that died is cleaned up behind.
func TestTransactions(t *testing.T) {
	for name, versions := range protocols {
		t.Run(name, func(t *testing.T) {
			b := newTxnBroker(t, nil)
			producer := func() *kgo.Client {
				return b.client(kgo.TransactionalID("payments"), kgo.MaxVersions(versions))
			}
			one := producer()
			b.write(one, "committed")
			b.end(one, kgo.TryCommit)
			b.write(one, "aborted")
			b.end(one, kgo.TryAbort)
			for i := range 5 { // closely one behind the other
				b.write(one, fmt.Sprint("quick-", i))
				b.end(one, kgo.TryCommit)
			}
			b.write(one, "left open")

			// Another producer takes the id. What the first left open is aborted, and it
			// can neither write nor commit.
			two := producer()
			b.write(two, "taken over")
			if err := b.produce(one, "of a zombie"); !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
				t.Errorf("the zombie's write: %v", err)
			}
			if err := one.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
				t.Error("the zombie committed")
			}
			b.end(two, kgo.TryCommit)

			// The broker is started again while a transaction is open; its producer goes
			// on, and another one that never comes back is aborted by its successor.
			b.write(two, "over a restart")
			two.Close()
			b.close()
			b.start()
			three := producer()
			b.write(three, "last")
			b.end(three, kgo.TryCommit)

			quick := []string{"quick-0", "quick-1", "quick-2", "quick-3", "quick-4"}
			want := append(append([]string{"committed"}, quick...), "taken over", "last")
			if got := b.read(kgo.ReadCommitted(), "last"); !slices.Equal(got, want) {
				t.Errorf("committed: %v, want %v", got, want)
			}
			want = append(append([]string{"committed", "aborted"}, quick...), "left open", "taken over", "over a restart", "last")
			if got := b.read(kgo.ReadUncommitted(), "last"); !slices.Equal(got, want) {
				t.Errorf("uncommitted: %v, want %v", got, want)
			}
		})
	}
}

// A client cannot have a marker written into the log of a coordinator.
func TestTransactionsKeepOffInternalTopics(t *testing.T) {
	b := newTxnBroker(t, nil)
	b.write(b.client(kgo.TransactionalID("payments")), "makes the topic") // v2 does not ask key 24
	p := b.txns.Describe(t.Context(), "payments")
	add := func(topics ...string) []int16 {
		req := &kmsg.AddPartitionsToTxnRequest{Version: 3, TransactionalID: "payments", ProducerID: p.ProducerID, ProducerEpoch: p.Epoch}
		for _, name := range topics {
			req.Topics = append(req.Topics, kmsg.AddPartitionsToTxnRequestTopic{Topic: name, Partitions: []int32{0}})
		}
		var codes []int16
		for _, topic := range ask[*kmsg.AddPartitionsToTxnResponse](t, dial(t, b.addr), req).Topics {
			codes = append(codes, topic.Partitions[0].ErrorCode)
		}
		return codes
	}
	want := []int16{kerr.OperationNotAttempted.Code, kerr.TopicAuthorizationFailed.Code}
	if got := add(b.topic, txn.TopicName); !slices.Equal(got, want) {
		t.Errorf("with %s: %v, want %v", txn.TopicName, got, want)
	}
	if got := add(b.topic); !slices.Equal(got, []int16{0}) {
		t.Errorf("without: %v", got)
	}
}

// A producer that dies holds readers up until its transaction's time is up.
func TestTransactionTimeout(t *testing.T) {
	b := newTxnBroker(t, func(o *txn.Options) { o.TimeoutCheck = 20 * time.Millisecond })
	dead := b.client(kgo.TransactionalID("dead"), kgo.TransactionTimeout(100*time.Millisecond))
	b.write(dead, "of the dead")
	plain := b.client()
	if err := b.produce(plain, "behind it"); err != nil {
		t.Fatal(err)
	}
	if got := b.read(kgo.ReadCommitted(), "behind it"); len(got) != 1 { // waits for the abort
		t.Errorf("%v", got)
	}
	d := b.txns.Describe(t.Context(), "dead")
	for d.State == txn.PrepareAbort && t.Context().Err() == nil { // readers have the marker before the coordinator notes that all are written
		time.Sleep(time.Millisecond) // a poll of the coordinator
		d = b.txns.Describe(t.Context(), "dead")
	}
	if d.State != txn.CompleteAbort {
		t.Errorf("%+v", d)
	}
	if err := dead.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("committed after its time was up")
	}
}

// Offsets in a transaction are the group's when it commits, and not before.
func TestOffsetsInTransactions(t *testing.T) {
	for name, versions := range protocols {
		t.Run(name, func(t *testing.T) {
			b := newTxnBroker(t, nil)
			if err := b.produce(b.client(), "input"); err != nil {
				t.Fatal(err)
			}
			s, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(b.addr), kgo.TransactionalID("etl"), kgo.ConsumerGroup("etl"),
				kgo.ConsumeTopics(b.topic), kgo.MaxVersions(versions), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			committed := func() int64 {
				offsets, err := b.groups.CommittedIn(t.Context(), "etl", []group.TopicPartition{{Topic: b.topic, Partition: 0}})
				if err != nil {
					t.Fatal(err)
				}
				return offsets[0].Offset
			}
			for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
				for seen := 0; seen < 2; { // both partitions; after the abort again
					f := s.PollFetches(t.Context())
					if err := f.Err(); err != nil {
						t.Fatal(err)
					}
					seen += f.NumRecords()
				}
				if err := s.Begin(); err != nil {
					t.Fatal(err)
				}
				if err := s.ProduceSync(t.Context(), &kgo.Record{Topic: "output", Value: []byte("x")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
				ended, err := s.End(t.Context(), commit)
				if err != nil || ended != bool(commit) {
					t.Fatal(ended, err)
				}
				if !commit {
					if at := committed(); at != -1 {
						t.Fatalf("aborted, and committed %d", at)
					}
					continue
				}
				for committed() != 1 { // the markers come behind the answer
				}
			}
		})
	}
}

// What clients of each version hear, and what tools are shown.
func TestTransactionRequests(t *testing.T) {
	b := newTxnBroker(t, nil)
	c, err := new(wire.Dialer).Dial(t.Context(), b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := func(v int16, req kmsg.Request) kmsg.Request { req.SetVersion(v); return req }
	find := ask[*kmsg.FindCoordinatorResponse](t, c, at(4, &kmsg.FindCoordinatorRequest{CoordinatorType: 1, CoordinatorKeys: []string{"id", ""}}))
	if r := find.Coordinators[0]; r.ErrorCode != 0 || r.NodeID != 1 {
		t.Fatalf("%+v", r)
	}
	if r := find.Coordinators[1]; r.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("%+v", r)
	}
	id := "id"
	initialize := func(v int16, timeout int32, producer int64, epoch int16) *kmsg.InitProducerIDResponse {
		return ask[*kmsg.InitProducerIDResponse](t, c, at(v, &kmsg.InitProducerIDRequest{
			TransactionalID: &id, TransactionTimeoutMillis: timeout, ProducerID: producer, ProducerEpoch: epoch}))
	}
	if r := initialize(4, 1<<30, -1, -1); r.ErrorCode != kerr.InvalidTransactionTimeout.Code {
		t.Errorf("%+v", r)
	}
	r := initialize(0, 60_000, -1, -1)
	if r = initialize(1, 60_000, -1, -1); r.ErrorCode != 0 || r.ProducerEpoch != 1 {
		t.Fatalf("%+v", r)
	}
	topics := []kmsg.AddPartitionsToTxnRequestTopic{{Topic: b.topic, Partitions: []int32{0, 1}}}
	add := func(v, epoch int16, topics []kmsg.AddPartitionsToTxnRequestTopic) (codes []int16) {
		for _, t := range ask[*kmsg.AddPartitionsToTxnResponse](t, c, at(v, &kmsg.AddPartitionsToTxnRequest{
			TransactionalID: id, ProducerID: r.ProducerID, ProducerEpoch: epoch, Topics: topics})).Topics {
			for _, p := range t.Partitions {
				codes = append(codes, p.ErrorCode)
			}
		}
		return codes
	}
	end := func(v int16, epoch int16, commit bool) *kmsg.EndTxnResponse {
		return ask[*kmsg.EndTxnResponse](t, c, at(v, &kmsg.EndTxnRequest{TransactionalID: id, ProducerID: r.ProducerID, ProducerEpoch: epoch, Commit: commit}))
	}
	offsets := func(v, epoch int16) int16 {
		return ask[*kmsg.AddOffsetsToTxnResponse](t, c, at(v, &kmsg.AddOffsetsToTxnRequest{TransactionalID: id, ProducerID: r.ProducerID, ProducerEpoch: epoch, Group: "g"})).ErrorCode
	}
	is := func(what string, got any, want ...int16) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	fenced, older := kerr.ProducerFenced.Code, kerr.InvalidProducerEpoch.Code
	for v := range int16(4) {
		want := older
		if v >= 2 {
			want = fenced
		}
		is(fmt.Sprint("fenced add, version ", v), add(v, 0, topics), want, want)
		is(fmt.Sprint("fenced offsets, version ", v), []int16{offsets(v, 0)}, want)
		is(fmt.Sprint("fenced end, version ", v), []int16{end(v, 0, true).ErrorCode}, want)
	}
	is("fenced init, version 3", []int16{initialize(3, 60_000, r.ProducerID, 0).ErrorCode}, older)
	// Epoch 0 is none that the producer has: two producers were given the id since.
	is("fenced init, version 4", []int16{initialize(4, 60_000, r.ProducerID, 7).ErrorCode}, fenced)
	is("a partition that is missing", add(3, 1, []kmsg.AddPartitionsToTxnRequestTopic{{Topic: b.topic, Partitions: []int32{0, 9}}}),
		kerr.OperationNotAttempted.Code, kerr.UnknownTopicOrPartition.Code)
	is("end without a transaction", []int16{end(3, 1, true).ErrorCode}, kerr.InvalidTxnState.Code)
	verify := func(parts ...int32) []int16 {
		req := &kmsg.AddPartitionsToTxnRequest{Transactions: []kmsg.AddPartitionsToTxnRequestTransaction{{
			TransactionalID: id, ProducerID: r.ProducerID, ProducerEpoch: 1, VerifyOnly: true,
			Topics: []kmsg.AddPartitionsToTxnRequestTransactionTopic{{Topic: b.topic, Partitions: parts}},
		}}}
		var codes []int16
		for _, p := range ask[*kmsg.AddPartitionsToTxnResponse](t, c, at(5, req)).Transactions[0].Topics[0].Partitions {
			codes = append(codes, p.ErrorCode)
		}
		return codes
	}
	is("add", add(3, 1, []kmsg.AddPartitionsToTxnRequestTopic{{Topic: b.topic, Partitions: []int32{1}}}), 0)
	is("verify", verify(0, 1), kerr.TransactionAbortable.Code, 0)
	is("add offsets", []int16{offsets(3, 1)}, 0)

	describe := ask[*kmsg.DescribeTransactionsResponse](t, c, at(0, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{id, "none"}})).TransactionStates
	if d := describe[0]; d.State != "Ongoing" || d.ProducerID != r.ProducerID || d.ProducerEpoch != 1 || d.TimeoutMillis != 60_000 ||
		d.StartTimestamp <= 0 || len(d.Topics) != 2 || d.Topics[0].Topic != group.TopicName || d.Topics[1].Partitions[0] != 1 {
		t.Errorf("%+v", d)
	}
	is("describe nothing", []int16{describe[1].ErrorCode}, kerr.TransactionalIDNotFound.Code)
	list := func(req *kmsg.ListTransactionsRequest) string {
		resp := ask[*kmsg.ListTransactionsResponse](t, c, at(2, req))
		return fmt.Sprint(resp.ErrorCode, len(resp.TransactionStates), resp.UnknownStateFilters)
	}
	for _, l := range []struct {
		req  *kmsg.ListTransactionsRequest
		want string
	}{
		{&kmsg.ListTransactionsRequest{DurationFilterMillis: -1, StateFilters: []string{"Ongoing", "Nowhere"}}, "0 1 [Nowhere]"},
		{&kmsg.ListTransactionsRequest{DurationFilterMillis: -1, StateFilters: []string{"Empty"}}, "0 0 []"},
		{&kmsg.ListTransactionsRequest{DurationFilterMillis: 60_000}, "0 0 []"},
		{&kmsg.ListTransactionsRequest{DurationFilterMillis: -1, TransactionalIDPattern: kmsg.StringPtr("i.")}, "0 1 []"},
		{&kmsg.ListTransactionsRequest{DurationFilterMillis: -1, TransactionalIDPattern: kmsg.StringPtr("(")}, "128 0 []"},
	} {
		if got := list(l.req); got != l.want {
			t.Errorf("%+v: %s, want %s", l.req, got, l.want)
		}
	}
	// Version 5 raises the epoch; asked again it answers the same, in time.
	if e := end(5, 1, true); e.ErrorCode != 0 || e.ProducerID != r.ProducerID || e.ProducerEpoch != 2 {
		t.Fatalf("%+v", e)
	}
	for {
		e := end(5, 1, true)
		if e.ErrorCode == kerr.ConcurrentTransactions.Code {
			continue // the markers are on their way
		}
		if e.ErrorCode != 0 || e.ProducerEpoch != 2 {
			t.Fatalf("%+v", e)
		}
		break
	}
}
