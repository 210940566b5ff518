package mirror

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

func newMachine() *machine {
	return &machine{
		limits:  retryLimits{initial: 100 * time.Millisecond, max: 300 * time.Second, attempts: 20},
		gateMax: time.Minute, random: func() float64 { return 0.5 }, state: metadata.StateUnknown,
	}
}

// script drives one machine and plays the controller: it keeps the record that
// the machine's writes lead to.
type script struct {
	t      *testing.T
	m      *machine
	view   gateView
	record *metadata.MirrorPartition
	wish   metadata.Desired
	touch  int64
	trace  []string // effects since the last expectation
	writes []wish   // writes not yet answered
	seq    int
}

func newScript(t *testing.T) *script {
	return &script{t: t, m: newMachine(), view: gateView{leader: 1, leaderEpoch: 5, replicas: []int32{1}, isr: []int32{1}, minISR: 1}}
}

func (s *script) input(in any) {
	for _, e := range s.m.step(in) {
		switch e.kind {
		case effectWrite:
			s.writes = append(s.writes, e.write)
			text := "write " + e.write.to.String()
			if e.write.to == metadata.StateFailed {
				text += fmt.Sprintf(" %q", e.write.message)
				if !e.write.retryable {
					text += " for good"
				}
			}
			if e.write.clear {
				text += " clear"
			}
			s.trace = append(s.trace, text)
		case effectRun:
			s.seq = e.seq
			text := "run " + e.action.String()
			if e.action == actCut {
				text += fmt.Sprint(" ", e.target)
			}
			if e.action == actFence {
				text += fmt.Sprint(" ", e.epoch)
			}
			s.trace = append(s.trace, text)
		case effectTimer:
			s.trace = append(s.trace, fmt.Sprint([...]string{"retry", "gate", "rewrite", "wake"}[e.timer], " in ", e.delay))
		case effectEpochs:
			s.trace = append(s.trace, "epochs")
		case effectBump:
			s.trace = append(s.trace, fmt.Sprint("bump ", e.epoch))
		case effectRefresh:
			s.trace = append(s.trace, "refresh")
		case effectGaveUp:
			s.trace = append(s.trace, "gave up")
		}
	}
}

// lead shows the partition to the machine as the newest image has it.
func (s *script) lead(desired metadata.Desired) {
	s.wish = desired
	s.touch++
	s.show()
}

func (s *script) show() {
	s.input(assigned{desired: s.wish, touch: s.touch, view: s.view, record: s.record})
}

// answer lets the controller accept the oldest write.
func (s *script) answer() {
	s.t.Helper()
	if len(s.writes) == 0 {
		s.t.Fatal("no write is under way")
	}
	w := s.writes[0]
	s.writes = s.writes[1:]
	next := metadata.MirrorPartition{State: metadata.StateUnknown, PreviousState: metadata.StateUnknown}
	if s.record != nil {
		next = *s.record
	}
	if !metadata.Allowed(next.State, w.to) {
		s.t.Fatalf("write of %v in %v", w.to, next.State)
	}
	switch f := s.m.failureToWrite(w); w.to {
	case metadata.StateFailed:
		if next.State != metadata.StateFailed {
			next.PreviousState = next.State
		}
		next.ErrorMessage, next.RetryAttempt = f.message, f.attempt
	case metadata.StatePaused, metadata.StateStopped:
		next.ErrorMessage, next.RetryAttempt, next.PreviousState = "", 0, metadata.StateUnknown
	}
	if w.clear {
		next.ErrorMessage, next.RetryAttempt, next.PreviousState = "", 0, metadata.StateUnknown
	}
	next.State, next.LeaderEpoch = w.to, s.view.leaderEpoch
	next.StateEpoch++
	s.record = &next
	s.show() // the image comes before the answer
	s.input(recorded{record: s.record})
}

func (s *script) refuse(err error) {
	s.writes = s.writes[1:]
	s.input(recorded{err: err, record: s.record})
}

// done ends the action that runs. A cut that names no epoch of its own had none to raise.
func (s *script) done(r outcome) {
	if s.m.action == actCut && r.epoch == 0 {
		r.epoch = s.view.leaderEpoch
	}
	s.input(finished{seq: s.seq, result: r})
}

func (s *script) expect(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.trace, want) {
		s.t.Fatalf("effects\n  %s\nwant\n  %s", strings.Join(s.trace, "\n  "), strings.Join(want, "\n  "))
	}
	s.trace = nil
}

// mirroring brings a new partition to MIRRORING.
func (s *script) mirroring() {
	s.t.Helper()
	s.lead(metadata.DesiredMirroring)
	s.expect("write PREPARING")
	s.answer()
	s.expect("run prepare")
	s.done(outcome{target: 7})
	s.expect("gate in 1m0s", "run cut 7")
	s.done(outcome{logEnd: 7})
	s.expect("write MIRRORING")
	s.answer()
	s.expect("run mirror")
	s.done(outcome{attached: true})
	s.expect()
}

func TestMachineLife(t *testing.T) {
	s := newScript(t)
	s.mirroring()

	s.lead(metadata.DesiredPaused)
	s.expect("write PAUSING")
	s.answer()
	s.expect("run pause")
	s.done(outcome{})
	s.expect("write PAUSED")
	s.answer()
	s.expect()

	s.lead(metadata.DesiredMirroring) // no LME lookup and no gate (D15)
	s.expect("write MIRRORING")
	s.answer()
	s.expect("run mirror")
	s.done(outcome{attached: true})

	s.lead(metadata.DesiredStopped)
	s.expect("write STOPPING")
	s.answer()
	s.expect("run stop")
	s.done(outcome{})
	s.expect("write STOPPED")
	s.answer()
	s.expect()
	s.lead(metadata.DesiredStopped) // the same again
	s.input(condemned{"the source is gone"})
	s.expect()

	s.lead(metadata.DesiredMirroring)
	s.expect("write PREPARING")
}

// A touch, or the second of two starts, leaves what runs alone.
func TestMachineTouch(t *testing.T) {
	s := newScript(t)
	s.lead(metadata.DesiredMirroring)
	s.expect("write PREPARING")
	s.lead(metadata.DesiredMirroring)
	s.expect()
	s.answer()
	s.expect("run prepare")
	s.lead(metadata.DesiredMirroring)
	s.expect()
}

// Every way in which a fetcher ends (9.7).
//
// MIR-088: a source leader that is newer than we know (its epoch is stale here): nothing
// is appended, and the source is described anew.
func TestMachineFetcherEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		end  pipeline.End
		want []string
	}{
		{pipeline.End{Reason: pipeline.EpochAhead, Epoch: 30}, []string{"write EPOCH_FENCING"}},
		{pipeline.End{Reason: pipeline.SourceEpochStale, Err: broken}, []string{"refresh", `write FAILED "broken"`}},
		{pipeline.End{Reason: pipeline.Diverged, Err: broken}, []string{"run resolve"}},
		{pipeline.End{Reason: pipeline.OutOfRange, Err: broken}, []string{"run resolve"}},
		{pipeline.End{Reason: pipeline.NotLeader, Err: broken}, []string{"run relocate"}},
		{pipeline.End{Reason: pipeline.UnknownTopicID, Err: broken}, []string{"run relocate"}},
		{pipeline.End{Reason: pipeline.Unreachable, Err: broken}, []string{"refresh", `write FAILED "source unreachable: broken"`}},
		{pipeline.End{Reason: pipeline.Corrupt, Err: broken}, []string{`write FAILED "broken"`}},
		{pipeline.End{Reason: pipeline.Format, Err: broken}, []string{`write FAILED "broken" for good`}},
		{pipeline.End{Reason: pipeline.Fatal, Err: broken}, []string{`write FAILED "broken"`}},
		{pipeline.End{Reason: pipeline.Local, Err: broken}, []string{`write FAILED "broken"`}},
		{pipeline.End{Reason: pipeline.Local, Err: fmt.Errorf("append: %w", partition.ErrFencedEpoch)}, []string{"run mirror"}},
	} {
		t.Run(test.end.Reason.String(), func(t *testing.T) {
			s := newScript(t)
			s.mirroring()
			s.input(ended{test.end})
			s.expect(test.want...)
			s.input(ended{test.end}) // its last word counts once
			s.expect()
		})
	}
}

func TestMachineFencing(t *testing.T) {
	s := newScript(t)
	s.mirroring()
	s.input(nearEpoch{3})
	s.expect("bump 3")
	s.view.leaderEpoch = 14 // it was raised
	s.show()
	s.expect("epochs")
	s.input(ended{pipeline.End{Reason: pipeline.EpochAhead, Epoch: 30}})
	s.expect("write EPOCH_FENCING")
	s.answer()
	s.expect("run fence 30")
	s.view.leaderEpoch = 41 // by the action itself, which goes on
	s.show()
	s.expect()
	s.done(outcome{})
	s.expect("write MIRRORING")
	s.answer()
	s.expect("run mirror")
}

func TestMachineSourceLoss(t *testing.T) {
	t.Run("option off", func(t *testing.T) {
		s := newScript(t)
		s.mirroring()
		s.input(ended{pipeline.End{Reason: pipeline.Diverged}})
		s.expect("run resolve")
		s.done(outcome{err: errors.New(prefixSourceLoss + "x")})
		s.expect(`write FAILED "source lost records: x" for good`)
		s.answer()
		s.expect() // no retry
		s.input(due{timerRetry})
		s.expect(`write PREPARING`) // only an operator's recover comes here; a stray timer would reconcile too
	})
	t.Run("option on", func(t *testing.T) {
		s := newScript(t)
		s.view.replicas, s.view.isr = []int32{1, 2}, []int32{1, 2}
		s.lead(metadata.DesiredMirroring)
		s.answer()
		s.done(outcome{target: 7})
		s.done(outcome{logEnd: 7})
		s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 7})
		s.answer()
		s.done(outcome{attached: true})
		s.trace = nil
		s.input(ended{pipeline.End{Reason: pipeline.OutOfRange}})
		s.done(outcome{lost: true})
		s.expect("run resolve", "write ULE_RECOVERY")
		s.answer()
		s.expect("run recover")
		s.view.isr = []int32{1} // one replica is away: nothing is cut
		s.show()
		s.done(outcome{target: 4})
		s.expect("gate in 1m0s")
		s.view.isr = []int32{1, 2}
		s.show()
		s.expect("run cut 4")
		s.done(outcome{logEnd: 4})
		s.expect()
		s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 4})
		s.expect("write MIRRORING")
	})
}

// The gate that is not passed in time names who is missed, and is tried again.
func TestMachineGateTimeout(t *testing.T) {
	s := newScript(t)
	s.view.replicas, s.view.minISR = []int32{1, 2, 3}, 2
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.done(outcome{target: 7})
	s.expect("write PREPARING", "run prepare", "gate in 1m0s")
	s.input(due{timerGate})
	s.expect(`write FAILED "replicas [2 3] did not join and truncate within 1m0s"`)
	s.answer()
	s.expect("retry in 200ms")
	s.input(due{timerRetry})
	s.expect("write PREPARING")
}

// MIR-290: a source that is gone is tried again with growing pauses, at once when it is
// back, and the count goes with the first data.
func TestMachineRetry(t *testing.T) {
	s := newScript(t)
	s.mirroring()
	s.input(ended{pipeline.End{Reason: pipeline.Unreachable, Err: errors.New("gone")}})
	s.answer()
	s.expect("refresh", `write FAILED "source unreachable: gone"`, "retry in 200ms")
	s.input(due{timerRetry})
	s.expect("write MIRRORING")
	s.answer()
	s.done(outcome{err: errors.New("source unreachable: gone"), retryable: true})
	s.expect("run mirror", `write FAILED "source unreachable: gone"`)
	s.answer()
	s.expect("retry in 400ms")
	s.input(sourceBack{}) // the refresh reached it
	s.expect("write MIRRORING")
	s.answer()
	s.done(outcome{attached: true})
	s.expect("run mirror")
	s.input(progressed{}) // the failure is over with the first data
	s.expect("write MIRRORING clear")
	s.answer()
	s.expect()
	s.input(progressed{})
	s.expect()
}

// A stop gets a partition out of FAILED, and out of whatever is under way.
func TestMachineStopFromEverywhere(t *testing.T) {
	t.Run("FAILED", func(t *testing.T) {
		s := newScript(t)
		s.mirroring()
		s.input(condemned{"source topic was deleted"})
		s.expect("run detach", `write FAILED "source topic was deleted" for good`)
		s.answer()
		s.trace = nil
		s.lead(metadata.DesiredStopped)
		s.expect("write STOPPING")
	})
	t.Run("UNKNOWN", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredStopped)
		s.expect("write STOPPING")
	})
	t.Run("a write under way", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredMirroring)
		s.expect("write PREPARING")
		s.lead(metadata.DesiredStopped)
		s.expect()
		s.answer()
		s.expect("write STOPPING")
		s.answer()
		s.expect("run stop")
	})
	t.Run("preparing fails meanwhile", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredMirroring)
		s.answer()
		s.lead(metadata.DesiredStopped)
		s.done(outcome{err: errors.New("x"), retryable: true})
		s.expect("write PREPARING", "run prepare", "write STOPPING")
	})
	t.Run("the command has taken it to STOPPING", func(t *testing.T) {
		s := newScript(t)
		s.mirroring()
		s.trace = nil
		stopping := *s.record
		stopping.State, stopping.StateEpoch = metadata.StateStopping, stopping.StateEpoch+1
		s.record = &stopping
		s.lead(metadata.DesiredStopped)
		s.expect("run stop") // and nothing is written first
		recorded := stopping
		recorded.HasLME, recorded.LMO, recorded.StateEpoch = true, 7, recorded.StateEpoch+1
		s.record = &recorded
		s.show() // what the sequence itself writes does not begin it anew
		s.expect()
		s.done(outcome{})
		s.expect("write STOPPED")
	})
	t.Run("the command has taken it to STOPPING, and another leads", func(t *testing.T) {
		s := newScript(t)
		s.record = &metadata.MirrorPartition{State: metadata.StateStopping, StateEpoch: 5}
		s.lead(metadata.DesiredStopped)
		s.expect("write STOPPING") // S9: who takes over asserts it
	})
	t.Run("a stop that fails is retried", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredStopped)
		s.answer()
		s.done(outcome{err: errors.New("x"), retryable: true})
		s.expect("write STOPPING", "run stop", `write FAILED "x"`)
		s.answer()
		s.expect("retry in 200ms")
		s.input(due{timerRetry})
		s.expect("write STOPPING")
	})
}

// Writes that are refused (S7, A.5).
func TestMachineFencedWrites(t *testing.T) {
	t.Run("somebody recovered it", func(t *testing.T) {
		s := newScript(t)
		s.mirroring()
		s.input(ended{pipeline.End{Reason: pipeline.Corrupt, Err: errors.New("x")}})
		s.answer()
		s.trace = nil
		s.record = &metadata.MirrorPartition{State: metadata.StatePreparing, StateEpoch: 9, PreviousState: metadata.StateUnknown}
		s.show()
		s.expect("write PREPARING")
		s.refuse(controller.ErrFencedStateEpoch)
		s.expect("write PREPARING")
		s.answer()
		s.expect("run prepare")
	})
	t.Run("not legal any more", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredMirroring)
		s.record = &metadata.MirrorPartition{State: metadata.StatePaused, StateEpoch: 3}
		s.refuse(controller.ErrMirrorStates)
		s.expect("write PREPARING", "write MIRRORING") // S9 again: rule 7
	})
	// GI-25: the controller has a stop that clients act upon, and this broker hears of it
	// before its write is answered, or after.
	for _, heard := range []string{"before", "after"} {
		t.Run("stopped again, heard of it "+heard, func(t *testing.T) {
			s := newScript(t)
			s.record = &metadata.MirrorPartition{State: metadata.StateStopped, StateEpoch: 3, HasLME: true}
			s.lead(metadata.DesiredMirroring)
			s.expect("write PREPARING")
			if heard == "before" {
				s.lead(metadata.DesiredStopped)
			}
			s.refuse(controller.ErrMirrorStates)
			if heard == "after" {
				s.expect("rewrite in 100ms")
				s.lead(metadata.DesiredStopped)
			}
			s.input(due{timerRewrite})
			s.expect()
		})
	}
	t.Run("deposed", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredMirroring)
		s.record = &metadata.MirrorPartition{State: metadata.StateMirroring, StateEpoch: 3, LeaderEpoch: 6}
		s.refuse(controller.ErrFencedLeaderEpoch)
		s.expect("write PREPARING")
		s.input(due{timerRewrite})
		s.expect()
	})
	t.Run("controller away", func(t *testing.T) {
		s := newScript(t)
		s.lead(metadata.DesiredMirroring)
		s.refuse(errors.New("no leader"))
		s.expect("write PREPARING", "rewrite in 100ms")
		s.input(due{timerRewrite})
		s.expect("write PREPARING")
	})
}

func TestMachineSurplus(t *testing.T) {
	s := newScript(t)
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.trace = nil
	s.input(condemned{prefixSurplus + "x"})
	s.expect("run detach", `write FAILED "no counterpart on the source: x" for good`)
	s.answer()
	s.input(condemned{prefixSurplus + "x"})
	s.expect()
	s.input(pardoned{})
	s.expect("write PREPARING")
}

// MIR-191: the gate opens once: what followers show afterwards writes nothing.
func TestMachineGateOpensOnce(t *testing.T) {
	s := newScript(t)
	s.view.replicas, s.view.isr = []int32{1, 2}, []int32{1, 2}
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.done(outcome{target: 7})
	s.done(outcome{logEnd: 7})
	s.trace = nil
	s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 7})
	s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 7})
	s.expect("write MIRRORING")
	s.answer()
	s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 7})
	s.show()
	s.expect("run mirror")
}

// S9, row by row: for every desired and actual state, what a new leader does.
func TestDuty(t *testing.T) {
	const (
		none = "-"
		wait = "wait"
	)
	for desired, want := range map[metadata.Desired][10]string{
		// UNKNOWN, PREPARING, EPOCH_FENCING, ULE_RECOVERY, MIRRORING, PAUSING, PAUSED, STOPPING, STOPPED, FAILED
		metadata.DesiredMirroring: {"PREPARING", "PREPARING", "EPOCH_FENCING", "ULE_RECOVERY", "MIRRORING", "PAUSING", "MIRRORING", "STOPPING", "PREPARING", wait},
		metadata.DesiredPaused:    {none, "PREPARING", "PAUSING", "PAUSING", "PAUSING", "PAUSING", none, none, none, wait},
		metadata.DesiredStopped:   {"STOPPING", "STOPPING", "STOPPING", "STOPPING", "STOPPING", "STOPPING", "STOPPING", "STOPPING", none, "STOPPING"},
	} {
		for i, actual := range stateNumbers {
			got := none
			switch d, to := decideDuty(situation{desired: desired, actual: actual}); d {
			case dutyGo:
				got = to.String()
				if !metadata.Allowed(actual, to) {
					t.Errorf("%v, %v: %v is not a legal transition", desired, actual, to)
				}
			case dutySchedule:
				got = wait
			}
			if got != want[i] {
				t.Errorf("%v, %v: %s, want %s", desired, actual, got, want[i])
			}
		}
	}
	if d, _ := decideDuty(situation{desired: metadata.DesiredMirroring, tiered: true}); d != dutyFail {
		t.Error("tiered storage must fail (S9 rule 3)")
	}
	if d, to := decideDuty(situation{desired: metadata.DesiredStopped, actual: metadata.StateFailed, tiered: true}); d != dutyGo || to != metadata.StateStopping {
		t.Error("a stop goes before everything")
	}
}

// Whatever comes in whatever order, the machine never asks for an illegal
// transition, never has two writes under way, and a wish to stop is reached
// once everything is answered.
func TestMachineAlwaysStops(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newScript(t)
		wishes := []metadata.Desired{metadata.DesiredMirroring, metadata.DesiredPaused, metadata.DesiredStopped}
		s.lead(metadata.DesiredMirroring)
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 10).Draw(rt, "input") {
			case 0:
				s.lead(rapid.SampledFrom(wishes).Draw(rt, "desired"))
			case 1, 2, 3:
				if len(s.writes) > 0 {
					s.answer()
				}
			case 4, 5:
				s.done(outcome{attached: true, logEnd: 7})
			case 6:
				s.done(outcome{err: errors.New("x"), retryable: rapid.Bool().Draw(rt, "retryable")})
			case 7:
				s.input(ended{pipeline.End{Reason: pipeline.Reason(rapid.IntRange(0, 10).Draw(rt, "reason")), Epoch: 9, Err: errors.New("y")}})
			case 8:
				s.input(due{timerKind(rapid.IntRange(0, int(numTimers)-1).Draw(rt, "timer"))})
			case 9:
				s.view.leaderEpoch++
				s.show()
			case 10:
				s.input(rapid.SampledFrom([]any{progressed{}, sourceMoved{}, sourceBack{}, reconnect{}, condemned{"z"}, pardoned{}}).Draw(rt, "event"))
			}
			if len(s.writes) > 1 {
				rt.Fatalf("two writes under way: %v", s.writes)
			}
			if s.m.fetching && s.m.action != actNone {
				rt.Fatalf("fetching during %v", s.m.action)
			}
			if s.m.gate != nil && s.m.state != metadata.StatePreparing && s.m.state != metadata.StateULERecovery {
				rt.Fatalf("a gate in %v", s.m.state)
			}
		}
		s.lead(metadata.DesiredStopped)
		for range 10 {
			if len(s.writes) > 0 {
				s.answer()
			}
			s.input(due{timerRetry})
			if s.m.action == actStop {
				s.done(outcome{})
			}
		}
		if s.m.state != metadata.StateStopped {
			rt.Fatalf("still %v; action %v, wanting %v %v", s.m.state, s.m.action, s.m.wanting, s.m.want)
		}
	})
}

// One of three replicas is away when the others cut. The write of MIRRORING says so;
// when the ISR has changed meanwhile it is void, and the gate waits for whoever came.
//
// MIR-187: a replica that joins the ISR between the last confirmation and the write of
// MIRRORING counts.
func TestMachineGateLeavesReplicasOut(t *testing.T) {
	s := newScript(t)
	s.view.replicas, s.view.isr, s.view.minISR, s.view.partitionEpoch = []int32{1, 2, 3}, []int32{1, 2}, 2, 4
	s.lead(metadata.DesiredMirroring)
	s.answer()
	s.done(outcome{target: 120})
	s.done(outcome{logEnd: 118})
	s.trace = nil
	s.input(fetchedBy{replica: 2, leaderEpoch: 5, offset: 118})
	s.expect("write MIRRORING")
	want := &controller.MirrorGate{Target: 118, Confirmed: []int32{1, 2}, PartitionEpoch: 4}
	if got := s.writes[0].gate; !reflect.DeepEqual(got, want) {
		t.Errorf("the write says %+v, want %+v", got, want)
	}
	s.refuse(controller.ErrInvalidUpdateVersion)
	s.expect("rewrite in 100ms")
	s.view.isr, s.view.partitionEpoch = []int32{1, 2, 3}, 5
	s.show()
	s.input(due{timerRewrite})
	s.expect()
	s.input(fetchedBy{replica: 3, leaderEpoch: 5, offset: 100})
	s.expect("write MIRRORING")
	if got := s.writes[0].gate; len(got.Confirmed) != 3 || got.PartitionEpoch != 5 {
		t.Errorf("the write says %+v", got)
	}
}
