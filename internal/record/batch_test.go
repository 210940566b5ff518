package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func sample() []byte {
	return Build(BuildHeader{
		BaseOffset: 100, LeaderEpoch: 7, BaseTimestamp: 1000, ProducerID: 42, ProducerEpoch: 3, BaseSequence: math.MaxInt32, Transactional: true,
	}, []Record{
		{Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"a", []byte("1")}, {"b", nil}}},
		{TimestampDelta: 500, OffsetDelta: 1, Key: nil, Value: nil},
		{TimestampDelta: -10, OffsetDelta: 4, Key: []byte{}, Value: bytes.Repeat([]byte("x"), 300)},
	})
}

// The header as we read it equals what an independent decoder reads.
func TestAccessorsAgainstKmsg(t *testing.T) {
	b := Batch(sample())
	var k kmsg.RecordBatch
	if err := k.ReadFrom(b); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{"base offset", b.BaseOffset(), k.FirstOffset},
		{"size", int64(b.Size()), int64(k.Length) + 12},
		{"leader epoch", int64(b.PartitionLeaderEpoch()), int64(k.PartitionLeaderEpoch)},
		{"magic", int64(b.Magic()), int64(k.Magic)},
		{"crc", int64(b.CRC()), int64(uint32(k.CRC))},
		{"attributes", int64(b.Attributes()), int64(k.Attributes)},
		{"last offset delta", int64(b.LastOffsetDelta()), int64(k.LastOffsetDelta)},
		{"base timestamp", b.BaseTimestamp(), k.FirstTimestamp},
		{"max timestamp", b.MaxTimestamp(), k.MaxTimestamp},
		{"producer id", b.ProducerID(), k.ProducerID},
		{"producer epoch", int64(b.ProducerEpoch()), int64(k.ProducerEpoch)},
		{"base sequence", int64(b.BaseSequence()), int64(k.FirstSequence)},
		{"records", int64(b.NumRecords()), int64(k.NumRecords)},
		{"last offset", b.LastOffset(), 104},
		{"next offset", b.NextOffset(), 105},
		{"last sequence wraps", int64(b.LastSequence()), 3},
		{"max timestamp is the greatest", b.MaxTimestamp(), 1500},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
	if !b.IsTransactional() || b.IsControl() || b.Codec() != CodecNone || b.TimestampType() != CreateTime || !b.HasProducerID() {
		t.Errorf("flags of %04x", b.Attributes())
	}
	if err := b.VerifyCRC(); err != nil {
		t.Error(err)
	}
	var r kmsg.Record
	if err := r.ReadFrom(b.RecordBytes()); err != nil || string(r.Key) != "k" || len(r.Headers) != 2 {
		t.Errorf("first record by kmsg: %+v, %v", r, err)
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	var got []Record
	if err := Batch(sample()).Records(func(r Record) error {
		r.Headers = append([]Header(nil), r.Headers...)
		got = append(got, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || string(got[0].Value) != "v" || got[0].Headers[1].Value != nil || got[0].Headers[0].Key != "a" {
		t.Fatalf("%+v", got)
	}
	if got[1].Key != nil || got[1].Value != nil {
		t.Error("null key or value became empty")
	}
	if got[2].Key == nil || len(got[2].Key) != 0 || got[2].OffsetDelta != 4 || got[2].TimestampDelta != -10 {
		t.Errorf("%+v", got[2])
	}
}

func TestStamp(t *testing.T) {
	b := Batch(sample())
	b.SetBaseOffset(9)
	b.SetLeaderEpoch(11)
	if b.VerifyCRC() != nil || b.BaseOffset() != 9 || b.PartitionLeaderEpoch() != 11 {
		t.Error("offset and epoch must not touch the CRC")
	}
	b.SetMaxTimestamp(777)
	if b.VerifyCRC() != nil || b.MaxTimestamp() != 777 || b.TimestampType() != LogAppendTime {
		t.Error("log append time")
	}
}

func TestNext(t *testing.T) {
	one := sample()
	two := append(append([]byte(nil), one...), one...)
	b, rest, err := Next(two)
	if err != nil || !bytes.Equal(b, one) || len(rest) != len(one) {
		t.Fatalf("%d rest %d: %v", len(b), len(rest), err)
	}
	sameHead(t, b)
	sameHead(t, AbortMarker(5, 1, 2, 3))
	for cut := range one {
		var h Head
		if _, _, err := Next(one[:cut]); !errors.Is(err, ErrShort) || !errors.Is(h.Next(one[:cut]), ErrShort) {
			t.Fatalf("%d of %d bytes: %v", cut, len(one), err)
		}
	}
	put32 := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
	}
	for _, c := range []struct {
		name string
		edit func([]byte)
		want string
	}{
		{"negative length", put32(8, 0x80000000), "length field"},
		{"length of nothing", put32(8, 48), "length field"},
		{"length beyond int32", put32(8, math.MaxInt32), "length field"},
		{"old magic", func(b []byte) { b[16] = 1 }, "magic"},
		{"negative offset", func(b []byte) { b[0] = 0x80 }, "negative"},
		{"negative delta", put32(23, 0xffffffff), "last offset delta"},
		{"offset overflow", func(b []byte) { binary.BigEndian.PutUint64(b, math.MaxInt64) }, "last offset delta"},
	} {
		bad := append([]byte(nil), one...)
		c.edit(bad)
		_, _, err := Next(bad)
		var h Head
		if errHead := h.Next(bad); fmt.Sprint(errHead) != fmt.Sprint(err) {
			t.Errorf("%s: a head says %v", c.name, errHead)
		}
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	bad := append([]byte(nil), one...)
	bad[len(bad)-1] ^= 1
	if b, _, err := Next(bad); err != nil || b.VerifyCRC() == nil {
		t.Error("a flipped bit must pass Next and fail VerifyCRC")
	}
}

// sameHead compares a batch taken apart with what its methods say.
func sameHead(t *testing.T, b Batch) {
	t.Helper()
	want := Head{
		BaseOffset: b.BaseOffset(), LastOffsetDelta: b.LastOffsetDelta(), Size: len(b), PartitionLeaderEpoch: b.PartitionLeaderEpoch(), Attributes: b.Attributes(),
		MaxTimestamp: b.MaxTimestamp(), ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence(), NumRecords: b.NumRecords(),
	}
	var h Head
	if err := h.Next(b); err != nil || h != want {
		t.Fatalf("head %+v, %v; want %+v", h, err, want)
	}
	if h.LastOffset() != b.LastOffset() || h.LastSequence() != b.LastSequence() || h.IsControl() != b.IsControl() || h.IsTransactional() != b.IsTransactional() {
		t.Fatalf("head %+v: last offset %d and sequence %d, control %v, transactional %v", h, h.LastOffset(), h.LastSequence(), h.IsControl(), h.IsTransactional())
	}
}

func TestControl(t *testing.T) {
	abort := Batch(AbortMarker(7, 2, 5, 1000))
	if kind, epoch, err := abort.Control(); err != nil || kind != Abort || epoch != 5 || !abort.IsControl() || !abort.IsTransactional() || abort.ProducerID() != 7 || abort.ProducerEpoch() != 2 || abort.BaseSequence() != -1 {
		t.Errorf("abort: %v %d %v", kind, epoch, err)
	}
	if kind, _, err := Batch(CommitMarker(7, 2, 5, 1000)).Control(); err != nil || kind != Commit {
		t.Errorf("commit: %v %v", kind, err)
	}
	// L13, L14: byte for byte.
	reset := Batch(PIDReset("AB", 1000))
	if kind, epoch, err := reset.Control(); err != nil || kind != MirrorPIDReset || epoch != -1 {
		t.Errorf("reset: %v %d %v", kind, epoch, err)
	}
	if reset.IsTransactional() || !reset.IsControl() || reset.ProducerID() != -1 || reset.ProducerEpoch() != -1 || reset.BaseSequence() != -1 || reset.NumRecords() != 1 || reset.VerifyCRC() != nil {
		t.Error("reset header")
	}
	_ = reset.Records(func(r Record) error {
		if !bytes.Equal(r.Key, []byte{0, 0, 0, 7}) || !bytes.Equal(r.Value, []byte{0, 0, 3, 'A', 'B', 0}) {
			t.Errorf("reset record: key %x value %x", r.Key, r.Value)
		}
		return nil
	})
	if reset.PIDResetClusterID() != "AB" || Batch(PIDReset("", 0)).PIDResetClusterID() != "" {
		t.Error("cluster id")
	}
	// A value that ends early is tolerated (L14).
	h := NoProducer(0)
	h.Control = true
	short := Batch(Build(h, []Record{{Key: controlKey(MirrorPIDReset), Value: []byte{0}}}))
	if kind, _, err := short.Control(); err != nil || kind != MirrorPIDReset || short.PIDResetClusterID() != "" {
		t.Errorf("short value: %v", err)
	}
	if _, _, err := Batch(sample()).Control(); err == nil {
		t.Error("a plain batch is no control batch")
	}
}

func TestCompressedIsRefused(t *testing.T) {
	b := Batch(sample())
	b[22] |= byte(CodecZstd)
	if err := b.Records(func(Record) error { return nil }); !errors.Is(err, ErrCompressed) {
		t.Error(err)
	}
}

// Whatever bytes come: no panic, no read outside, and what Next accepts can be
// asked everything.
func FuzzNext(f *testing.F) {
	f.Add(sample())
	f.Add(AbortMarker(1, 1, 1, 1))
	f.Add(PIDReset("cluster", 1))
	f.Fuzz(func(t *testing.T, p []byte) {
		for len(p) > 0 {
			b, rest, err := Next(p)
			var h Head
			if errHead := h.Next(p); fmt.Sprint(errHead) != fmt.Sprint(err) {
				t.Fatalf("a head says %v, a batch %v", errHead, err)
			}
			if err != nil {
				return
			}
			sameHead(t, b)
			if b.Size() != len(b) || len(b)+len(rest) != len(p) || b.NextOffset() <= b.BaseOffset() {
				t.Fatalf("size %d of %d, offsets %d to %d", b.Size(), len(b), b.BaseOffset(), b.NextOffset())
			}
			_ = b.VerifyCRC()
			_, _, _ = b.Control()
			_ = b.PIDResetClusterID()
			_ = b.LastSequence()
			_ = b.Records(func(r Record) error {
				if len(r.Key)+len(r.Value) > len(b) {
					t.Fatal("record larger than its batch")
				}
				return nil
			})
			p = rest
		}
	})
}

// Decode and encode again: the same bytes.
func FuzzRecords(f *testing.F) {
	f.Add(sample()[HeaderSize:], int32(3))
	f.Fuzz(func(t *testing.T, p []byte, n int32) {
		b := Batch(append(append([]byte(nil), sample()[:HeaderSize]...), p...))
		binary.BigEndian.PutUint32(b[posNumRecords:], uint32(n))
		binary.BigEndian.PutUint32(b[posLastOffsetDelta:], math.MaxInt32)
		var recs []Record
		if err := b.Records(func(r Record) error {
			r.Headers = append([]Header(nil), r.Headers...)
			recs = append(recs, r)
			return nil
		}); err != nil {
			return
		}
		again := Batch(Build(NoProducer(0), recs))
		i := 0
		if err := again.Records(func(r Record) error {
			if r.OffsetDelta != recs[i].OffsetDelta || !bytes.Equal(r.Key, recs[i].Key) || !bytes.Equal(r.Value, recs[i].Value) || len(r.Headers) != len(recs[i].Headers) {
				t.Fatalf("record %d: %+v, was %+v", i, r, recs[i])
			}
			i++
			return nil
		}); err != nil && i > 0 {
			t.Fatal(err)
		}
	})
}

func BenchmarkNextAndCRC(b *testing.B) {
	batch := Build(NoProducer(1), []Record{{Value: make([]byte, 64<<10)}})
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for b.Loop() {
		x, _, err := Next(batch)
		if err != nil || x.VerifyCRC() != nil {
			b.Fatal(err)
		}
	}
}
