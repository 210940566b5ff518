package kafka

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/txn"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// right is one that a client of the test may have alone.
type right struct {
	res authz.ResourceType
	op  authz.Operation
}

func (r right) String() string { return r.res.String() + "." + r.op.String() }

// allRights is every right there is, in the order of the numbers.
func allRights() []right {
	var out []right
	for res := authz.Topic; res.Valid(); res++ {
		for op := authz.All; op.Valid(); op++ {
			if op == authz.All || res.Operations().Has(op) {
				out = append(out, right{res, op})
			}
		}
	}
	return out
}

// secured is a server with an authorizer and everything that it can serve. Who a
// client is, is told by the address it comes from: each right has one, and ACLs
// name hosts.
type secured struct {
	t      *testing.T
	server *Server
	topic  *metadata.Topic
	// prefix begins the name of everything that the ACLs are about.
	prefix  string
	clients map[string]*wire.Client
}

const (
	hostNone = "127.0.1.1"
	hostAll  = "127.0.1.2"
)

func hostOfRight(i int) string { return fmt.Sprintf("127.0.2.%d", i+1) }

func newSecured(t *testing.T, change ...func(*Options)) *secured {
	t.Helper()
	b := testBroker(t)
	w := &secured{t: t, topic: newTopic(t, 1), clients: map[string]*wire.Client{}}
	w.prefix = w.topic.Name
	manager, err := mirror.NewManager(mirror.Options{
		NodeID: 1, ClusterID: b.controller.Image().ClusterID, Controller: b.controller, Partitions: b.partitions,
	})
	if err != nil {
		t.Fatal(err)
	}
	store := group.NewPartitionStore(b.partitions, b.controller.Image)
	groups, err := group.New(group.Options{
		NodeID: 1, Partitions: store.Partitions, Append: store.Append, Load: store.Load,
		AppendOffsets: store.AppendOffsets, AppendMarker: store.AppendMarker,
		InitialRebalanceDelay: -1, OffsetsTopicPartitions: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	states := txn.NewPartitionStore(b.partitions, b.controller.Image)
	txns, err := txn.New(txn.Options{
		NodeID: 1, Partitions: states.Partitions, Append: states.Append, Load: states.Load, TopicPartitions: 2,
		NewProducerID: txn.NewProducerIDs(b.controller.AllocateProducerIDs).Next,
		WriteMarkers:  MarkerWriter{b.partitions, groups}.WriteMarkers(b.controller.Image),
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel := b.controller.Watch(func(prev, next *metadata.Image) {
		groups.Apply(prev, next)
		txns.Apply(next)
	})
	w.server = anotherServer(t, func(o *Options) {
		o.Groups, o.Mirrors, o.Transactions = groups, mirror.NewCoordinator(manager), txns
		o.Authorizer = authz.New(authz.Options{})
		for _, f := range change {
			f(o)
		}
	})
	t.Cleanup(func() { cancel(); txns.Close(); groups.Close(); manager.Close() })

	// A mirror and a group that exist, with a source that nobody has.
	err = b.controller.CreateMirror(t.Context(), w.prefix, map[string]string{
		metadata.MirrorBootstrapServers: "127.0.0.1:1", metadata.MirrorSourceClusterID: "elsewhere", "request.timeout.ms": "1000",
	})
	if err != nil {
		t.Fatal(err)
	}
	var acls []metadata.ACL
	for i, r := range allRights() {
		acls = append(acls, w.acl(r, hostOfRight(i)))
		if r.op == authz.All {
			acls = append(acls, w.acl(r, hostAll))
		}
	}
	w.grant(acls...)
	t.Cleanup(func() {
		prefix := metadata.ACLFilter{ResourceType: metadata.ACLAnyResource, Pattern: metadata.ACLAnyPattern,
			Operation: metadata.ACLAnyOperation, Permission: metadata.ACLAnyPermission}
		b.controller.DeleteACLs(context.Background(), []metadata.ACLFilter{prefix})
	})
	return w
}

// acl gives one right, on everything of the test, to clients of one address.
func (w *secured) acl(r right, host string) metadata.ACL {
	a := metadata.ACL{
		ResourceType: r.res, Pattern: metadata.ACLPrefixed, ResourceName: w.prefix,
		Principal: authz.Anonymous.String(), Host: host, Operation: r.op, Permission: metadata.ACLAllow,
	}
	if r.res == authz.Cluster {
		a.Pattern, a.ResourceName = metadata.ACLLiteral, authz.ClusterName
	}
	return a
}

func (w *secured) grant(acls ...metadata.ACL) {
	w.t.Helper()
	for _, err := range testBroker(w.t).controller.CreateACLs(w.t.Context(), acls) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// from is a client at an address.
func (w *secured) from(host string) *wire.Client {
	w.t.Helper()
	c := w.clients[host]
	if c == nil {
		dialer := wire.Dialer{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).DialContext}
		var err error
		if c, err = dialer.Dial(w.t.Context(), addrOf(w.server)); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { c.Close() })
		w.clients[host] = c
	}
	return c
}

// denials are the codes that say so.
var denials = []int16{29, 30, 31, 53, 65, 144}

// outcome is what a client at host hears: the denials in the answer, or "ok" for
// whatever came after the check of rights; and what of the test's it is shown, for
// answers that leave out.
func (w *secured) outcome(host string, req kmsg.Request) string {
	w.t.Helper()
	resp := ask[kmsg.Response](w.t, w.from(host), req)
	var codes []string
	for _, code := range answeredCodes(resp) {
		if s := fmt.Sprint(code); slices.Contains(denials, code) && !slices.Contains(codes, s) {
			codes = append(codes, s)
		}
	}
	out := strings.Join(codes, "+")
	if out == "" {
		out = "ok"
	}
	if n := w.shown(resp); n >= 0 {
		out += fmt.Sprintf(" shows %d", n)
	}
	return out
}

// shown counts what a listing tells of the test's own, -1 for other answers.
func (w *secured) shown(resp kmsg.Response) int {
	n := 0
	count := func(name string) {
		if strings.HasPrefix(name, w.prefix) {
			n++
		}
	}
	switch resp := resp.(type) {
	case *kmsg.ListGroupsResponse:
		for _, g := range resp.Groups {
			count(g.Group)
		}
	case *kmsg.ListTransactionsResponse:
		for _, id := range resp.TransactionStates {
			count(id.TransactionalID)
		}
	case *kmsg.DescribeTransactionsResponse:
		for _, id := range resp.TransactionStates {
			for _, t := range id.Topics {
				count(t.Topic)
			}
		}
	case *wire.ListClusterMirrorsResponse:
		for _, m := range resp.Mirrors {
			count(m.MirrorName)
		}
	default:
		return -1
	}
	return n
}

// TestRights walks every key that is served against no right, each single one and
// all, and compares with testdata/rights: what is not listed there is as with
// "none". A key that is not in the file fails, so that nobody adds one without a
// row; its request goes into requestsOf. -rewrite renews the file, for review.
//
// MIR-367: create, describe, delete of a mirror and what is done with its topics need the
// right on the mirror; listings leave out. MIR-368: what brokers ask each other is refused
// to clients. MIR-369: who may not see the mirror is refused its last mirrored epochs, and
// not told that there are none.
func TestRights(t *testing.T) {
	w := newSecured(t)
	w.commitSome()
	w.beginTransaction()
	w.joinConsumerGroup()
	requests := w.requests()
	seen := map[int16]bool{}
	datadriven.RunTest(t, "testdata/rights", func(t *testing.T, d *datadriven.TestData) string {
		var name string
		d.ScanArgs(t, "of", &name)
		for _, r := range requests {
			if r.name != name {
				continue
			}
			seen[r.request().Key()] = true
			return w.row(r.request)
		}
		t.Fatalf("%s: no request %q in rights_requests_test.go", d.Pos, name)
		return ""
	})
	for _, a := range w.server.apis {
		if a != nil && !seen[a.key] {
			t.Errorf("key %d (%s) has no row in testdata/rights", a.key, keyName(a.key))
		}
	}
	text, err := os.ReadFile("testdata/rights")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if !strings.Contains(string(text), "rights of="+r.name+"\n") {
			t.Errorf("request %q has no row in testdata/rights", r.name)
		}
	}
}

// row asks for everybody and prints who fares better than without a right.
func (w *secured) row(request func() kmsg.Request) string {
	none := w.outcome(hostNone, request())
	var b strings.Builder
	fmt.Fprintf(&b, "none: %s\n", none)
	byOutcome := map[string][]string{}
	for i, r := range allRights() {
		if got := w.outcome(hostOfRight(i), request()); got != none {
			byOutcome[got] = append(byOutcome[got], r.String())
		}
	}
	for _, got := range slices.Sorted(func(yield func(string) bool) {
		for k := range byOutcome {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Fprintf(&b, "%s: %s\n", got, strings.Join(byOutcome[got], " "))
	}
	if all := w.outcome(hostAll, request()); all != none {
		fmt.Fprintf(&b, "all: %s\n", all)
	}
	return b.String()
}

// TestRightsSeeEveryKey: a key that registerAll leaves out for want of an option is
// not in the table that TestRights walks.
func TestRightsSeeEveryKey(t *testing.T) {
	w := newSecured(t)
	files, err := filepath.Glob("key*_*.go")
	if err != nil || len(files) < 50 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		var key int16
		if _, err := fmt.Sscanf(file, "key%d_", &key); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if w.server.apis[key] == nil {
			t.Errorf("%s: newSecured has no server that serves the key", file)
		}
	}
}

// doomed is a topic that only one request is about.
func (w *secured) doomed() *metadata.Topic {
	w.t.Helper()
	c := testBroker(w.t).controller
	name := fmt.Sprintf("%s-doomed-%d", w.prefix, names.Add(1))
	res := c.CreateTopics(w.t.Context(), []controller.CreateTopic{{Name: name, Partitions: 1, ReplicationFactor: 1}}, false)[0]
	if res.Err != nil {
		w.t.Fatal(res.Err)
	}
	w.t.Cleanup(func() { c.DeleteTopics(context.Background(), []metadata.TopicID{res.Topic.ID}) })
	return res.Topic
}

// commitSome makes a group that exists.
func (w *secured) commitSome() {
	w.t.Helper()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.SetVersion(3)
	find.CoordinatorKey = w.prefix
	ask[*kmsg.FindCoordinatorResponse](w.t, w.from(hostAll), find)
	if err := testBroker(w.t).controller.WaitWatchers(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.SetVersion(8)
	commit.Group, commit.Generation = w.prefix, -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: w.topic.Name, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}
	resp := ask[*kmsg.OffsetCommitResponse](w.t, w.from(hostAll), commit)
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.t.Fatalf("commit: code %d", code)
	}
}

func (w *secured) consumerGroup() string { return w.prefix + "-consumers" }

// joinConsumerGroup makes a consumer group that exists, with the topic in it.
func (w *secured) joinConsumerGroup() {
	w.t.Helper()
	beat := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	beat.SetVersion(1)
	beat.Group, beat.MemberID, beat.RebalanceTimeoutMillis = w.consumerGroup(), "member", 60_000
	beat.SubscribedTopicNames = []string{w.topic.Name}
	beat.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](w.t, w.from(hostAll), beat); resp.ErrorCode != 0 {
		w.t.Fatalf("join: code %d", resp.ErrorCode)
	}
}

// beginTransaction makes a transaction that exists, with a topic in it.
func (w *secured) beginTransaction() {
	w.t.Helper()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.SetVersion(3)
	find.CoordinatorType, find.CoordinatorKey = coordinatorTransaction, w.prefix
	ask[*kmsg.FindCoordinatorResponse](w.t, w.from(hostAll), find)
	if err := testBroker(w.t).controller.WaitWatchers(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	begin := kmsg.NewPtrInitProducerIDRequest()
	begin.SetVersion(3)
	begin.TransactionalID, begin.TransactionTimeoutMillis = &w.prefix, 60_000
	p := ask[*kmsg.InitProducerIDResponse](w.t, w.from(hostAll), begin)
	if p.ErrorCode != 0 {
		w.t.Fatalf("begin: code %d", p.ErrorCode)
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.SetVersion(3)
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = w.prefix, p.ProducerID, p.ProducerEpoch
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: w.topic.Name, Partitions: []int32{0}}}
	resp := ask[*kmsg.AddPartitionsToTxnResponse](w.t, w.from(hostAll), add)
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.t.Fatalf("add: code %d", code)
	}
	w.t.Cleanup(func() {
		end := kmsg.NewPtrEndTxnRequest()
		end.SetVersion(3)
		end.TransactionalID, end.ProducerID, end.ProducerEpoch = w.prefix, p.ProducerID, p.ProducerEpoch
		if _, err := w.from(hostAll).RequestVersion(context.Background(), end); err != nil {
			w.t.Error(err)
		}
	})
}
