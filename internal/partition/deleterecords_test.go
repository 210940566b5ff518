package partition

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// DeleteRecords moves the log start, for readers, for "earliest", for epochs,
// and past a kill; what it may not do it refuses. (MIR-257)
func TestDeleteRecords(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	for range 4 {
		if a := w.wait(produce(p, batch(5), -1)); a.err != nil {
			t.Fatal(a.err)
		}
		w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch++ })
	}
	check := func(p *Partition, start int64, epoch int32) {
		t.Helper()
		if got := p.Log().StartOffset(); got != start {
			t.Fatalf("log start %d, want %d", got, start)
		}
		if _, err := p.Read(ReadRequest{Offset: start - 1, MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrOutOfRange) {
			t.Fatalf("read below the start: %v", err)
		}
		r, err := p.Read(ReadRequest{Offset: start, MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
		if err != nil || (r.View.Len() > 0) != (start < 20) {
			t.Fatalf("read at the start: %d bytes, %v", r.View.Len(), err)
		}
		r.View.Release()
		offset, _, e, err := p.ListOffset(Earliest, ReadUncommitted, -1)
		if err != nil || offset != start || e != epoch {
			t.Fatalf("earliest %d in epoch %d, %v; want %d in %d", offset, e, err, start, epoch)
		}
	}
	for _, step := range []struct {
		offset, start int64
		epoch         int32
	}{
		{7, 7, 4}, {3, 7, 4}, {10, 10, 5}, {0, 10, 5},
	} {
		if start, err := p.DeleteRecords(step.offset); err != nil || start != step.start {
			t.Fatalf("delete below %d: start %d, %v", step.offset, start, err)
		}
		check(p, step.start, step.epoch)
	}
	for _, offset := range []int64{21, -2} {
		if start, err := p.DeleteRecords(offset); !errors.Is(err, ErrOutOfRange) || start != -1 {
			t.Fatalf("delete below %d of 20: start %d, %v", offset, start, err)
		}
	}
	w.close()
	w.open()
	p = w.m.Get("orders", 0)
	check(p, 10, 5)

	// -1 is the high watermark, not the log end: hold the disk back.
	release := w.disk.hold()
	defer release()
	late := produce(p, batch(5), -1)
	if start, err := p.DeleteRecords(HighWatermarkOffset); err != nil || start != 20 {
		t.Fatalf("delete all: start %d, %v", start, err)
	}
	if _, err := p.DeleteRecords(21); !errors.Is(err, ErrOutOfRange) {
		t.Fatalf("delete above the high watermark: %v", err)
	}
	release()
	if a := w.wait(late); a.err != nil {
		t.Fatal(a.err)
	}
	if start, err := p.DeleteRecords(HighWatermarkOffset); err != nil || start != 25 {
		t.Fatalf("delete all: start %d, %v", start, err)
	}
	check(p, 25, 7) // what comes next is of the last epoch at least
	if a := w.wait(produce(p, batch(1), -1)); a.err != nil || a.r.BaseOffset != 25 {
		t.Fatalf("write to an emptied log: %+v", a)
	}
}

// Aborted transactions below the new start are not told any more.
func TestDeleteRecordsAborted(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	h := record.NoProducer(1_000_000)
	h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Transactional = 7, 0, 0, true
	txn := record.Batch(record.Build(h, []record.Record{{Value: []byte("v")}}))
	abort := record.Batch(record.AbortMarker(7, 0, 0, 1_000_000))
	abort.SetBaseOffset(1)
	for _, b := range []record.Batch{txn, abort} {
		if _, err := p.MirrorAppend(3, b); err != nil {
			t.Fatal(err)
		}
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "" })
	if a := w.wait(produce(p, batch(3), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	if got := p.Log().Aborted(0, 10); len(got) != 1 {
		t.Fatalf("aborted %v", got)
	}
	if _, err := p.DeleteRecords(3); err != nil {
		t.Fatal(err)
	}
	if got := p.Log().Aborted(0, 10); len(got) != 0 {
		t.Fatalf("aborted %v after their records went", got)
	}
}

func TestDeleteRecordsRefused(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	if _, err := p.MirrorAppend(3, batch(5)); err != nil {
		t.Fatal(err)
	}
	refused := func(want error) {
		t.Helper()
		if start, err := p.DeleteRecords(2); !errors.Is(err, want) || start != -1 || p.Log().StartOffset() != 0 {
			t.Fatalf("start %d, %v; want %v", start, err, want)
		}
	}
	refused(ErrMirrored)
	w.apply(func(t *metadata.Topic) {
		t.MirrorName = "m.removed"
		t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopping}
	})
	refused(ErrMirrored)
	w.apply(func(t *metadata.Topic) {
		t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopped}
		t.Configs = map[string]string{"cleanup.policy": "compact"}
	})
	refused(ErrPolicy)
	w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"cleanup.policy": "compact,delete"} })
	if start, err := p.DeleteRecords(2); err != nil || start != 2 {
		t.Fatalf("after STOPPED: %d, %v", start, err)
	}
}
