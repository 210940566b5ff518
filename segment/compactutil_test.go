package segment

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// kv is one record of a keyed batch.
type kv struct {
	key, value string // value "" is a tombstone
	ts         int64
}

// keyedBatch is a batch of a compacted topic.
type keyedBatch struct {
	base   int64
	epoch  int32
	codec  record.Codec
	pid    int64 // 0: none
	pepoch int16
	seq    int32
	txn    bool
	recs   []kv
}

func (k keyedBatch) build(t fataler) []byte {
	t.Helper()
	recs := make([]record.Record, len(k.recs))
	h := record.NoProducer(k.recs[0].ts)
	for i, r := range k.recs {
		recs[i] = record.Record{OffsetDelta: int32(i), TimestampDelta: r.ts - h.BaseTimestamp, Key: []byte(r.key), Headers: []record.Header{{Key: "h", Value: []byte(r.key)}}}
		if r.value != "" {
			recs[i].Value = []byte(r.value)
		}
		if r.key == "" {
			recs[i].Key = nil
		}
	}
	h.BaseOffset, h.LeaderEpoch = k.base, k.epoch
	if k.pid != 0 {
		h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional = k.pid, k.pepoch, k.seq, k.txn
	}
	return packed(t, record.Build(h, recs), k.codec)
}

// packed makes a compressed batch of a plain one.
func packed(t fataler, b record.Batch, c record.Codec) []byte {
	if c == record.CodecNone {
		return b
	}
	var d deflater
	defer d.close()
	bytes, err := d.deflate(c, b.RecordBytes())
	if err != nil {
		t.Fatalf("%v", err)
	}
	head := append(record.Batch(nil), b...)
	head[22] |= byte(c) // attributes
	out, err := head.AppendRebuilt(nil, record.Rebuild{Records: bytes, Count: b.NumRecords(), MaxTimestamp: b.MaxTimestamp()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// found is one record as a consumer sees it.
type found struct {
	offset  int64
	epoch   int32
	pid     int64
	ts      int64
	key     string
	value   string // "" is a tombstone
	header  string
	control bool
}

func (f found) String() string {
	return fmt.Sprintf("%d@%d/%d %s=%s t%d", f.offset, f.epoch, f.pid, f.key, f.value, f.ts)
}

// recordsOf takes batches apart.
func recordsOf(t fataler, batches []record.Batch) []found {
	t.Helper()
	var list []found
	for _, b := range batches {
		err := eachRecord(b, maxInflated, func(r record.Record) error {
			f := found{offset: b.BaseOffset() + int64(r.OffsetDelta), epoch: b.PartitionLeaderEpoch(), pid: b.ProducerID(), ts: b.BaseTimestamp() + r.TimestampDelta, key: string(r.Key), value: string(r.Value), control: b.IsControl()}
			if len(r.Headers) > 0 {
				f.header = string(r.Headers[0].Value)
			}
			list = append(list, f)
			return nil
		})
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	return list
}

func logBatches(t fataler, l *Log) []record.Batch {
	t.Helper()
	return split(t, content(t, l, l.StartOffset(), 1<<20))
}

func logRecords(t fataler, l *Log) []found {
	t.Helper()
	return recordsOf(t, logBatches(t, l))
}

var compactConfig = Config{SegmentBytes: 1, RetentionMs: -1, RetentionBytes: -1, Compact: true, DeleteRetentionMs: 1000}

func ms(n int64) time.Time { return time.UnixMilli(n) }

func mustCompact(t testing.TB, l *Log, now int64, o CompactOptions) CompactStats {
	t.Helper()
	s, err := l.Compact(context.Background(), ms(now), l.EndOffset(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// appendKeyed appends batches at the log end, all in one write, and flushes.
func appendKeyed(t testing.TB, l *Log, batches ...keyedBatch) {
	t.Helper()
	for _, b := range batches {
		b.base = l.EndOffset()
		mustAppend(t, l, b.build(t))
	}
	mustFlush(t, l)
}

func appendMarker(t testing.TB, l *Log, marker []byte, epoch int32) {
	t.Helper()
	mustAppend(t, l, stamped(marker, l.EndOffset(), epoch))
	mustFlush(t, l)
}
