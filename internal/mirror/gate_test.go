package mirror

import (
	"slices"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The table A.3 of the specification: three replicas, two needed in sync,
// leader 1, target 120, all logs end at 150.
//
// MIR-180, MIR-181, MIR-182: it waits for whom it has to and for nobody else. MIR-200,
// MIR-204: with the option for all, from the moment at which it is switched on. MIR-205:
// until it is switched off. MIR-208: one that has cut and leaves the ISR is waited for.
// MIR-193: followers are asked also when nothing was cut, and one that is ahead of the
// leader does not count.
func TestGate(t *testing.T) {
	const epoch = 7
	type event struct {
		do      string // "cut", "fetch", "isr", "unclean", "leader"
		replica int32
		offset  int64
		isr     []int32
	}
	cut := event{do: "cut"}
	fetch := func(r int32, offset int64) event { return event{do: "fetch", replica: r, offset: offset} }
	isr := func(r ...int32) event { return event{do: "isr", isr: r} }
	for _, test := range []struct {
		name    string
		isr     []int32
		unclean bool
		events  []event
		want    []gateVerdict // before the first and after each event
		missing []int32       // at the end
	}{
		{"all in sync", []int32{1, 2, 3}, false, []event{cut, fetch(2, 120), fetch(3, 120)},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm, gatePass}, nil},
		{"two in sync", []int32{1, 2}, false, []event{cut, fetch(2, 120)},
			[]gateVerdict{gateTruncate, gateConfirm, gatePass}, nil},
		{"leader alone", []int32{1}, false, nil, []gateVerdict{gateWait}, []int32{2, 3}},
		{"leader alone, then growth", []int32{1}, false, []event{isr(1, 2), cut, fetch(2, 120)},
			[]gateVerdict{gateWait, gateTruncate, gateConfirm, gatePass}, nil},
		{"option on, one missing", []int32{1, 2}, true, nil, []gateVerdict{gateWait}, []int32{3}},
		{"option on, then growth", []int32{1, 2}, true, []event{isr(1, 2, 3), cut, fetch(2, 120), fetch(3, 120)},
			[]gateVerdict{gateWait, gateTruncate, gateConfirm, gateConfirm, gatePass}, nil},
		{"unconfirmed one leaves", []int32{1, 2, 3}, false, []event{cut, fetch(2, 120), isr(1, 2)},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm, gatePass}, nil},
		{"both leave, one is back", []int32{1, 2, 3}, false, []event{cut, isr(1), isr(1, 3), fetch(3, 120)},
			[]gateVerdict{gateTruncate, gateConfirm, gateWait, gateConfirm, gatePass}, nil},
		{"leadership moves", []int32{1, 2, 3}, false, []event{cut, fetch(2, 120), fetch(3, 120), {do: "leader"}},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm, gatePass, gateTruncate}, nil},
		{"option switched on in between", []int32{1, 2}, false, []event{cut, {do: "unclean"}, fetch(2, 120), isr(1, 2, 3), fetch(3, 119)},
			[]gateVerdict{gateTruncate, gateConfirm, gateWait, gateWait, gateConfirm, gatePass}, nil},
		{"option switched off while it waits", []int32{1, 2}, true, []event{{do: "clean"}, cut, fetch(2, 120)},
			[]gateVerdict{gateWait, gateTruncate, gateConfirm, gatePass}, nil},
		{"option on, one has cut and leaves the ISR", []int32{1, 2, 3}, true, []event{cut, fetch(3, 120), isr(1, 2), fetch(2, 120), isr(1, 2, 3)},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm, gateWait, gateWait, gatePass}, nil},
		{"fetch from above the leader's end", []int32{1, 2}, false, []event{cut, fetch(2, 150)},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm}, []int32{2}},
		{"fetch before the cut does not count", []int32{1, 2}, false, []event{fetch(2, 100), cut},
			[]gateVerdict{gateTruncate, gateTruncate, gateConfirm}, []int32{2}},
		{"old leader epoch does not count", []int32{1, 2}, false, []event{cut, {do: "old", replica: 2, offset: 120}},
			[]gateVerdict{gateTruncate, gateConfirm, gateConfirm}, []int32{2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := gate{target: 120}
			v := gateView{leader: 1, leaderEpoch: epoch, replicas: []int32{1, 2, 3}, isr: test.isr, minISR: 2, unclean: test.unclean}
			verdict, missing := g.evaluate(v)
			got := []gateVerdict{verdict}
			for _, e := range test.events {
				switch e.do {
				case "cut":
					g.cut(v.leaderEpoch, 120)
				case "fetch":
					g.fetched(e.replica, v.leaderEpoch, e.offset)
				case "old":
					g.fetched(e.replica, v.leaderEpoch-1, e.offset)
				case "isr":
					v.isr = e.isr
				case "unclean":
					v.unclean = true
				case "clean":
					v.unclean = false
				case "leader":
					v.leader, v.leaderEpoch = 2, v.leaderEpoch+1
				}
				verdict, missing = g.evaluate(v)
				got = append(got, verdict)
			}
			if !slices.Equal(got, test.want) || !slices.Equal(missing, test.missing) {
				t.Errorf("verdicts %v, missing %v; want %v, %v", got, missing, test.want, test.missing)
			}
		})
	}
}

// One replica passes at once, with the option and without (O17, MIR-189, MIR-209).
func TestGateOfOneReplica(t *testing.T) {
	for _, unclean := range []bool{false, true} {
		g := gate{target: 0}
		v := gateView{leader: 1, replicas: []int32{1}, isr: []int32{1}, minISR: 2, unclean: unclean}
		if got, _ := g.evaluate(v); got != gateTruncate {
			t.Errorf("unclean %v: %v before the cut", unclean, got)
		}
		g.cut(0, 0)
		if got, _ := g.evaluate(v); got != gatePass {
			t.Errorf("unclean %v: %v after the cut", unclean, got)
		}
	}
}

// A leader that cut something raises its epoch: only fetches in the new one were
// certainly sent after the cut (W30). The metadata may show that epoch before the cut
// has ended, or after it; either way the gate goes on, and waits for both followers.
func TestMachineCutRaisesEpoch(t *testing.T) {
	for _, first := range []string{"metadata", "cut"} {
		s := newScript(t)
		s.view.replicas, s.view.isr, s.view.minISR = []int32{1, 2, 3}, []int32{1, 2, 3}, 2
		s.lead(metadata.DesiredMirroring)
		s.answer()
		s.done(outcome{target: 120})
		s.expect("write PREPARING", "run prepare", "gate in 1m0s", "run cut 120")
		raised := func() { s.view.leaderEpoch = 6; s.show() }
		if first == "metadata" {
			raised()
			s.expect()
		}
		s.done(outcome{logEnd: 120, epoch: 6})
		s.input(fetchedBy{replica: 2, leaderEpoch: 6, offset: 120})
		s.input(fetchedBy{replica: 3, leaderEpoch: 5, offset: 100}) // sent before the cut, and late
		if first == "cut" {
			raised()
		}
		s.expect()
		s.input(fetchedBy{replica: 3, leaderEpoch: 6, offset: 120})
		s.expect("write MIRRORING")
	}
}

// Another broker led in between: whatever it did, the gate begins anew (9.6.4).
func TestMachineLedElsewhereDuringCut(t *testing.T) {
	s := newScript(t)
	s.view.replicas, s.view.isr = []int32{1, 2}, []int32{1, 2}
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.done(outcome{target: 120})
	s.trace = nil
	s.view.leaderEpoch = 7
	s.show()
	s.expect("run prepare")
	s.done(outcome{target: 120})
	s.expect("gate in 1m0s", "run cut 120")
	s.done(outcome{again: true})
	s.expect("run prepare")
}
