package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/fixtures/replicated"
	"github.com/lockstep-kafka/lockstep/internal/clock"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// ants starts a pool of its own when the program does.
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}

// world is what coordinators of several brokers stand on: __transaction_state and
// the partitions that take part, in memory.
type world struct {
	clock      *clock.Manual
	partitions int32
	mu         sync.Mutex
	topic      *replicated.Topic
	markers    map[TopicPartition][]Marker
	ids        int64
	// refuseMarker, if set, is what a partition answers.
	refuseMarker func(TopicPartition) error
}

func newWorld(partitions int32) *world {
	return &world{clock: clock.NewManual(epoch0), partitions: partitions, topic: replicated.New(TopicName, partitions), markers: map[TopicPartition][]Marker{}, ids: 999}
}

func (w *world) options() Options { return w.optionsOf(1) }

// optionsOf are those of one broker's coordinator.
func (w *world) optionsOf(broker int32) Options {
	b := w.topic.Broker(broker)
	return Options{
		NodeID: broker, Partitions: func() int32 { return w.partitions }, Append: b.Append, Load: b.Load, Clock: w.clock,
		NewProducerID: func(context.Context) (int64, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ids++
			return w.ids, nil
		},
		WriteMarkers: w.writeMarkers,
	}
}

func (w *world) writeMarkers(_ context.Context, m Marker, parts []TopicPartition) []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := make([]error, len(parts))
	for i, tp := range parts {
		if w.refuseMarker != nil {
			errs[i] = w.refuseMarker(tp)
		}
		for _, before := range w.markers[tp] {
			if before.ProducerID == m.ProducerID && before.CoordinatorEpoch > m.CoordinatorEpoch {
				errs[i] = ErrCoordinatorFenced
			}
		}
		if errs[i] == nil {
			w.markers[tp] = append(w.markers[tp], m)
		}
	}
	return errs
}

// set changes what the world refuses.
func (w *world) set(log error, marker func(TopicPartition) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.topic.Refuse(log)
	w.refuseMarker = marker
}

// lead makes a coordinator that leads from the given epoch on.
func (w *world) lead(t interface{ Fatal(...any) }, o Options, epoch int32) *Coordinator {
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if w.epoch() < epoch {
		w.topic.Elect(o.NodeID, 0)
	}
	w.hear(c)
	return c
}

// leader is who leads all partitions of __transaction_state.
func (w *world) leader() int32 { return w.topic.Image().Topic(TopicName).Partitions[0].Leader }

// epoch is that of all partitions of __transaction_state.
func (w *world) epoch() int32 { return w.topic.Image().Topic(TopicName).Partitions[0].LeaderEpoch }

// hear brings a coordinator up to the metadata of now.
func (w *world) hear(c *Coordinator) {
	c.Apply(w.topic.Image())
	c.settle()
}

// settle returns once every shard has done what was asked of it before, markers
// and their records included.
func (c *Coordinator) settle() {
	for range 4 { // an end takes a record, markers, a record, and what it releases
		for _, s := range c.led.All() {
			ready := make(chan struct{})
			if s.Post(func(time.Time) { close(ready) }) == nil {
				select {
				case <-ready:
				case <-s.Done():
				}
			}
		}
		c.markers.wait()
	}
}

func (c *Coordinator) describe(id string) string {
	d := c.Describe(context.Background(), id)
	if d.Err != nil {
		return d.Err.Error()
	}
	return fmt.Sprintf("%s %d/%d %v", d.State, d.ProducerID, d.Epoch, d.Partitions)
}

func initRequest(id string) *InitRequest {
	return &InitRequest{ID: id, Timeout: time.Minute, ProducerID: -1, ProducerEpoch: -1}
}

// A coordinator that is replaced in any state goes on from the log: what was
// decided is carried out, what was not stays open until its time is up.
func TestReplacedInEveryState(t *testing.T) {
	ctx := context.Background()
	w := newWorld(2)
	o := w.options()
	c := w.lead(t, o, 1)
	defer func() { c.Close() }()
	epoch := int32(1)
	replace := func() {
		t.Helper()
		c.Close()
		epoch++
		c = w.lead(t, o, epoch)
	}
	expect := func(when, want string) {
		t.Helper()
		if got := c.describe("id"); got != want {
			t.Fatalf("%s: %s, want %s", when, got, want)
		}
	}
	step := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	notYet := func(TopicPartition) error { return errors.New("not yet") }
	add := func(epoch int16, parts ...TopicPartition) error {
		_, err := c.AddPartitions(ctx, "id", 1000, epoch, parts, 2, false)
		return err
	}
	end := func(epoch int16, commit bool) error {
		_, err := c.End(ctx, &EndRequest{ID: "id", ProducerID: 1000, ProducerEpoch: epoch, Commit: commit, Version: 2})
		return err
	}

	p, err := c.InitProducer(ctx, initRequest("id"))
	step("init", err)
	if p != (Producer{1000, 0}) {
		t.Fatal(p)
	}
	replace()
	expect("Empty", "Empty 1000/0 []")
	step("add", add(0, tpA))
	step("add", add(0, tpB))
	replace()
	expect("Ongoing", "Ongoing 1000/0 [{orders 0} {orders 1}]")

	w.set(nil, func(tp TopicPartition) error {
		if tp == tpB {
			return errors.New("not yet")
		}
		return nil
	})
	step("commit", end(0, true))
	c.settle()
	expect("one marker of two", "PrepareCommit 1000/1 [{orders 1}]")
	w.set(nil, notYet)
	replace()
	expect("PrepareCommit", "PrepareCommit 1000/1 [{orders 0} {orders 1}]") // which has its marker is not stored
	if err := end(0, true); !errors.Is(err, ErrConcurrent) {
		t.Fatal(err)
	}
	if err := end(0, false); !errors.Is(err, ErrInvalidState) {
		t.Fatal(err)
	}
	if _, err := c.InitProducer(ctx, initRequest("id")); !errors.Is(err, ErrConcurrent) {
		t.Fatal(err)
	}
	w.set(nil, nil)
	replace()
	expect("resumed", "CompleteCommit 1000/1 []")
	step("commit again", end(0, true))
	for tp, n := range map[TopicPartition]int{tpA: 2, tpB: 1} {
		if len(w.markers[tp]) != n {
			t.Fatalf("%v: %+v", tp, w.markers[tp])
		}
		for _, m := range w.markers[tp] {
			if !m.Commit || m.ProducerID != 1000 || m.ProducerEpoch != 1 || m.Version != 2 {
				t.Fatalf("%+v", m)
			}
		}
	}
	if last := w.markers[tpB][0]; last.CoordinatorEpoch != epoch {
		t.Fatalf("%+v, want coordinator epoch %d", last, epoch)
	}
	replace()
	expect("CompleteCommit", "CompleteCommit 1000/1 []")

	// The time of an open transaction goes on over a replacement.
	step("add", add(1, tpA))
	w.clock.Advance(40 * time.Second)
	replace()
	for range 3 {
		w.clock.Advance(10 * time.Second)
		c.settle()
	}
	expect("timed out", "CompleteAbort 1000/2 []")
	if m := w.markers[tpA][2]; m.Commit || m.ProducerEpoch != 2 {
		t.Fatalf("%+v", m)
	}
	if err := add(1, tpA); !errors.Is(err, ErrFenced) {
		t.Fatal(err)
	}
	replace()
	expect("CompleteAbort", "CompleteAbort 1000/2 []")

	// An unused id is forgotten, for good.
	w.clock.Advance(7 * 24 * time.Hour)
	c.settle()
	expect("expired", `transactional id not found: "id"`)
	replace()
	expect("expired, replaced", `transactional id not found: "id"`)
	if n := c.count.Load(); n != 0 {
		t.Fatalf("%d ids", n)
	}
	if err := add(2, tpA); !errors.Is(err, ErrUnknownProducer) {
		t.Fatal(err)
	}
	// And its producer goes on with a new one.
	p, err = c.InitProducer(ctx, &InitRequest{ID: "id", Timeout: time.Minute, ProducerID: 1000, ProducerEpoch: 2})
	if err != nil || p != (Producer{1001, 0}) {
		t.Fatal(p, err)
	}
}

// A principal that makes ids up runs into its own bound; others, and ids that are
// there, are not touched by it. What is forgotten is given back.
func TestIDsPerPrincipal(t *testing.T) {
	ctx := context.Background()
	w := newWorld(1)
	o := w.options()
	o.MaxIDsPerPrincipal = 2
	c := w.lead(t, o, 1)
	by := func(principal, id string) error {
		r := initRequest(id)
		r.Principal = principal
		_, err := c.InitProducer(ctx, r)
		return err
	}
	for _, tc := range []struct {
		principal, id string
		want          error
	}{
		{"User:a", "1", nil}, {"User:a", "2", nil}, {"User:a", "3", ErrTooManyIDs}, {"User:a", "1", nil},
		{"User:b", "3", nil}, {"User:a", "3", nil}, {"User:b", "4", nil}, {"User:b", "5", ErrTooManyIDs}, {"", "6", nil},
	} {
		if err := by(tc.principal, tc.id); !errors.Is(err, tc.want) {
			t.Errorf("%q asks for %q: %v, want %v", tc.principal, tc.id, err, tc.want)
		}
	}

	// Another coordinator counts an id to who asks for it first, but refuses none
	// that is there.
	c.Close()
	if len(c.owners.ids) != 0 {
		t.Errorf("closed, and there are owners: %v", c.owners.ids)
	}
	c = w.lead(t, o, 2)
	defer func() { c.Close() }()
	for _, id := range []string{"1", "2", "3", "4"} {
		if err := by("User:a", id); err != nil {
			t.Error(id, err)
		}
	}
	if err := by("User:a", "new"); !errors.Is(err, ErrTooManyIDs) {
		t.Error(err)
	}
	w.clock.Advance(7 * 24 * time.Hour)
	c.settle()
	if len(c.owners.ids) != 0 {
		t.Errorf("all ids expired, and there are owners: %v", c.owners.ids)
	}
}

// What is refused before any state is looked at.
func TestRefusals(t *testing.T) {
	ctx := context.Background()
	w := newWorld(1)
	o := w.options()
	o.MaxIDs, o.MaxWriteBytes = 2, 1024
	c := w.lead(t, o, 1)
	defer func() { c.Close() }()
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	bad := initRequest("a")
	bad.Timeout = 16 * time.Minute
	_, err := c.InitProducer(ctx, bad)
	is("timeout", err, ErrInvalidTimeout)
	bad = initRequest("a")
	bad.ProducerEpoch = 3
	_, err = c.InitProducer(ctx, bad)
	is("epoch without id", err, ErrInvalidRequest)
	_, err = c.InitProducer(ctx, initRequest(""))
	is("empty id", err, ErrInvalidRequest)
	_, err = c.InitProducer(ctx, initRequest(string(make([]byte, 40_000))))
	is("long id", err, ErrInvalidRequest)
	_, err = c.AddPartitions(ctx, "a", 1, 0, []TopicPartition{tpA}, 2, false)
	is("add to nothing", err, ErrUnknownProducer)
	_, err = c.AddPartitions(ctx, "a", 1, 0, []TopicPartition{tpA}, 2, true)
	is("verify nothing", err, ErrUnknownProducer)
	_, err = c.End(ctx, &EndRequest{ID: "a"})
	is("end nothing", err, ErrUnknownProducer)
	is("describe nothing", c.Describe(ctx, "a").Err, ErrNotFound)

	for _, id := range []string{"a", "b"} {
		if _, err := c.InitProducer(ctx, initRequest(id)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.InitProducer(ctx, initRequest("c"))
	is("third id of two", err, ErrTooManyIDs)
	p, err := c.InitProducer(ctx, initRequest("a"))
	is("an id that is known", err, nil)
	var many []TopicPartition
	for i := range int32(300) {
		many = append(many, TopicPartition{"orders", i})
	}
	_, err = c.AddPartitions(ctx, "a", p.ID, p.Epoch, many, 2, false)
	is("too many partitions", err, ErrTooLarge)

	w.set(fmt.Errorf("%w: full", ErrNotAvailable), nil)
	_, err = c.AddPartitions(ctx, "a", p.ID, p.Epoch, many[:1], 2, false)
	is("log", err, ErrNotAvailable)
	w.set(nil, nil)

	all, unknown, err := c.List(ctx, Filter{LongerThan: -1, States: []string{"Empty", "empty"}})
	if err != nil || len(all) != 2 || !slices.Equal(unknown, []string{"empty"}) {
		t.Error(all, unknown, err)
	}
	for _, f := range []struct {
		Filter
		n int
	}{
		{Filter{LongerThan: -1, States: []string{"empty"}}, 0},
		{Filter{LongerThan: -1, ProducerIDs: []int64{p.ID}}, 1},
		{Filter{LongerThan: -1, Pattern: "a|b"}, 2},
		{Filter{LongerThan: -1, Pattern: ""}, 2},
		{Filter{LongerThan: -1, Pattern: "."}, 2},
		{Filter{LongerThan: -1, Pattern: "a."}, 0},
	} {
		if all, _, err := c.List(ctx, f.Filter); err != nil || len(all) != f.n {
			t.Errorf("%+v: %v %v", f.Filter, all, err)
		}
	}
	_, _, err = c.List(ctx, Filter{Pattern: "("})
	is("pattern", err, ErrInvalidPattern)

	c.Resign(0)
	_, err = c.InitProducer(ctx, initRequest("a"))
	is("resigned", err, ErrNotCoordinator)
	w.partitions = 0
	_, err = c.InitProducer(ctx, initRequest("a"))
	is("no topic", err, ErrNotAvailable)

	if _, err := New(Options{MaxTimeout: -1, RetryMax: 1, MaxIDs: -1}); err == nil {
		t.Error("nonsense is taken for options")
	}
}

// Java's String.hashCode, as kafka-transactions.sh and every client see it by the
// answers of FindCoordinator.
func TestPartitionFor(t *testing.T) {
	for id, want := range map[string]int32{
		"": 0, "a": 47, "my-transactional-id": 46, "polygenelubricants": 0, // its hash is the smallest integer
	} {
		if got := PartitionFor(id, 50); got != want {
			t.Errorf("%q: %d, want %d", id, got, want)
		}
	}
}
