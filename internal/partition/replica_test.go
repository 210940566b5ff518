package partition

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// trio makes the topic one of three replicas that this broker leads.
func (w *world) trio(isr []int32, configs map[string]string) *Partition {
	return w.apply(func(t *metadata.Topic) {
		t.Configs = configs
		p := t.Partitions[0]
		p.Replicas, p.ISR = []int32{1, 2, 3}, isr
	})
}

// fetchAs is a fetch of a follower that has everything below offset.
func fetchAs(p *Partition, id int32, offset, durable int64) (ReadResult, error) {
	last := int32(-1)
	if offset > 0 {
		last, _ = p.Log().EpochAt(offset - 1)
	}
	res, err := p.ReadReplica(ReadRequest{Offset: offset, MaxBytes: 1 << 20, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: last},
		Replica{ID: id, BrokerEpoch: -1, Durable: durable})
	res.View.Release()
	return res, err
}

func (w *world) fetchAs(p *Partition, id int32, offset int64) {
	w.t.Helper()
	if _, err := fetchAs(p, id, offset, offset); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) unanswered(c chan answer) {
	w.t.Helper()
	select {
	case a := <-c:
		w.t.Fatalf("answered too early: %+v", a)
	default:
	}
}

// acks=all waits for the disks of all members of the ISR, one fetch after the
// other; a follower that only has it in memory does not count.
func TestAcksAllWaitsForTheISR(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2, 3}, map[string]string{"min.insync.replicas": "2"})
	c := produce(p, batch(2), -1)
	w.unanswered(c)
	res, err := p.ReadReplica(ReadRequest{MaxBytes: 1 << 20, AtLeastOne: true, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1}, Replica{ID: 2, BrokerEpoch: -1})
	if err != nil || res.View.Len() == 0 || res.HighWatermark != 0 {
		t.Fatalf("a follower reads above the high watermark: %d bytes, %+v, %v", res.View.Len(), res, err)
	}
	res.View.Release()
	w.fetchAs(p, 2, 2)
	if _, err := fetchAs(p, 3, 2, 0); err != nil {
		t.Fatal(err)
	}
	w.unanswered(c)
	if hw := p.HighWatermark(); hw != 0 {
		t.Fatalf("high watermark %d while replica 3 has nothing on its disk", hw)
	}
	w.fetchAs(p, 3, 2)
	if a := w.wait(c); a.err != nil || a.r.BaseOffset != 0 {
		t.Fatal(a)
	}
	if hw := p.HighWatermark(); hw != 2 {
		t.Fatalf("high watermark %d", hw)
	}
}

// Below min.insync.replicas what comes from a mirror's source is appended and not
// shown, and what ends the mirror waits too, until replicas are back (W37, 9.14).
// MIR-072, MIR-140.
func TestMirrorBelowMinISR(t *testing.T) {
	w := newWorld(t)
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	p := w.trio([]int32{1, 2}, map[string]string{"min.insync.replicas": "2"})
	if _, err := p.MirrorAppend(3, batchAt(0, 3, 2)); err != nil {
		t.Fatal(err)
	}
	w.fetchAs(p, 2, 2)
	if p.HighWatermark() != 2 {
		t.Fatalf("high watermark %d of two replicas", p.HighWatermark())
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].ISR = []int32{1} })
	if _, err := p.MirrorAppend(3, batchAt(2, 3, 2)); err != nil {
		t.Fatal(err)
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m.removed" })
	ended := make(chan error, 1)
	p.AppendInternal(3, record.PIDReset("S", 1), func(_ int64, err error) { ended <- err })
	if p.HighWatermark() != 2 || end(p) != 5 || len(ended) > 0 {
		t.Fatalf("with one replica of two: high watermark %d, end %d, answered %v", p.HighWatermark(), end(p), len(ended) > 0)
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].ISR = []int32{1, 2} })
	for range 2 { // the second tells that the first is on its disk
		w.fetchAs(p, 2, 5)
	}
	if err := <-ended; err != nil || p.HighWatermark() != 5 {
		t.Fatalf("with both again: %v, high watermark %d", err, p.HighWatermark())
	}
}

// Below min.insync.replicas acks=all is refused before the append, and a write
// that waits when the ISR shrinks is told so. acks=1 goes on and is not committed.
func TestMinInSyncReplicas(t *testing.T) {
	w := newWorld(t)
	configs := map[string]string{"min.insync.replicas": "2", "durability": "replicated"}
	p := w.trio([]int32{1, 2}, configs)
	w.fetchAs(p, 2, 0)
	c := produce(p, batch(1), -1)
	w.unanswered(c)
	w.apply(func(t *metadata.Topic) {
		t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = []int32{1}, 1
	})
	if a := w.wait(c); !errors.Is(a.err, ErrNotEnoughReplicasAfter) {
		t.Fatalf("waiting write: %v", a.err)
	}
	if a := w.wait(produce(p, batch(1), -1)); !errors.Is(a.err, ErrNotEnoughReplicas) {
		t.Fatalf("new write: %v", a.err)
	}
	if under, below := w.m.Shortfalls(); under != 1 || below != 1 {
		t.Fatalf("%d under-replicated, %d below min ISR", under, below)
	}
	if a := w.wait(produce(p, batch(1), 1)); a.err != nil {
		t.Fatal(a.err)
	}
	if hw := p.HighWatermark(); hw != 0 {
		t.Fatalf("high watermark %d with one replica in sync of two needed", hw)
	}
	w.fetchAs(p, 2, 2)
	w.apply(func(t *metadata.Topic) {
		t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = []int32{1, 2}, 2
	})
	if hw := p.HighWatermark(); hw != 2 {
		t.Fatalf("high watermark %d after the return", hw)
	}
}

func TestDeposedLeaderAnswersItsWaitingWrites(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2}, nil)
	c := produce(p, batch(1), -1)
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = 2, 4 })
	if a := w.wait(c); !errors.Is(a.err, ErrNotLeader) {
		t.Fatal(a.err)
	}
}

func TestWaitingWriteRunsOutOfTime(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2}, nil)
	c := make(chan answer, 1)
	p.Produce(batch(1), ProduceOptions{Acks: -1, Timeout: 3 * time.Second}, func(r ProduceResult, err error) { c <- answer{r, err} })
	for range 3 {
		w.clock.Advance(time.Second)
		w.unanswered(c)
	}
	for deadline := time.Now().Add(10 * time.Second); len(c) == 0; w.clock.Advance(ackCheck) {
		if time.Now().After(deadline) {
			t.Fatal("no answer")
		}
		time.Sleep(time.Millisecond) // the timer's goroutine needs the processor
	}
	if a := <-c; !errors.Is(a.err, ErrTimedOut) {
		t.Fatal(a.err)
	}
	w.fetchAs(p, 2, 1) // it is in the log all the same
	for deadline := time.Now().Add(10 * time.Second); p.HighWatermark() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("high watermark %d", p.HighWatermark())
		}
	}
}

// A follower whose history is another one gets no records and does not count.
//
// MIR-197: of the right length, and with another epoch at its end.
func TestDivergedFollowerDoesNotCount(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2}, map[string]string{"durability": "replicated"})
	w.wait(produce(p, batch(3), 1))
	for name, c := range map[string]struct {
		r   ReadRequest
		end int64
	}{
		"an epoch that we do not have": {ReadRequest{Offset: 3, LastFetchedEpoch: 2, CurrentLeaderEpoch: 3}, 0},
		"an epoch newer than any here": {ReadRequest{Offset: 4, LastFetchedEpoch: 4, CurrentLeaderEpoch: 3}, 3},
		"more of an epoch":             {ReadRequest{Offset: 4, LastFetchedEpoch: 3, CurrentLeaderEpoch: 3}, 3},
	} {
		res, err := p.ReadReplica(c.r, Replica{ID: 2, BrokerEpoch: -1, Durable: c.r.Offset})
		if err != nil || res.Diverging == nil || res.Diverging.End != c.end {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		if hw := p.HighWatermark(); hw != 0 {
			t.Errorf("%s: high watermark %d", name, hw)
		}
	}
	if _, err := p.ReadReplica(ReadRequest{CurrentLeaderEpoch: 2, LastFetchedEpoch: -1}, Replica{ID: 2}); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("old leader epoch: %v", err)
	}
	if _, err := p.ReadReplica(ReadRequest{CurrentLeaderEpoch: 3, LastFetchedEpoch: -1}, Replica{ID: 9}); !errors.Is(err, ErrUnknownEpoch) {
		t.Errorf("no replica: %v", err)
	}
}

// Retention, and a power cut behind it, leave a log that holds nothing and knows no epoch.
// A consumer that has all below its start goes on there, whatever epochs that was of; one
// that has more hears where it ends. So does a follower, but one that ends there begins anew.
func TestFetchBehindEmptiedLog(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2}, map[string]string{"durability": "replicated"})
	w.wait(produce(p, batch(5), 1))
	if err := p.log.TruncateFully(5); err != nil {
		t.Fatal(err)
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch++ })
	for _, c := range []struct {
		offset int64
		ends   int64 // -1: nothing parts
		err    error
	}{{5, -1, nil}, {9, 5, nil}, {4, -1, ErrOutOfRange}} {
		r := ReadRequest{Offset: c.offset, LastFetchedEpoch: 3, CurrentLeaderEpoch: -1}
		res, err := p.Read(r)
		if !errors.Is(err, c.err) || (res.Diverging != nil) != (c.ends >= 0) || res.Diverging != nil && res.Diverging.End != c.ends {
			t.Errorf("at %d: %+v, %v", c.offset, res.Diverging, err)
		}
		res, err = p.ReadReplica(r, Replica{ID: 2, BrokerEpoch: -1, Durable: c.offset})
		if res.LogStart != 5 || (res.Diverging != nil) != (c.ends >= 0) || res.Diverging == nil && !errors.Is(err, ErrOutOfRange) {
			t.Errorf("follower at %d: %+v, %v", c.offset, res, err)
		}
	}
}

// Records are deleted, up to the inside of a batch or to its end, and with them all of an
// epoch. A follower of that epoch is told to begin anew, also if it ends just where the log
// begins now: what it has may be of another history.
func TestFollowerOfEpochThatIsGone(t *testing.T) {
	for _, start := range []int64{3, 5} {
		w := newWorld(t)
		p := w.trio([]int32{1, 2}, map[string]string{"durability": "replicated"})
		w.wait(produce(p, batch(3), 1))
		w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch++ })
		w.wait(produce(p, batch(4), 1))
		w.fetchAs(p, 2, 7)
		if got, err := p.DeleteRecords(start); err != nil || got != start {
			t.Fatal(got, err)
		}
		for _, c := range []struct {
			offset int64
			last   int32
			base   int64 // of what it gets
			err    error
		}{{start, 3, 0, ErrOutOfRange}, {start, -1, 3, nil}, {7, 4, 0, nil}} {
			r := ReadRequest{Offset: c.offset, LastFetchedEpoch: c.last, CurrentLeaderEpoch: -1, MaxBytes: 1 << 20, AtLeastOne: true}
			res, err := p.ReadReplica(r, Replica{ID: 3, BrokerEpoch: -1, Durable: c.offset})
			if !errors.Is(err, c.err) || res.Diverging != nil || res.LogStart != start || res.View.Base != c.base {
				t.Errorf("log start %d, follower at %d of epoch %d: %+v, %v", start, c.offset, c.last, res, err)
			}
			res.View.Release()
		}
	}
}

// A new leader appends at once, but does not say where the log ends before the
// ISR has what was in it (rule 9).
func TestElectedIsNotYetLeader(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2}, map[string]string{"durability": "replicated"})
	w.fetchAs(p, 2, 0)
	w.wait(produce(p, batch(3), 1))
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = 2, 4 })
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = 1, 5 })
	if _, _, _, err := p.ListOffset(Latest, ReadUncommitted, 5); !errors.Is(err, ErrOffsetNotAvailable) {
		t.Fatalf("end offset of an elected leader: %v", err)
	}
	if a := w.wait(produce(p, batch(1), 1)); a.err != nil {
		t.Fatal(a.err)
	}
	w.fetchAs(p, 2, 3)
	if o, _, _, err := p.ListOffset(Latest, ReadUncommitted, 5); err != nil || o != 3 {
		t.Fatalf("%d, %v", o, err)
	}
}

// Without the controller's answer within the session a leader leads nothing.
func TestLeaseRunsOut(t *testing.T) {
	w := newWorld(t)
	w.close()
	var valid atomic.Bool
	valid.Store(true)
	w.open()
	w.m.Close()
	w.m = NewManager(Options{NodeID: self, Stores: w.m.o.Stores, Clock: w.clock, Logger: w.m.o.Logger, Lease: valid.Load})
	p := w.apply(func(*metadata.Topic) {})
	if a := w.wait(produce(p, batch(1), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	valid.Store(false)
	if a := w.wait(produce(p, batch(1), 1)); !errors.Is(a.err, ErrNotLeader) {
		t.Errorf("produce: %v", a.err)
	}
	if _, err := p.Read(ReadRequest{MaxBytes: 1 << 20, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("fetch: %v", err)
	}
	if _, _, _, err := p.ListOffset(Latest, ReadUncommitted, -1); !errors.Is(err, ErrNotLeader) {
		t.Errorf("list offsets: %v", err)
	}
	if _, err := fetchAs(p, 2, 0, 0); !errors.Is(err, ErrNotLeader) {
		t.Errorf("replica fetch: %v", err)
	}
}

// keeper is a controller that answers as it is told.
type keeper struct {
	asked  chan []ISRChange
	answer chan []ISRResult
}

func (k *keeper) alter(ctx context.Context, changes []ISRChange) []ISRResult {
	select {
	case k.asked <- changes:
	case <-ctx.Done():
		return nil
	}
	select {
	case a := <-k.answer:
		return a
	case <-ctx.Done():
		return nil
	}
}

func newKeptWorld(t *testing.T) (*world, *keeper) {
	k := &keeper{asked: make(chan []ISRChange), answer: make(chan []ISRResult)}
	w := newWorld(t)
	w.m.Close()
	w.m = NewManager(Options{NodeID: self, Stores: w.m.o.Stores, Clock: w.clock, Logger: w.m.o.Logger, AlterISR: k.alter})
	w.image = metadata.NewImage()
	w.m.Apply(nil, w.image)
	return w, k
}

// register puts a broker into the metadata.
func (w *world) register(id int32, epoch int64, fenced bool) {
	prev := w.image
	e := prev.Edit()
	e.PutBroker(&metadata.Broker{ID: id, Epoch: epoch, Fenced: fenced})
	w.image = e.Image(prev.Revision + 1)
	w.m.Apply(prev, w.image)
}

func (k *keeper) next(t *testing.T) ISRChange {
	t.Helper()
	select {
	case c := <-k.asked:
		if len(c) != 1 {
			t.Fatalf("%+v", c)
		}
		return c[0]
	case <-time.After(10 * time.Second):
		t.Fatal("no proposal")
	}
	return ISRChange{}
}

func ids(c ISRChange) (out []int32) {
	for _, m := range c.ISR {
		out = append(out, m.ID)
	}
	return out
}

// Who has caught up is proposed with its broker epoch; while that is in flight it
// counts, and what the controller refuses for good counts no more.
func TestExpandsTheISR(t *testing.T) {
	w, k := newKeptWorld(t)
	w.register(2, 20, false)
	p := w.trio([]int32{1}, map[string]string{"durability": "replicated"})
	if a := w.wait(produce(p, batch(3), -1)); a.err != nil {
		t.Fatal(a.err)
	}
	read := func(offset, epoch int64) error {
		res, err := p.ReadReplica(ReadRequest{Offset: offset, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1}, Replica{ID: 2, BrokerEpoch: epoch, Durable: -1})
		res.View.Release()
		return err
	}
	if err := read(3, 19); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("fetch of an old registration: %v", err)
	}
	if err := read(2, 20); err != nil {
		t.Fatal(err)
	}
	if err := read(3, 20); err != nil {
		t.Fatal(err)
	}
	c := k.next(t)
	if !slices.Equal(ids(c), []int32{1, 2}) || c.ISR[1].Epoch != 20 || c.LeaderEpoch != 3 {
		t.Fatalf("proposed %+v", c)
	}
	waits := produce(p, batch(1), -1)
	w.unanswered(waits) // 2 may be in the ISR by now
	k.answer <- []ISRResult{{Err: ErrISRRefused}}
	if a := w.wait(waits); a.err != nil {
		t.Fatal(a.err)
	}
	// Refused, not forgotten: with the next fetch it is asked for again.
	if err := read(4, 20); err != nil {
		t.Fatal(err)
	}
	k.next(t)
	waits = produce(p, batch(1), -1)
	k.answer <- []ISRResult{{PartitionEpoch: 1}}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = []int32{1, 2}, 1 })
	w.unanswered(waits)
	if err := read(5, 20); err != nil {
		t.Fatal(err)
	}
	if a := w.wait(waits); a.err != nil {
		t.Fatal(a.err)
	}
}

// A fenced broker does not join; it does when it is fenced no more, without a
// fetch of its own that would mention the partition again (KIP-841).
func TestJoinsWhenUnfenced(t *testing.T) {
	w, k := newKeptWorld(t)
	w.register(2, 20, true)
	p := w.trio([]int32{1}, nil)
	w.fetchAs(p, 2, 0)
	select {
	case c := <-k.asked:
		t.Fatalf("a fenced broker is proposed: %+v", c)
	default:
	}
	w.register(2, 20, false)
	if c := k.next(t); !slices.Equal(ids(c), []int32{1, 2}) {
		t.Fatalf("%+v", c)
	}
}

// Who is not caught up for too long is proposed to leave; until that is in force
// writes wait for it.
func TestShrinksTheISR(t *testing.T) {
	w, k := newKeptWorld(t)
	w.register(2, 20, false)
	w.register(3, 30, false)
	p := w.trio([]int32{1, 2, 3}, map[string]string{"durability": "replicated"})
	w.fetchAs(p, 2, 0)
	w.fetchAs(p, 3, 0)
	waits := produce(p, batch(1), -1)
	var c []ISRChange
	for deadline := time.Now().Add(10 * time.Second); c == nil; {
		w.clock.Advance(time.Second)
		w.fetchAs(p, 2, 1)
		select {
		case c = <-k.asked:
		case <-time.After(time.Millisecond): // the keeper's goroutine needs the processor
			if time.Now().After(deadline) {
				t.Fatal("no proposal")
			}
		}
	}
	if !slices.Equal(ids(c[0]), []int32{1, 2}) {
		t.Fatalf("proposed %+v", c)
	}
	w.unanswered(waits)
	k.answer <- []ISRResult{{PartitionEpoch: 1}}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].ISR, t.Partitions[0].PartitionEpoch = []int32{1, 2}, 1 })
	if a := w.wait(waits); a.err != nil {
		t.Fatal(a.err)
	}
}

// A follower's queue hears of every append, also of those that are not committed,
// and of nothing else that would end its wait.
func TestFollowersWakeOnAppend(t *testing.T) {
	w := newWorld(t)
	p := w.trio([]int32{1, 2, 3}, map[string]string{"durability": "replicated"})
	q := NewFollowQueue()
	f := q.NewFollow("x")
	p.Follow(f)
	w.wait(produce(p, batch(1), 1))
	select {
	case <-q.C:
	default:
		t.Fatal("not woken by an append")
	}
	if got := q.Take(nil); len(got) != 1 || got[0] != f {
		t.Fatalf("%v", got)
	}
	w.fetchAs(p, 2, 1)
	w.fetchAs(p, 3, 1)
	select {
	case <-q.C:
		t.Fatal("woken by the high watermark")
	default:
	}
	if got := q.Take(nil); len(got) != 1 {
		t.Fatalf("not told of the high watermark: %v", got)
	}
	p.Unfollow(f)
	w.wait(produce(p, batch(1), 1))
	if got := q.Take(nil); len(got) != 0 {
		t.Fatal("told after it left")
	}
}

// Of metadata that change, a partition's followers hear where they are the partition's own,
// or the topic's, and not where another partition has changed: in a failover of thousands
// each step of one had all followers look at all the others.
func TestFollowersSleepThroughOthersChanges(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		second := *t.Partitions[0]
		second.Index = 1
		t.Partitions = append(t.Partitions, &second)
		t.MirrorName = "m"
	})
	q := NewFollowQueue()
	p.Follow(q.NewFollow("x"))
	woken := func() bool {
		select {
		case <-q.C:
			return len(q.Take(nil)) > 0
		default:
			return false
		}
	}
	change := func(edit func(e *metadata.Editor)) {
		t.Helper()
		prev, e := w.image, w.image.Edit()
		edit(e)
		w.image = e.Image(prev.Revision + 1)
		w.m.Apply(prev, w.image)
	}
	stopping := &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopping}
	change(func(e *metadata.Editor) { e.SetMirrorState(topicID, 1, stopping) })
	if woken() {
		t.Error("woken by what changed of another partition")
	}
	if !w.m.ByID(topicID, 0).view.Load().lazy || w.m.ByID(topicID, 1).view.Load().lazy {
		t.Error("the other partition has not followed, or this one has")
	}
	change(func(e *metadata.Editor) { e.SetMirrorState(topicID, 0, stopping) })
	if !woken() || p.view.Load().lazy {
		t.Error("not woken by what changed of it")
	}
	change(func(e *metadata.Editor) { e.SetAttachment(topicID, "m.removed", w.image.Revision+1) })
	if !woken() {
		t.Error("not woken by what changed of the topic")
	}
}

// A follower that is elected while its disk is still busy with the last records of
// the old leader hears when that is done: nothing else would tell its high watermark,
// and a producer that sends those records again would wait for ever.
func TestElectedWhileItsDiskIsBusy(t *testing.T) {
	w := newWorld(t)
	lead := func(id, epoch int32) *Partition {
		return w.apply(func(t *metadata.Topic) {
			p := t.Partitions[0]
			p.Replicas, p.ISR, p.Leader, p.LeaderEpoch = []int32{1, 2}, []int32{1, 2}, id, epoch
		})
	}
	p := lead(2, 4)
	open := w.disk.hold()
	flushed := make(chan struct{}, 1)
	b := batch(3)
	record.Batch(b).SetLeaderEpoch(4)
	if _, err := p.Follower(func() {}, func() { flushed <- struct{}{} }).MirrorAppend(4, b); err != nil {
		t.Fatal(err)
	}
	lead(1, 5)
	w.fetchAs(p, 2, 3)
	if hw := p.HighWatermark(); hw != 0 {
		t.Fatalf("high watermark %d before anything is on our disk", hw)
	}
	open()
	<-flushed
	if hw := p.HighWatermark(); hw != 3 {
		t.Errorf("high watermark %d, want 3", hw)
	}
}

// A replica that was removed has deleted its log. Where it is one again in the next image
// that its leader sees, only the leader epoch, which the removal has raised, tells: what it
// had before proves nothing, until it asks in the new one.
func TestReturnedReplicaProvesItself(t *testing.T) {
	w, k := newKeptWorld(t)
	w.register(2, 20, true) // fenced: it does not join before we have looked
	p := w.trio([]int32{1}, nil)
	w.fetchAs(p, 2, 0)
	joining := func() []int32 {
		p.appendMu.Lock()
		defer p.appendMu.Unlock()
		return p.tracker.Expand(func(int32, int64) bool { return true })
	}
	if isr := joining(); !slices.Equal(isr, []int32{1, 2}) {
		t.Fatalf("a replica that has everything does not join: %v", isr)
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch, t.Partitions[0].PartitionEpoch = 5, 2 })
	if isr := joining(); isr != nil {
		t.Fatalf("%v are in sync by what one of them had before it was removed", isr)
	}
	w.register(2, 20, false)
	w.fetchAs(p, 2, 0)
	if c := k.next(t); !slices.Equal(ids(c), []int32{1, 2}) || c.LeaderEpoch != 5 {
		t.Fatalf("%+v", c)
	}
}
