package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/segment"
)

// The tests of this package share one broker without its wire server: a
// controller with its store, and a partition manager on a real directory. Each
// test takes topics of its own; most share one server too.
type broker struct {
	controller *controller.Controller
	partitions *partition.Manager
	store      *segment.Store
	server     *Server
	addr       string
	served     chan error
}

var shared struct {
	sync.Once
	*broker
	err error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kafka-test-")
	if err != nil {
		panic(err)
	}
	testDir = dir
	code := m.Run()
	if shared.broker != nil {
		if err := shared.stop(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		// ants starts a pool of its own when the program does.
		if err := goleak.Find(
			goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
			goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
		); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

var testDir string

func testBroker(t testing.TB) *broker {
	t.Helper()
	shared.Do(func() { shared.broker, shared.err = startBroker(testDir) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.broker
}

const testListener = "TEST"

func startBroker(dir string, change ...func(*Options)) (*broker, error) {
	b := &broker{served: make(chan error, 1)}
	logger := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var err error
	if b.store, err = segment.Open(segment.Options{Dir: dir + "/data", Logger: logger}); err != nil {
		return nil, err
	}
	if b.controller, err = controller.Open(context.Background(), controller.Options{Dir: dir + "/metadata", NodeID: 1, SessionTimeout: time.Hour, Logger: logger}); err != nil {
		return nil, err
	}
	b.partitions = partition.NewManager(partition.Options{NodeID: 1, Stores: []*segment.Store{b.store}, Logger: logger})
	o := b.options(logger)
	for _, change := range change {
		change(&o)
	}
	if b.server, err = NewServer(o); err != nil {
		return nil, err
	}
	if err = join(b.controller, controller.RegisterBroker{ID: 1, Incarnation: [16]byte{1}, Endpoints: b.server.Endpoints()}); err != nil {
		return nil, err
	}
	b.controller.Watch(b.partitions.Apply)
	e := b.server.Endpoints()[0]
	b.addr = fmt.Sprintf("%s:%d", e.Host, e.Port)
	go func() { b.served <- b.server.Serve() }()
	return b, nil
}

func (b *broker) options(logger *slog.Logger) Options {
	return Options{
		NodeID: 1, Controller: b.controller, Partitions: b.partitions, Logger: logger,
		Listeners:        []Listener{{Name: testListener, Protocol: "PLAINTEXT", Address: "127.0.0.1:0"}},
		AutoCreateTopics: true,
	}
}

func (b *broker) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := errors.Join(b.server.Close(ctx), <-b.served)
	b.partitions.Close()
	return errors.Join(err, b.controller.Close(), b.store.Close())
}

// anotherServer serves the shared broker with other options, on another port.
// Metadata still names the shared server's.
func anotherServer(t *testing.T, change func(o *Options)) *Server {
	t.Helper()
	o := testBroker(t).options(nil)
	change(&o)
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := errors.Join(s.Close(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return s
}

func addrOf(s *Server) string {
	e := s.Endpoints()[0]
	return fmt.Sprintf("%s:%d", e.Host, e.Port)
}

var names atomic.Int64

// uniqueName is the test's with a number, because -count runs it again.
func uniqueName(t testing.TB) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), names.Add(1))
}

// newTopic creates a topic named after the test.
func newTopic(t testing.TB, partitions int32, configs ...string) *metadata.Topic {
	t.Helper()
	b := testBroker(t)
	name := uniqueName(t)
	ct := controller.CreateTopic{Name: name, Partitions: partitions, ReplicationFactor: 1, Configs: map[string]string{}}
	for i := 0; i+1 < len(configs); i += 2 {
		ct.Configs[configs[i]] = configs[i+1]
	}
	res := b.controller.CreateTopics(t.Context(), []controller.CreateTopic{ct}, false)
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	if err := b.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return res[0].Topic
}

func newClient(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(testBroker(t).addr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func newAdmin(t testing.TB, opts ...kgo.Opt) *kadm.Client {
	return kadm.NewClient(newClient(t, opts...))
}

// dial opens a plain request/response connection.
func dial(t testing.TB, addr string) *wire.Client {
	t.Helper()
	c, err := new(wire.Dialer).Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request in its own version.
func ask[R kmsg.Response](t testing.TB, c *wire.Client, req kmsg.Request) R {
	t.Helper()
	resp, err := c.RequestVersion(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(R)
}

// rawConn is a connection on which a test writes what it likes.
type rawConn struct {
	net.Conn
	t        testing.TB
	clientID string
}

func dialRaw(t testing.TB, addr string) *rawConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	// Not a measurement: a broken server must fail the test, not hang it.
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &rawConn{nc, t, "raw"}
}

func (c *rawConn) send(corr int32, req kmsg.Request) {
	c.t.Helper()
	if err := c.trySend(corr, req); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawConn) trySend(corr int32, req kmsg.Request) error {
	_, err := c.Write(wire.AppendRequest(nil, corr, c.clientID, req))
	return err
}

func (c *rawConn) receive(req kmsg.Request) (corr int32, resp kmsg.Response) {
	c.t.Helper()
	frame, err := wire.ReadFrame(c, 64<<20, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	corr, body, err := wire.ParseResponseHeader(frame, req.Key(), req.IsFlexible())
	if err != nil {
		c.t.Fatal(err)
	}
	resp = req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatal(err)
	}
	return corr, resp
}

// closedByPeer checks that the server hung up without a word.
func (c *rawConn) closedByPeer() {
	c.t.Helper()
	b, err := io.ReadAll(c)
	if len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("%d bytes, %v; want a closed connection", len(b), err)
	}
}

// batchOf builds one client batch without a producer id.
func batchOf(values ...string) []byte {
	var recs []record.Record
	for i, v := range values {
		recs = append(recs, record.Record{OffsetDelta: int32(i), Value: []byte(v)})
	}
	return record.Build(record.BuildHeader{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, BaseTimestamp: time.Now().UnixMilli()}, recs)
}

// txnBatchOf is one in a transaction of a producer.
func txnBatchOf(producerID int64, epoch int16, value string) []byte {
	return record.Build(record.BuildHeader{ProducerID: producerID, ProducerEpoch: epoch, Transactional: true, BaseTimestamp: time.Now().UnixMilli()},
		[]record.Record{{Value: []byte(value)}})
}

func produceTo(topic *metadata.Topic, index int32, acks int16, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(9)
	req.Acks, req.TimeoutMillis = acks, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = index, records
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func fetchFrom(topic *metadata.Topic, index int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(13)
	req.ReplicaID, req.MaxBytes, req.SessionEpoch = -1, 10<<20, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = index, offset, 10<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func produced(t testing.TB, resp kmsg.Response) *kmsg.ProduceResponseTopicPartition {
	t.Helper()
	return &resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
}

func fetched(t testing.TB, resp kmsg.Response) *kmsg.FetchResponseTopicPartition {
	t.Helper()
	r := resp.(*kmsg.FetchResponse)
	if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		t.Fatalf("%+v", r)
	}
	return &r.Topics[0].Partitions[0]
}

// join registers a broker and lets it in.
func join(c *controller.Controller, r controller.RegisterBroker) error {
	epoch, err := c.RegisterBroker(context.Background(), r)
	if err != nil {
		return err
	}
	_, err = c.Heartbeat(context.Background(), controller.Heartbeat{Broker: r.ID, Epoch: epoch, Revision: c.Image().Revision})
	return err
}
