package record

import (
	"math"
	"testing"
)

func TestEmptyOf(t *testing.T) {
	h := BuildHeader{BaseOffset: 100, LeaderEpoch: 3, BaseTimestamp: 50, ProducerID: 7, ProducerEpoch: 2, BaseSequence: 40, Transactional: true}
	b := Batch(Build(h, []Record{{Value: []byte("a")}, {OffsetDelta: 4, TimestampDelta: 9, Value: []byte("b")}}))
	b[posAttributes+1] |= byte(CodecZstd) // as if compressed: an empty batch is not
	e, rest, err := Next(EmptyOf(b))
	if err != nil || len(rest) != 0 || e.VerifyCRC() != nil {
		t.Fatalf("not a batch: %v, %d bytes behind it, %v", err, len(rest), e.VerifyCRC())
	}
	if e.BaseOffset() != 100 || e.LastOffset() != 104 || e.LastSequence() != 44 || e.ProducerID() != 7 || e.ProducerEpoch() != 2 ||
		e.MaxTimestamp() != 59 || e.PartitionLeaderEpoch() != 3 || !e.IsTransactional() || e.Codec() != CodecNone || e.NumRecords() != 0 {
		t.Fatalf("header changed: %+v", e)
	}
}

func TestHole(t *testing.T) {
	for _, c := range []struct {
		from, to int64
		batches  int
	}{{5, 5, 0}, {5, 6, 1}, {0, math.MaxInt32 + 1, 1}, {0, math.MaxInt32 + 2, 2}, {7, 7 + 5*(math.MaxInt32+1), 5}} {
		rest, next, n := Hole(c.from, c.to, 9), c.from, 0
		for len(rest) > 0 {
			b, r, err := Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			if b.BaseOffset() != next || b.VerifyCRC() != nil || b.NumRecords() != 0 || b.HasProducerID() || b.PartitionLeaderEpoch() != 9 {
				t.Fatalf("[%d, %d): bad batch at %d", c.from, c.to, b.BaseOffset())
			}
			rest, next, n = r, b.NextOffset(), n+1
		}
		if next != c.to || n != c.batches {
			t.Errorf("[%d, %d): %d batches up to %d, want %d", c.from, c.to, n, next, c.batches)
		}
	}
}
