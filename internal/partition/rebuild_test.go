package partition

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// largeBatch is a batch of one record, of a producer.
func largeBatch(pid int64, seq int32, ts int64) []byte {
	h := record.NoProducer(ts)
	h.ProducerID, h.BaseSequence = pid, seq
	if pid >= 0 {
		h.ProducerEpoch = 0
	}
	return record.Build(h, []record.Record{{Value: make([]byte, 700_000)}})
}

// forget stops the broker and starts it without its index. The logs' histories
// are not gathered before the function that it returns is called.
func (w *world) forget() (p *Partition, remember func()) {
	w.t.Helper()
	w.close()
	if err := w.fs.RemoveAll("data/index"); err != nil {
		w.t.Fatal(err)
	}
	gate := make(chan struct{})
	w.t.Cleanup(invariants.SetFault(func(name string) {
		if name == "segment.gatherHistory" {
			<-gate
		}
	}))
	w.open()
	return w.m.Get("orders", 0), sync.OnceFunc(func() { close(gate) })
}

// remembering is a partition with four records in epoch 3, three of them of
// producer 7, whose index is gone.
func remembering(t *testing.T) (w *world, p *Partition, remember func()) {
	w = newWorld(t)
	p = w.apply(func(*metadata.Topic) {})
	for i, b := range [][]byte{largeBatch(-1, -1, 1000), largeBatch(7, 0, 2000), largeBatch(7, 1, 3000), largeBatch(7, 2, 4000)} {
		if a := w.wait(produce(p, b, -1)); a.err != nil || a.r.BaseOffset != int64(i) {
			t.Fatalf("produce: %+v", a)
		}
	}
	p, remember = w.forget()
	return w, p, remember
}

// While the history is being gathered, reads by offset, the two ends and batches
// without a producer id are served; everything else is refused so that clients
// ask again, or waits. Nothing wrong is ever told.
func TestRebuilding(t *testing.T) {
	w, p, remember := remembering(t)
	defer remember()
	read := func(offset int64, isolation int8, lastEpoch int32) ReadResult {
		t.Helper()
		r, err := p.Read(ReadRequest{Offset: offset, MaxBytes: 1 << 20, AtLeastOne: true, Isolation: isolation, CurrentLeaderEpoch: 3, LastFetchedEpoch: lastEpoch})
		if err != nil {
			t.Fatalf("fetch at %d: %v", offset, err)
		}
		r.View.Release()
		return r
	}

	for _, tt := range []struct {
		name      string
		offset    int64
		isolation int8
		lastEpoch int32
		records   bool
	}{
		{"by offset", 2, ReadUncommitted, -1, true},
		{"after the epoch of the batch before", 2, ReadUncommitted, 3, true},
		{"after another epoch", 2, ReadUncommitted, 2, false},
		{"from the start after any epoch", 0, ReadUncommitted, 2, true},
		{"read committed", 2, ReadCommitted, -1, false},
	} {
		r := read(tt.offset, tt.isolation, tt.lastEpoch)
		if got := r.View.Len() > 0; got != tt.records || r.Diverging != nil || r.LastStable != -1 || r.HighWatermark != 4 {
			t.Errorf("fetch %s: records %v, %+v", tt.name, got, r)
		}
	}
	for _, tt := range []struct {
		name      string
		ts        int64
		isolation int8
		want      int64 // -1: asked again
	}{
		{"earliest", Earliest, ReadUncommitted, 0},
		{"latest", Latest, ReadUncommitted, 4},
		{"latest, read committed", Latest, ReadCommitted, -1},
		{"the newest time", MaxTimestamp, ReadUncommitted, -1},
		{"a time", 2500, ReadUncommitted, -1},
	} {
		offset, _, epoch, err := p.ListOffset(tt.ts, tt.isolation, 3)
		if offset != tt.want || epoch != -1 || (tt.want < 0) != errors.Is(err, ErrOffsetNotAvailable) {
			t.Errorf("list offsets, %s: %d in epoch %d, %v", tt.name, offset, epoch, err)
		}
	}
	if end, err := p.EpochEnd(3, 3); !errors.Is(err, ErrOffsetNotAvailable) || end != sdk.Undefined {
		t.Errorf("end of an epoch: %+v, %v", end, err)
	}
	retry := largeBatch(7, 2, 4000)
	if a := w.wait(produce(p, retry, -1)); !errors.Is(a.err, segment.ErrRebuilding) {
		t.Errorf("a producer's batch: %+v", a)
	}
	if a := w.wait(produce(p, largeBatch(-1, -1, 5000), -1)); a.err != nil || a.r.BaseOffset != 4 {
		t.Errorf("a batch without producer: %+v", a)
	}
	w.m.retainAll() // which must not take the unknown for old
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Ready(short); !errors.Is(err, context.Canceled) {
		t.Errorf("ready: %v", err)
	}
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	defer p.RemoveWaiter(waiter)

	remember()
	<-waiter.C // a read-committed fetch that waits is answered
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := read(2, ReadCommitted, 3); r.View.Len() == 0 || r.LastStable != 5 {
		t.Errorf("read committed: %+v", r)
	}
	if r := read(2, ReadUncommitted, 2); r.View.Len() > 0 || r.Diverging == nil || *r.Diverging != (sdk.EpochEnd{Epoch: 2, End: 0}) {
		t.Errorf("after an epoch that we do not have: %+v, diverging %v", r, r.Diverging)
	}
	for ts, want := range map[int64]int64{2500: 2, MaxTimestamp: 4, Latest: 5, Earliest: 0} {
		if offset, _, epoch, err := p.ListOffset(ts, ReadCommitted, 3); offset != want || epoch != 3 || err != nil {
			t.Errorf("list offsets for %d: %d in epoch %d, %v", ts, offset, epoch, err)
		}
	}
	if end, err := p.EpochEnd(3, 3); err != nil || end != (sdk.EpochEnd{Epoch: 3, End: 5}) {
		t.Errorf("end of an epoch: %+v, %v", end, err)
	}
	if a := w.wait(produce(p, retry, -1)); a.err != nil || a.r.BaseOffset != 3 {
		t.Errorf("a batch that is there already: %+v", a)
	}
	if a := w.wait(produce(p, largeBatch(7, 3, 6000), -1)); a.err != nil || a.r.BaseOffset != 5 {
		t.Errorf("a producer's next batch: %+v", a)
	}
}

// What is found damaged while the history is gathered takes the partition
// offline, and whoever waits for it hears why.
func TestRebuildingFindsDamage(t *testing.T) {
	w, p, remember := remembering(t)
	defer remember()
	f, err := w.fs.OpenReadWrite(w.fs.PathJoin(p.Log().Dir(), "00000000000000000000.log"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 61), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() { ready <- p.Ready(t.Context()) }()
	remember()
	select {
	case err := <-ready:
		if !errors.Is(err, segment.ErrCorrupt) {
			t.Errorf("ready: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
	if _, err := p.Read(ReadRequest{Offset: 1, MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrStorage) {
		t.Errorf("fetch: %v", err)
	}
}
