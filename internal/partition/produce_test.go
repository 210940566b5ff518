package partition

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/segment"
)

// What a client may not send is refused whole, and nothing is appended.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"max.message.bytes": "200", "message.timestamp.after.max.ms": "1000", "min.insync.replicas": "1"}
	})
	damaged := batch(1)
	damaged[len(damaged)-1] ^= 1
	late := record.Build(record.NoProducer(1_002_000), []record.Record{{Value: []byte("v")}})
	huge := record.Build(record.NoProducer(1<<62), []record.Record{{Value: []byte("v")}})
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"damaged": {damaged, nil}, "too large": {batch(30), ErrTooLarge}, "from the future": {late, ErrTimestamp},
		"absurd time": {huge, ErrTimestamp}, "marker": {record.AbortMarker(1, 0, 0, 1_000_000), nil}, "empty": {nil, nil},
	} {
		a := w.wait(produce(p, c.b, -1))
		if a.err == nil || c.want != nil && !errors.Is(a.err, c.want) {
			t.Errorf("%s: %v", name, a.err)
		}
	}
	w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"min.insync.replicas": "2"} })
	if a := w.wait(produce(p, batch(1), -1)); !errors.Is(a.err, ErrNotEnoughReplicas) {
		t.Errorf("below min.insync.replicas: %v", a.err)
	}
	if end(p) != 0 {
		t.Fatalf("log end %d after refusals", end(p))
	}
}

// An idempotent producer that repeats a batch gets the old offset, one that
// leaves a hole is refused.
func TestIdempotence(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	send := func(seq int32) answer {
		h := record.NoProducer(1_000_000)
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = 7, 0, seq
		return w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("v")}}), -1))
	}
	for seq := range int32(3) {
		if a := send(seq); a.err != nil || a.r.BaseOffset != int64(seq) {
			t.Fatalf("sequence %d: %+v", seq, a)
		}
	}
	if a := send(1); a.err != nil || a.r.BaseOffset != 1 {
		t.Fatalf("repeated sequence 1: %+v", a)
	}
	if a := send(9); !errors.Is(a.err, producer.ErrOutOfOrderSequence) {
		t.Fatalf("hole: %v", a.err)
	}
	if end(p) != 3 {
		t.Fatalf("log end %d", end(p))
	}
}

// On a compacted topic a record without a key is refused, compressed or not,
// and on any other topic taken; a mirror takes what the source has.
func TestKeysOnACompactedTopic(t *testing.T) {
	w := newWorld(t)
	keyed := func(keys ...string) []byte {
		var recs []record.Record
		for i, k := range keys {
			r := record.Record{OffsetDelta: int32(i), Value: []byte("v")}
			if k != "" {
				r.Key = []byte(k)
			}
			recs = append(recs, r)
		}
		return record.Build(record.NoProducer(1_000_000), recs)
	}
	zipped := func(b []byte) []byte {
		var body bytes.Buffer
		z := gzip.NewWriter(&body)
		z.Write(record.Batch(b).RecordBytes())
		z.Close()
		out := append(slices.Clone(b[:record.HeaderSize]), body.Bytes()...)
		binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
		out[22] |= byte(record.CodecGzip)
		binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
		return out
	}
	zeros := func(n int) []byte {
		return record.Build(record.NoProducer(1_000_000), []record.Record{{Key: []byte("k"), Value: make([]byte, n)}})
	}
	p := w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"cleanup.policy": "compact,delete"} })
	empty := record.Build(record.NoProducer(1_000_000), []record.Record{{Key: []byte{}, Value: []byte("v")}})
	for _, tc := range []struct {
		b    []byte
		want error
	}{
		{keyed("a", "b"), nil}, {keyed("a", ""), pipeline.ErrInvalidRecord}, {empty, nil},
		{zipped(keyed("a", "b")), nil}, {zipped(keyed("a", "")), pipeline.ErrInvalidRecord},
		{zipped(zeros(4 << 20)), nil}, {zipped(zeros(9 << 20)), pipeline.ErrInvalidRecord}, // 8 times max.message.bytes is between
	} {
		if a := w.wait(produce(p, tc.b, -1)); !errors.Is(a.err, tc.want) {
			t.Errorf("%.200x: %v, want %v", tc.b, a.err, tc.want)
		}
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	b := record.Batch(keyed("a", ""))
	b.SetBaseOffset(100)
	if _, err := p.MirrorAppend(3, b); err != nil {
		t.Errorf("mirrored: %v", err)
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName, t.Configs = "", map[string]string{} })
	if a := w.wait(produce(p, keyed(""), -1)); a.err != nil {
		t.Errorf("not compacted: %v", a.err)
	}
}

// compression.type other than producer compresses a client's batches anew, and
// nothing else: not those that have the codec, not those of a mirror. What its
// producer sends again is known again.
func TestCompressionType(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "zstd", "durability": "replicated"}
	})
	h := record.NoProducer(1_000_000)
	h.ProducerID, h.ProducerEpoch, h.BaseSequence = 9, 0, 0
	b := record.Build(h, []record.Record{{Value: bytes.Repeat([]byte("v"), 1000)}, {OffsetDelta: 1, Value: []byte("w")}})
	for range 2 {
		if a := w.wait(produce(p, bytes.Clone(b), 1)); a.err != nil || a.r.BaseOffset != 0 || end(p) != 2 {
			t.Fatal(a, end(p))
		}
	}
	codec := func(offset int64) record.Codec {
		t.Helper()
		r, err := p.Read(ReadRequest{Offset: offset, MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.View.Release()
		raw := make([]byte, r.View.Len())
		if _, err := r.View.ReadAt(raw, 0); err != nil {
			t.Fatal(err)
		}
		got, _, err := record.Next(raw)
		if err != nil || got.VerifyCRC() != nil {
			t.Fatal(err)
		}
		return got.Codec()
	}
	if c := codec(0); c != record.CodecZstd {
		t.Error(c)
	}
	w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "producer", "durability": "replicated"}
	})
	if a := w.wait(produce(p, batch(1), 1)); a.err != nil || codec(2) != record.CodecNone {
		t.Error(a, codec(2))
	}
	// Uncompressed may grow beyond what a batch may have.
	w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"compression.type": "uncompressed", "durability": "replicated", "max.message.bytes": "500"}
	})
	small, _, release, err := segment.Recompress(record.Batch(b), segment.Compression{Codec: record.CodecGzip}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	small.SetBaseOffset(0)
	if a := w.wait(produce(p, bytes.Clone(small), 1)); !errors.Is(a.err, ErrTooLarge) || len(small) > 500 {
		t.Error(a)
	}
}

// A client cannot say that the broker set the time, nor send records that are too
// old or too new, whichever of a batch's records is, and whatever its header says.
// Compressed batches are held to it where they are opened anyway: in compacted
// topics, and where compression.type is another codec.
func TestTimestampBounds(t *testing.T) {
	w := newWorld(t) // its clock stands at 1 000 000
	var p *Partition
	set := func(more ...string) {
		p = w.apply(func(t *metadata.Topic) {
			t.Configs = map[string]string{"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "500", "durability": "replicated"}
			for i := 0; i < len(more); i += 2 {
				t.Configs[more[i]] = more[i+1]
			}
		})
	}
	for _, tc := range []struct {
		base, middle, last int64
		ok                 bool
	}{
		{1_000_000, 1_000_000, 1_000_000, true}, {999_000, 999_000, 1_000_500, true}, {998_999, 1_000_000, 1_000_000, false},
		{1_000_000, 1_000_000, 1_000_501, false}, {-1, -1, -1, true}, {1_000_000, -1, 1_000_000, true},
		{1_000_000, 998_999, 1_000_000, false}, {1_000_000, 1_000_501, 1_000_000, false}, {1_000_000, -2, 1_000_000, false},
		{1_000_000, -1 << 62, 1_000_000, false}, {1_000_000, 1 << 62, 1_000_000, false},
	} {
		value := []byte("v")
		b := record.Build(record.NoProducer(tc.base), []record.Record{{Key: value}, {Key: value, OffsetDelta: 1, TimestampDelta: tc.middle - tc.base}, {Key: value, OffsetDelta: 2, TimestampDelta: tc.last - tc.base}})
		packed, _, release, err := segment.Recompress(record.Batch(b), segment.Compression{Codec: record.CodecGzip}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(what string, b []byte) {
			t.Helper()
			if a := w.wait(produce(p, slices.Clone(b), 1)); (a.err == nil) != tc.ok || !tc.ok && !errors.Is(a.err, ErrTimestamp) {
				t.Errorf("%s: %+v: %v", what, tc, a.err)
			}
		}
		set()
		refused("plain", b)
		lying := record.Batch(slices.Clone(b))
		if next, err := lying.AppendRebuilt(nil, record.Rebuild{Records: lying.RecordBytes(), Count: 3, MaxTimestamp: tc.base}); err != nil {
			t.Fatal(err)
		} else if tc.last == tc.base {
			refused("plain, with a wrong header", next)
		}
		set("cleanup.policy", "compact")
		refused("compacted", packed)
		set("compression.type", "zstd")
		refused("compressed anew", packed)
		release()
	}
	h := record.NoProducer(1_000_000)
	h.TimestampType = record.LogAppendTime
	if a := w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("a")}}), 1)); !errors.Is(a.err, ErrTimestamp) {
		t.Error(a.err)
	}
}

// An idle producer is forgotten after the time that the broker is set to, and not
// before; one with an open transaction stays.
func TestIdleProducersAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.m.o.ProducerExpiration = time.Hour
	p := w.apply(func(*metadata.Topic) {})
	for pid, transactional := range []bool{false, true} {
		h := record.NoProducer(1_000_000)
		h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional = int64(pid), 0, 0, transactional
		if a := w.wait(produce(p, record.Build(h, []record.Record{{Value: []byte("v")}}), -1)); a.err != nil {
			t.Fatal(a.err)
		}
	}
	w.clock.Advance(59 * time.Minute)
	for _, want := range []int{2, 1, 1} {
		w.m.retainAll()
		list, err := p.Producers()
		if err != nil || len(list) != want || list[len(list)-1].ProducerID != 1 {
			t.Fatalf("%+v %v, want %d with producer 1", list, err, want)
		}
		w.clock.Advance(2 * time.Minute)
	}
}
