package pipeline

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// batch makes a batch of records from base to last with the given epoch.
func batch(base, last int64, epoch int32) []byte {
	var recs []record.Record
	for i := range last - base + 1 {
		recs = append(recs, record.Record{OffsetDelta: int32(i), Key: []byte("k"), Value: []byte("value")})
	}
	h := record.NoProducer(1000)
	h.BaseOffset, h.LeaderEpoch = base, epoch
	return record.Build(h, recs)
}

func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func changed(b []byte, change func(b []byte)) []byte {
	b = slices.Clone(b)
	change(b)
	return b
}

// MIR-069: a batch that is cut off at the end of an answer is not taken, and the next one
// is asked for from its beginning.
//
// MIR-070: batches below the log end, and offsets or epochs that go back, are refused.
func TestVerifyMirror(t *testing.T) {
	a, b, c := batch(10, 14, 3), batch(15, 19, 3), batch(20, 24, 4)
	all := slices.Concat(a, b, c)
	for _, tc := range []struct {
		name  string
		bytes []byte
		state VerifyState
		good  int
		next  int64
		fault string
	}{
		{"whole batches", all, VerifyState{10, 3, 9, 0, 0}, len(all), 25, ""},
		{"no limit", all, VerifyState{10, -1, -1, 0, 0}, len(all), 25, ""},
		{"nothing", nil, VerifyState{10, 3, 9, 0, 0}, 0, 10, ""},
		{"last one cut", all[:len(all)-1], VerifyState{10, 3, 9, 0, 0}, len(a) + len(b), 20, ""},
		{"cut inside the head", all[:len(a)+5], VerifyState{10, 3, 9, 0, 0}, len(a), 15, ""},
		{"gap", slices.Concat(a, c), VerifyState{5, 3, 9, 0, 0}, len(a) + len(c), 25, ""},
		{"offset going back", slices.Concat(b, a), VerifyState{10, 3, 9, 0, 0}, len(b), 20, "batch 10 to 14 begins below"},
		{"below the log end", all, VerifyState{12, 3, 9, 0, 0}, 0, 12, "below the expected offset 12"},
		{"epoch going back", slices.Concat(batch(1, 2, 4), a), VerifyState{0, 0, 9, 0, 0}, len(batch(1, 2, 4)), 3, "epoch below"},
		{"epoch below the log's", all, VerifyState{10, 4, 9, 0, 0}, 0, 10, "epoch below"},
		{"epoch ahead", all, VerifyState{10, 3, 3, 0, 0}, len(a) + len(b), 20, "at most 3"},
		{"flipped bit", slices.Concat(a, changed(b, func(b []byte) { b[len(b)-1] ^= 1 })), VerifyState{10, 3, 9, 0, 0}, len(a), 15, "CRC"},
		{"old format", changed(a, func(b []byte) { b[16] = 1 }), VerifyState{10, 3, 9, 0, 0}, 0, 10, "before v2"},
		{"old format, cut", changed(a, func(b []byte) { b[16] = 0 })[:20], VerifyState{10, 3, 9, 0, 0}, 0, 10, "before v2"},
		{"future format", changed(a, func(b []byte) { b[16] = 3 }), VerifyState{10, 3, 9, 0, 0}, 0, 10, "magic"},
		{"negative length", changed(a, func(b []byte) { b[8] = 0x80 }), VerifyState{10, 3, 9, 0, 0}, 0, 10, "length"},
		{"length zero", changed(a, func(b []byte) { copy(b[8:12], []byte{0, 0, 0, 0}) }), VerifyState{10, 3, 9, 0, 0}, 0, 10, "length"},
		{"negative delta", changed(a, func(b []byte) { b[23] = 0x80 }), VerifyState{10, 3, 9, 0, 0}, 0, 10, "delta"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.state
			good, err := VerifyMirror(tc.bytes, &s)
			if good != tc.good || s.NextOffset != tc.next {
				t.Errorf("good %d, next %d; want %d, %d", good, s.NextOffset, tc.good, tc.next)
			}
			if tc.fault == "" && err != nil || tc.fault != "" && (err == nil || !strings.Contains(err.Error(), tc.fault)) {
				t.Errorf("error %v, want …%s…", err, tc.fault)
			}
		})
	}
}

// However a stream of batches is cut into pieces, the same bytes pass.
func TestVerifyMirrorPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		next, epoch := int64(0), int32(0)
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			base := next + rapid.Int64Range(0, 3).Draw(t, "gap")
			epoch += rapid.Int32Range(0, 2).Draw(t, "epoch")
			last := base + rapid.Int64Range(0, 5).Draw(t, "records")
			stream = append(stream, batch(base, last, epoch)...)
			next = last + 1
		}
		s := VerifyState{LastEpoch: -1, MaxEpoch: 100}
		var passed, held []byte
		for rest := stream; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			held, rest = append(held, rest[:n]...), rest[n:]
			good, err := VerifyMirror(held, &s)
			if err != nil {
				t.Fatal(err)
			}
			passed, held = append(passed, held[:good]...), held[good:]
		}
		if !slices.Equal(passed, stream) || s.NextOffset != next || s.LastEpoch != epoch || len(held) != 0 {
			t.Fatalf("passed %d of %d bytes, state %+v", len(passed), len(stream), s)
		}
	})
}

// Any damaged byte outside base offset and epoch is noticed, and the state
// never moves over it.
func TestVerifyMirrorFindsEveryFlip(t *testing.T) {
	whole := batch(7, 9, 2)
	for i := range whole {
		for bit := range 8 {
			b := changed(whole, func(b []byte) { b[i] ^= 1 << bit })
			s := VerifyState{NextOffset: 7, LastEpoch: 2, MaxEpoch: 2}
			good, err := VerifyMirror(b, &s)
			if i < 8 || i >= 12 && i < 16 || i >= 8 && i < 12 {
				continue // offset and epoch lie outside the CRC; a longer length waits for more
			}
			if good != 0 || err == nil || s.NextOffset != 7 {
				t.Fatalf("byte %d bit %d: good %d, %v", i, bit, good, err)
			}
		}
	}
}

func FuzzVerifyMirror(f *testing.F) {
	f.Add(slices.Concat(batch(0, 3, 1), batch(4, 4, 1)), int64(0))
	f.Add(batch(0, 0, 0)[:40], int64(0))
	f.Fuzz(func(t *testing.T, b []byte, next int64) {
		s := VerifyState{NextOffset: next, LastEpoch: -1, MaxEpoch: 10}
		good, _ := VerifyMirror(b, &s)
		if good < 0 || good > len(b) || s.NextOffset < next || (good == 0) != (s.Batches == 0) {
			t.Fatalf("good %d of %d, state %+v", good, len(b), s)
		}
		again := VerifyState{NextOffset: next, LastEpoch: -1, MaxEpoch: 10}
		if n, err := VerifyMirror(b[:good], &again); n != good || err != nil || again != s {
			t.Fatalf("good bytes do not pass again: %d of %d, %v", n, good, err)
		}
		if len(b) < 1<<16 {
			VerifyProduce(b, 1<<20)
		}
	})
}

// lz4Batch makes the records of a batch begin as an LZ4 frame does.
func lz4Batch(b []byte, flags, blockSize byte) []byte {
	return reseal(changed(b, func(b []byte) {
		b[22] |= 3
		copy(b[61:], []byte{0x04, 0x22, 0x4d, 0x18, flags, blockSize})
	}))
}

func TestVerifyProduce(t *testing.T) {
	ok := batch(0, 4, 0)
	idempotent := func(pid int64, epoch int16, seq int32, transactional bool) []byte {
		h := record.BuildHeader{ProducerID: pid, ProducerEpoch: epoch, BaseSequence: seq, Transactional: transactional}
		return record.Build(h, []record.Record{{Value: []byte("v")}})
	}
	for _, tc := range []struct {
		name  string
		bytes []byte
		max   int
		fault error
		text  string
	}{
		{"fine", ok, 1 << 20, nil, ""},
		{"exactly the limit", ok, len(ok), nil, ""},
		{"idempotent", idempotent(5, 0, 7, false), 1 << 20, nil, ""},
		{"transactional", idempotent(5, 0, 0, true), 1 << 20, nil, ""},
		{"compressed, never opened", reseal(changed(ok, func(b []byte) { b[22] |= 4; b[70] ^= 0xff })), 1 << 20, nil, ""},
		{"LZ4", lz4Batch(ok, 0x60, 0x40), 1 << 20, nil, ""},
		{"LZ4 with all checksums and a size", lz4Batch(ok, 0x7c, 0x70), 1 << 20, nil, ""},
		{"LZ4, blocks that depend on each other", lz4Batch(ok, 0x40, 0x40), 1 << 20, ErrInvalidRecord, "depend"},
		{"LZ4, version 2", lz4Batch(ok, 0xa0, 0x40), 1 << 20, ErrInvalidRecord, "version"},
		{"LZ4, reserved flag", lz4Batch(ok, 0x61, 0x40), 1 << 20, ErrInvalidRecord, "flags"},
		{"LZ4, block size", lz4Batch(ok, 0x60, 0x30), 1 << 20, ErrInvalidRecord, "block size"},
		{"LZ4, reserved bit of the block size", lz4Batch(ok, 0x60, 0xc0), 1 << 20, ErrInvalidRecord, "block size"},
		{"no LZ4", reseal(changed(ok, func(b []byte) { b[22] |= 3 })), 1 << 20, ErrInvalidRecord, "not an LZ4 frame"},
		{"above the limit", ok, len(ok) - 1, ErrTooLarge, "bytes"},
		{"two batches", slices.Concat(ok, ok), 1 << 20, ErrInvalidRecord, "more than one"},
		{"old format", changed(ok, func(b []byte) { b[16] = 1 }), 1 << 20, ErrFormat, "magic 1"},
		{"control", reseal(changed(ok, func(b []byte) { b[22] |= 0x20 })), 1 << 20, ErrInvalidRecord, "control"},
		{"delete horizon", reseal(changed(ok, func(b []byte) { b[22] |= 0x40 })), 1 << 20, ErrInvalidRecord, "horizon"},
		{"codec 5", reseal(changed(ok, func(b []byte) { b[22] |= 5 })), 1 << 20, ErrUnknownCodec, "codec"},
		{"no records", record.Build(record.NoProducer(0), nil), 1 << 20, ErrInvalidRecord, "0 records"},
		{"count below offsets", reseal(changed(ok, func(b []byte) { b[60]-- })), 1 << 20, ErrInvalidRecord, "4 records over 5"},
		{"offsets below count", reseal(changed(ok, func(b []byte) { b[26]-- })), 1 << 20, ErrInvalidRecord, "5 records over 4"},
		{"count and offsets below records", reseal(changed(ok, func(b []byte) { b[26]--; b[60]-- })), 1 << 20, ErrInvalidRecord, "after the last"},
		{"count and offsets above records", reseal(changed(ok, func(b []byte) { b[26]++; b[60]++ })), 1 << 20, ErrInvalidRecord, "length"},
		{"record length", reseal(changed(ok, func(b []byte) { b[61] += 2 })), 1 << 20, ErrInvalidRecord, ""},
		{"offset delta", reseal(changed(ok, func(b []byte) { b[64] = 2 })), 1 << 20, ErrInvalidRecord, "offset delta 1"},
		{"sequence -1", idempotent(5, 0, -1, false), 1 << 20, ErrInvalidRecord, "sequence -1"},
		{"producer epoch -1", idempotent(5, -1, 0, false), 1 << 20, ErrInvalidRecord, "epoch -1"},
		{"transactional without id", idempotent(-1, -1, -1, true), 1 << 20, ErrInvalidRecord, "without a producer id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, _, err := VerifyProduce(tc.bytes, tc.max)
			if tc.fault == nil && err != nil || tc.fault != nil && (!errors.Is(err, tc.fault) || !strings.Contains(err.Error(), tc.text)) {
				t.Fatalf("error %v, want %v …%s…", err, tc.fault, tc.text)
			}
			if err == nil && len(b) != len(tc.bytes) {
				t.Errorf("batch of %d bytes from %d", len(b), len(tc.bytes))
			}
		})
	}
	for name, b := range map[string][]byte{
		"CRC": changed(ok, func(b []byte) { b[65] ^= 1 }), "cut": ok[:len(ok)-1], "empty": nil, "length": changed(ok, func(b []byte) { b[8] = 0xff }),
	} {
		var corrupt *record.CorruptError
		if _, _, err := VerifyProduce(b, 1<<20); !errors.As(err, &corrupt) {
			t.Errorf("%s: %v is no CorruptError", name, err)
		}
	}
}

func TestVerifyAllocatesNothing(t *testing.T) {
	b := slices.Concat(batch(0, 9, 1), batch(10, 19, 1), batch(20, 29, 1))
	if n := testing.AllocsPerRun(100, func() {
		s := VerifyState{LastEpoch: -1, MaxEpoch: 5}
		if good, err := VerifyMirror(b, &s); good != len(b) || err != nil {
			t.Fatal(good, err)
		}
	}); n != 0 {
		t.Errorf("VerifyMirror allocates %v times", n)
	}
	one := batch(0, 9, 0)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := VerifyProduce(one, 1<<20); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("VerifyProduce allocates %v times", n)
	}
}
