package partition

import (
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// All brokers of a cluster lost their power a moment after a failover. Its followers had
// not flushed what came from the mirror, nor the end of it; one of them, trusted because
// of durability=fsync, was elected with an empty log. From the moment in which the stop
// is recorded everybody flushes, and the leader counts what is on disks, so that the
// batches which end the run are answered when every member of the ISR has everything.
// (MIR-334; simulation of two clusters.)
func TestStopIsOnEveryDisk(t *testing.T) {
	w := newWorld(t)
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	p, f := w.following(map[string]string{"durability": "fsync"})
	if p.WaitsForDisk() {
		t.Error("a follower of a mirror waits for the disk: the source has what is lost")
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m.removed" })
	if !p.WaitsForDisk() {
		t.Error("the mirror is to end, and its follower does not say what is on its disk")
	}
	if _, err := f.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	p.FlushThen(func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, durable := f.Ends(); durable != 2 {
		t.Errorf("on its disk is what is below %d", durable)
	}
}

// The leader of a mirror that is being stopped does not count what a follower has in
// memory only. Neither does it where the next start has been asked for meanwhile: it did,
// and STOPPED was told of a log that ended on one disk (mirrorsim, seed 900296).
func TestStopCountsDisks(t *testing.T) {
	for _, c := range []struct {
		name   string
		state  metadata.MirrorState
		counts bool
	}{
		{"m", metadata.StateMirroring, true},
		{"m.removed", metadata.StateStopping, false},
		{"m", metadata.StateStopping, false},
		{"m", metadata.StateStopped, false},
	} {
		w := newWorld(t)
		w.trio([]int32{self, 2}, nil)
		p := w.apply(func(t *metadata.Topic) {
			t.MirrorName = c.name
			t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: c.state}
		})
		if _, err := p.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := fetchAs(p, 2, 2, 0); err != nil { // it has both records, and nothing on its disk
			t.Fatal(err)
		}
		if got := p.HighWatermark() == 2; got != c.counts {
			t.Errorf("%s, %s: high watermark %d", c.name, c.state, p.HighWatermark())
		}
	}
}

// An append of the mirror's fetcher that came after the stop was recorded, and before
// the fetcher was taken away, once never reached the leader's disk: the high watermark
// stood still, and the stop waited for ever (seed 40412 of mirrorsim).
func TestLastAppendOfAMirrorIsFlushed(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		t.MirrorName = "m.removed"
		t.Partitions[0].Mirror = &metadata.MirrorPartition{Mirror: "m", State: metadata.StateMirroring}
	})
	if _, err := p.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
		t.Fatal(err)
	}
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	defer p.RemoveWaiter(waiter)
	for p.HighWatermark() < 2 {
		select {
		case <-waiter.C:
		case <-time.After(10 * time.Second): // an fsync takes milliseconds
			t.Fatalf("high watermark %d", p.HighWatermark())
		}
	}
}
