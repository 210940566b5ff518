package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// collector prints what it is handed and reads as much of the records as told.
type collector struct {
	lines []string
	read  func(n int) int // how many of n record bytes to read; nil: all
}

func (c *collector) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	n := h.RecordBytes
	if c.read != nil {
		n = c.read(n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(records, b); err != nil {
		return err
	}
	if n == h.RecordBytes {
		if k, err := records.Read(make([]byte, 1)); k != 0 || err != io.EOF {
			return fmt.Errorf("reader goes on: %d, %v", k, err)
		}
	}
	c.lines = append(c.lines, fmt.Sprintf("%s id=%x err=%d hw=%d lso=%d start=%d div=%v leader=%d@%d records=%d:%x",
		h.Key, h.Key.TopicID[:1], h.ErrorCode, h.HighWatermark, h.LastStable, h.LogStart, h.Diverging, h.LeaderID, h.LeaderEpoch, h.RecordBytes, b[:min(len(b), 4)]))
	return nil
}

func asked(topic string, id byte, partitions ...int32) (out []sdk.FetchPartition) {
	for _, p := range partitions {
		out = append(out, sdk.FetchPartition{PartitionKey: sdk.PartitionKey{Topic: topic, TopicID: [16]byte{id}, Partition: p}})
	}
	return out
}

// response builds one with everything in it that a version knows.
func response(version int16) *kmsg.FetchResponse {
	r := kmsg.NewPtrFetchResponse()
	r.SetVersion(version)
	r.ThrottleMillis, r.SessionID = 7, 99
	add := func(topic string, id byte, ps ...kmsg.FetchResponseTopicPartition) {
		t := kmsg.NewFetchResponseTopic()
		t.Topic, t.TopicID, t.Partitions = topic, [16]byte{id}, ps
		r.Topics = append(r.Topics, t)
	}
	part := func(index int32, records []byte, change func(*kmsg.FetchResponseTopicPartition)) kmsg.FetchResponseTopicPartition {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark, p.LastStableOffset, p.LogStartOffset, p.RecordBatches = index, 100, 90, 5, records
		if change != nil {
			change(&p)
		}
		return p
	}
	add("orders", 1,
		part(0, bytes.Repeat([]byte{0xab}, 300_000), nil),
		part(1, nil, func(p *kmsg.FetchResponseTopicPartition) {
			p.ErrorCode = 6
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 3, 8
		}),
		part(2, []byte{1, 2, 3}, func(p *kmsg.FetchResponseTopicPartition) {
			a := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			a.ProducerID, a.FirstOffset = 4, 5
			p.AbortedTransactions = append(p.AbortedTransactions, a, a)
		}))
	add("logs", 2, part(7, nil, func(p *kmsg.FetchResponseTopicPartition) {
		p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 4, 44
		p.SnapshotID.Epoch, p.SnapshotID.EndOffset = 1, 1
	}))
	b := kmsg.NewFetchResponseBroker()
	b.NodeID, b.Host, b.Port = 3, "h", 9
	r.Brokers = append(r.Brokers, b)
	return r
}

func frame(r *kmsg.FetchResponse, corr int32) []byte {
	return wire.AppendResponse(nil, corr, r, r.IsFlexible())[4:]
}

func parse(conn io.Reader, n int, version int16, ask []sdk.FetchPartition, h sdk.FetchHandler) (*fetchParser, error) {
	p := newFetchParser(newStream(conn))
	p.s.begin(n)
	return p, p.parse(version, 42, ask, h)
}

// Every version is read like kmsg reads it, however the bytes arrive, and
// whatever part of the records the handler leaves unread.
func TestParseVersions(t *testing.T) {
	ask := slices.Concat(asked("orders", 1, 0, 1, 2), asked("logs", 2, 7))
	for version := int16(minFetchVersion); version <= maxFetchVersion; version++ {
		resp := response(version)
		body := frame(resp, 42)
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader,
		} {
			for readName, read := range map[string]func(int) int{"all": nil, "none": func(int) int { return 0 }, "some": func(n int) int { return n / 2 }} {
				// Bytes behind the frame must not be touched.
				conn := wrap(io.MultiReader(bytes.NewReader(body), iotest.ErrReader(errors.New("read behind the frame"))))
				c := &collector{read: read}
				p, err := parse(conn, len(body), version, ask, c)
				if err != nil {
					t.Fatalf("v%d %s %s: %v", version, name, readName, err)
				}
				want := wanted(version, read)
				if !slices.Equal(c.lines, want) {
					t.Fatalf("v%d %s %s:\n%s\nwant\n%s", version, name, readName, strings.Join(c.lines, "\n"), strings.Join(want, "\n"))
				}
				if p.throttleMillis != 7 {
					t.Errorf("throttle %d", p.throttleMillis)
				}
			}
		}
	}
}

func wanted(version int16, read func(int) int) []string {
	start, diverging, leader := "5", "{4 44}", "3@8"
	if version < 5 {
		start = "-1"
	}
	if version < 12 {
		diverging, leader = "{-1 -1}", "-1@-1"
	}
	lines := []string{
		"orders-0 id=01 err=0 hw=100 lso=90 start=" + start + " div={-1 -1} leader=-1@-1 records=300000:abababab",
		"orders-1 id=01 err=6 hw=100 lso=90 start=" + start + " div={-1 -1} leader=" + leader + " records=0:",
		"orders-2 id=01 err=0 hw=100 lso=90 start=" + start + " div={-1 -1} leader=-1@-1 records=3:010203",
		"logs-7 id=02 err=0 hw=100 lso=90 start=" + start + " div=" + diverging + " leader=-1@-1 records=0:",
	}
	if read != nil {
		for i, full := range []int{300000, 0, 3, 0} {
			head, data, _ := strings.Cut(lines[i], fmt.Sprintf("records=%d:", full))
			lines[i] = head + fmt.Sprintf("records=%d:", full) + data[:min(len(data), 2*min(4, read(full)))]
		}
	}
	return lines
}

// MIR-070: what was not asked for is refused whole. MIR-297: so is the answer to another
// request. (pipeline.TestVerifyMirror has offsets
// and epochs that go back. A jump ahead is taken: a topic may have been compacted before
// it was given another policy.)
func TestParseRefuses(t *testing.T) {
	ask := slices.Concat(asked("orders", 1, 0, 1, 2), asked("logs", 2, 7))
	good := frame(response(13), 42)
	change := func(at int, b ...byte) []byte {
		c := slices.Clone(good)
		copy(c[at:], b)
		return c
	}
	// v13: correlation 0, tags 4, throttle 5, error 9, session 11, topics 15,
	// id 16, partitions 32, index 33, error 37, offsets 39, aborted 63, replica
	// 64, record length 68
	both := response(13)
	both.Topics[1].Partitions[0].RecordBatches = []byte{1}
	whole := response(13)
	whole.ErrorCode, whole.Topics = 70, nil
	for name, tc := range map[string]struct {
		body  []byte
		ask   []sdk.FetchPartition
		fault string
	}{
		"other correlation id":  {change(0, 9), ask, "came for request"},
		"too many topics":       {change(15, 0xff, 0xff, 0xff, 0xff, 0x0f), ask, "claims"},
		"varint of six bytes":   {change(15, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), ask, "more than 32 bits"},
		"varint above 32 bits":  {change(15, 0xff, 0xff, 0xff, 0xff, 0x7f), ask, "more than 32 bits"},
		"too many partitions":   {change(32, 0xff, 0xff, 0x7f), ask, "claims"},
		"partition not asked":   {change(33, 0, 0, 0, 9), ask, "not asked for"},
		"topic id not asked":    {change(16, 9), ask, "not asked for"},
		"aborted transactions":  {change(63, 0xff, 0xff, 0xff, 0x0f), ask, "claims"},
		"records beyond frame":  {change(68, 0xff, 0xff, 0xff, 0x7f), ask, "claims"},
		"frame longer than all": {append(slices.Clone(good), 0), ask, "after the end"},
		"frame cut":             {good[:len(good)-1], ask, "ends inside"},
		"cut in the records":    {good[:1000], ask, "claims"},
		"records and diverging": {frame(both, 42), ask, "diverging epoch for one"},
		"nothing asked":         {good, nil, "not asked for"},
		"whole response":        {frame(whole, 42), ask, "error code 70"},
	} {
		_, err := parse(bytes.NewReader(tc.body), len(tc.body), 13, tc.ask, &collector{})
		if err == nil || !strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: %v, want …%s…", name, err, tc.fault)
		}
	}
	// A connection that ends early is an error, not an end.
	if _, err := parse(bytes.NewReader(good[:1000]), len(good), 13, ask, &collector{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("broken connection: %v", err)
	}
	// So it is when the handler swallows it.
	if _, err := parse(bytes.NewReader(good[:1000]), len(good), 13, ask, swallow{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("broken connection, swallowed: %v", err)
	}
}

type swallow struct{}

func (swallow) Partition(_ *sdk.PartitionHeader, records io.Reader) error {
	io.Copy(io.Discard, records)
	return nil
}

func TestParseHandlerError(t *testing.T) {
	body := frame(response(12), 42)
	stop := errors.New("stop")
	_, err := parse(bytes.NewReader(body), len(body), 12, asked("orders", 1, 0), handlerFunc(func() error { return stop }))
	if err != stop {
		t.Error(err)
	}
}

type handlerFunc func() error

func (f handlerFunc) Partition(*sdk.PartitionHeader, io.Reader) error { return f() }

// Reading many partitions allocates nothing once the parser is there.
func TestParseAllocatesNothing(t *testing.T) {
	r := kmsg.NewPtrFetchResponse()
	r.SetVersion(16)
	topic := kmsg.NewFetchResponseTopic()
	topic.TopicID = [16]byte{1}
	var ask []sdk.FetchPartition
	for i := range int32(200) {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.RecordBatches = i, bytes.Repeat([]byte{1}, 2000)
		topic.Partitions = append(topic.Partitions, p)
		ask = append(ask, asked("t", 1, i)...)
	}
	r.Topics = append(r.Topics, topic)
	body := frame(r, 42)
	conn := bytes.NewReader(body)
	p := newFetchParser(newStream(conn))
	h := &drain{}
	if n := testing.AllocsPerRun(20, func() {
		conn.Reset(body)
		p.s.begin(len(body))
		if err := p.parse(16, 42, ask, h); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for 200 partitions", n)
	}
}

type drain struct{ buf [4096]byte }

func (d *drain) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	_, err := io.ReadFull(records, d.buf[:h.RecordBytes])
	return err
}

// No bytes make the parser panic, run on, or hand over more than it was sent.
func FuzzParse(f *testing.F) {
	ask := slices.Concat(asked("orders", 1, 0, 1, 2), asked("logs", 2, 7))
	for _, v := range []int16{4, 7, 11, 12, 13, 16, 17} {
		r := response(v)
		r.Topics[0].Partitions[0].RecordBatches = []byte{9, 9, 9, 9}
		f.Add(v, frame(r, 42))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < minFetchVersion || version > maxFetchVersion {
			return
		}
		h := &counter{}
		p, _ := parse(bytes.NewReader(body), len(body), version, ask, h)
		if h.bytes > len(body) || p.s.left < 0 || len(p.topic) > maxTopicName {
			t.Fatalf("%d record bytes from %d, %d left", h.bytes, len(body), p.s.left)
		}
	})
}

type counter struct{ bytes int }

func (c *counter) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	n, err := io.Copy(io.Discard, records)
	c.bytes += int(n)
	if err == nil && int(n) != h.RecordBytes {
		return fmt.Errorf("%d of %d", n, h.RecordBytes)
	}
	return err
}

// Random damage to real frames: the same demands, on structured input.
func TestParseDamaged(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	ask := slices.Concat(asked("orders", 1, 0, 1, 2), asked("logs", 2, 7))
	for range 3000 {
		version := int16(minFetchVersion) + int16(rnd.IntN(maxFetchVersion-minFetchVersion+1))
		r := response(version)
		r.Topics[0].Partitions[0].RecordBatches = make([]byte, 100)
		body := frame(r, 42)
		for range 1 + rnd.IntN(3) {
			body[rnd.IntN(len(body))] = byte(rnd.Uint32())
		}
		h := &counter{}
		if _, err := parse(bytes.NewReader(body), len(body), version, ask, h); err == nil && h.bytes > len(body) {
			t.Fatal("more bytes than sent")
		}
	}
}

func TestEncodeRequest(t *testing.T) {
	s := newKafkaSession(nil, "", "me", 0, 99, 0)
	req := &sdk.FetchRequest{MaxBytes: 10, MinBytes: 1}
	for _, p := range []int32{3, 1} {
		req.Partitions = append(req.Partitions, sdk.FetchPartition{
			PartitionKey: sdk.PartitionKey{Topic: "a", TopicID: [16]byte{1}, Partition: p}, Offset: 7, CurrentLeaderEpoch: 2, LastFetchedEpoch: 1, LogStart: -1, MaxBytes: 5,
		})
	}
	req.Partitions = append(req.Partitions, sdk.FetchPartition{PartitionKey: sdk.PartitionKey{Topic: "b", TopicID: [16]byte{2}, Partition: 0}})
	decode := func() *kmsg.FetchRequest {
		t.Helper()
		version, err := s.encode(req)
		if err != nil {
			t.Fatal(err)
		}
		if int(binary.BigEndian.Uint32(s.out)) != len(s.out)-4 {
			t.Fatal("size prefix")
		}
		h, body, err := wire.ParseRequestHeader(s.out[4:])
		if err != nil || h.Key != 1 || h.Version != version || *h.ClientID != "me" {
			t.Fatalf("%+v, %v", h, err)
		}
		got := kmsg.NewPtrFetchRequest()
		got.SetVersion(version)
		if err := got.ReadFrom(body); err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := decode()
	if got.Version != maxFetchVersion || len(got.Topics) != 2 || len(got.Topics[0].Partitions) != 2 || got.Topics[1].TopicID != [16]byte{2} ||
		got.ReplicaID != -1 || got.ReplicaState.ID != -1 || got.SessionID != 0 || got.SessionEpoch != 0 || got.IsolationLevel != 0 {
		t.Errorf("%+v", got)
	}
	if p := got.Topics[0].Partitions[0]; p.Partition != 3 || p.FetchOffset != 7 || p.CurrentLeaderEpoch != 2 || p.LastFetchedEpoch != 1 || p.PartitionMaxBytes != 5 || p.LogStartOffset != -1 {
		t.Errorf("%+v", p)
	}
	if n := testing.AllocsPerRun(20, func() { s.encode(req) }); n > 0 {
		t.Errorf("encode allocates %v times", n)
	}
	// Fewer partitions the next time, and one topic without an id.
	req.Partitions = req.Partitions[1:2]
	req.Partitions[0].TopicID = [16]byte{}
	if got = decode(); got.Version != lastFetchByName || len(got.Topics) != 1 || got.Topics[0].Topic != "a" || len(got.Topics[0].Partitions) != 1 {
		t.Errorf("%+v", got)
	}
	if len(got.ForgottenTopics) != 0 {
		t.Errorf("a full request forgets %+v", got.ForgottenTopics)
	}
	s.low = 13
	if _, err := s.encode(req); !errors.Is(err, wire.ErrUnsupported) {
		t.Errorf("no version without ids: %v", err)
	}
}
