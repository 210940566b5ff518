package group

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// ants starts a pool of its own when the program does.
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}

// memoryLog is __consumer_offsets in memory. It is the seam that a
// PartitionStore fills in the server.
type memoryLog struct {
	partitions int32
	mu         sync.Mutex
	batches    map[int32][]record.Batch
	ends       map[int32]int64
	// before, if set, sees each append first; an error refuses it.
	before func(partition int32) error
	// acks, if set, collects the acknowledgements instead of giving them.
	acks *[]func()
	// loading, if set, is waited for by every load.
	loading chan struct{}
}

func newMemoryLog(partitions int32) *memoryLog {
	return &memoryLog{partitions: partitions, batches: map[int32][]record.Batch{}, ends: map[int32]int64{}}
}

func (l *memoryLog) append(p, epoch int32, batch []byte, done func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, rest, err := record.Next(batch)
	if err == nil && len(rest) > 0 {
		err = errors.New("more than one batch")
	}
	if err == nil {
		err = b.VerifyCRC()
	}
	if err == nil && l.before != nil {
		err = l.before(p)
	}
	if err == nil {
		b.SetBaseOffset(l.ends[p])
		l.ends[p] = b.NextOffset()
		b.SetLeaderEpoch(epoch)
		l.batches[p] = append(l.batches[p], b)
	}
	if l.acks != nil {
		*l.acks = append(*l.acks, func() { done(err) })
		return
	}
	done(err)
}

func (l *memoryLog) appendOffsets(p, epoch int32, batch []byte, _ bool, _ *partition.Verification, done func(error)) {
	l.append(p, epoch, batch, done)
}

func (l *memoryLog) appendMarker(p, epoch int32, m partition.Marker, done func(error)) {
	kind := record.Abort
	if m.Commit {
		kind = record.Commit
	}
	l.append(p, epoch, record.Marker(kind, m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, 0), done)
}

func (l *memoryLog) load(ctx context.Context, p, _ int32, fn func(record.Batch) error) error {
	if l.loading != nil {
		select {
		case <-l.loading:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.mu.Lock()
	batches := slices.Clone(l.batches[p])
	l.mu.Unlock()
	for _, b := range batches {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// options for tests: a clock that stands still, ids in order, no first delay.
func (l *memoryLog) options(c clock.Clock) Options {
	n := 0
	return Options{
		Partitions: func() int32 { return l.partitions }, Append: l.append, Load: l.load, Clock: c,
		AppendOffsets: l.appendOffsets, AppendMarker: l.appendMarker,
		NewID:                 func() string { n++; return fmt.Sprint(n) },
		InitialRebalanceDelay: -1,
	}
}

func start(t *testing.T, o Options) *Coordinator {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// lead takes all partitions and waits until they are loaded.
func lead(t *testing.T, c *Coordinator, epoch int32) {
	t.Helper()
	for p := range c.o.Partitions() {
		c.BecomeLeader(p, epoch)
	}
	for _, s := range c.led.All() {
		waitLoaded(s)
	}
}

// waitLoaded returns once the shard's goroutine takes tasks.
func waitLoaded(s *shard) {
	ready := make(chan struct{})
	if s.Post(func(time.Time) { close(ready) }) == nil {
		select {
		case <-ready:
		case <-s.Done():
		}
	}
}

func join(id string) *JoinRequest {
	return &JoinRequest{
		Group: "g", MemberID: id, ClientID: "c", SessionTimeout: 10 * time.Second, RebalanceTimeout: time.Minute,
		ProtocolType: "consumer", Protocols: []Protocol{{"range", subscription("t")}},
	}
}

func commit(offset int64) *CommitRequest {
	return &CommitRequest{Group: "g", Generation: -1, Retention: -1, Offsets: []Offset{{Topic: "t", Offset: offset, LeaderEpoch: -1}}}
}

func TestRestart(t *testing.T) {
	ctx := context.Background()
	log, clk := newMemoryLog(3), clock.NewManual(epoch0)
	c := start(t, log.options(clk))
	lead(t, c, 1)

	j := c.Join(ctx, join(""))
	if j.Err != nil || j.MemberID != "c-1" || j.Generation != 1 {
		t.Fatalf("join: %+v", j)
	}
	s := c.Sync(ctx, &SyncRequest{Group: "g", MemberID: "c-1", Generation: 1, Assignments: []Assignment{{"c-1", []byte("mine")}}})
	if s.Err != nil || string(s.Assignment) != "mine" {
		t.Fatalf("sync: %+v", s)
	}
	r := commit(5)
	r.MemberID, r.Generation = "c-1", 1
	r.Offsets[0].Metadata = "note"
	if errs, err := c.Commit(ctx, r); err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	c.Close()
	if err := c.Heartbeat(ctx, &HeartbeatRequest{Group: "g", MemberID: "c-1", Generation: 1}); !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("heartbeat after close: %v", err)
	}

	// The member goes on as if nothing had happened, and it has a whole session
	// for that.
	clk.Advance(time.Hour)
	c = start(t, log.options(clk))
	lead(t, c, 2)
	if err := c.Heartbeat(ctx, &HeartbeatRequest{Group: "g", MemberID: "c-1", Generation: 1}); err != nil {
		t.Fatal(err)
	}
	d := c.Describe(ctx, "g")
	if d.Err != nil || d.State != Stable || len(d.Members) != 1 || string(d.Members[0].Assignment) != "mine" {
		t.Fatalf("describe: %+v", d)
	}
	o, err := c.Committed(ctx, "g")
	if want := (Offset{Topic: "t", Offset: 5, LeaderEpoch: -1, Metadata: "note"}); err != nil || len(o) != 1 || o[0] != want {
		t.Fatal(o, err)
	}
	// Silence from here on ends the session.
	clk.Advance(10 * time.Second)
	if err := c.Heartbeat(ctx, &HeartbeatRequest{Group: "g", MemberID: "c-1", Generation: 1}); !errors.Is(err, ErrUnknownMember) {
		t.Fatalf("heartbeat after the session: %v", err)
	}
	if l, err := c.List(ctx); err != nil || len(l) != 1 || l[0].State != Empty {
		t.Fatal(l, err)
	}

	// A cut of the partition finds the offsets that it leaves behind (W55).
	for end, want := range map[int64]int{4: 1, 5: 0} {
		if above, err := c.GroupsAbove(ctx, TopicPartition{"t", 0}, end); err != nil || len(above) != want {
			t.Fatalf("groups above %d: %v, %v", end, above, err)
		}
	}

	// What was deleted stays deleted.
	if err := c.Delete(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = start(t, log.options(clk))
	lead(t, c, 3)
	if l, err := c.List(ctx); err != nil || len(l) != 0 {
		t.Fatal(l, err)
	}
	if d := c.Describe(ctx, "g"); !errors.Is(d.Err, ErrNotFound) || d.State != Dead {
		t.Fatalf("describe: %+v", d)
	}
}

// Requests wait for a partition that is being loaded, and not for ever: a commit that
// was answered with ErrLoading at once came to the application of a client of
// librdkafka each time that a coordinator moved.
func TestLoading(t *testing.T) {
	ctx := context.Background()
	log, clk := newMemoryLog(1), clock.NewManual(epoch0)
	log.loading = make(chan struct{})
	c := start(t, log.options(clk))
	if _, err := c.Committed(ctx, "g"); !errors.Is(err, ErrNotCoordinator) {
		t.Fatal(err)
	}
	c.BecomeLeader(0, 1)
	// waiting asks, and returns when that waits.
	waiting := func(ask func() error) <-chan error {
		t.Helper()
		timers, answer := clk.Timers(), make(chan error, 1)
		go func() { answer <- ask() }()
		for clk.Timers() == timers {
			select {
			case err := <-answer:
				t.Fatalf("did not wait: %v", err)
			default:
				runtime.Gosched()
			}
		}
		return answer
	}
	ask := func() error { _, err := c.Commit(ctx, commit(1)); return err }
	list := func() error { _, err := c.List(ctx); return err }
	for _, one := range []func() error{ask, list} {
		answer := waiting(one)
		clk.Advance(coordinator.LoadPatience)
		if err := <-answer; !errors.Is(err, ErrLoading) {
			t.Fatal(err)
		}
	}
	answer := waiting(ask)
	close(log.loading)
	if err := <-answer; err != nil { // and no time has passed
		t.Fatal(err)
	}
	// An older epoch, or the same again, changes nothing.
	c.BecomeLeader(0, 1)
	c.BecomeLeader(0, 0)
	if o, err := c.Committed(ctx, "g"); err != nil || len(o) != 1 {
		t.Fatal(o, err)
	}
}

// Close must not wait for a load that cannot end.
func TestCloseWhileLoading(t *testing.T) {
	log := newMemoryLog(2)
	log.loading = make(chan struct{})
	c := start(t, log.options(clock.NewManual(epoch0)))
	c.BecomeLeader(0, 1)
	c.BecomeLeader(1, 1)
	c.Close()
}

func TestLoadIsTriedAgain(t *testing.T) {
	log, clk := newMemoryLog(1), clock.NewManual(epoch0)
	o := log.options(clk)
	tried := make(chan int, 3)
	n := 0
	o.Load = func(context.Context, int32, int32, func(record.Batch) error) error {
		n++
		tried <- n
		if n < 3 {
			return errors.New("disk is asleep")
		}
		return nil
	}
	c := start(t, o)
	c.BecomeLeader(0, 1)
	for want := 1; want <= 3; want++ {
		for got := 0; got < want; {
			select {
			case got = <-tried:
			default:
				clk.Advance(coordinator.LoadRetry) // the timer may not be set yet
			}
		}
	}
	waitLoaded(c.led.All()[0])
	if _, err := c.Commit(context.Background(), commit(1)); err != nil {
		t.Fatal(err)
	}
}

func TestResignAnswersWhoWaits(t *testing.T) {
	ctx := context.Background()
	log := newMemoryLog(1)
	var acks []func()
	log.acks = &acks
	c := start(t, log.options(clock.NewManual(epoch0)))
	lead(t, c, 1)
	done := make(chan error)
	go func() { _, err := c.Commit(ctx, commit(1)); done <- err }()
	for {
		log.mu.Lock()
		n := len(acks)
		log.mu.Unlock()
		if n == 1 {
			break
		}
		waitLoaded(c.led.All()[0])
	}
	c.Resign(0)
	if err := <-done; !errors.Is(err, ErrNotCoordinator) {
		t.Fatal(err)
	}
	acks[0]() // too late, for nobody
}

// Acknowledgements that overtake each other take effect in the log's order, or
// an older commit would win.
func TestAcknowledgementsInOrder(t *testing.T) {
	ctx := context.Background()
	log := newMemoryLog(1)
	var acks []func()
	log.acks = &acks
	c := start(t, log.options(clock.NewManual(epoch0)))
	lead(t, c, 1)
	s := c.led.All()[0]
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			if _, err := c.Commit(ctx, commit(int64(i))); err != nil {
				t.Error(err)
			}
		})
		for n := 0; n <= i; { // until this commit's batch is out
			waitLoaded(s)
			log.mu.Lock()
			n = len(acks)
			log.mu.Unlock()
		}
	}
	for i := range slices.Backward(acks) {
		acks[i]()
		if i > 0 {
			if o, _ := c.Committed(ctx, "g"); len(o) != 0 {
				t.Fatalf("offset %v is told before its batch is acknowledged", o)
			}
		}
	}
	wg.Wait()
	if o, err := c.Committed(ctx, "g"); err != nil || len(o) != 1 || o[0].Offset != 2 {
		t.Fatal(o, err)
	}
}

// What comes in while a batch is being written shares the next one.
func TestCommitsShareBatches(t *testing.T) {
	ctx := context.Background()
	log := newMemoryLog(1)
	c := start(t, log.options(clock.NewManual(epoch0)))
	lead(t, c, 1)
	s := c.led.All()[0]
	const commits = 20
	hold, held := make(chan struct{}), make(chan struct{})
	if err := s.Post(func(time.Time) { close(held); <-hold }); err != nil {
		t.Fatal(err)
	}
	<-held
	var wg sync.WaitGroup
	for i := range commits {
		wg.Go(func() {
			r := commit(int64(i))
			r.Group = fmt.Sprint("g", i)
			if _, err := c.Commit(ctx, r); err != nil {
				t.Error(err)
			}
		})
	}
	for n := 0; n < commits; {
		n = s.Requests()
	}
	close(hold)
	wg.Wait()
	if n := len(log.batches[0]); n != 1 || log.batches[0][0].NumRecords() != commits {
		t.Fatalf("%d batches, the first of %d records", n, log.batches[0][0].NumRecords())
	}
}

func TestBounds(t *testing.T) {
	ctx := context.Background()
	log := newMemoryLog(1)
	o := log.options(clock.NewManual(epoch0))
	o.MaxGroups, o.MaxOffsetsPerGroup, o.MaxWriteBytes, o.MaxProtocolBytes = 2, 3, 1024, 2000
	c := start(t, o)
	lead(t, c, 1)

	many := commit(1)
	many.Offsets = nil
	for p := range int32(5) {
		many.Offsets = append(many.Offsets, Offset{Topic: "t", Partition: p})
	}
	errs, err := c.Commit(ctx, many)
	// The bound counts what is committed, so one request may pass it; it is
	// itself bounded by the size of a frame.
	if err != nil || errs[4] != nil {
		t.Fatal(errs, err)
	}
	more := commit(1)
	more.Offsets[0].Partition = 9
	if errs, err = c.Commit(ctx, more); err != nil || !errors.Is(errs[0], ErrOffsetsFull) {
		t.Fatal(errs, err)
	}
	more.Offsets[0].Partition = 4
	if errs, err = c.Commit(ctx, more); err != nil || errs[0] != nil {
		t.Fatal("a known partition is refused:", errs, err)
	}
	more.Offsets[0].Metadata = string(make([]byte, 5000))
	if errs, err = c.Commit(ctx, more); err != nil || !errors.Is(errs[0], ErrMetadataTooLarge) {
		t.Fatal(errs, err)
	}

	big := commit(1)
	big.Offsets[0].Metadata = string(make([]byte, 1024))
	if errs, err = c.Commit(ctx, big); err != nil || !errors.Is(errs[0], ErrTooLarge) {
		t.Fatal(errs, err)
	}

	two := commit(1)
	two.Group = "two"
	if _, err = c.Commit(ctx, two); err != nil {
		t.Fatal(err)
	}
	two.Group = "three"
	if _, err = c.Commit(ctx, two); !errors.Is(err, ErrTooManyGroups) {
		t.Fatal(err)
	}

	r := join("")
	r.Group, r.Protocols[0].Metadata = "two", make([]byte, 3000)
	if res := c.Join(ctx, r); !errors.Is(res.Err, ErrInvalidRequest) {
		t.Fatal(res.Err)
	}
	// An assignment that does not fit a batch ends the generation, not the group.
	r.Protocols[0].Metadata = make([]byte, 1500)
	j := c.Join(ctx, r)
	if j.Err != nil {
		t.Fatal(j.Err)
	}
	s := c.Sync(ctx, &SyncRequest{Group: "two", MemberID: j.MemberID, Generation: j.Generation})
	if !errors.Is(s.Err, ErrTooLarge) {
		t.Fatal(s.Err)
	}
	if d := c.Describe(ctx, "two"); d.State != PreparingRebalance {
		t.Fatalf("%+v", d)
	}
	long := commit(1)
	long.Group = string(make([]byte, 40000))
	if _, err = c.Commit(ctx, long); !errors.Is(err, ErrInvalidGroupID) {
		t.Fatal(err)
	}
}

// Groups that never stored anything are not kept.
// What members say of themselves is bounded for a group and for all of them, and
// given back when they leave.
func TestMemberBytes(t *testing.T) {
	log := newMemoryLog(1)
	o := log.options(clock.NewManual(epoch0))
	o.InitialRebalanceDelay, o.MaxGroupBytes, o.MaxMemberBytes = -1, 12_000, 15_000
	c := start(t, o)
	lead(t, c, 1)
	with := func(group string, bytes int) JoinResult {
		r := join("")
		r.Group, r.Protocols[0].Metadata = group, make([]byte, bytes)
		return c.Join(t.Context(), r)
	}
	first := with("a", 10_000)
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	if r := with("a", 3000); !errors.Is(r.Err, ErrGroupFull) {
		t.Error("a group takes more than its bound:", r.Err)
	}
	if r := with("b", 6000); !errors.Is(r.Err, ErrNotAvailable) {
		t.Error("all groups take more than their bound:", r.Err)
	}
	if r := with("b", 3000); r.Err != nil {
		t.Error("a small member is refused:", r.Err)
	}
	if r := c.Leave(t.Context(), &LeaveRequest{Group: "a", Members: []LeaveMember{{MemberID: first.MemberID}}}); r.Err != nil || r.Members[0] != nil {
		t.Fatal(r)
	}
	if r := with("c", 6000); r.Err != nil {
		t.Error("room that was left is not given:", r.Err, c.memberBytes.Load())
	}
}

func TestForgets(t *testing.T) {
	ctx := context.Background()
	log, clk := newMemoryLog(1), clock.NewManual(epoch0)
	c := start(t, log.options(clk))
	lead(t, c, 1)
	r := join("")
	r.RequireKnownID = true
	res := c.Join(ctx, r)
	if !errors.Is(res.Err, ErrMemberIDRequired) || res.MemberID == "" {
		t.Fatalf("%+v", res)
	}
	if n := c.count.Load(); n != 1 {
		t.Fatalf("%d groups", n)
	}
	clk.Advance(r.SessionTimeout)
	if l, err := c.List(ctx); err != nil || len(l) != 0 || c.count.Load() != 0 {
		t.Fatal(l, err)
	}
	if res := c.Join(ctx, join(res.MemberID)); !errors.Is(res.Err, ErrUnknownMember) {
		t.Fatal(res.Err)
	}
}

// Records that other versions or foreign producers wrote do not keep the rest
// from being served.
func TestLoadSkipsForeignRecords(t *testing.T) {
	log := newMemoryLog(1)
	good := offsetEntry("g", TopicPartition{"t", 0}, &committed{offset: 7, leaderEpoch: 3, at: epoch0})
	recs := []record.Record{
		{Key: nil, Value: []byte("x")},
		{Key: []byte("junk"), Value: []byte("x"), OffsetDelta: 1},
		{Key: []byte{0, 3, 0, 0}, Value: []byte{0, 0}, OffsetDelta: 2}, // consumer protocol
		{Key: good.key, Value: good.value, OffsetDelta: 3},
		{Key: good.key, Value: good.value[:5], OffsetDelta: 4},
		{Key: groupTombstone("h").key, Value: []byte{0, 3, 9}, OffsetDelta: 5},
	}
	log.batches[0] = []record.Batch{record.Build(record.NoProducer(0), recs)}
	c := start(t, log.options(clock.NewManual(epoch0)))
	lead(t, c, 1)
	o, err := c.CommittedIn(context.Background(), "g", []TopicPartition{{"t", 1}, {"t", 0}})
	if err != nil || o[0].Offset != -1 || o[1].Offset != 7 || o[1].LeaderEpoch != 3 {
		t.Fatal(o, err)
	}
}

// The values are Java's: Math.abs("…".hashCode()) % 50.
func TestPartitionFor(t *testing.T) {
	for group, want := range map[string]int32{
		"": 0, "a": 47, "my-group": 12, "console-consumer-12345": 6, "größe": 7, "😀": 49,
		"polygenelubricants": 0, // the hash is Integer.MIN_VALUE
	} {
		if got := PartitionFor(group, 50); got != want {
			t.Errorf("%q: %d, want %d", group, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	e := offsetEntry("g", TopicPartition{"t", 0}, &committed{offset: 7, leaderEpoch: 3, at: epoch0, metadata: "m"})
	f.Add(e.key, e.value)
	e = offsetEntry("g", TopicPartition{"t", 0}, &committed{offset: 7, at: epoch0, until: epoch0})
	f.Add(e.key, e.value)
	f.Add(groupTombstone("g").key, []byte(nil))
	o := Options{}
	o.EnsureDefaults()
	m := newMachine("g", &o, epoch0)
	var fx effects
	r := join("")
	r.InstanceID = "i"
	_ = m.step(epoch0, joinInput{1, r, "id"}, &fx)
	e = m.entry(map[string][]byte{"id": []byte("x")})
	f.Add(e.key, e.value)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		d, err := decode(key, value)
		if err != nil {
			return
		}
		// Whatever is read makes a group that can go on.
		m := newMachine(d.group, &o, epoch0)
		if d.members != nil {
			m.restore(epoch0, d.members)
			if err := m.check(); err != nil {
				t.Fatal(err)
			}
			again, err := decode(m.entry(nil).key, m.entry(nil).value)
			if err != nil || again.group != d.group {
				t.Fatal(again, err)
			}
		}
		if d.offset != nil {
			again := offsetEntry(d.group, d.tp, d.offset)
			d2, err := decode(again.key, again.value)
			if err != nil || d2.tp != d.tp || d2.offset.offset != d.offset.offset || d2.offset.metadata != d.offset.metadata {
				t.Fatal(d2, err)
			}
		}
		var fx effects
		for i := 0; i < 3 && !m.wake.IsZero(); i++ {
			if err := m.step(m.wake, tick{}, &fx); err != nil {
				t.Fatal(err)
			}
		}
	})
}
