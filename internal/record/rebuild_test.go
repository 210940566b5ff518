package record

import (
	"fmt"
	"math"
	"testing"
)

func rebuildFixture() Batch {
	h := BuildHeader{BaseOffset: 100, LeaderEpoch: 3, BaseTimestamp: 5000, ProducerID: 7, ProducerEpoch: 2, BaseSequence: 40, Transactional: true}
	return Build(h, []Record{
		{OffsetDelta: 0, Key: []byte("a"), Value: []byte("one"), Headers: []Header{{Key: "h", Value: nil}, {Key: "", Value: []byte("x")}}},
		{OffsetDelta: 1, TimestampDelta: -300, Key: []byte("b")},
		{OffsetDelta: 5, TimestampDelta: math.MaxInt32, Value: make([]byte, 300)},
	})
}

// A Raw says what a Record says, and its bytes are all of the batch's.
func TestRawRecords(t *testing.T) {
	b := rebuildFixture()
	var want, got []string
	if err := b.Records(func(r Record) error {
		want = append(want, fmt.Sprintf("%d %d %q %v %v", r.OffsetDelta, r.TimestampDelta, r.Key, r.Key == nil, r.Value == nil))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var all []byte
	if err := b.RawRecords(b.RecordBytes(), func(r *Raw) error {
		got = append(got, fmt.Sprintf("%d %d %q %v %v", r.OffsetDelta, r.TimestampDelta, r.Key, r.Key == nil, r.Tombstone))
		all = r.AppendTo(all, r.TimestampDelta)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || string(all) != string(b.RecordBytes()) {
		t.Fatalf("%v, want %v", got, want)
	}
	for n := range len(b.RecordBytes()) {
		if err := b.RawRecords(b.RecordBytes()[:n], func(*Raw) error { return nil }); err == nil {
			t.Fatalf("%d bytes of records pass", n)
		}
	}
}

// With a delete horizon the base timestamp is another, and the records' times
// are what they were (KIP-534).
func TestAppendRebuilt(t *testing.T) {
	b := rebuildFixture()
	for _, horizon := range []int64{0, 1, 4700, math.MaxInt64, math.MinInt64} {
		var records []byte
		times := map[int32]int64{}
		if err := b.RawRecords(b.RecordBytes(), func(r *Raw) error {
			if r.OffsetDelta == 0 {
				return nil
			}
			times[r.OffsetDelta] = b.BaseTimestamp() + r.TimestampDelta
			records = r.AppendTo(records, b.BaseTimestamp()+r.TimestampDelta-horizon)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		all, err := b.AppendRebuilt([]byte("before"), Rebuild{Records: records, Count: 2, MaxTimestamp: 77, Horizon: horizon, SetHorizon: true})
		if err != nil {
			t.Fatal(err)
		}
		n, rest, err := Next(all[len("before"):])
		if err != nil || len(rest) != 0 || n.VerifyCRC() != nil {
			t.Fatalf("not a batch: %v", err)
		}
		if n.BaseOffset() != 100 || n.LastOffset() != 105 || n.LastSequence() != b.LastSequence() || n.ProducerID() != 7 || n.PartitionLeaderEpoch() != 3 ||
			!n.IsTransactional() || !n.HasDeleteHorizon() || n.BaseTimestamp() != horizon || n.MaxTimestamp() != 77 || n.NumRecords() != 2 {
			t.Fatalf("header %+v", n)
		}
		if err := n.Records(func(r Record) error {
			if at := n.BaseTimestamp() + r.TimestampDelta; at != times[r.OffsetDelta] {
				t.Errorf("horizon %d: record %d at %d, was at %d", horizon, r.OffsetDelta, at, times[r.OffsetDelta])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	b.SetMaxTimestamp(9999)
	all, err := b.AppendRebuilt(nil, Rebuild{Records: nil, Count: 0, MaxTimestamp: 77})
	if n, _, errNext := Next(all); err != nil || errNext != nil || n.MaxTimestamp() != 9999 {
		t.Errorf("the time of a LogAppendTime batch is the records' own: %v, %v", err, errNext)
	}
}

// What Records reads, RawRecords reads too, and nothing makes it panic. It takes
// more: it does not look into headers.
func FuzzRawRecords(f *testing.F) {
	b := rebuildFixture()
	f.Add([]byte(b.RecordBytes()), int32(3))
	f.Fuzz(func(t *testing.T, records []byte, n int32) {
		b := rebuildFixture()
		b = append(b[:HeaderSize:HeaderSize], records...)
		b[posNumRecords], b[posNumRecords+1], b[posNumRecords+2], b[posNumRecords+3] = 0, 0, byte(n>>8), byte(n)
		var offsets, raws []int32
		err := b.walk(records, func(r Record) error { offsets = append(offsets, r.OffsetDelta); return nil })
		errRaw := b.RawRecords(records, func(r *Raw) error {
			raws = append(raws, r.OffsetDelta)
			if again := r.AppendTo(nil, r.TimestampDelta+1); len(again) == 0 {
				t.Error("no bytes")
			}
			return nil
		})
		if err == nil && (errRaw != nil || fmt.Sprint(offsets) != fmt.Sprint(raws)) {
			t.Fatalf("records %v, raw %v, %v", offsets, raws, errRaw)
		}
	})
}
