package partition

import (
	"errors"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// batchAt is a leader's batch of n records.
func batchAt(base int64, epoch int32, n int) []byte {
	b := record.Batch(batch(n))
	b.SetBaseOffset(base)
	b.SetLeaderEpoch(epoch)
	return b
}

// following makes the topic one that broker 2 leads in epoch 3, and this one
// follows.
func (w *world) following(configs map[string]string) (*Partition, *Follower) {
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = configs
		m := t.Partitions[0]
		m.Replicas, m.ISR, m.Leader = []int32{2, 1}, []int32{2, 1}, 2
	})
	return p, p.Follower(func() {}, func() {})
}

// Nothing of an old role is written after the metadata gave another one: not by a
// fetcher of an older or a newer epoch, and not once this broker leads.
func TestFollowerIsFenced(t *testing.T) {
	w := newWorld(t)
	p, f := w.following(nil)
	if _, err := f.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
		t.Fatal(err)
	}
	refused := func(epoch int32) {
		t.Helper()
		if _, err := f.MirrorAppend(epoch, batchAt(2, 3, 1)); !errors.Is(err, ErrFencedEpoch) {
			t.Errorf("append in epoch %d: %v", epoch, err)
		}
		if _, err := f.Truncate(epoch, sdk.EpochEnd{Epoch: 3, End: 1}); !errors.Is(err, ErrFencedEpoch) {
			t.Errorf("truncation in epoch %d: %v", epoch, err)
		}
		if _, err := f.Restart(epoch, 100); !errors.Is(err, ErrFencedEpoch) {
			t.Errorf("restart in epoch %d: %v", epoch, err)
		}
		if err := f.AdvanceLogStart(epoch, 1); !errors.Is(err, ErrFencedEpoch) {
			t.Errorf("log start in epoch %d: %v", epoch, err)
		}
		before := p.HighWatermark()
		f.FollowHighWatermark(epoch, 2)
		if p.HighWatermark() != before || end(p) != 2 {
			t.Errorf("epoch %d: high watermark %d, log end %d", epoch, p.HighWatermark(), end(p))
		}
	}
	refused(2)
	refused(4)
	w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch = 4 })
	refused(3)
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = self, 5 })
	refused(4)
	refused(5)
	if a := w.wait(produce(p, batch(1), 1)); a.err != nil || a.r.BaseOffset != 2 {
		t.Fatalf("the leader's own: %+v", a)
	}
}

// What a follower of a mirror has, nobody waits to see on its disk. When the mirror has
// ended the leader does, and nothing is appended that would bring it there.
func TestFollowerFlushesWhenAMirrorEnds(t *testing.T) {
	w := newWorld(t)
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	p, f := w.following(map[string]string{"durability": "fsync"})
	flushed := make(chan error, 1)
	p.log.Flush(func(err error) { flushed <- err }) // whatever the change of roles asked of the disk is over with it
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	release := w.disk.hold()
	defer release()
	if _, err := f.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
		t.Fatal(err)
	}
	if _, durable := f.Ends(); durable != 0 {
		t.Fatalf("durable up to %d, and no fsync came through", durable)
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "" })
	select {
	case <-w.disk.held:
	case <-time.After(5 * time.Second): // a flush is another goroutine's
		t.Fatal("what came from the mirror is never flushed: this replica is out of the ISR until something is appended")
	}
	release()
	for began := time.Now(); p.log.DurableEnd() < 2; time.Sleep(time.Millisecond) { // likewise
		if time.Since(began) > 5*time.Second {
			t.Fatal("the disk went on, and what came from the mirror is not durable")
		}
	}
}

// A follower's high watermark is the leader's as far as its log goes, and does not
// fall when a new leader knows less. What is cut from below it is kept.
//
// MIR-095: a log that begins anew at an offset has its high watermark there at once.
func TestFollowerHighWatermarkAndCuts(t *testing.T) {
	w := newWorld(t)
	p, f := w.following(nil)
	for i := range int64(3) {
		if _, err := f.MirrorAppend(3, batchAt(2*i, 3, 2)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ told, want int64 }{{4, 4}, {2, 4}, {100, 6}} {
		if f.FollowHighWatermark(3, c.told); p.HighWatermark() != c.want {
			t.Fatalf("told %d: %d, want %d", c.told, p.HighWatermark(), c.want)
		}
	}
	if err := f.AdvanceLogStart(3, 100); err != nil || p.Log().StartOffset() != 6 {
		t.Fatalf("log start %d, %v", p.Log().StartOffset(), err)
	}

	w = newWorld(t)
	p, f = w.following(nil)
	for i, epoch := range []int32{1, 1, 3} {
		if _, err := f.MirrorAppend(3, batchAt(int64(2*i), epoch, 2)); err != nil {
			t.Fatal(err)
		}
	}
	f.FollowHighWatermark(3, 5)
	cut, err := f.Truncate(3, sdk.EpochEnd{Epoch: 3, End: 5}) // inside a batch, which goes whole
	if err != nil || cut.Offsets != 2 || end(p) != 4 || p.HighWatermark() != 4 || cut.Kept != "" {
		t.Fatalf("cut above what is committed by whole batches: %+v, end %d, high watermark %d, %v", cut, end(p), p.HighWatermark(), err)
	}
	// The leader has no epoch 1 beyond 2, and ours goes on to 4.
	if cut, err = f.Truncate(3, sdk.EpochEnd{Epoch: 1, End: 2}); err != nil || end(p) != 2 || cut.Kept == "" {
		t.Fatalf("committed records were cut: %+v, end %d, %v", cut, end(p), err)
	}
	if _, err = f.Restart(3, 50); err != nil || end(p) != 50 || p.Log().StartOffset() != 50 || p.HighWatermark() != 50 {
		t.Fatalf("restart: %d to %d, %v", p.Log().StartOffset(), end(p), err)
	}
}
