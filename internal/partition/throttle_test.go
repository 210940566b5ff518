package partition

import (
	"errors"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/quota"
)

// A leader gives a listed replica that is not in sync no more than its rate, and
// those who are in sync, and other topics' replicas, whatever they ask for.
func TestLeaderThrottle(t *testing.T) {
	w := newWorld(t)
	configs := map[string]string{metadata.LeaderThrottledReplicasConfig: "0:1,7:2", "durability": "replicated"}
	p := w.trio([]int32{1, 2}, configs)
	for range 3 {
		if a := w.wait(produce(p, batch(10), 1)); a.err != nil {
			t.Fatal(a.err)
		}
	}
	size := len(batch(10))
	w.m.SetThrottles(int64(size), quota.NoThrottle, quota.NoThrottle) // a batch a second
	read := func(id int32, offset int64) (bytes int, held bool) {
		t.Helper()
		last := int32(-1)
		if offset > 0 {
			last, _ = p.Log().EpochAt(offset - 1)
		}
		res, err := p.ReadReplica(ReadRequest{Offset: offset, MaxBytes: size, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: last}, Replica{ID: id, BrokerEpoch: -1, Durable: offset})
		if err != nil {
			t.Fatal(err)
		}
		defer res.View.Release()
		return res.View.Len(), res.HeldBack
	}
	if n, held := read(3, 0); n != size || held {
		t.Fatalf("the first batch: %d bytes, %v", n, held)
	}
	if n, held := read(3, 10); n != 0 || !held {
		t.Errorf("at once after it: %d bytes, %v", n, held)
	}
	if n, held := read(2, 0); n != size || held {
		t.Errorf("one in sync: %d bytes, %v", n, held)
	}
	w.clock.Advance(time.Second)
	if n, _ := read(3, 10); n != 0 {
		t.Errorf("%d bytes, though the one in sync has had the second's", n)
	}
	w.clock.Advance(1100 * time.Millisecond)
	if n, held := read(3, 10); n != size || held {
		t.Errorf("after a second: %d bytes, %v", n, held)
	}
	if n, held := read(3, 30); n != 0 || held {
		t.Errorf("at the end: %d bytes, %v", n, held)
	}
	p = w.trio([]int32{1, 2}, map[string]string{metadata.LeaderThrottledReplicasConfig: "0:2", "durability": "replicated"})
	if n, held := read(3, 20); n != size || held {
		t.Errorf("a replica that is not listed: %d bytes, %v", n, held)
	}
}

// A follower that is listed and not in sync takes no more than its rate.
func TestFollowerThrottle(t *testing.T) {
	w := newWorld(t)
	_, f := w.following(map[string]string{metadata.FollowerThrottledReplicasConfig: "*", "durability": "replicated"})
	w.m.SetThrottles(quota.NoThrottle, int64(len(batch(2))), quota.NoThrottle)
	if _, err := f.MirrorAppend(3, batchAt(0, 3, 2)); err != nil || f.Held() {
		t.Fatalf("one in sync is held, %v", err)
	}
	out := func(isr ...int32) {
		w.apply(func(t *metadata.Topic) {
			t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = isr, t.Partitions[0].PartitionEpoch+1
		})
	}
	out(2)
	if f.Held() {
		t.Error("held before it has taken anything")
	}
	if _, err := f.MirrorAppend(3, batchAt(2, 3, 2)); err != nil || !f.Held() {
		t.Errorf("not held after a second's bytes, %v", err)
	}
	w.clock.Advance(1100 * time.Millisecond)
	if f.Held() {
		t.Error("held after the second")
	}
	if _, err := f.MirrorAppend(3, batchAt(4, 3, 2)); err != nil || !f.Held() {
		t.Fatalf("%v", err)
	}
	out(2, 1)
	if f.Held() {
		t.Error("held in sync")
	}
}

// MIR-421: the throttle of mirrors, used up, holds no replica back that copies from its
// leader here, listed and out of sync or not.
func TestMirrorThrottleIsNotOfReplicas(t *testing.T) {
	w := newWorld(t)
	p, f := w.following(map[string]string{metadata.MirrorThrottledReplicasConfig: "*", "durability": "replicated"})
	w.apply(func(t *metadata.Topic) {
		t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = []int32{2}, t.Partitions[0].PartitionEpoch+1
	})
	w.m.SetThrottles(quota.NoThrottle, quota.NoThrottle, 0)
	if !p.Held() {
		t.Error("with a rate of nothing a mirror may fetch")
	}
	for i := range int64(3) {
		if _, err := f.MirrorAppend(3, batchAt(2*i, 3, 2)); err != nil || f.Held() {
			t.Errorf("a follower is held: %v", err)
		}
	}
	w.m.SetThrottles(quota.NoThrottle, quota.NoThrottle, quota.NoThrottle)
	if p.Held() {
		t.Error("held without a rate")
	}
}

// A follower serves consumers that know it as one, up to the high watermark that it has
// been told (KIP-392).
func TestFollowerServesConsumers(t *testing.T) {
	w := newWorld(t)
	p, f := w.following(map[string]string{"durability": "replicated"})
	for i := range int64(2) {
		if _, err := f.MirrorAppend(3, batchAt(2*i, 3, 2)); err != nil {
			t.Fatal(err)
		}
	}
	f.FollowHighWatermark(3, 2)
	read := func(offset int64, any bool) (ReadResult, error) {
		res, err := p.Read(ReadRequest{Offset: offset, MaxBytes: 1 << 20, AtLeastOne: true, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1, AnyReplica: any})
		defer res.View.Release()
		return ReadResult{HighWatermark: res.HighWatermark, LastStable: res.LastStable, Aborted: res.Aborted, LogStart: int64(res.View.Len())}, err
	}
	if _, err := read(0, false); !errors.Is(err, ErrNotLeader) {
		t.Errorf("an old client: %v", err)
	}
	if res, err := read(0, true); err != nil || int(res.LogStart) != len(batch(2)) || res.HighWatermark != 2 || res.LastStable != 2 {
		t.Errorf("below the high watermark: %+v, %v", res, err)
	}
	for _, offset := range []int64{2, 4} { // what is not known to be committed is waited for
		if res, err := read(offset, true); err != nil || res.LogStart != 0 {
			t.Errorf("at %d: %+v, %v", offset, res, err)
		}
	}
	if _, err := read(5, true); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("beyond the log: %v", err)
	}
	if _, err := p.Read(ReadRequest{CurrentLeaderEpoch: 4, LastFetchedEpoch: -1, AnyReplica: true}); !errors.Is(err, ErrUnknownEpoch) {
		t.Errorf("a newer epoch: %v", err)
	}
	if _, _, _, err := p.ListOffset(Latest, ReadUncommitted, -1); !errors.Is(err, ErrNotLeader) {
		t.Errorf("the end of a log is the leader's to tell: %v", err)
	}
}
