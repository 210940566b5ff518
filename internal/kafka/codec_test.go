package kafka

import (
	"bytes"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// bareServer has what encoding an answer touches.
func bareServer() *Server {
	s := &Server{sessions: newSessionCache(1, 1, nil)}
	s.o.EnsureDefaults()
	s.mu.conns = map[*conn]struct{}{}
	s.metrics = newServerMetrics(s)
	return s
}

func produceRequest(version int16) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(version)
	req.Acks = -1
	for i, name := range []string{"orders", "payments"} {
		t := kmsg.NewProduceRequestTopic()
		t.Topic, t.TopicID = name, [16]byte{byte(i + 1)}
		for j := range int32(3) {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition, p.Records = j, []byte{0xaa, byte(i), byte(j), 0x55}
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	return req
}

// The hand-written reader reads what the codec writes, in every version.
func TestParseProduce(t *testing.T) {
	for v := int16(0); v <= 13; v++ {
		req := produceRequest(v)
		if v >= 3 {
			req.TransactionID = kmsg.StringPtr("tx")
		}
		body := req.AppendTo(nil)
		p := produceCall{version: v}
		txnID, err := p.parse(body)
		if err != nil || (txnID != nil && *txnID == "tx") != (v >= 3) || p.acks != -1 || len(p.parts) != 6 {
			t.Fatalf("version %d: %v %v acks %d, %d parts", v, err, txnID, p.acks, len(p.parts))
		}
		for i, part := range p.parts {
			topic, index := req.Topics[i/3], int32(i%3)
			if part.index != index || part.newTopic != (index == 0) || !bytes.Equal(part.records, topic.Partitions[index].Records) {
				t.Fatalf("version %d part %d: %+v", v, i, part)
			}
			if v >= 13 && part.topicID != topic.TopicID || v < 13 && part.topic != topic.Topic {
				t.Fatalf("version %d part %d: %+v", v, i, part)
			}
			if &part.records[0] != &body[bytes.Index(body, part.records)] {
				t.Fatal("records were copied")
			}
		}
		for cut := range body {
			short := produceCall{version: v}
			if _, err := short.parse(body[:cut]); err == nil {
				t.Fatalf("version %d: %d of %d bytes accepted", v, cut, len(body))
			}
		}
	}
}

// The hand-written answer is what the codec reads, in every version.
func TestProduceAnswer(t *testing.T) {
	for v := int16(0); v <= 13; v++ {
		p := &produceCall{conn: &conn{server: bareServer()}, version: v, corr: 7, parts: []producePart{
			{topic: "orders", topicID: metadata.TopicID{1}, newTopic: true, index: 4,
				result: partition.ProduceResult{BaseOffset: 10, LogAppendTime: 11, LogStart: 12}},
			{topic: "orders", index: 5, err: partition.ErrReadOnly,
				result: partition.ProduceResult{BaseOffset: -1, LogAppendTime: -1, LogStart: -1}},
			{topic: "payments", topicID: metadata.TopicID{2}, newTopic: true, index: 6, err: errUnknownPartition},
		}}
		frame, err := wire.ReadFrame(bytes.NewReader(p.appendFrame(nil)), 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		corr, body, err := wire.ParseResponseHeader(frame, keyProduce, v >= 9)
		if err != nil || corr != 7 {
			t.Fatal(corr, err)
		}
		resp := kmsg.NewPtrProduceResponse()
		resp.SetVersion(v)
		if err := resp.ReadFrom(body); err != nil {
			t.Fatalf("version %d: %v", v, err)
		}
		if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
			t.Fatalf("version %d:\n%x\n%x", v, body, again)
		}
		if len(resp.Topics) != 2 || len(resp.Topics[0].Partitions) != 2 {
			t.Fatalf("version %d: %+v", v, resp)
		}
		ok, refused := resp.Topics[0].Partitions[0], resp.Topics[0].Partitions[1]
		if ok.Partition != 4 || ok.BaseOffset != 10 || ok.ErrorCode != 0 || v >= 5 && ok.LogStartOffset != 12 {
			t.Fatalf("version %d: %+v", v, ok)
		}
		if refused.ErrorCode != 134 || refused.BaseOffset != -1 || v >= 8 && (refused.ErrorMessage == nil || *refused.ErrorMessage == "") {
			t.Fatalf("version %d: %+v", v, refused)
		}
	}
}

// The header bytes of a fetch answer are what the codec reads, in every
// version, when the records are put where the cuts say.
func TestFetchAnswer(t *testing.T) {
	results := func() []fetchResult {
		return []fetchResult{
			{part: &fetchPart{fetchKey: fetchKey{topic: "orders", id: metadata.TopicID{1}, index: 0}},
				read: partition.ReadResult{HighWatermark: 10, LastStable: 9, LogStart: 1, Aborted: []producer.AbortedTxn{{ProducerID: 5, FirstOffset: 6}}}},
			{part: &fetchPart{fetchKey: fetchKey{topic: "orders", id: metadata.TopicID{1}, index: 1}},
				read: partition.ReadResult{HighWatermark: 10, LastStable: 10, Diverging: &sdk.EpochEnd{Epoch: 3, End: 8}}},
			{part: &fetchPart{fetchKey: fetchKey{topic: "payments", id: metadata.TopicID{2}, index: 0}},
				read: partition.ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1, LeaderID: 2, LeaderEpoch: 7}, err: partition.ErrNotLeader},
			{part: &fetchPart{fetchKey: fetchKey{topic: "payments", id: metadata.TopicID{2}, index: 9}},
				read: partition.ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1}, err: errUnknownPartition},
		}
	}
	for v := int16(4); v <= 17; v++ {
		w := fetchWriter{bodyWriter: bodyWriter{flexible: v >= 12}, version: v}
		w.int32(0)
		if v >= 7 {
			w.int16(0)
			w.int32(99)
		}
		leaders := w.topics(results())
		if v >= 12 && (len(leaders) != 1 || leaders[0] != 2) {
			t.Fatalf("version %d: leaders %v", v, leaders)
		}
		if v >= 16 {
			w.endpointsTag([]node{{id: 2, host: "b", port: 9092}})
		} else {
			w.tags()
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.SetVersion(v)
		if err := resp.ReadFrom(w.b); err != nil {
			t.Fatalf("version %d: %v", v, err)
		}
		if again := resp.AppendTo(nil); !bytes.Equal(again, w.b) {
			t.Fatalf("version %d:\n%x\n%x", v, w.b, again)
		}
		if len(resp.Topics) != 2 || len(resp.Topics[1].Partitions) != 2 {
			t.Fatalf("version %d: %+v", v, resp)
		}
		p := resp.Topics[0].Partitions
		if p[0].HighWatermark != 10 || p[0].LastStableOffset != 9 || len(p[0].AbortedTransactions) != 1 || p[1].AbortedTransactions != nil {
			t.Fatalf("version %d: %+v", v, p[0])
		}
		moved := resp.Topics[1].Partitions[0]
		if moved.ErrorCode != kerr.NotLeaderForPartition.Code {
			t.Fatalf("version %d: %+v", v, moved)
		}
		if v >= 12 && (p[1].DivergingEpoch.Epoch != 3 || p[1].DivergingEpoch.EndOffset != 8 || moved.CurrentLeader.LeaderID != 2 || moved.CurrentLeader.LeaderEpoch != 7) {
			t.Fatalf("version %d: %+v %+v", v, p[1], moved)
		}
		if v >= 16 && (len(resp.Brokers) != 1 || resp.Brokers[0].Host != "b" || resp.Brokers[0].Port != 9092) {
			t.Fatalf("version %d: %+v", v, resp.Brokers)
		}
	}
}

// One table for all codes: every row names another error, no row is hidden by
// one above it, and what it does not know is a server error.
func TestErrorTable(t *testing.T) {
	for i, row := range errorTable {
		code, message := errorCode(row.err)
		if code != row.code || message == nil {
			t.Errorf("row %d: %v gives %d, the row says %d", i, row.err, code, row.code)
		}
	}
	for _, tc := range []struct {
		err  error
		code int16
	}{
		{nil, 0},
		{errors.New("what"), -1},
		{kerr.InvalidRequiredAcks, 21},
		{partition.ErrReadOnly, 134},
	} {
		if code, _ := errorCode(tc.err); code != tc.code {
			t.Errorf("%v gives %d, want %d", tc.err, code, tc.code)
		}
	}
}

// FuzzProduce: whatever comes is an error or at most as many parts as bytes.
func FuzzProduce(f *testing.F) {
	for _, v := range []int16{0, 3, 9, 12, 13} {
		f.Add(v, produceRequest(v).AppendTo(nil))
	}
	f.Add(int16(9), []byte{0, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 13 {
			return
		}
		p := produceCall{version: version}
		if _, err := p.parse(body); err == nil && len(p.parts) > len(body) {
			t.Fatalf("%d parts from %d bytes", len(p.parts), len(body))
		}
		ours := len(p.parts)
		req := kmsg.NewPtrProduceRequest()
		req.SetVersion(version)
		if err := req.ReadFrom(body); err != nil || !bytes.Equal(req.AppendTo(nil), body) {
			return // the codec is more generous, e.g. with bytes behind the end
		}
		theirs := 0
		for i := range req.Topics {
			theirs += len(req.Topics[i].Partitions)
		}
		if ours != theirs {
			t.Fatalf("version %d: %d parts, the codec finds %d", version, ours, theirs)
		}
	})
}
