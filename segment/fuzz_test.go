package segment

import (
	"bytes"
	"errors"
	"io"
	"runtime/metrics"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// frugal fails when f allocates more than hostile bytes may cost (H9): 64 KiB
// and four times the input.
func frugal(t *testing.T, input int, f func()) {
	t.Helper()
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	metrics.Read(sample)
	// What small objects cost is counted in runs of some KiB.
	if used := sample[0].Value.Uint64() - before; used > uint64(64<<10+4*input)+64<<10 {
		t.Fatalf("%d bytes of input cost %d", input, used)
	}
}

// A summary from the index: any bytes, no panic, and what is accepted encodes to
// the same bytes unless a varint was written longer than it has to be.
func FuzzSummary(f *testing.F) {
	m := summary{size: 100, end: 7, times: times{first: 3, max: 9, maxOffset: 6, heads: 0xCAFE}, epochs: []epoch.Entry{{Epoch: 1, Start: 0}, {Epoch: 4, Start: 5}}}
	f.Add(m.encode())
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, p []byte) {
		var m *summary
		var err error
		frugal(t, 4*len(p), func() { m, err = decodeSummary(p) }) // an entry of two bytes becomes one of sixteen
		if err != nil {
			return
		}
		again := m.encode()
		if len(again) == len(p) && !bytes.Equal(again, p) {
			t.Fatalf("%x became %x", p, again)
		}
		if m2, err := decodeSummary(again); err != nil || !bytes.Equal(m2.encode(), again) {
			t.Fatalf("%x: %v", again, err)
		}
	})
}

// A mark survives being written down.
func FuzzMark(f *testing.F) {
	f.Add(int64(1), int64(2), int64(3), int64(4), int64(5), int64(-1), uint32(7), []byte("0123456789abcdef"), int32(3))
	f.Fuzz(func(t *testing.T, start, durable, hw, generation, floor, reset int64, heads uint32, topic []byte, partition int32) {
		if len(topic) < 16 {
			return
		}
		id := LogID{[16]byte(topic), partition}
		m := mark{start: start, durable: durable, hw: hw, generation: generation, floor: floor, life: hw, reset: reset, proof: proof{base: start, known: known{size: durable, heads: heads}}}
		payload, rest, ok := nextFrame(change{id: id, mark: m}.append(nil))
		if !ok || len(rest) > 0 {
			t.Fatal("frame")
		}
		if gotID, got := readMark(payload[1:]); gotID != id || got != m {
			t.Fatalf("%+v became %+v", m, got)
		}
	})
}

// Dump, which looks at anybody's files: any bytes, no panic, batches in order of
// their places.
func FuzzDump(f *testing.F) {
	good := testBatch{base: 5, n: 3, epoch: 1, ts: 5, value: 20}.build()
	f.Add(good)
	f.Add(append(bytes.Clone(good), good[:70]...))
	f.Fuzz(func(t *testing.T, p []byte) {
		at := int64(0)
		frugal(t, len(p), func() {
			err := dump(bytes.NewReader(p), int64(len(p)), "file", func(pos int64, b record.Batch) error {
				if pos != at || !bytes.Equal(b, p[pos:pos+int64(len(b))]) {
					t.Fatalf("batch at %d, expected at %d", pos, at)
				}
				at += int64(len(b))
				return nil
			})
			var damage *DamageError
			if err != nil && !errors.As(err, &damage) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			if err == nil && at != int64(len(p)) {
				t.Fatalf("stopped at %d of %d", at, len(p))
			}
		})
	})
}

// Names in a log's directory: what is parsed is what is written.
func FuzzNames(f *testing.F) {
	f.Add("00000000000000000042.log")
	f.Add("00000000000000000042-00000000000000000050.swap")
	f.Add(LogID{topicA, 7}.String())
	f.Fuzz(func(t *testing.T, name string) {
		if base, ok := parseFileName(name); ok && fileName(base) != name {
			t.Fatalf("%q is the segment at %d", name, base)
		}
		if base, end, ok := parseSwapName(name); ok && swapName(base, end) != name {
			t.Fatalf("%q is [%d, %d)", name, base, end)
		}
		if id, ok := ParseLogID(name); ok && id.String() != name {
			t.Fatalf("%q is %s", name, id)
		}
	})
}
