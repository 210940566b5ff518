package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// What a franz-go client writes with every codec comes back with the same
// bytes, offsets and partitions, small and large.
func TestProduceConsume(t *testing.T) {
	topic := newTopic(t, 3, "max.message.bytes", "4000000")
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	type key struct {
		partition int32
		offset    int64
	}
	want := map[key]string{}
	for c, codec := range codecs {
		cl := newClient(t, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(3<<20))
		var recs []*kgo.Record
		for i := range 60 {
			value := fmt.Sprintf("codec %d record %d ", c, i)
			if i%20 == 7 {
				value = strings.Repeat(value, 40_000) // beyond the sendfile limit when not compressed
			}
			recs = append(recs, &kgo.Record{Topic: topic.Name, Partition: int32(i % 3), Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte{1}}}})
		}
		for _, r := range cl.ProduceSync(t.Context(), recs...) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			want[key{r.Record.Partition, r.Record.Offset}] = string(r.Record.Value)
		}
	}
	for _, opts := range [][]kgo.Opt{
		{kgo.FetchMaxPartitionBytes(64 << 10)},
		{kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxPartitionBytes(8 << 20)},
		{kgo.DisableFetchSessions()},
	} {
		cl := newClient(t, append(opts, kgo.ConsumeTopics(topic.Name))...)
		got := map[key]string{}
		for len(got) < len(want) {
			fs := cl.PollFetches(t.Context())
			if err := fs.Err(); err != nil {
				t.Fatal(err)
			}
			fs.EachRecord(func(r *kgo.Record) {
				k := key{r.Partition, r.Offset}
				if want[k] != string(r.Value) || len(r.Headers) != 1 {
					t.Fatalf("%v differs", k)
				}
				got[k] = string(r.Value)
			})
		}
	}
}

// Many requests are sent before the first answer is read: they share group
// commits, and the answers keep the order of the requests.
func TestPipelinedProduce(t *testing.T) {
	topic := newTopic(t, 1)
	c := dialRaw(t, testBroker(t).addr)
	const n = 300
	var all []byte
	for i := range int32(n) {
		all = wire.AppendRequest(all, i, "raw", produceTo(topic, 0, -1, batchOf(fmt.Sprint(i))))
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(all)
		sent <- err
	}()
	for i := range int32(n) {
		corr, resp := c.receive(produceTo(topic, 0, -1, nil))
		if p := produced(t, resp); corr != i || p.ErrorCode != 0 || p.BaseOffset != int64(i) {
			t.Fatalf("answer %d: for request %d, %+v", i, corr, p)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	// A request of another kind behind pending ones waits its turn.
	c.send(1000, produceTo(topic, 0, -1, batchOf("x")))
	md := kmsg.NewPtrMetadataRequest()
	c.send(1001, md)
	if corr, _ := c.receive(produceTo(topic, 0, -1, nil)); corr != 1000 {
		t.Fatal(corr)
	}
	if corr, _ := c.receive(md); corr != 1001 {
		t.Fatal(corr)
	}
}

func TestProduceErrors(t *testing.T) {
	topic := newTopic(t, 1, "max.message.bytes", "500")
	c := dial(t, testBroker(t).addr)
	corrupt := batchOf("a")
	corrupt[len(corrupt)-1] ^= 1
	control := batchOf("a")
	transactional := batchOf("a")
	transactional[22] |= 1 << 4
	_ = control
	for _, tc := range []struct {
		name    string
		acks    int16
		index   int32
		records []byte
		code    int16
	}{
		{"good", 1, 0, batchOf("a"), 0},
		{"wrong CRC", -1, 0, corrupt, kerr.CorruptMessage.Code},
		{"too large", -1, 0, batchOf(strings.Repeat("a", 600)), kerr.MessageTooLarge.Code},
		{"unknown partition", -1, 7, batchOf("a"), kerr.UnknownTopicOrPartition.Code},
		{"negative partition", -1, -1, batchOf("a"), kerr.UnknownTopicOrPartition.Code},
		{"unknown acks", 2, 0, batchOf("a"), kerr.InvalidRequiredAcks.Code},
		{"transactional", -1, 0, transactional, kerr.CoordinatorNotAvailable.Code},
	} {
		for _, v := range []int16{3, 7, 9, 12, 13} {
			req := produceTo(topic, tc.index, tc.acks, bytes.Clone(tc.records))
			req.SetVersion(v)
			if p := produced(t, ask[*kmsg.ProduceResponse](t, c, req)); p.ErrorCode != tc.code {
				t.Errorf("%s, version %d: code %d (%v), want %d", tc.name, v, p.ErrorCode, str(p.ErrorMessage), tc.code)
			}
		}
	}
	// Old formats are advertised for librdkafka's sake and refused in words.
	req := produceTo(topic, 0, 1, batchOf("a"))
	req.SetVersion(1)
	if p := produced(t, ask[*kmsg.ProduceResponse](t, c, req)); p.ErrorCode != kerr.UnsupportedVersion.Code {
		t.Errorf("version 1: %+v", p)
	}
	// By id, an id nobody has.
	req = produceTo(topic, 0, 1, batchOf("a"))
	req.SetVersion(13)
	req.Topics[0].TopicID[0] ^= 0xff
	if p := produced(t, ask[*kmsg.ProduceResponse](t, c, req)); p.ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("unknown id: %+v", p)
	}
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// acks=0 is never answered; an error closes the connection, so that the client
// looks for the leader anew.
func TestProduceWithoutAcks(t *testing.T) {
	topic := newTopic(t, 1)
	c := dialRaw(t, testBroker(t).addr)
	c.send(1, produceTo(topic, 0, 0, batchOf("a")))
	c.send(2, produceTo(topic, 0, 1, batchOf("b")))
	if corr, resp := c.receive(produceTo(topic, 0, 1, nil)); corr != 2 || produced(t, resp).BaseOffset != 1 {
		t.Fatalf("answer for %d: %+v", corr, resp)
	}
	c.send(3, produceTo(topic, 5, 0, batchOf("a")))
	c.closedByPeer()
}

// An idempotent producer that lost an answer sends again and gets the same one.
func TestProduceIdempotent(t *testing.T) {
	topic := newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	init := kmsg.NewPtrInitProducerIDRequest()
	init.SetVersion(4)
	id := ask[*kmsg.InitProducerIDResponse](t, c, init)
	other := ask[*kmsg.InitProducerIDResponse](t, c, init)
	if id.ErrorCode != 0 || id.ProducerID < 0 || id.ProducerEpoch != 0 || other.ProducerID == id.ProducerID {
		t.Fatalf("%+v %+v", id, other)
	}
	batch := func(sequence int32) []byte { return idempotentBatch(id.ProducerID, sequence, "a", "b") }
	send := func(records []byte) *kmsg.ProduceResponseTopicPartition {
		return produced(t, ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, -1, records)))
	}
	if p := send(batch(0)); p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Fatalf("%+v", p)
	}
	if p := send(batch(2)); p.ErrorCode != 0 || p.BaseOffset != 2 {
		t.Fatalf("%+v", p)
	}
	if p := send(batch(0)); p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Fatalf("again: %+v", p)
	}
	if p := send(batch(9)); p.ErrorCode != kerr.OutOfOrderSequenceNumber.Code {
		t.Fatalf("gap: %+v", p)
	}
	// This server has no transaction coordinator.
	init.TransactionalID = kmsg.StringPtr("tx")
	if r := ask[*kmsg.InitProducerIDResponse](t, c, init); r.ErrorCode != kerr.CoordinatorNotAvailable.Code {
		t.Fatalf("%+v", r)
	}
}

func TestFetchErrors(t *testing.T) {
	topic := newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, -1, batchOf("a", "b", "c")))
	fetch := func(change func(req *kmsg.FetchRequest)) *kmsg.FetchResponseTopicPartition {
		t.Helper()
		req := fetchFrom(topic, 0, 0)
		req.MinBytes = 1
		change(req)
		return fetched(t, ask[*kmsg.FetchResponse](t, c, req))
	}
	part := func(req *kmsg.FetchRequest) *kmsg.FetchRequestTopicPartition { return &req.Topics[0].Partitions[0] }
	epoch := topic.Partitions[0].LeaderEpoch
	for _, tc := range []struct {
		name   string
		change func(req *kmsg.FetchRequest)
		code   int16
	}{
		{"good", func(req *kmsg.FetchRequest) {}, 0},
		{"offset beyond the end", func(req *kmsg.FetchRequest) { part(req).FetchOffset = 4 }, kerr.OffsetOutOfRange.Code},
		{"negative offset", func(req *kmsg.FetchRequest) { part(req).FetchOffset = -1 }, kerr.OffsetOutOfRange.Code},
		{"old epoch", func(req *kmsg.FetchRequest) { part(req).CurrentLeaderEpoch = epoch - 1 }, fenced(epoch - 1)},
		{"future epoch", func(req *kmsg.FetchRequest) { part(req).CurrentLeaderEpoch = epoch + 1 }, kerr.UnknownLeaderEpoch.Code},
		{"unknown partition", func(req *kmsg.FetchRequest) { part(req).Partition = 3 }, kerr.UnknownTopicOrPartition.Code},
		{"unknown id", func(req *kmsg.FetchRequest) { req.Topics[0].TopicID[3] ^= 1 }, kerr.UnknownTopicID.Code},
		{"unknown name", func(req *kmsg.FetchRequest) { req.SetVersion(12); req.Topics[0].Topic = "nobody" }, kerr.UnknownTopicOrPartition.Code},
	} {
		if p := fetch(tc.change); p.ErrorCode != tc.code {
			t.Errorf("%s: code %d, want %d", tc.name, p.ErrorCode, tc.code)
		} else if tc.code == 0 && (p.HighWatermark != 3 || !bytes.Contains(p.RecordBatches, []byte("c"))) {
			t.Errorf("%s: %+v", tc.name, p)
		}
	}
	// One batch larger than every limit is still sent, whole.
	p := fetch(func(req *kmsg.FetchRequest) { req.MaxBytes, part(req).PartitionMaxBytes = 1, 1 })
	if len(p.RecordBatches) == 0 || p.ErrorCode != 0 {
		t.Errorf("a batch beyond the limits: %+v", p)
	}
	// An epoch that the log has no batch of yet ends at the log end of the one
	// before: the client's history parts from ours.
	p = fetch(func(req *kmsg.FetchRequest) { part(req).LastFetchedEpoch, part(req).FetchOffset = epoch, 3 })
	if p.DivergingEpoch.EndOffset != -1 && p.DivergingEpoch.EndOffset != 0 || p.ErrorCode != 0 {
		t.Errorf("same history: %+v", p)
	}
	// Fetches of other brokers are not served.
	req := fetchFrom(topic, 0, 0)
	req.ReplicaID = 2
	if r := ask[*kmsg.FetchResponse](t, c, req); r.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("follower fetch: %+v", r)
	}
}

// fenced is the code for an older epoch; below zero it means "not checked".
func fenced(epoch int32) int16 {
	if epoch < 0 {
		return 0
	}
	return kerr.FencedLeaderEpoch.Code
}

// A fetch at the end waits until something is produced.
func TestFetchLongPoll(t *testing.T) {
	topic := newTopic(t, 2)
	reader, writer := dialRaw(t, testBroker(t).addr), dial(t, testBroker(t).addr)
	req := fetchFrom(topic, 0, 0)
	second := req.Topics[0].Partitions[0]
	second.Partition = 1
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, second)
	req.MinBytes, req.MaxWaitMillis = 1, math.MaxInt32
	reader.send(1, req)
	ask[*kmsg.ProduceResponse](t, writer, produceTo(topic, 1, -1, batchOf("news")))
	_, resp := reader.receive(req)
	parts := resp.(*kmsg.FetchResponse).Topics[0].Partitions
	if len(parts) != 2 || len(parts[0].RecordBatches) != 0 || !bytes.Contains(parts[1].RecordBatches, []byte("news")) {
		t.Fatalf("%+v", parts)
	}
	// A topic that goes away ends the wait too.
	reader.send(2, req)
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.SetVersion(5)
	del.TopicNames = []string{topic.Name}
	if r := ask[*kmsg.DeleteTopicsResponse](t, writer, del); r.Topics[0].ErrorCode != 0 {
		t.Fatalf("%+v", r)
	}
	// It may have seen the partition's data before the topic went.
	_, resp = reader.receive(req)
	if resp.(*kmsg.FetchResponse).ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}
}

// A session's answers leave out what did not change, and a recovered partition
// is told again.
func TestFetchSessionAnswers(t *testing.T) {
	topic := newTopic(t, 3)
	c := dial(t, testBroker(t).addr)
	for i := range int32(2) {
		ask[*kmsg.ProduceResponse](t, c, produceTo(topic, i, -1, batchOf("a")))
	}
	req := fetchFrom(topic, 0, 1)
	req.SessionEpoch = 0
	for i := int32(1); i < 3; i++ {
		p := req.Topics[0].Partitions[0]
		p.Partition, p.FetchOffset = i, 0
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
	}
	show := func(r *kmsg.FetchResponse) string {
		s := fmt.Sprintf("error %d:", r.ErrorCode)
		for _, rt := range r.Topics {
			for _, p := range rt.Partitions {
				s += fmt.Sprintf(" %d/%d/%v", p.Partition, p.HighWatermark, len(p.RecordBatches) > 0)
			}
		}
		return s
	}
	first := ask[*kmsg.FetchResponse](t, c, req)
	if got := show(first); got != "error 0: 0/1/false 1/1/true 2/0/false" || first.SessionID == 0 {
		t.Fatal(got, first.SessionID)
	}
	next := kmsg.NewPtrFetchRequest()
	next.SetVersion(13)
	next.MaxBytes, next.ReplicaID, next.SessionID, next.SessionEpoch = 10<<20, -1, first.SessionID, 1
	again := fetchFrom(topic, 1, 1)
	next.Topics = again.Topics
	if got := show(ask[*kmsg.FetchResponse](t, c, next)); got != "error 0:" {
		t.Fatal(got)
	}
	ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 2, -1, batchOf("b")))
	next.Topics, next.SessionEpoch = nil, 2
	if got := show(ask[*kmsg.FetchResponse](t, c, next)); got != "error 0: 2/1/true" {
		t.Fatal(got)
	}
	next.SessionEpoch = 9
	if got := show(ask[*kmsg.FetchResponse](t, c, next)); got != "error 71:" {
		t.Fatal(got)
	}
	// The session ends with its connection.
	c.Close()
	other := dial(t, testBroker(t).addr)
	for {
		next.SessionEpoch = 3
		r := ask[*kmsg.FetchResponse](t, other, next)
		if r.ErrorCode == kerr.FetchSessionIDNotFound.Code {
			break
		}
		if r.ErrorCode != 0 && r.ErrorCode != kerr.InvalidFetchSessionEpoch.Code {
			t.Fatal(show(r))
		}
	}
}

func TestListOffsetsAndEpochs(t *testing.T) {
	topic := newTopic(t, 1)
	c := dial(t, testBroker(t).addr)
	ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, -1, batchOf("a", "b", "c")))
	list := func(ts int64) kmsg.ListOffsetsResponseTopicPartition {
		req := kmsg.NewPtrListOffsetsRequest()
		req.SetVersion(9)
		req.ReplicaID = -1
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic.Name
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Timestamp = ts
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.ListOffsetsResponse](t, c, req).Topics[0].Partitions[0]
	}
	for ts, want := range map[int64]int64{-1: 3, -2: 0, -4: 0, -5: -1, 0: 0, math.MaxInt64: -1} {
		if p := list(ts); p.ErrorCode != 0 || p.Offset != want {
			t.Errorf("timestamp %d: %+v, want offset %d", ts, p, want)
		}
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.SetVersion(4)
	req.ReplicaID = -1
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic = topic.Name
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.CurrentLeaderEpoch, rp.LeaderEpoch = topic.Partitions[0].LeaderEpoch, topic.Partitions[0].LeaderEpoch
	unknown := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	unknown.Partition = 4
	rt.Partitions = append(rt.Partitions, rp, unknown)
	req.Topics = append(req.Topics, rt)
	parts := ask[*kmsg.OffsetForLeaderEpochResponse](t, c, req).Topics[0].Partitions
	if parts[0].ErrorCode != 0 || parts[0].EndOffset != 3 || parts[1].ErrorCode != kerr.UnknownTopicOrPartition.Code || parts[1].EndOffset != -1 {
		t.Fatalf("%+v", parts)
	}
}

func TestApiVersions(t *testing.T) {
	b := testBroker(t)
	c := dialRaw(t, b.addr)
	newest := kmsg.NewPtrApiVersionsRequest()
	newest.SetVersion(5)
	newest.ClientSoftwareName, newest.ClientSoftwareVersion = "test", "1"
	c.send(1, newest)
	old := kmsg.NewPtrApiVersionsRequest()
	_, resp := c.receive(old) // v0, whatever was asked
	if r := resp.(*kmsg.ApiVersionsResponse); r.ErrorCode != kerr.UnsupportedVersion.Code || len(r.ApiKeys) == 0 {
		t.Fatalf("%+v", r)
	}
	newest.SetVersion(4)
	c.send(2, newest)
	_, resp = c.receive(newest)
	r := resp.(*kmsg.ApiVersionsResponse)
	for _, k := range r.ApiKeys {
		if a := b.server.apis[k.ApiKey]; a == nil || a.max != k.MaxVersion {
			t.Errorf("key %d advertised up to %d", k.ApiKey, k.MaxVersion)
		}
	}
	found := map[string]int16{}
	for _, f := range r.FinalizedFeatures {
		found[f.Name] = f.MaxVersionLevel
	}
	if found["mirror.version"] != 1 || found["metadata.version"] == 0 || len(r.SupportedFeatures) != len(features) {
		t.Fatalf("%+v %+v", found, r.SupportedFeatures)
	}
	newest.ClientSoftwareName = "no spaces allowed"
	c.send(3, newest)
	if _, resp = c.receive(newest); resp.(*kmsg.ApiVersionsResponse).ErrorCode != kerr.InvalidRequest.Code {
		t.Fatalf("%+v", resp)
	}
}

// Every key answers every version that it advertises, in that version's
// encoding, also when the request is empty.
func TestEveryVersionIsServed(t *testing.T) {
	b := testBroker(t)
	for _, a := range b.server.apis {
		if a == nil {
			continue
		}
		for v := a.min; v <= a.max; v++ {
			if a.key == keyJoinGroup || a.key == keySyncGroup {
				continue // the group's tests
			}
			c := dialRaw(t, b.addr)
			req := wire.NewRequest(a.key)
			req.SetVersion(v)
			if p, ok := req.(*kmsg.ProduceRequest); ok {
				p.Acks = 1
			}
			c.send(int32(v), req)
			if corr, _ := c.receive(req); corr != int32(v) {
				t.Errorf("key %d version %d: answer for %d", a.key, v, corr)
			}
			c.Close()
		}
	}
}

// What cannot be a request ends its connection, and only that.
func TestHostileFrames(t *testing.T) {
	b := testBroker(t)
	good := dial(t, b.addr)
	size := func(n uint32, rest ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), rest...) }
	for _, tc := range []struct {
		name string
		in   []byte
	}{
		{"negative size", size(0xffffffff)},
		{"zero size", size(0)},
		{"2 GiB", size(math.MaxInt32, 0, 3)},
		{"metadata of 2 MiB", size(2<<20, 0, 3, 0, 1, 0, 0, 0, 0)},
		{"produce of 101 MiB", size(101<<20, 0, 0, 0, 9)},
		{"unknown key", size(10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff)},
		{"negative key", size(10, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff)},
		{"unknown version", size(10, 0, 3, 0, 99, 0, 0, 0, 1, 0xff, 0xff)},
		{"negative version", size(10, 0, 3, 0xff, 0xff, 0, 0, 0, 1, 0xff, 0xff)},
		{"not served: LeaderAndIsr", size(10, 0, 4, 0, 0, 0, 0, 0, 1, 0xff, 0xff)},
		{"client id beyond the frame", size(10, 0, 3, 0, 1, 0, 0, 0, 1, 0x70, 0)},
		{"array beyond the body", size(14, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff)},
		{"produce array beyond the body", size(20, 0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 1, 0, 0, 0, 0, 0x7f, 0xff)},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialRaw(t, b.addr)
			c.Write(tc.in) // and nothing more: the server must not wait for the rest
			c.closedByPeer()
		})
	}
	ask[*kmsg.MetadataResponse](t, good, kmsg.NewPtrMetadataRequest())
}

// A panic of a handler costs its own connection.
func TestPanicEndsOneConnection(t *testing.T) {
	s := anotherServer(t, func(o *Options) {})
	s.apis[3].handle = func(*request, kmsg.Request) (kmsg.Response, error) { panic("planted") }
	before := s.metrics.panics.Get()
	good := dial(t, addrOf(s))
	c := dialRaw(t, addrOf(s))
	c.send(1, kmsg.NewPtrMetadataRequest())
	c.closedByPeer()
	if s.metrics.panics.Get() != before+1 {
		t.Fatal("not counted")
	}
	if _, err := good.Request(t.Context(), kmsg.NewPtrDescribeClusterRequest()); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionLimits(t *testing.T) {
	s := anotherServer(t, func(o *Options) { o.MaxConnections = 2 })
	first, second := dial(t, addrOf(s)), dial(t, addrOf(s))
	dialRaw(t, addrOf(s)).closedByPeer()
	first.Close()
	for s.connections() > 1 { // the server notices on its own time
		time.Sleep(time.Millisecond)
	}
	dial(t, addrOf(s))
	if _, err := second.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
		t.Fatal(err)
	}
}

// A request that does not arrive, a peer that says nothing at all.
func TestSlowPeersAreClosed(t *testing.T) {
	s := anotherServer(t, func(o *Options) { o.FrameTimeout = 20 * time.Millisecond })
	c := dialRaw(t, addrOf(s))
	c.Write([]byte{0, 0, 0, 100, 0})
	c.closedByPeer()
	s = anotherServer(t, func(o *Options) { o.IdleTimeout = 20 * time.Millisecond })
	dialRaw(t, addrOf(s)).closedByPeer()
}

// A peer that never reads its answers is closed at the write deadline, and the
// partition it fetched from is not held up.
func TestWriteDeadline(t *testing.T) {
	topic := newTopic(t, 1, "max.message.bytes", "2000000")
	s := anotherServer(t, func(o *Options) { o.WriteTimeout = 20 * time.Millisecond })
	writer := dial(t, addrOf(s))
	for range 20 {
		if p := produced(t, ask[*kmsg.ProduceResponse](t, writer, produceTo(topic, 0, 1, batchOf(strings.Repeat("x", 1<<20))))); p.ErrorCode != 0 {
			t.Fatalf("%+v", p)
		}
	}
	c := dialRaw(t, addrOf(s))
	for i := range int32(20) {
		req := fetchFrom(topic, 0, 0)
		req.MaxBytes, req.Topics[0].Partitions[0].PartitionMaxBytes = 50<<20, 50<<20
		if _, err := c.Write(wire.AppendRequest(nil, i, "stuck", req)); err != nil {
			break
		}
	}
	for s.connections() > 1 { // the server notices on its own time
		time.Sleep(time.Millisecond)
	}
	ask[*kmsg.MetadataResponse](t, writer, kmsg.NewPtrMetadataRequest())
}

// Close ends long polls with an answer, answers what was sent, and leaves no
// connection.
func TestCloseDrains(t *testing.T) {
	topic := newTopic(t, 1)
	o := testBroker(t).options(nil)
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	poller, idle := dialRaw(t, addrOf(s)), dialRaw(t, addrOf(s))
	req := fetchFrom(topic, 0, 0)
	req.MinBytes, req.MaxWaitMillis = 1, math.MaxInt32
	poller.send(1, req)
	producer := dial(t, addrOf(s))
	if p := produced(t, ask[*kmsg.ProduceResponse](t, producer, produceTo(topic, 0, -1, batchOf("a")))); p.ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
	poller.receive(req)
	req.Topics[0].Partitions[0].FetchOffset = 1
	poller.send(2, req)
	for s.o.Partitions.ByID(topic.ID, 0) == nil {
		t.Fatal("no partition")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatal("Close waited for its deadline")
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	idle.closedByPeer()
	if s.connections() != 0 {
		t.Fatalf("%d connections left", s.connections())
	}
	if _, err := net.Dial("tcp", addrOf(s)); err == nil {
		t.Fatal("still listening")
	}
}

// Over TLS the bytes are copied instead of sent from the file; the client must
// not see a difference.
func TestTLS(t *testing.T) {
	topic := newTopic(t, 1, "max.message.bytes", "2000000")
	server, client := testCertificates(t)
	s := anotherServer(t, func(o *Options) { o.Listeners[0].Protocol, o.Listeners[0].TLS = "SSL", server })
	c, err := (&wire.Dialer{TLS: client}).Dial(t.Context(), addrOf(s))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	values := []string{strings.Repeat("large", 200_000), "small"}
	for _, v := range values {
		if p := produced(t, ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, -1, batchOf(v)))); p.ErrorCode != 0 {
			t.Fatalf("%+v", p)
		}
	}
	p := fetched(t, ask[*kmsg.FetchResponse](t, c, fetchFrom(topic, 0, 0)))
	for _, v := range values {
		if !bytes.Contains(p.RecordBatches, []byte(v)) {
			t.Fatal("bytes differ")
		}
	}
	// Plaintext on the port ends at once.
	raw := dialRaw(t, addrOf(s))
	raw.send(1, kmsg.NewPtrMetadataRequest())
	if _, err := wire.ReadFrame(raw, 1<<20, nil); err == nil {
		t.Fatal("answered in clear")
	}
}
