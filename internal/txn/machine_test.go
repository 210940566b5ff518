package txn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

var epoch0 = time.UnixMilli(1_700_000_000_000)

// now is when the requests of these tests come: long after epoch0, so that every
// transaction has timed out and every unused id has expired.
var now = epoch0.Add(30 * 24 * time.Hour)

var (
	tpA = TopicPartition{"orders", 0}
	tpB = TopicPartition{"orders", 1}
)

// in makes a machine that is in a state as the log would have it: producer id 7,
// epoch 5, with orders-0 in its transaction.
func in(s State) *machine {
	o := &Options{}
	o.EnsureDefaults()
	m := newMachine("id", o, 3)
	m.values = values{
		state: s, producerID: 7, previousID: -1, nextID: -1, epoch: 5, lastEpoch: -1, version: 2,
		timeout: time.Minute, updated: epoch0,
	}
	m.logged = true
	if s == Ongoing || s.deciding() {
		m.started = epoch0
		m.partitions = map[TopicPartition]struct{}{tpA: {}}
	}
	return m
}

// outcome feeds one input and tells what came of it: the answer, and what was
// written.
func outcome(t *testing.T, m *machine, input any) string {
	t.Helper()
	var fx effects
	if err := m.step(now, input, &fx); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, w := range fx.writes {
		v := w.done.next
		s := fmt.Sprintf("%s %d/%d", v.state, v.producerID, v.epoch)
		if v.state == Dead {
			s = "Dead"
		}
		if v.nextID >= 0 {
			s += fmt.Sprintf(" next %d", v.nextID)
		}
		out = append(out, "writes "+s)
		fx.replies = nil
		if err := m.step(now, stored{of: w.done}, &fx); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range fx.replies {
		out = append(out, "answers "+answerOf(r.result))
	}
	if fx.mark != nil {
		out = append(out, fmt.Sprintf("marks %v", fx.mark.partitions))
	}
	if len(m.held) > 0 {
		out = append(out, "waits")
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

func answerOf(result any) string {
	switch r := result.(type) {
	case initResult:
		if r.err == nil {
			return fmt.Sprintf("%d/%d", r.producer.ID, r.producer.Epoch)
		}
		result = r.err
	case endResult:
		if r.err == nil {
			return fmt.Sprintf("%d/%d", r.producer.ID, r.producer.Epoch)
		}
		result = r.err
	case verifyResult:
		if r.err == nil {
			result = errors.Join(r.errs...)
		} else {
			result = r.err
		}
	}
	for name, err := range map[string]error{
		"fenced": ErrFenced, "concurrent": ErrConcurrent, "unknown": ErrUnknownProducer, "state": ErrInvalidState,
		"absent": ErrNotInTransaction, "need id": errNeedProducerID,
	} {
		if e, _ := result.(error); errors.Is(e, err) {
			return name
		}
	}
	if result == nil {
		return "ok"
	}
	return fmt.Sprint(result)
}

func initOf(id int64, epoch int16) initInput {
	return initInput{1, &InitRequest{ID: "id", Timeout: time.Minute, ProducerID: id, ProducerEpoch: epoch}, -1}
}

func endOf(id int64, epoch int16, commit bool, version int) endInput {
	return endInput{1, &EndRequest{ID: "id", ProducerID: id, ProducerEpoch: epoch, Commit: commit, Version: version}, -1}
}

// Every request in every state that is stored, as testdata/pairs has it. The
// names: 7/5 is producer id 7 with epoch 5, which the id has; v2 is a producer of
// transaction version 2.
func TestEveryPair(t *testing.T) {
	requests := []struct {
		name string
		in   any
	}{
		{"init", initOf(-1, -1)},
		{"init 7/5", initOf(7, 5)},
		{"init 7/4", initOf(7, 4)},
		{"init 6/5", initOf(6, 5)},
		{"add A 7/5", addInput{1, 7, 5, []TopicPartition{tpA}, 2}},
		{"add B 7/5", addInput{1, 7, 5, []TopicPartition{tpB}, 2}},
		{"add A 7/4", addInput{1, 7, 4, []TopicPartition{tpA}, 2}},
		{"add A 6/5", addInput{1, 6, 5, []TopicPartition{tpA}, 2}},
		{"verify A 7/5", verifyInput{1, 7, 5, []TopicPartition{tpA}}},
		{"verify B 7/5", verifyInput{1, 7, 5, []TopicPartition{tpB}}},
		{"verify A 7/4", verifyInput{1, 7, 4, []TopicPartition{tpA}}},
		{"commit v1 7/5", endOf(7, 5, true, 0)},
		{"abort v1 7/5", endOf(7, 5, false, 0)},
		{"commit v1 7/4", endOf(7, 4, true, 0)},
		{"abort v1 6/5", endOf(6, 5, false, 0)},
		{"commit v2 7/5", endOf(7, 5, true, 2)},
		{"abort v2 7/5", endOf(7, 5, false, 2)},
		{"commit v2 7/4", endOf(7, 4, true, 2)},
		{"abort v2 7/4", endOf(7, 4, false, 2)},
		{"abort v2 7/3", endOf(7, 3, false, 2)},
		{"timeout", checkTimeout{}},
		{"expiry", checkExpiry{}},
		{"resume", resume{}},
	}
	var got strings.Builder
	for i := range states {
		s := State(i)
		if s == Dead || s == PrepareEpochFence {
			continue // never stored, see TestTransitions
		}
		for _, r := range requests {
			fmt.Fprintf(&got, "%-14s %-14s %s\n", s, r.name, outcome(t, in(s), r.in))
		}
	}
	datadriven.RunTest(t, "testdata/pairs", func(*testing.T, *datadriven.TestData) string { return got.String() })
}

// Every event in every state leads where the table says, and nowhere else; what
// is never stored is never left behind.
func TestTransitions(t *testing.T) {
	want := map[State]string{
		Empty:             "initialize→Empty add→Ongoing abort→PrepareAbort expire→Dead",
		Ongoing:           "add→Ongoing commit→PrepareCommit abort→PrepareAbort fence→PrepareEpochFence",
		PrepareCommit:     "complete→CompleteCommit",
		PrepareAbort:      "complete→CompleteAbort",
		CompleteCommit:    "initialize→Empty add→Ongoing abort→PrepareAbort expire→Dead",
		CompleteAbort:     "initialize→Empty add→Ongoing abort→PrepareAbort expire→Dead",
		Dead:              "",
		PrepareEpochFence: "abort→PrepareAbort",
	}
	for i := range states {
		from := State(i)
		var got []string
		for by := initialize; by <= expire; by++ {
			if to, ok := next(from, by); ok {
				got = append(got, fmt.Sprintf("%s→%s", by, to))
			} else if to != from {
				t.Errorf("%s by %s: refused, and yet %s", from, by, to)
			}
			m := in(from)
			var fx effects
			err := m.begin(now, by, m.values, nil, &fx)
			if _, ok := next(from, by); ok != (err == nil) || m.state != from {
				t.Errorf("%s by %s: begin says %v, state %s", from, by, err, m.state)
			}
			for _, w := range fx.writes {
				if s := w.done.next.state; s == PrepareEpochFence || (s == Dead) != (w.value == nil) {
					t.Errorf("%s by %s stores %s", from, by, s)
				}
			}
		}
		if strings.Join(got, " ") != want[from] {
			t.Errorf("%s: %s, want %s", from, strings.Join(got, " "), want[from])
		}
		if s, ok := ParseState(from.String()); !ok || s != from {
			t.Errorf("%s is parsed as %s", from, s)
		}
	}
}

// run feeds inputs and compares what came of each.
func run(t *testing.T, m *machine, steps ...any) {
	t.Helper()
	for i := 0; i < len(steps); i += 2 {
		if got := outcome(t, m, steps[i]); got != steps[i+1] {
			t.Fatalf("step %d: %s, want %s", i/2, got, steps[i+1])
		}
	}
}

func withID(in any, id int64) any {
	switch r := in.(type) {
	case initInput:
		r.newID = id
		return r
	case endInput:
		r.newID = id
		return r
	}
	return in
}

// The epochs of a producer id are used up: the last one is kept for fencing, and
// the next producer gets a new id.
func TestEpochsUsedUp(t *testing.T) {
	m := in(CompleteCommit)
	m.epoch = maxEpoch - 2
	run(t, m,
		initOf(-1, -1), "writes Empty 7/32766, answers 7/32766",
		initOf(-1, -1), "answers need id",
		withID(initOf(-1, -1), 8), "writes Empty 8/0, answers 8/0",
		initOf(7, maxEpoch-1), "answers fenced") // a producer that started knows no epoch before

	// Going on after an error (KIP-360), the answer is lost, and asked for again.
	m = in(CompleteCommit)
	m.epoch = maxEpoch - 1
	run(t, m,
		withID(initOf(7, maxEpoch-1), 8), "writes Empty 8/0, answers 8/0",
		withID(initOf(7, maxEpoch-1), 9), "writes Empty 8/0, answers 8/0",
		initOf(8, 0), "writes Empty 8/1, answers 8/1",
		initOf(8, 0), "writes Empty 8/1, answers 8/1",
		initOf(7, maxEpoch-1), "answers fenced")

	// A fence takes the last epoch; the next producer has a new id.
	m = in(Ongoing)
	m.epoch = maxEpoch - 1
	run(t, m,
		checkTimeout{}, "writes PrepareAbort 7/32767, marks [{orders 0}]",
		marked{[]TopicPartition{tpA}, []error{nil}}, "writes CompleteAbort 7/32767",
		withID(initOf(-1, -1), 8), "writes Empty 8/0, answers 8/0")

	// With version 2 the end itself uses them up. The producer goes on with the new
	// id before the markers are written, and waits for them.
	m = in(Ongoing)
	m.epoch = maxEpoch - 1
	run(t, m,
		endOf(7, maxEpoch-1, true, 2), "answers need id",
		withID(endOf(7, maxEpoch-1, true, 2), 8), "writes PrepareCommit 7/32767 next 8, answers 8/0, marks [{orders 0}]",
		endOf(7, maxEpoch-1, true, 2), "answers concurrent",
		addInput{2, 8, 0, []TopicPartition{tpB}, 2}, "waits")
	if m.nextID != 8 || m.epoch != maxEpoch {
		t.Fatalf("%+v", m.values)
	}
	m.held = nil
	run(t, m,
		marked{[]TopicPartition{tpA}, []error{nil}}, "writes CompleteCommit 8/0",
		endOf(7, maxEpoch-1, true, 2), "answers 8/0",
		endOf(7, maxEpoch-1, false, 2), "answers state",
		endOf(8, 0, true, 2), "answers state",
		addInput{2, 8, 0, []TopicPartition{tpB}, 2}, "writes Ongoing 8/0, answers ok",
		endOf(7, maxEpoch-1, true, 2), "answers fenced")
}

// Adds that wait are stored together when their time comes, or told to ask again
// when it does not.
func TestHeldAdds(t *testing.T) {
	m := in(PrepareCommit)
	m.o.MaxHeld = 3
	var fx effects
	step := func(in any) {
		fx = effects{}
		if err := m.step(now, in, &fx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ticket(3) {
		step(addInput{i + 1, 7, 5, []TopicPartition{{"orders", int32(10 + i)}}, 2})
	}
	step(addInput{9, 7, 5, []TopicPartition{tpB}, 2})
	if len(fx.replies) != 1 || answerOf(fx.replies[0].result) != "concurrent" {
		t.Fatalf("one more than MaxHeld: %+v", fx)
	}
	if m.wake != now.Add(m.o.HoldAdds) {
		t.Fatalf("wakes at %s", m.wake)
	}
	step(marked{[]TopicPartition{tpA}, []error{nil}})
	step(stored{of: fx.writes[0].done})
	if m.state != CompleteCommit || len(fx.writes) != 1 || len(fx.writes[0].done.to) != 3 || len(fx.writes[0].done.next.partitions) != 3 {
		t.Fatalf("%s: %+v", m.state, fx.writes)
	}
	step(addInput{4, 7, 5, []TopicPartition{tpB}, 2}) // while those are on their way
	if now = now.Add(m.o.HoldAdds); len(fx.replies) != 0 {
		t.Fatalf("%+v", fx.replies)
	}
	step(tick{})
	if len(fx.replies) != 1 || fx.replies[0].to != 4 || answerOf(fx.replies[0].result) != "concurrent" || !m.wake.IsZero() {
		t.Fatalf("%+v, wakes at %s", fx.replies, m.wake)
	}
}

// Markers are tried again for the partitions that did not take one, with growing
// pauses; what is gone counts as done, and a later coordinator ends the trying.
func TestMarkers(t *testing.T) {
	m := in(Ongoing)
	m.partitions[tpB] = struct{}{}
	notYet := errors.New("not yet")
	both := []TopicPartition{tpA, tpB}
	run(t, m,
		endOf(7, 5, true, 2), "writes PrepareCommit 7/6, answers 7/6, marks [{orders 0} {orders 1}]",
		marked{both, []error{nil, notYet}}, "nothing")
	for pause := m.o.RetryInitial; pause < time.Second; pause *= 2 {
		if m.wake.Sub(now) != pause {
			t.Fatalf("tries again in %s, want %s", m.wake.Sub(now), pause)
		}
		run(t, m, tick{}, "nothing")
		now = m.wake
		run(t, m,
			tick{}, "marks [{orders 1}]",
			tick{}, "nothing", // one call at a time
			marked{both[1:], []error{notYet}}, "nothing")
	}
	now = m.wake
	run(t, m, tick{}, "marks [{orders 1}]", marked{both[1:], []error{ErrPartitionGone}}, "writes CompleteCommit 7/6")

	// The record behind the markers is tried again too.
	m = in(PrepareAbort)
	run(t, m, resume{}, "marks [{orders 0}]")
	var fx effects
	if err := m.step(now, marked{both[:1], []error{ErrMarkerOutdated}}, &fx); err != nil || len(fx.writes) != 1 {
		t.Fatal(err, fx)
	}
	if err := m.step(now, stored{fx.writes[0].done, notYet}, &fx); err != nil || m.state != PrepareAbort {
		t.Fatal(err, m.state)
	}
	now = m.wake
	run(t, m, tick{}, "writes CompleteAbort 7/5")

	m = in(PrepareAbort)
	run(t, m, resume{}, "marks [{orders 0}]", marked{both[:1], []error{ErrCoordinatorFenced}}, "nothing", tick{}, "nothing")
	if !m.wake.IsZero() {
		t.Fatal("goes on although a later coordinator has taken over")
	}
}

// What the log refused never was.
func TestRefusedWrites(t *testing.T) {
	broken := errors.New("broken")
	for _, r := range []struct {
		from State
		in   any
	}{
		{Empty, initOf(-1, -1)},
		{Empty, addInput{1, 7, 5, []TopicPartition{tpA}, 2}},
		{Empty, endOf(7, 5, false, 2)},
		{Ongoing, endOf(7, 5, true, 2)},
		{Ongoing, initOf(-1, -1)},
		{Ongoing, checkTimeout{}},
		{CompleteAbort, checkExpiry{}},
	} {
		m := in(r.from)
		before := fmt.Sprint(m.values)
		var fx effects
		if err := m.step(now, r.in, &fx); err != nil || len(fx.writes) != 1 {
			t.Fatal(r, err, fx)
		}
		if got := outcome(t, m, endOf(7, 5, true, 0)); got != "answers concurrent" {
			t.Errorf("%s, while %T is on its way: %s", r.from, r.in, got)
		}
		done := fx.writes[0].done
		fx = effects{}
		if err := m.step(now, stored{done, broken}, &fx); err != nil {
			t.Fatal(err)
		}
		if after := fmt.Sprint(m.values); after != before || fx.mark != nil || m.writing || m.dead {
			t.Errorf("%s, refused %T: %s, was %s", r.from, r.in, after, before)
		}
		for _, reply := range fx.replies {
			if answerOf(reply.result) != "broken" {
				t.Errorf("%s, refused %T: answers %v", r.from, r.in, reply.result)
			}
		}
	}
}

// Records are read as they were written, and what no coordinator writes is
// refused.
func TestRecords(t *testing.T) {
	for i := range states {
		if s := State(i); s != Dead && s != PrepareEpochFence {
			m := in(s)
			if m.state.deciding() {
				m.nextID = 9
			}
			e := m.entry("id")
			id, v, err := decode(e.key, e.value)
			if err != nil || id != "id" || fmt.Sprint(*v) != fmt.Sprint(m.values) {
				t.Errorf("%s: %v, %+v, want %+v", s, err, v, m.values)
			}
			e.value[2+8+2+4] = byte(PrepareEpochFence) // behind version, producer id, epoch and timeout
			if _, _, err := decode(e.key, e.value); err == nil {
				t.Errorf("%s: a state that is never stored is read", s)
			}
		}
	}
	e := tombstone("id")
	if id, v, err := decode(e.key, e.value); id != "id" || v != nil || err != nil {
		t.Error(id, v, err)
	}
	bad := in(Ongoing)
	bad.started = time.Time{}
	for name, e := range map[string]entry{
		"no key": {}, "another key": {key: []byte{0, 9, 0, 0}}, "short value": {key: e.key, value: []byte{0}},
		"another version": {key: e.key, value: []byte{0, 9}}, "empty value": {key: e.key, value: []byte{0, 1}},
		"no start": bad.entry("id"),
	} {
		if _, _, err := decode(e.key, e.value); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}
