package producer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// data is a batch of n records of producer 7.
func data(base int64, epoch int16, seq int32, n int, txn bool) record.Batch {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i].OffsetDelta = int32(i)
	}
	return record.Build(record.BuildHeader{BaseOffset: base, BaseTimestamp: 1000 + base, ProducerID: 7, ProducerEpoch: epoch, BaseSequence: seq, Transactional: txn}, recs)
}

func of(b record.Batch, base int64) record.Batch {
	b.SetBaseOffset(base)
	return b
}

func apply(batches ...record.Batch) *Table {
	t := New()
	for _, b := range batches {
		t.Apply(b)
	}
	return t
}

func TestCheck(t *testing.T) {
	// Producer 7, epoch 2, wrote six batches of two records: sequences 0 to 11 at
	// offsets 100 to 111. The window holds the last five.
	history := func() *Table {
		t := New()
		for i := range 6 {
			t.Apply(data(int64(100+2*i), 2, int32(2*i), 2, false))
		}
		return t
	}
	for _, c := range []struct {
		name  string
		table *Table
		b     record.Batch
		dup   int64 // base offset, -1 none
		err   error
	}{
		{"unknown producer may begin anywhere", New(), data(0, 0, 17, 1, false), -1, nil},
		{"next in sequence", history(), data(112, 2, 12, 3, false), -1, nil},
		{"gap", history(), data(112, 2, 13, 1, false), -1, ErrOutOfOrderSequence},
		{"last again", history(), data(0, 2, 10, 2, false), 110, nil},
		{"fifth from the end again", history(), data(0, 2, 2, 2, false), 102, nil},
		{"sixth from the end is forgotten", history(), data(0, 2, 0, 2, false), -1, ErrOutOfOrderSequence},
		{"overlap with another batch is no duplicate", history(), data(0, 2, 10, 3, false), -1, ErrOutOfOrderSequence},
		{"older epoch", history(), data(112, 1, 12, 1, false), -1, ErrFencedEpoch},
		{"newer epoch begins at 0", history(), data(112, 3, 0, 1, false), -1, nil},
		{"newer epoch elsewhere", history(), data(112, 3, 12, 1, false), -1, ErrOutOfOrderSequence},
		{"no sequence", history(), data(112, 2, -1, 1, false), -1, ErrInvalidSequence},
		{"sequence wraps", apply(data(0, 0, math.MaxInt32-1, 2, false)), data(2, 0, 0, 1, false), -1, nil},
		{"wrapped batch again", apply(data(10, 0, math.MaxInt32, 3, false)), data(0, 0, math.MaxInt32, 3, false), 10, nil},
		{"in a transaction, then outside", apply(data(0, 0, 0, 1, true)), data(1, 0, 1, 1, false), -1, ErrInvalidTxnState},
		{"after a marker with the next epoch", apply(data(0, 0, 0, 3, true), of(record.AbortMarker(7, 1, 0, 0), 3)), data(4, 1, 0, 1, true), -1, nil},
		{"after that marker, the old instance", apply(data(0, 0, 0, 3, true), of(record.AbortMarker(7, 1, 0, 0), 3)), data(4, 0, 3, 1, true), -1, ErrFencedEpoch},
		{"after a reset any sequence", apply(data(0, 5, 0, 3, false), of(record.PIDReset("x", 0), 3)), data(4, 0, 9, 1, false), -1, nil},
	} {
		dup, err := c.table.Check(c.b)
		if !errors.Is(err, c.err) || (dup != nil) != (c.dup >= 0) || dup != nil && dup.BaseOffset != c.dup {
			t.Errorf("%s: %+v, %v; want duplicate of %d, %v", c.name, dup, err, c.dup, c.err)
		}
	}
	plain := record.Batch(record.Build(record.NoProducer(0), make([]record.Record, 1)))
	if dup, err := history().Check(plain); dup != nil || err != nil {
		t.Error("a batch without producer id must pass")
	}
}

func TestTransactions(t *testing.T) {
	other := func(base int64, pid int64, txn bool) record.Batch {
		return record.Build(record.BuildHeader{BaseOffset: base, ProducerID: pid, Transactional: txn}, make([]record.Record, 1))
	}
	x := New()
	if _, ok := x.FirstUndecided(); ok {
		t.Fatal("nothing is open")
	}
	x.Apply(data(10, 0, 0, 2, true))
	x.Apply(other(12, 8, true))
	x.Apply(data(13, 0, 2, 1, true)) // the same transaction goes on
	if o, ok := x.FirstUndecided(); !ok || o != 10 {
		t.Fatalf("first undecided %d", o)
	}
	if got := fmt.Sprint(x.Open()); got != "[{7 0 10 -1} {8 0 12 -1}]" {
		t.Fatal(got)
	}
	x.Apply(of(record.AbortMarker(7, 0, 4, 0), 14))
	if o, _ := x.FirstUndecided(); o != 12 {
		t.Fatalf("first undecided %d after the abort", o)
	}
	// Until the marker is below the high watermark, its transaction is not stable.
	if o, _ := x.FirstUnstable(14); o != 10 {
		t.Fatalf("first unstable %d at high watermark 14, want 10", o)
	}
	if o, _ := x.FirstUnstable(15); o != 12 {
		t.Fatalf("first unstable %d at high watermark 15, want 12", o)
	}
	x.Apply(of(record.CommitMarker(8, 0, 4, 0), 15))
	if _, ok := x.FirstUndecided(); ok {
		t.Fatal("all are decided")
	}
	// A marker without transaction opens and aborts nothing.
	x.Apply(of(record.AbortMarker(9, 0, 4, 0), 16))
	for _, c := range []struct {
		from, to int64
		want     string
	}{
		{0, 100, "[{7 10}]"}, {0, 10, "[]"}, {0, 11, "[{7 10}]"}, {14, 20, "[{7 10}]"}, {15, 20, "[]"},
	} {
		if got := fmt.Sprint(x.AbortedIn(c.from, c.to)); got != c.want {
			t.Errorf("aborted in [%d, %d): %s, want %s", c.from, c.to, got, c.want)
		}
	}
	x.Replicated(16)
	if o, ok := x.FirstUnstable(0); ok {
		t.Errorf("first unstable %d, all markers are replicated", o)
	}
	x.TruncateStart(15)
	if got := x.AbortedIn(0, 100); got != nil {
		t.Errorf("%v below the log start", got)
	}
}

// L15: everything goes, also what came in the same append; batch by batch.
func TestReset(t *testing.T) {
	x := apply(data(0, 3, 0, 2, false), of(record.PIDReset("source", 0), 2), data(3, 0, 0, 1, false))
	if got := fmt.Sprint(x.Producers()); got != "[{7 0 0 1003 -1 -1}]" {
		t.Fatal(got)
	}
	// Should a transaction be open all the same, nobody can end it any more.
	x = apply(data(0, 3, 0, 2, true), of(record.PIDReset("source", 0), 2))
	if _, ok := x.FirstUndecided(); ok || x.Len() != 0 || len(x.Open()) != 0 {
		t.Fatal("a reset leaves nothing open")
	}
	if got := fmt.Sprint(x.AbortedIn(0, 10)); got != "[{7 0}]" {
		t.Fatal(got)
	}
	if x.Untouched() {
		t.Fatal("an emptied table is not an untouched one")
	}
}

// MIR-242: producers that have been silent for too long are forgotten, but never one with an
// open transaction, which goes on holding the last stable offset.
func TestExpire(t *testing.T) {
	x := apply(data(0, 0, 0, 1, false)) // at time 1000
	if n := x.Expire(1000); n != 0 {
		t.Error("not yet")
	}
	if n := x.Expire(1001); n != 1 || x.Len() != 0 {
		t.Error("expired")
	}
	x = apply(data(0, 0, 0, 1, true))
	if n := x.Expire(math.MaxInt64); n != 0 {
		t.Error("an open transaction never expires (L10)")
	}
	if first, open := x.FirstUnstable(1); !open || first != 0 {
		t.Errorf("it holds %d, %v", first, open)
	}
}

// AbortedIn and FirstUnstable against a look at every transaction, and a
// snapshot in between changes nothing.
func TestModel(t *testing.T) {
	type txn struct{ pid, first, marker int64 } // marker -1: open
	rapid.Check(t, func(t *rapid.T) {
		x := New()
		var aborted, decided []txn
		open := map[int64]int64{}
		end := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"data": func(t *rapid.T) {
				pid := rapid.Int64Range(1, 4).Draw(t, "pid")
				x.Apply(record.Build(record.BuildHeader{BaseOffset: end, ProducerID: pid, Transactional: true}, make([]record.Record, 1)))
				if _, ok := open[pid]; !ok {
					open[pid] = end
				}
				end++
			},
			"end": func(t *rapid.T) {
				pid := rapid.Int64Range(1, 4).Draw(t, "pid")
				kind := record.ControlType(rapid.IntRange(0, 1).Draw(t, "commit"))
				x.Apply(of(record.Marker(kind, pid, 0, 0, 0), end))
				if first, ok := open[pid]; ok {
					decided = append(decided, txn{pid, first, end})
					if kind == record.Abort {
						aborted = append(aborted, txn{pid, first, end})
					}
					delete(open, pid)
				}
				end++
			},
			"snapshot": func(t *rapid.T) {
				b := x.Encode(nil)
				y, err := Decode(b)
				if err != nil || !bytes.Equal(y.Encode(nil), b) {
					t.Fatalf("snapshot does not come back: %v", err)
				}
				x = y
			},
			"": func(t *rapid.T) {
				from := rapid.Int64Range(0, end).Draw(t, "from")
				to := rapid.Int64Range(from, end).Draw(t, "to")
				var want []AbortedTxn
				for _, a := range aborted {
					if a.marker >= from && a.first < to {
						want = append(want, AbortedTxn{a.pid, a.first})
					}
				}
				if got := x.AbortedIn(from, to); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("aborted in [%d, %d): %v, want %v", from, to, got, want)
				}
				hw := rapid.Int64Range(0, end).Draw(t, "hw")
				unstable := int64(math.MaxInt64)
				for _, first := range open {
					unstable = min(unstable, first)
				}
				for _, d := range decided {
					if d.marker >= hw {
						unstable = min(unstable, d.first)
					}
				}
				got, ok := x.FirstUnstable(hw)
				if ok != (unstable < math.MaxInt64) || ok && got != unstable {
					t.Fatalf("first unstable at %d: %d %v, want %d", hw, got, ok, unstable)
				}
			},
		})
	})
}

// Hostile or damaged snapshots: an error, no panic, bounded memory; what
// decodes encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add(apply(data(0, 0, 0, 1, true), of(record.AbortMarker(7, 0, 0, 0), 1), data(2, 0, 1, 1, true)).Encode(nil))
	f.Add(New().Encode(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		x, err := Decode(reseal(p))
		if err != nil {
			return
		}
		y, err := Decode(x.Encode(nil))
		if err != nil || !bytes.Equal(x.Encode(nil), y.Encode(nil)) {
			t.Fatalf("does not come back: %v", err)
		}
	})
}

// reseal gives the bytes a right checksum, so that the fuzzer gets behind it.
func reseal(p []byte) []byte {
	if len(p) < 6 {
		return p
	}
	return seal(append([]byte(nil), p[:len(p)-4]...), 0)
}

func BenchmarkApply(b *testing.B) {
	x := New()
	batch := data(0, 0, 0, 10, false)
	b.ReportAllocs()
	for b.Loop() {
		x.Apply(batch)
	}
}
