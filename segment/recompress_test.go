package segment

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Every codec can be made of every other one: the records stay what they were, and
// so does the header but for codec, sizes and checksum.
func TestRecompress(t *testing.T) {
	h := record.NoProducer(1_000_000)
	h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional, h.LeaderEpoch = 9, 2, 40, true, 5
	var recs []record.Record
	for i := range 100 {
		recs = append(recs, record.Record{
			TimestampDelta: int64(i % 7), OffsetDelta: int32(i), Key: []byte(fmt.Sprint("key", i)), Value: bytes.Repeat([]byte{byte(i)}, 100),
			Headers: []record.Header{{Key: "h", Value: []byte("v")}},
		})
	}
	plain := record.Batch(record.Build(h, recs))
	codecs := []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLz4, record.CodecZstd}
	for _, from := range codecs {
		source, _, release, err := Recompress(plain, Compression{Codec: from}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		in := record.Batch(bytes.Clone(source))
		release()
		for _, to := range codecs {
			for _, level := range []int{0, 1, 9, 17, -5} {
				if to == record.CodecGzip && (level > 9 || level < 0) {
					continue
				}
				out, _, release, err := Recompress(in, Compression{to, level}, 1<<20)
				if err != nil {
					t.Fatalf("%v to %v: %v", from, to, err)
				}
				if out.Codec() != to || out.VerifyCRC() != nil || out.NumRecords() != 100 || out.MaxTimestamp() != plain.MaxTimestamp() ||
					out.BaseTimestamp() != plain.BaseTimestamp() || out.ProducerID() != 9 || out.BaseSequence() != 40 || !out.IsTransactional() ||
					out.LastOffsetDelta() != 99 {
					t.Fatalf("%v to %v: %v", from, to, out[:record.HeaderSize])
				}
				if to != record.CodecNone && len(out) > len(plain)/2 {
					t.Errorf("%v to %v at level %d: %d bytes of %d", from, to, level, len(out), len(plain))
				}
				i := 0
				err = EachRecord(out, maxInflated, func(r record.Record) error {
					w := recs[i]
					if i++; string(r.Key) != string(w.Key) || !bytes.Equal(r.Value, w.Value) || r.TimestampDelta != w.TimestampDelta || len(r.Headers) != 1 {
						t.Fatalf("%v to %v: record %d is %+v", from, to, i, r)
					}
					return nil
				})
				if err != nil || i != 100 {
					t.Fatal(err, i)
				}
				release()
			}
		}
	}
}

// What is no batch of a client is refused, and a bomb stops at the bound.
func TestRecompressRefuses(t *testing.T) {
	big := record.Batch(record.Build(record.NoProducer(1), []record.Record{{Value: []byte(strings.Repeat("x", 100_000))}}))
	packed, _, release, err := Recompress(big, Compression{Codec: record.CodecGzip}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	bomb := record.Batch(bytes.Clone(packed))
	release()
	if _, _, release, err := Recompress(bomb, Compression{Codec: record.CodecZstd}, 50_000); !errors.Is(err, ErrSwells) {
		t.Error(err)
	} else {
		release()
	}
	if _, _, release, err := Recompress(bomb[:len(bomb)-9], Compression{Codec: record.CodecZstd}, 1<<20); err == nil {
		t.Error("a batch that is cut off was taken")
	} else {
		release()
	}
	gap := record.Batch(record.Build(record.NoProducer(1), []record.Record{{OffsetDelta: 0}, {OffsetDelta: 2}}))
	if _, _, release, err := Recompress(gap, Compression{Codec: record.CodecZstd}, 1<<20); err == nil {
		t.Error("records with a gap were taken")
	} else {
		release()
	}
	// All places are free again.
	for range cap(recompressors) {
		_, _, release, err := Recompress(big, Compression{Codec: record.CodecLz4}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
}
