package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/fixtures/replicated"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// pair is two brokers with their coordinators, over one __consumer_offsets.
type pair struct {
	t     *testing.T
	clock *clock.Manual
	topic *replicated.Topic
	of    map[int32]*Coordinator
	seen  map[int32]*metadata.Image
}

func newPair(t *testing.T, change func(*Options)) *pair {
	p := &pair{
		t: t, clock: clock.NewManual(epoch0), topic: replicated.New(TopicName, 1),
		of: map[int32]*Coordinator{}, seen: map[int32]*metadata.Image{},
	}
	for _, id := range []int32{1, 2} {
		b := p.topic.Broker(id)
		o := newMemoryLog(1).options(p.clock)
		o.NodeID, o.Partitions, o.Append, o.Load = id, p.topic.Partitions, b.Append, b.Load
		o.AppendOffsets, o.AppendMarker = b.AppendOffsets, b.AppendMarker
		if change != nil {
			change(&o)
		}
		p.of[id] = start(t, o)
	}
	p.hear(1)
	p.hear(2)
	return p
}

// hear brings a broker's coordinator up to the metadata of now.
func (p *pair) hear(id int32) {
	now := p.topic.Image()
	p.of[id].Apply(p.seen[id], now)
	p.seen[id] = now
	for _, s := range p.of[id].led.All() {
		waitLoaded(s)
	}
}

// move makes a broker the leader, and lets both hear of it.
func (p *pair) move(to int32, keep int) {
	p.topic.Elect(to, keep)
	p.hear(3 - to)
	p.hear(to)
}

// at is what a broker tells of the group's offset; -1 is none.
func (p *pair) at(id int32) int64 {
	p.t.Helper()
	all, err := p.of[id].CommittedIn(context.Background(), "g", []TopicPartition{{"t", 0}})
	if err != nil {
		p.t.Fatal(err)
	}
	return all[0].Offset
}

// later runs a call that waits, and hands its error over.
func later(call func() error) <-chan error {
	out := make(chan error, 1)
	go func() { out <- call() }()
	return out
}

func wantNotCoordinator(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("%s: %v", what, err)
	}
}

// asked returns once so many callers wait for the shard of a coordinator.
func asked(c *Coordinator, n int) {
	for have := -1; have < n; {
		s := c.led.All()[0]
		counted := make(chan int, 1)
		if s.Post(func(time.Time) { counted <- s.Waiting() }) != nil {
			return
		}
		have = <-counted
	}
}

// A member that waits for its group, in a join or in a sync, is sent to the new
// coordinator at once, and goes on there.
func TestMoveDuringJoin(t *testing.T) {
	ctx := context.Background()
	p := newPair(t, func(o *Options) { o.InitialRebalanceDelay = time.Minute })
	joining := later(func() error { return p.of[1].Join(ctx, join("")).Err })
	asked(p.of[1], 1)
	p.move(2, 0)
	wantNotCoordinator(t, "join", <-joining)
	wantNotCoordinator(t, "join at the old one", p.of[1].Join(ctx, join("")).Err)

	joined := make(chan JoinResult, 1)
	go func() { joined <- p.of[2].Join(ctx, join("")) }()
	asked(p.of[2], 1)
	p.clock.Advance(time.Minute)
	j := <-joined
	if j.Err != nil {
		t.Fatal(j.Err)
	}
	// The leader's assignment is on its way to a slow log.
	p.topic.Hold()
	syncing := later(func() error {
		return p.of[2].Sync(ctx, &SyncRequest{Group: "g", MemberID: j.MemberID, Generation: j.Generation, Assignments: []Assignment{{j.MemberID, []byte("mine")}}}).Err
	})
	if err := p.topic.Pending(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	p.move(1, 1)
	wantNotCoordinator(t, "sync", <-syncing)
	p.topic.Release()
	// The new leader has it, so the generation is the group's.
	if err := p.of[1].Heartbeat(ctx, &HeartbeatRequest{Group: "g", MemberID: j.MemberID, Generation: j.Generation}); err != nil {
		t.Fatal(err)
	}
}

// An acknowledged commit is there after a move. One that was not is there or is
// not, as the new leader's log has it, also when the old one leads again; and its
// client is told neither.
func TestMoveDuringCommit(t *testing.T) {
	ctx := context.Background()
	for _, to := range []int32{2, 1} { // 1: the same broker leads on in another epoch
		for keep, want := range []int64{1, 2} {
			p := newPair(t, nil)
			if _, err := p.of[1].Commit(ctx, commit(1)); err != nil {
				t.Fatal(err)
			}
			p.topic.Hold()
			committing := later(func() error { _, err := p.of[1].Commit(ctx, commit(2)); return err })
			if err := p.topic.Pending(t.Context(), 0, 1); err != nil {
				t.Fatal(err)
			}
			p.topic.Elect(to, keep)
			wantNotCoordinator(t, "commit", <-committing)
			p.topic.Release()
			p.hear(1)
			p.hear(2)
			if got := p.at(to); got != want {
				t.Fatalf("moved to %d with %d batches: offset %d, want %d", to, keep, got, want)
			}
			p.move(3-to, 0)
			if got := p.at(3 - to); got != want {
				t.Fatalf("moved back from %d: offset %d, want %d", to, got, want)
			}
		}
	}
}

// A coordinator that does not know yet that it was deposed writes nothing, and
// ends at its first try. What it has in memory is not told any more.
func TestZombieCommit(t *testing.T) {
	ctx := context.Background()
	p := newPair(t, nil)
	if _, err := p.of[1].Commit(ctx, commit(1)); err != nil {
		t.Fatal(err)
	}
	p.topic.Elect(2, 0)
	p.hear(2)
	if _, err := p.of[2].Commit(ctx, commit(2)); err != nil {
		t.Fatal(err)
	}
	_, err := p.of[1].Commit(ctx, commit(3))
	wantNotCoordinator(t, "commit of the deposed", err)
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond) // for a load that cannot end
	defer cancel()
	if _, err := p.of[1].Committed(soon, "g"); !errors.Is(err, ErrLoading) && !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("the deposed one still tells: %v", err)
	}
	if got := p.at(2); got != 2 {
		t.Fatalf("offset %d", got)
	}
	p.hear(1)
	_, err = p.of[1].Committed(ctx, "g")
	wantNotCoordinator(t, "fetch", err)
}

// A log that does not acknowledge in time is answered so, and nothing is undone:
// memory follows the log when that has it.
func TestLateCommit(t *testing.T) {
	ctx := context.Background()
	p := newPair(t, nil)
	p.topic.Hold()
	committing := later(func() error { _, err := p.of[1].Commit(ctx, commit(1)); return err })
	if err := p.topic.Pending(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		select {
		case err := <-committing:
			if !errors.Is(err, ErrNotAvailable) {
				t.Fatal(err)
			}
			ended = true
		default: // its timer may not be set yet
			p.clock.Advance(time.Second)
		}
	}
	if got := p.at(1); got != -1 {
		t.Fatalf("offset %d is told before the log has acknowledged it", got)
	}
	p.topic.Release()
	waitLoaded(p.of[1].led.All()[0])
	if got := p.at(1); got != 1 {
		t.Fatalf("offset %d", got)
	}
	p.move(2, 0)
	if got := p.at(2); got != 1 {
		t.Fatalf("offset %d after a move", got)
	}
}

// A commit that is neither stored nor refused stays in the log, and the leader is
// the same. What the coordinator tells from then on is what the log says.
func TestUnsettledCommit(t *testing.T) {
	ctx := context.Background()
	p := newPair(t, nil)
	if _, err := p.of[1].Commit(ctx, commit(1)); err != nil {
		t.Fatal(err)
	}
	p.topic.Hold()
	committing := later(func() error { _, err := p.of[1].Commit(ctx, commit(2)); return err })
	if err := p.topic.Pending(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	p.topic.Lose()
	wantNotCoordinator(t, "commit", <-committing)
	waitLoaded(p.of[1].led.All()[0])
	if got := p.at(1); got != 2 {
		t.Fatalf("offset %d, and the log has 2", got)
	}
}

// A transaction's marker that is not acknowledged when the coordinator moves is
// told as such; the offsets follow it where the new leader has it, and wait for
// the next try where not.
func TestMoveDuringMarker(t *testing.T) {
	ctx := context.Background()
	for keep := range 2 {
		p := newPair(t, nil)
		if errs, err := p.of[1].CommitInTxn(ctx, &TxnCommitRequest{
			Group: "g", ProducerID: 7, Generation: -1, Offsets: []Offset{{Topic: "t", Offset: 5, LeaderEpoch: -1}},
		}); err != nil || errs[0] != nil {
			t.Fatal(errs, err)
		}
		m := partition.Marker{ProducerID: 7, Commit: true}
		p.topic.Hold()
		ending := later(func() error { return p.of[1].CompleteTxn(ctx, 0, m) })
		if err := p.topic.Pending(t.Context(), 0, 1); err != nil {
			t.Fatal(err)
		}
		p.move(2, keep)
		wantNotCoordinator(t, "marker", <-ending)
		p.topic.Release()
		if got, want := p.at(2), []int64{-1, 5}[keep]; got != want {
			t.Fatalf("with %d batches: offset %d, want %d", keep, got, want)
		}
		if err := p.of[2].CompleteTxn(ctx, 0, m); err != nil {
			t.Fatal(err)
		}
		if got := p.at(2); got != 5 {
			t.Fatalf("after the marker: offset %d", got)
		}
	}
}

// A broker that the cluster does not count on any more answers nothing: another
// one may have its groups.
func TestNotAlive(t *testing.T) {
	ctx := context.Background()
	alive := true
	p := newPair(t, func(o *Options) { o.Alive = func() bool { return alive } })
	if _, err := p.of[1].Commit(ctx, commit(1)); err != nil {
		t.Fatal(err)
	}
	alive = false
	_, err := p.of[1].Committed(ctx, "g")
	wantNotCoordinator(t, "fetch", err)
	alive = true
	if got := p.at(1); got != 1 {
		t.Fatal(got)
	}
}
