package partition

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// stale has this replica left out of a gate that cut to offset.
func (w *world) stale(barrier int32, offset int64, leader, epoch int32) *Partition {
	return w.apply(func(t *metadata.Topic) {
		p := t.Partitions[0]
		p.Replicas, p.ISR = []int32{self, 2}, []int32{leader}
		p.Leader, p.LeaderEpoch = leader, epoch
		p.Barrier, p.Stale = barrier, []metadata.StaleReplica{{ID: self, Barrier: barrier, Offset: offset}}
	})
}

func (w *world) passed(p *Partition, end int64) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); p.Barred(); {
		if time.Now().After(deadline) {
			w.t.Fatal("still barred")
		}
		time.Sleep(time.Millisecond) // a poll
	}
	if info := p.Info(); info.LogEnd != end || info.HighWatermark > end {
		w.t.Fatalf("the log ends at %d, high watermark %d, want %d", info.LogEnd, info.HighWatermark, end)
	}
}

func (w *world) write(p *Partition, n int) {
	w.t.Helper()
	for range n {
		if a := w.wait(produce(p, batch(1), 1)); a.err != nil {
			w.t.Fatal(a.err)
		}
	}
}

// A replica was away when the others cut for a mirror. It comes back as a follower
// and cuts what they did, once: what it gets afterwards stays, over a restart too.
// After the next barrier it is elected uncleanly, and cuts before it leads.
func TestBarrier(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	w.write(p, 6)
	p = w.stale(1, 4, 2, 4)
	w.passed(p, 4)
	if n, err := p.Log().Barrier(); n != 1 || err != nil {
		t.Fatalf("the log remembers barrier %d, %v", n, err)
	}
	p = w.stale(1, 4, self, 5)
	w.write(p, 3)
	w.passed(p, 7)
	w.close()
	w.open()
	p = w.m.Get("orders", 0)
	w.passed(p, 7)

	release := w.disk.hold()
	p = w.stale(2, 5, self, 6)
	if !p.Barred() {
		t.Error("not barred, though it has not cut")
	}
	if a := w.wait(produce(p, batch(1), 1)); !errors.Is(a.err, ErrNotLeader) {
		t.Errorf("a barred leader takes a write: %v", a.err)
	}
	if _, err := fetchAs(p, 2, 0, 0); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a barred leader serves a follower: %v", err)
	}
	release()
	w.passed(p, 5)
	w.write(p, 1)
	w.passed(p, 6)

	// Everything goes where the others began anew.
	p = w.stale(3, 0, 2, 7)
	w.passed(p, 0)
}

// A log was damaged when its replica had to cut what others cut while it was away. The
// cut was given up with the log, and nobody began it again: the replica stayed barred
// after its repair. Meanwhile the partition is one of those that are offline.
func TestBarrierOfADamagedLog(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	w.write(p, 6)
	flushed := make(chan error, 1)
	p.log.Flush(func(err error) { flushed <- err })
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	path := w.fs.PathJoin(p.Log().Dir(), "00000000000000000000.log")
	whole := w.read(path)
	f, err := w.fs.OpenReadWrite(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 30), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Read(ReadRequest{MaxBytes: 1, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrStorage) {
		t.Fatalf("read: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); p.Damage() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the scrubber was told of the damage, and does not see it")
		}
		time.Sleep(time.Millisecond) // a poll: the scrubber has a goroutine of its own
	}
	w.m.Damaged(segment.LogID{Topic: topicID}, p.Damage())
	p = w.stale(1, 4, 2, 4)
	if off := w.m.Offline(); !p.Barred() || len(off) != 1 || off[0] != p {
		t.Errorf("barred %v, offline %v", p.Barred(), off)
	}
	_, err = p.Repair(t.Context(), func(_ context.Context, from, to int64) ([]byte, int64, error) {
		var batches []byte
		for rest := whole; len(rest) > 0; {
			var b record.Batch
			if b, rest, err = record.Next(rest); err != nil {
				return nil, 0, err
			}
			if b.BaseOffset() >= from && b.NextOffset() <= to {
				batches = append(batches, b...)
			}
		}
		return batches, to, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.passed(p, 4)
	if off := w.m.Offline(); len(off) > 0 {
		t.Errorf("offline %v", off)
	}
}

func (w *world) read(path string) []byte {
	w.t.Helper()
	f, err := w.fs.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// changing is a log during whose next read something else happens.
type changing struct {
	Log
	during func()
}

func (c *changing) Read(offset int64, maxBytes int, end int64, atLeastOne bool) (segment.View, error) {
	if during := c.during; during != nil {
		c.during = nil
		during()
	}
	return c.Log.Read(offset, maxBytes, end, atLeastOne)
}

// A leader is deposed and elected again while it reads for a follower. What it reads
// is of another leadership, in which the follower has yet to look for where its log
// parts; in a mirror the epochs of the batches would not say so (spec 10.2).
func TestReadOfAnotherLeadership(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{self}, nil)
	w.write(p, 2)
	log := &changing{Log: p.log}
	p.log = log
	log.during = func() { w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch = 5 }) }
	res, err := p.ReadReplica(ReadRequest{MaxBytes: 1 << 20, AtLeastOne: true, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1}, Replica{ID: 2, BrokerEpoch: -1})
	if n := res.View.Len(); !errors.Is(err, ErrFencedEpoch) || n > 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
