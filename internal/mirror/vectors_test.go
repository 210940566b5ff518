package mirror

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// TestVectors is appendix A of the specification, a row a subtest, on the functions
// that decide. A row is named by its table and what stands in its first columns.
//
// MIR-342: a leader that was deposed, or an older state epoch, writes no state (A.5).
// MIR-343: of two writers with one state epoch the second is refused.
func TestVectors(t *testing.T) {
	for _, v := range slices.Concat(vectorsTarget, vectorsGate, vectorsCycle, vectorsFencing, vectorsBump, vectorsClamp) {
		t.Run(v.id, v.check)
	}
}

type vector struct {
	id    string
	check func(*testing.T)
}

func equal(want, got any) func(*testing.T) {
	return func(t *testing.T) {
		if got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// A.1: where the log is cut (9.6.2).
var vectorsTarget = func() (rows []vector) {
	cache := []epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 5, Start: 100}, {Epoch: 6, Start: 160}}
	for _, r := range []struct {
		lme             int32
		lmo             int64 // none: -1
		without, wanted int64 // T without and with the LMO
	}{
		{-1, -1, 0, 0},
		{1, -1, 0, 0},
		{2, 30, 40, 30},
		{3, -1, 100, 100},
		{4, -1, 100, 100},
		{5, 130, 160, 130},
		{6, 180, 200, 180},
		{7, 230, 200, 200},
	} {
		id := fmt.Sprintf("A.1 LME %d LMO %d", r.lme, r.lmo)
		rows = append(rows,
			vector{id + ", epoch alone", equal(r.without, epoch.MirrorTarget(cache, 200, r.lme, -1))},
			vector{id, equal(r.wanted, epoch.MirrorTarget(cache, 200, r.lme, r.lmo))})
	}
	late := []epoch.Entry{{Epoch: 3, Start: 50}, {Epoch: 5, Start: 100}, {Epoch: 6, Start: 160}}
	return append(rows,
		vector{"A.1 log start 50, LME 2", equal(int64(50), epoch.MirrorTarget(late, 200, 2, -1))},
		vector{"A.1 log start 50, LME -1", equal(int64(0), epoch.MirrorTarget(late, 200, -1, -1))})
}()

// gateRow drives a machine from its start to the gate: replicas 1, 2, 3, leader 1, T
// 120, all logs end at 150. Each event is a word; what the machine does is the trace.
type gateRow struct {
	isr    []int32
	option bool
	events []string
	want   []string
}

// confirm, away and back are of replica 2 or 3; isr events name who is in it.
var gateEvents = map[string]func(*script){
	"cut":              func(s *script) { s.done(outcome{logEnd: 120}) },
	"2 fetches at 120": func(s *script) { s.input(fetchedBy{replica: 2, leaderEpoch: s.view.leaderEpoch, offset: 120}) },
	"3 fetches at 120": func(s *script) { s.input(fetchedBy{replica: 3, leaderEpoch: s.view.leaderEpoch, offset: 120}) },
	"2 fetches at 150": func(s *script) { s.input(fetchedBy{replica: 2, leaderEpoch: s.view.leaderEpoch, offset: 150}) },
	"2 fetches with an old leader epoch": func(s *script) {
		s.input(fetchedBy{replica: 2, leaderEpoch: s.view.leaderEpoch - 1, offset: 120})
	},
	"ISR 1":     func(s *script) { s.view.isr = []int32{1}; s.show() },
	"ISR 1,2":   func(s *script) { s.view.isr = []int32{1, 2}; s.show() },
	"ISR 1,2,3": func(s *script) { s.view.isr = []int32{1, 2, 3}; s.show() },
	"option on": func(s *script) { s.view.unclean = true; s.show() },
	"timeout":   func(s *script) { s.input(due{timerGate}) },
}

func (r gateRow) check(t *testing.T) {
	s := newScript(t)
	s.view = gateView{leader: 1, leaderEpoch: 5, replicas: []int32{1, 2, 3}, isr: r.isr, minISR: 2, unclean: r.option}
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.trace = nil
	s.done(outcome{target: 120})
	for _, e := range r.events {
		gateEvents[e](s)
	}
	s.expect(append([]string{"gate in 1m0s"}, r.want...)...)
}

// A.2 and A.3: who is waited for, and what is cut before.
var vectorsGate = func() (rows []vector) {
	const cut, mirroring = "run cut 120", "write MIRRORING"
	missing := func(who string) string {
		return fmt.Sprintf("write FAILED %q", "replicas "+who+" did not join and truncate within 1m0s")
	}
	for _, r := range []struct {
		id string
		gateRow
	}{
		// a3, with other records of epoch 8, is down: nothing is cut, and nothing of B
		// comes, until it is in the ISR and has cut, or the time is over.
		{"A.2 option on, a3 stays away", gateRow{[]int32{1, 2}, true, []string{"timeout"}, []string{missing("[3]")}}},
		{"A.2 option on, a3 comes back", gateRow{[]int32{1, 2}, true,
			[]string{"2 fetches at 120", "ISR 1,2,3", "cut", "2 fetches at 120", "3 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 1,2,3 off", gateRow{[]int32{1, 2, 3}, false, []string{"cut", "2 fetches at 120", "3 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 1,2,3 off, one confirmation", gateRow{[]int32{1, 2, 3}, false, []string{"cut", "2 fetches at 120"}, []string{cut}}},
		{"A.3 1,2 off", gateRow{[]int32{1, 2}, false, []string{"cut", "2 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 1 off", gateRow{[]int32{1}, false, nil, nil}},
		{"A.3 1 to 1,2 off", gateRow{[]int32{1}, false, []string{"ISR 1,2", "cut", "2 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 1,2 on", gateRow{[]int32{1, 2}, true, []string{"timeout"}, []string{missing("[3]")}}},
		{"A.3 1,2 to 1,2,3 on", gateRow{[]int32{1, 2}, true, []string{"ISR 1,2,3", "cut", "2 fetches at 120", "3 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 1,2,3 to 1,2 off", gateRow{[]int32{1, 2, 3}, false, []string{"cut", "2 fetches at 120", "ISR 1,2"}, []string{cut, mirroring}}},
		{"A.3 1,2,3 to 1 off", gateRow{[]int32{1, 2, 3}, false, []string{"cut", "ISR 1"}, []string{cut}}},
		{"A.3 1,2,3 to 1 off, one is back", gateRow{[]int32{1, 2, 3}, false, []string{"cut", "ISR 1", "ISR 1,2", "2 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 option on before 2 confirms", gateRow{[]int32{1, 2}, false, []string{"cut", "option on", "2 fetches at 120"}, []string{cut}}},
		{"A.3 option on before 2 confirms, 3 follows", gateRow{[]int32{1, 2}, false,
			[]string{"cut", "option on", "2 fetches at 120", "ISR 1,2,3", "3 fetches at 120"}, []string{cut, mirroring}}},
		{"A.3 old leader epoch", gateRow{[]int32{1, 2}, false, []string{"cut", "2 fetches with an old leader epoch"}, []string{cut}}},
		{"A.3 a follower that is still at 150", gateRow{[]int32{1, 2}, false, []string{"cut", "2 fetches at 150"}, []string{cut}}},
	} {
		rows = append(rows, vector{r.id, r.check})
	}
	return append(rows,
		vector{"A.2 option off", func(t *testing.T) {
			s := newScript(t)
			s.view = gateView{leader: 1, leaderEpoch: 5, replicas: []int32{1, 2, 3}, isr: []int32{1, 2}, minISR: 2}
			s.lead(metadata.DesiredMirroring)
			s.answer()
			s.done(outcome{target: 120})
			s.done(outcome{logEnd: 120})
			s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 120})
			// The gate passes, and the write says that a3 did not go through: that is how
			// it cuts when it is back (O4).
			if g := s.writes[0].gate; s.writes[0].to != metadata.StateMirroring || g == nil || g.Target != 120 || !slices.Equal(g.Confirmed, []int32{1, 2}) {
				t.Errorf("%+v, gate %+v", s.writes[0], g)
			}
		}},
		vector{"A.3 leadership moves after the cut", func(t *testing.T) {
			s := newScript(t)
			s.view = gateView{leader: 2, leaderEpoch: 6, replicas: []int32{1, 2, 3}, isr: []int32{1, 2, 3}, minISR: 2}
			s.record = &metadata.MirrorPartition{Mirror: "m", State: metadata.StatePreparing, StateEpoch: 1, LeaderEpoch: 5}
			s.lead(metadata.DesiredMirroring)
			s.expect("write PREPARING") // it tells that it took over
			s.answer()
			s.expect("run prepare") // from 9.6.1 on: the questions, not the cut alone
		}})
}()

// A.4: a failover and the way back, with numbers.
var vectorsCycle = func() (rows []vector) {
	bump := func(sle, dle int32) int32 {
		minimum, need := metadata.NeedBump(sle, dle)
		if !need {
			return dle
		}
		return minimum + 1
	}
	// B's log as the failover leaves it: 0 to 99 are A's, 90 on of producer 7's open
	// transaction; then ABORT and PID_RESET in epoch 16.
	at := func(b record.Batch, offset int64, epoch int32) record.Batch {
		b.SetBaseOffset(offset)
		b.SetLeaderEpoch(epoch)
		return b
	}
	of7 := func(offset int64, seq int32, n int) record.Batch {
		recs := make([]record.Record, n)
		for i := range recs {
			recs[i].OffsetDelta = int32(i)
		}
		h := record.BuildHeader{BaseOffset: offset, LeaderEpoch: 5, ProducerID: 7, BaseSequence: seq, Transactional: true}
		return record.Build(h, recs)
	}
	log := func(batches ...record.Batch) *producer.Table {
		t := producer.New()
		for _, b := range append([]record.Batch{of7(90, 0, 10)}, batches...) {
			t.Apply(b)
		}
		return t
	}
	abort, reset := at(record.AbortMarker(7, 0, 0, 0), 100, 16), at(record.PIDReset("A", 0), 101, 16)
	return append(rows,
		vector{"A.4 1 leader epoch of B at the start", equal(int32(16), bump(5, 0))},
		vector{"A.4 2 one ABORT, of producer 7 from 90", func(t *testing.T) {
			open := log().Open()
			if len(open) != 1 || open[0].ProducerID != 7 || open[0].First != 90 {
				t.Errorf("open: %+v", open)
			}
		}},
		vector{"A.4 2 LSO 102 and no producers", func(t *testing.T) {
			p := log(abort, reset)
			_, unstable := p.FirstUnstable(102)
			if unstable || len(p.Open()) > 0 || len(p.Producers()) > 0 || reset.NextOffset() != 102 {
				t.Errorf("unstable %v, open %v, producers %v, end %d", unstable, p.Open(), p.Producers(), reset.NextOffset())
			}
		}},
		vector{"A.4 3 readers of committed records leave 90 to 99 out", func(t *testing.T) {
			a := log(abort, reset).AbortedIn(0, 102)
			if len(a) != 1 || a[0].ProducerID != 7 || a[0].FirstOffset != 90 {
				t.Errorf("aborted: %+v", a)
			}
		}},
		vector{"A.4 3 a new producer 7 begins at sequence 0", func(t *testing.T) {
			if dup, err := log(abort, reset).Check(of7(102, 0, 1)); dup != nil || err != nil {
				t.Errorf("%v, %v", dup, err)
			}
		}},
		vector{"A.4 4 T = 100, twenty records are cut", equal(int64(100),
			epoch.MirrorTarget([]epoch.Entry{{Epoch: 5, Start: 0}, {Epoch: 6, Start: 110}}, 120, 5, 100))},
		vector{"A.4 5 leader epoch of A: 27", equal(int32(27), bump(16, 6))},
		vector{"A.4 5 a batch of epoch 16 waits for it", func(t *testing.T) {
			s := newScript(t)
			s.view.leaderEpoch = 6
			s.mirroring()
			s.input(ended{pipeline.End{Reason: pipeline.EpochAhead, Epoch: 16}})
			s.expect("write EPOCH_FENCING")
			s.answer()
			s.expect("run fence 16") // nothing is fetched meanwhile
			s.view.leaderEpoch = bump(16, 6)
			s.show()
			s.done(outcome{})
			s.expect("write MIRRORING")
			s.answer()
			s.expect("run mirror")
		}},
		vector{"A.4 5 no producer 7 on A", func(t *testing.T) {
			// A's own log ends at 100 with the transaction open; what it mirrors are B's
			// ABORT and reset.
			if p := log(abort, reset); p.Has(7) {
				t.Errorf("known: %+v", p.Producers())
			}
		}})
}()

// A.5: which state writes are refused. The second write of a row holds what is stored
// after the first.
var vectorsFencing = func() (rows []vector) {
	type epochs struct{ leader, state int32 }
	none := epochs{-1, -1}
	for _, r := range []struct {
		stored, write epochs
		err           error
		next          int32 // state epoch afterwards
	}{
		{epochs{4, 7}, epochs{4, 7}, nil, 8},
		{epochs{4, 7}, epochs{3, 7}, controller.ErrFencedLeaderEpoch, 7},
		{epochs{4, 7}, epochs{5, 6}, controller.ErrFencedStateEpoch, 7},
		{epochs{4, 7}, epochs{-1, -1}, nil, 8},
		{none, epochs{2, 0}, nil, 1},
		{epochs{4, 7}, epochs{3, 6}, controller.ErrFencedLeaderEpoch, 7}, // the leader epoch is looked at first
	} {
		rows = append(rows, vector{fmt.Sprintf("A.5 stored %v write %v", r.stored, r.write), func(t *testing.T) {
			e := metadata.NewImage().Edit()
			e.PutMirror(&metadata.Mirror{Name: "m", Configs: map[string]string{}})
			id := metadata.TopicID{1}
			e.PutTopic(&metadata.Topic{ID: id, Name: "t", MirrorName: "m", Configs: map[string]string{}, Partitions: []*metadata.Partition{{Leader: 1}}})
			to := metadata.StatePreparing
			if r.stored != none {
				e.SetMirrorState(id, 0, &metadata.MirrorPartition{Mirror: "m", State: metadata.StateMirroring, LeaderEpoch: r.stored.leader, StateEpoch: r.stored.state})
				to = metadata.StateMirroring
			}
			plan := controller.NewManual(controller.ManualOptions{}).Plan(e.Image(1))
			write := func(x epochs) error {
				out, err := plan.Call(time.Time{}, controller.WriteStates{Mirror: "m", Writes: []controller.MirrorStateWrite{{
					Topic: id, State: to, LeaderEpoch: x.leader, StateEpoch: x.state,
				}}})
				if err != nil {
					t.Fatal(err)
				}
				return out[0].Err
			}
			if err := write(r.write); !errors.Is(err, r.err) || (err == nil) != (r.err == nil) {
				t.Errorf("%v, want %v", err, r.err)
			}
			if err := write(epochs{-1, r.next - 1}); r.next > 1 && !errors.Is(err, controller.ErrFencedStateEpoch) {
				t.Errorf("a write with state epoch %d afterwards: %v", r.next-1, err)
			}
			if err := write(epochs{-1, r.next}); err != nil {
				t.Errorf("a write with state epoch %d afterwards: %v", r.next, err)
			}
		}})
	}
	return rows
}()

// A.6: when the leader epoch is raised, and to what.
var vectorsBump = func() (rows []vector) {
	for _, r := range []struct {
		sle, dle int32
		raise    bool
		next     int32
	}{
		{0, 0, true, 11},
		{7, 11, false, 11},
		{9, 11, true, 20},
		{30, 11, true, 41}, // and its batches wait in EPOCH_FENCING: A.4 5
	} {
		rows = append(rows, vector{fmt.Sprintf("A.6 SLE %d DLE %d", r.sle, r.dle), func(t *testing.T) {
			minimum, need := metadata.NeedBump(r.sle, r.dle)
			next := r.dle
			if need {
				next = minimum + 1
			}
			if need != r.raise || next != r.next {
				t.Errorf("raised: %v, to %d; want %v, %d", need, next, r.raise, r.next)
			}
		}})
	}
	return rows
}()

// A.7: what a group's offset becomes in a log from 50 to 200.
var vectorsClamp = func() (rows []vector) {
	for _, r := range [][2]int64{{20, 50}, {50, 50}, {120, 120}, {200, 200}, {260, 200}} {
		rows = append(rows, vector{fmt.Sprintf("A.7 %d", r[0]), equal(r[1], clampOffset(r[0], 50, 200))})
	}
	return rows
}()
