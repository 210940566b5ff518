package partition

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// inTxn is a transactional batch of one record.
func inTxn(pid int64, epoch int16, seq int32) []byte {
	return record.Build(record.BuildHeader{
		BaseTimestamp: 1_000_000, ProducerID: pid, ProducerEpoch: epoch, BaseSequence: seq, Transactional: true,
	}, []record.Record{{Value: []byte("v")}})
}

func (w *world) send(p *Partition, b []byte, guard *Verification) error {
	w.t.Helper()
	c := make(chan answer, 1)
	p.Produce(b, ProduceOptions{Acks: -1, Verify: true, Verification: guard}, func(r ProduceResult, err error) { c <- answer{r, err} })
	return w.wait(c).err
}

func (w *world) mark(p *Partition, m Marker) error {
	w.t.Helper()
	c := make(chan answer, 1)
	p.AppendMarker(AnyEpoch, m, func(err error) { c <- answer{err: err} })
	return w.wait(c).err
}

func (w *world) vouch(p *Partition, pid int64, epoch int16) *Verification {
	w.t.Helper()
	g, err := p.BeginVerification(pid, epoch)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

// A transaction begins only with a verification that no marker broke; while it
// is open no question is asked; its marker ends it, and the next one begins with
// a question again.
func TestVerification(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.send(p, inTxn(7, 0, 0), nil); !errors.Is(err, ErrUnverified) {
		t.Fatalf("without a verification: %v", err)
	}
	other := w.vouch(p, 8, 0)
	if err := w.send(p, inTxn(7, 0, 0), other); !errors.Is(err, ErrUnverified) {
		t.Fatalf("with another producer's: %v", err)
	}
	p.EndVerification(other)

	g := w.vouch(p, 7, 0)
	must(w.send(p, inTxn(7, 0, 0), g))
	p.EndVerification(g)
	if g := w.vouch(p, 7, 0); g != nil {
		t.Fatal("an open transaction is asked for")
	}
	must(w.send(p, inTxn(7, 0, 1), nil))

	// What KIP-890 is about: the coordinator says yes, the transaction ends, and
	// only then the batch gets here. Two requests share the question.
	late, shared := w.vouch(p, 9, 0), w.vouch(p, 9, 0)
	unrelated := w.vouch(p, 10, 0)
	must(w.mark(p, Marker{ProducerID: 9, Version: 1}))
	for _, g := range []*Verification{late, shared} {
		if err := w.send(p, inTxn(9, 0, 0), g); !errors.Is(err, ErrUnverified) {
			t.Fatalf("behind the marker: %v", err)
		}
	}
	must(w.send(p, inTxn(10, 0, 0), unrelated)) // another producer's marker breaks nothing
	again := w.vouch(p, 9, 0)                   // asked again, it may begin the next transaction
	p.EndVerification(late)
	p.EndVerification(shared)
	must(w.send(p, inTxn(9, 0, 0), again))
	p.EndVerification(again)
	p.EndVerification(unrelated)

	// A verification is worth nothing when nobody watches over it any more.
	forgotten := w.vouch(p, 11, 0)
	p.EndVerification(forgotten)
	if err := w.send(p, inTxn(11, 0, 0), forgotten); !errors.Is(err, ErrUnverified) {
		t.Fatalf("after its end: %v", err)
	}
	if n := len(p.verifying); n != 0 {
		t.Errorf("%d verifications are kept", n)
	}

	// Nor across a change of leaders.
	g = w.vouch(p, 12, 0)
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = 2, 4 })
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = self, 5 })
	if err := w.send(p, inTxn(12, 0, 0), g); !errors.Is(err, ErrUnverified) {
		t.Fatalf("in another leadership: %v", err)
	}
}

// The last stable offset follows the markers, waits for the disk as the high
// watermark does, and a fetch that waits for it is woken by a marker alone. A
// restart brings all of that back.
func TestLastStableOffset(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	stable := func(want int64) {
		t.Helper()
		if got := p.Info().LastStable; got != want {
			t.Fatalf("last stable offset %d, want %d", got, want)
		}
	}
	begin := func(pid int64) {
		t.Helper()
		g := w.vouch(p, pid, 0)
		defer p.EndVerification(g)
		if err := w.send(p, inTxn(pid, 0, 0), g); err != nil {
			t.Fatal(err)
		}
	}
	committed := func() string {
		t.Helper()
		r, err := p.Read(ReadRequest{MaxBytes: 1 << 20, AtLeastOne: true, Isolation: ReadCommitted, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.View.Release()
		return fmt.Sprintf("to %d aborted %v", r.View.End, r.Aborted)
	}
	w.wait(produce(p, batch(1), -1)) // 0
	begin(7)                         // 1
	begin(8)                         // 2
	stable(1)

	// The marker of 8 alone lets nothing go; that of 7 does, once it is on disk.
	if err := w.mark(p, Marker{ProducerID: 8, Version: 1}); err != nil { // 3
		t.Fatal(err)
	}
	stable(1)
	waiter := NewWaiter()
	p.AddWaiter(waiter)
	defer p.RemoveWaiter(waiter)
	release := w.disk.hold()
	defer release()
	done := make(chan error, 1)
	p.AppendMarker(AnyEpoch, Marker{ProducerID: 7, Commit: true, Version: 1}, func(err error) { done <- err }) // 4
	stable(1)
	select {
	case <-done:
		t.Fatal("a marker was answered before it is on disk")
	default:
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	select {
	case <-waiter.C:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was woken")
	}
	stable(5)
	if got := committed(); got != "to 5 aborted [{8 2}]" {
		t.Fatal(got)
	}

	begin(9) // 5
	w.close()
	w.open()
	p = w.m.Get("orders", 0)
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	stable(5)
	if got := committed(); got != "to 5 aborted [{8 2}]" {
		t.Fatal(got)
	}
	if err := w.mark(p, Marker{ProducerID: 9, Version: 1, ProducerEpoch: 0}); err != nil {
		t.Fatal(err)
	}
	stable(7)
}

// Who may end a transaction: not an old coordinator, not an old producer, nobody
// in a topic that is mirrored. A marker that comes twice is no error.
//
// MIR-239: the last of these.
func TestMarkerRefusals(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	g := w.vouch(p, 7, 3)
	if err := w.send(p, inTxn(7, 3, 0), g); err != nil {
		t.Fatal(err)
	}
	p.EndVerification(g)
	bump := Marker{ProducerID: 7, ProducerEpoch: 4, CoordinatorEpoch: 5, Commit: true, Version: producer.EpochBump}
	for _, m := range []Marker{bump, bump} {
		if err := w.mark(p, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.send(p, inTxn(7, 3, 1), nil); !errors.Is(err, producer.ErrFencedEpoch) {
		t.Errorf("a write of the ended epoch: %v", err)
	}
	before := end(p)
	for _, c := range []struct {
		change func(m *Marker)
		err    error
	}{
		{func(m *Marker) { m.CoordinatorEpoch = 4 }, producer.ErrCoordinatorFenced},
		{func(m *Marker) { m.ProducerEpoch = 3 }, producer.ErrFencedEpoch},
	} {
		m := bump
		c.change(&m)
		if err := w.mark(p, m); !errors.Is(err, c.err) {
			t.Errorf("%+v: %v, want %v", m, err, c.err)
		}
	}
	c := make(chan answer, 1)
	p.AppendMarker(2, bump, func(err error) { c <- answer{err: err} })
	if a := w.wait(c); !errors.Is(a.err, ErrFencedEpoch) {
		t.Errorf("in an old leader epoch: %v", a.err)
	}
	w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	if err := w.mark(p, bump); !errors.Is(err, ErrReadOnly) {
		t.Errorf("in a mirror: %v", err)
	}
	if end(p) != before {
		t.Errorf("refused markers were appended: log end %d, was %d", end(p), before)
	}
}

// All brokers of a cluster lost their power while the last markers were in memory only,
// as durability=replicated allows for records. The coordinator had noted that each
// partition has its marker, so nobody wrote one again: the transaction was open for
// ever, and readers of committed records stood still in front of it. (Half of the runs
// of TestPowerCutIsSeen in fixtures/clusterrun.) So a marker is answered when it is on
// the disk, and the records before it are not held up.
func TestMarkerIsOnDisk(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.Configs = map[string]string{"durability": "replicated"} })
	release := w.disk.hold()
	defer release()
	g := w.vouch(p, 7, 0)
	if err := w.send(p, inTxn(7, 0, 0), g); err != nil {
		t.Fatal(err)
	}
	p.EndVerification(g)

	marked := make(chan answer, 1)
	p.AppendMarker(AnyEpoch, Marker{ProducerID: 7, Commit: true}, func(err error) { marked <- answer{err: err} })
	select {
	case <-w.disk.held: // the marker's fsync
	case a := <-marked:
		t.Fatalf("a marker was answered (%v), with what is below %d on the disk", a.err, p.log.DurableEnd())
	}
	if hw := p.HighWatermark(); hw != 2 {
		t.Errorf("high watermark %d: readers wait for the disk", hw)
	}
	release()
	if err := w.wait(marked).err; err != nil {
		t.Fatal(err)
	}
	if durable := p.log.DurableEnd(); durable != 2 {
		t.Errorf("a marker was answered, with what is below %d on the disk", durable)
	}

	w.disk.fail(errors.New("input/output error"))
	if err := w.mark(p, Marker{ProducerID: 7, Commit: true}); !errors.Is(err, ErrStorage) || !errors.Is(err, ErrMayCommit) {
		t.Errorf("with a disk that fails: %v", err)
	}
	if p.Info().Offline == nil {
		t.Error("the partition goes on behind a failed fsync")
	}
}

// A cut takes markers away, and the transaction is open again; one that began
// behind the cut is gone.
func TestTruncatedMarker(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	at := func(b record.Batch, offset int64) []byte {
		b.SetBaseOffset(offset)
		b.SetLeaderEpoch(1)
		return b
	}
	for i, b := range [][]byte{
		inTxn(7, 0, 0), record.AbortMarker(7, 0, 0, 1), inTxn(8, 0, 0), record.CommitMarker(8, 0, 0, 1), inTxn(9, 0, 0),
	} {
		if _, err := p.MirrorAppend(3, at(b, int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		cut    int64
		stable int64
		open   string
		abort  string
	}{
		{5, 4, "[{9 0 4 -1}]", "[{7 0}]"},
		{4, 4, "[]", "[{7 0}]"},
		{3, 2, "[{8 0 2 -1}]", "[{7 0}]"},
		{1, 0, "[{7 0 0 -1}]", "[]"},
	} {
		if _, err := p.Truncate(3, c.cut); err != nil {
			t.Fatal(err)
		}
		open, abort := fmt.Sprint(p.Log().OpenTxns()), fmt.Sprint(p.Log().Aborted(0, 100))
		if got := p.Info().LastStable; got != c.stable || open != c.open || abort != c.abort {
			t.Errorf("cut to %d: last stable %d, open %s, aborted %s; want %+v", c.cut, got, open, abort, c)
		}
	}
}

// Since version 2 the marker of a transaction and the batches of the next one have
// the same epoch, and producers send these without waiting for the marker: it must
// not break their verification, while the marker of their own transaction must.
func TestVerificationOfTheNextTransaction(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(*metadata.Topic) {})
	for i, tt := range []struct {
		name    string
		epoch   int16
		marker  Marker
		refused bool
	}{
		{"the last one's, version 2", 5, Marker{ProducerEpoch: 5, Version: EpochBump}, false},
		{"its own, version 2", 5, Marker{ProducerEpoch: 6, Version: EpochBump}, true},
		{"its own, version 1", 5, Marker{ProducerEpoch: 5, Version: 1}, true},
		{"of one that was fenced, version 1", 5, Marker{ProducerEpoch: 6, Version: 1}, true},
	} {
		tt.marker.ProducerID = int64(i)
		g := w.vouch(p, tt.marker.ProducerID, tt.epoch)
		if err := w.mark(p, tt.marker); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		err := w.send(p, inTxn(tt.marker.ProducerID, tt.epoch, 0), g)
		if p.EndVerification(g); (err != nil) != tt.refused || tt.refused && !errors.Is(err, ErrUnverified) && !errors.Is(err, producer.ErrFencedEpoch) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}

	// One epoch's is none for another's batch.
	old, now := w.vouch(p, 100, 5), w.vouch(p, 100, 6)
	if err := w.send(p, inTxn(100, 6, 0), old); !errors.Is(err, ErrUnverified) {
		t.Errorf("with the verification of another epoch: %v", err)
	}
	if err := w.send(p, inTxn(100, 6, 0), now); err != nil {
		t.Error(err)
	}
	for _, g := range []*Verification{old, now} {
		p.EndVerification(g)
	}
	if n := len(p.verifying); n != 0 {
		t.Errorf("%d verifications are kept", n)
	}
}
