package mirror

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// machine decides for one mirror partition that this broker leads: step takes
// one input and answers with effects. It has no goroutine, no clock and no
// connection; the Manager carries the effects out and brings their outcome back
// as inputs. Which transition is legal is decided by metadata.Allowed and
// enforced by the controller; which one is wanted, here and in desired.go.
//
// Order (S4): a transition is first written, and only when the write has
// succeeded is its action begun.
//
// Invariants:
//   - at most one write is under way, and at most one action;
//   - fetching and action are never both set: an action begins by taking the
//     fetcher away;
//   - gate is set only in PREPARING and ULE_RECOVERY.
type machine struct {
	limits  retryLimits
	gateMax time.Duration  // longest wait in the gate, 0 for ever
	random  func() float64 // jitter of retries, in [0, 1)

	known bool // the first assignment has been seen

	// From the metadata.
	desired metadata.Desired
	touch   int64 // revision of the attachment; a new one makes S9 run
	view    gateView

	// What is recorded, as far as we know.
	state      metadata.MirrorState
	stateEpoch int32
	failure    failure

	// The latest transition that is wanted and not yet recorded.
	want     wish
	wanting  bool
	writing  bool                 // a write is under way
	writeTo  metadata.MirrorState // its target
	fenceMin int32                // epoch that EPOCH_FENCING must reach
	cutIn    int32                // leader epoch in which actCut was begun

	action   action
	seq      int  // of the action, so that an outcome that comes late is known as such
	loose    bool // an action whose outcome is of no interest may still run
	fetching bool
	gate     *gate
}

// wish is a transition with what goes into its write.
type wish struct {
	to        metadata.MirrorState
	message   string                 // with FAILED
	retryable bool                   // with FAILED
	clear     bool                   // forget the failure info (S14)
	gate      *controller.MirrorGate // with MIRRORING: the gate that was passed
}

// action is something a leader does in a state. Each is idempotent, because a
// new leader repeats it from its start.
type action int8

const (
	actNone     action = iota
	actDetach          // take the fetcher away, nothing else
	actPrepare         // loop check, last mirrored epoch, alignment: where to cut (9.6.1)
	actRecover         // alignment alone, after the source lost records (9.9)
	actCut             // cut the log to the gate's target (W29)
	actFence           // raise our leader epoch above the source's (9.8)
	actMirror          // check the log against the source (W34) and fetch
	actResolve         // the source does not have our log end: find out why (9.7)
	actRelocate        // the source partition has another leader: find it and fetch there
	actPause           // take the fetcher away (9.13)
	actStop            // the failover sequence (9.14)
)

var actionNames = [...]string{"none", "detach", "prepare", "recover", "cut", "fence", "mirror", "resolve", "relocate", "pause", "stop"}

func (a action) String() string { return actionNames[a] }

// actionOf is what a leader does once a state is recorded.
func actionOf(s metadata.MirrorState) action {
	switch s {
	case metadata.StatePreparing:
		return actPrepare
	case metadata.StateEpochFencing:
		return actFence
	case metadata.StateULERecovery:
		return actRecover
	case metadata.StateMirroring:
		return actMirror
	case metadata.StatePausing:
		return actPause
	case metadata.StateStopping:
		return actStop
	}
	return actNone
}

// timerKind names the timers of a partition; each kind has at most one.
type timerKind int8

const (
	timerRetry   timerKind = iota // a FAILED partition tries again
	timerGate                     // the gate has been waited for long enough
	timerRewrite                  // a state write that failed is repeated
	timerWake                     // fetch again
	numTimers
)

// Inputs.
type (
	// assigned is the partition as the newest image shows it.
	assigned struct {
		desired metadata.Desired
		touch   int64
		view    gateView
		record  *metadata.MirrorPartition // nil: UNKNOWN
	}
	// recorded answers a write. The record and the view are read after it.
	recorded struct {
		err    error
		record *metadata.MirrorPartition
	}
	// finished is the outcome of an action.
	finished struct {
		seq    int
		result outcome
	}
	// ended says that the fetcher gave the partition up.
	ended struct{ end pipeline.End }
	// progressed: data passed the checks for the first time since the failure.
	progressed struct{}
	// nearEpoch: the source's leader epoch came near ours.
	nearEpoch struct{ epoch int32 }
	// sourceMoved: the source partition has another leader or leader epoch.
	sourceMoved struct{}
	// sourceBack: the source answers again.
	sourceBack struct{}
	// reconnect: the settings of the source connection changed (C5).
	reconnect struct{}
	// condemned: the refresh found that this cannot go on (W9, W16 to W18).
	condemned struct{ message string }
	// pardoned: the source has the partition after all (W16).
	pardoned struct{}
	// fetchedBy is a fetch of a follower.
	fetchedBy struct {
		replica, leaderEpoch int32
		offset               int64
	}
	// due is a timer.
	due struct{ timer timerKind }
)

// outcome is what an action found.
type outcome struct {
	err       error
	retryable bool // with err

	target   int64 // of prepare and recover: where to cut
	logEnd   int64 // of cut
	epoch    int32 // of cut: fetches in it were sent after the cut
	lost     bool  // of mirror and resolve: follow the source's loss through ULE_RECOVERY
	again    bool  // of mirror and resolve: nothing is wrong, fetch again after a while; of cut: begin anew
	attached bool  // of mirror and relocate: the fetcher runs
}

// Effects.
type effect struct {
	kind   effectKind
	write  wish
	action action
	seq    int
	target int64 // with actCut
	epoch  int32 // with actFence and effectBump
	timer  timerKind
	delay  time.Duration
}

type effectKind int8

const (
	effectWrite   effectKind = iota // write wish; recorded comes back
	effectRun                       // cancel what runs, begin action; finished comes back
	effectTimer                     // (re)start a timer
	effectStop                      // stop a timer
	effectEpochs                    // tell the fetcher the new leader epochs
	effectBump                      // raise our leader epoch above epoch in the background
	effectRefresh                   // describe the source soon
	effectGaveUp                    // retries are used up: say so once
)

// step applies one input.
func (m *machine) step(in any) []effect {
	switch in := in.(type) {
	case assigned:
		return m.assigned(in)
	case recorded:
		return m.recorded(in)
	case finished:
		return m.finished(in)
	case ended:
		return m.ended(in.end)
	case progressed:
		if m.state == metadata.StateMirroring && m.failure != (failure{}) && !m.wanting {
			return m.go_(wish{to: metadata.StateMirroring, clear: true})
		}
	case nearEpoch:
		return []effect{{kind: effectBump, epoch: in.epoch}}
	case sourceMoved:
		if m.fetching {
			return m.run(actMirror)
		}
		return m.step(sourceBack{})
	case sourceBack:
		if m.state == metadata.StateFailed && !m.wanting && m.failure.unreachable() {
			return m.retry()
		}
	case reconnect:
		if m.state == metadata.StateMirroring && !m.wanting {
			return m.run(actMirror)
		}
		return m.step(sourceBack{})
	case condemned:
		return m.condemned(in.message)
	case pardoned:
		if m.state == metadata.StateFailed && !m.wanting && m.failure.surplus() {
			return m.go_(wish{to: metadata.StatePreparing})
		}
	case fetchedBy:
		if m.gate != nil {
			m.gate.fetched(in.replica, in.leaderEpoch, in.offset)
			return m.passGate()
		}
	case due:
		return m.due(in.timer)
	}
	return nil
}

// assigned takes the metadata in. S9 runs on the first sight of the partition
// (leadership gained), on a new attachment, and when somebody else wrote the
// state (recover).
func (m *machine) assigned(in assigned) []effect {
	first, raised := !m.known, m.known && in.view.leaderEpoch != m.view.leaderEpoch
	changed := first || in.desired != m.desired || in.touch != m.touch
	m.known, m.desired, m.touch, m.view = true, in.desired, in.touch, in.view
	if !m.writing && recordedEpoch(in.record) > m.stateEpoch {
		m.adopt(in.record)
		changed = true
		if m.wanting && m.want.to == m.state && m.state != metadata.StateFailed {
			m.wanting = false // the write took effect, and only its answer was lost
			return m.enter()
		}
		if m.state == metadata.StateStopping && !first && !m.busy() {
			m.wanting = false // the command has written what we would have
			return m.enter()
		}
	}
	if changed {
		return m.duty()
	}
	if raised {
		// Our own epoch was raised, or we lost and regained the partition.
		switch {
		case m.fetching:
			return []effect{{kind: effectEpochs}}
		case m.wanting && m.writing: // the write is fenced by epochs, and what follows it begins anew
		case m.action == actCut && m.view.leaderEpoch == m.cutIn+1: // the cut does that (W30)
		case m.gate != nil && m.gate.truncated && m.view.leaderEpoch == m.gate.epoch: // and has done it
		case m.gate != nil, m.action == actPrepare, m.action == actRecover, m.action == actCut:
			return m.run(actionOf(m.state)) // a new leader starts again at 9.6.1
		case m.action == actMirror, m.action == actResolve, m.action == actRelocate:
			return m.run(actMirror)
		}
	}
	if m.gate != nil && m.action == actNone {
		return m.passGate()
	}
	return nil
}

func recordedEpoch(r *metadata.MirrorPartition) int32 {
	if r == nil {
		return 0
	}
	return r.StateEpoch
}

func (m *machine) adopt(r *metadata.MirrorPartition) {
	if r == nil {
		m.state, m.stateEpoch, m.failure, m.gate = metadata.StateUnknown, 0, failure{}, nil
		return
	}
	if r.State != metadata.StatePreparing && r.State != metadata.StateULERecovery {
		m.gate = nil
	}
	m.state, m.stateEpoch, m.failure = r.State, r.StateEpoch, failure{}
	if r.RetryAttempt != 0 {
		m.failure = failure{message: r.ErrorMessage, attempt: r.RetryAttempt, previous: r.PreviousState}
	}
	if m.action != actNone && m.action != actDetach && !m.busy() {
		m.abandon() // it belongs to a state that is over
	}
}

// duty runs S9.
func (m *machine) duty() []effect {
	d, to := decideDuty(situation{desired: m.desired, actual: m.state})
	switch d {
	case dutyGo:
		if to == m.state && !m.wanting && m.busy() {
			return nil // it is being done
		}
		return m.go_(wish{to: to})
	case dutySchedule:
		if m.wanting {
			return nil // a retry is on its way
		}
		return m.schedule()
	}
	if !m.writing {
		m.wanting = false // a wish whose write failed is void
	}
	return nil
}

// busy reports that what belongs to the recorded state is under way.
func (m *machine) busy() bool {
	switch m.action {
	case actNone:
		return m.gate != nil || m.fetching && m.state == metadata.StateMirroring
	case actCut:
		return m.state == metadata.StatePreparing || m.state == metadata.StateULERecovery
	case actResolve, actRelocate:
		return m.state == metadata.StateMirroring
	}
	return m.action == actionOf(m.state)
}

// go_ wants a transition. The same one twice is one (S8); another one takes
// the place of a wish whose write has not begun.
func (m *machine) go_(w wish) []effect {
	if m.wanting && m.want.to == w.to && w.to != metadata.StateFailed {
		return nil
	}
	m.want, m.wanting = w, true
	if m.writing {
		return nil // taken up when the write under way is answered
	}
	return m.write()
}

func (m *machine) write() []effect {
	m.writing, m.writeTo = true, m.want.to
	return []effect{{kind: effectWrite, write: m.want}, {kind: effectStop, timer: timerRewrite}}
}

// recorded takes the answer to a write. Fencing errors and refused transitions
// mean that our view was old: look again, and go on with the wish only if it is
// still legal (S7).
func (m *machine) recorded(in recorded) []effect {
	m.writing = false
	asked := m.want.to == m.writeTo
	if in.err == nil {
		m.adopt(in.record)
		switch {
		case asked:
			m.wanting = false
			return m.enter()
		case metadata.Allowed(m.state, m.want.to):
			return m.write()
		}
		m.wanting = false // the state went on meanwhile; what is wanted now?
		return m.duty()
	}
	switch {
	case errors.Is(in.err, controller.ErrFencedStateEpoch), errors.Is(in.err, controller.ErrMirrorStates):
		m.adopt(in.record)
		switch again := metadata.Allowed(m.state, m.want.to); {
		case again && m.state != metadata.StateStopped:
			return m.write()
		case again && m.desired != metadata.DesiredStopped:
			// The controller knows of a stop that we have not heard of, or soon will have.
			return []effect{{kind: effectTimer, timer: timerRewrite, delay: rewriteDelay}}
		}
		m.wanting = false
		return m.duty()
	case errors.Is(in.err, controller.ErrFencedLeaderEpoch) && in.record != nil && in.record.LeaderEpoch > m.view.leaderEpoch:
		// Deposed: the image that says so is on its way, and with it the end of
		// this machine or a new start.
		m.wanting = false
		return nil
	case errors.Is(in.err, controller.ErrInvalidUpdateVersion):
		// The ISR has changed since the gate was passed: look again when we know how.
		m.wanting = false
		if m.gate == nil {
			return m.duty() // the gate is behind us: an earlier try took effect
		}
		return []effect{{kind: effectTimer, timer: timerRewrite, delay: rewriteDelay}}
	case errors.Is(in.err, controller.ErrUnknownTopicID), errors.Is(in.err, controller.ErrUnknownTopic),
		errors.Is(in.err, controller.ErrUnknownMirror), errors.Is(in.err, controller.ErrTopicNotInMirror):
		m.wanting = false // deleted meanwhile
		return nil
	}
	return []effect{{kind: effectTimer, timer: timerRewrite, delay: rewriteDelay}}
}

// rewriteDelay is the pause before a failed state write is repeated (M9).
const rewriteDelay = 100 * time.Millisecond

// enter begins what belongs to the state that was just recorded.
func (m *machine) enter() []effect {
	effects := []effect{{kind: effectStop, timer: timerRetry}, {kind: effectStop, timer: timerGate}}
	if d, to := decideDuty(situation{desired: m.desired, actual: m.state}); d == dutyGo && to != m.state {
		// The operator changed his mind while this was written. Only a stop that
		// failed waits for its retry.
		if m.state != metadata.StateFailed || m.failure.previous != metadata.StateStopping {
			return append(effects, m.go_(wish{to: to})...)
		}
	}
	switch m.state {
	case metadata.StateFailed:
		if m.fetching || m.loose {
			effects = append(effects, m.run(actDetach)...)
		}
		return append(effects, m.schedule()...)
	case metadata.StateMirroring:
		if m.fetching {
			return effects // only the failure info was cleared
		}
	}
	if a := actionOf(m.state); a != actNone {
		return append(effects, m.run(a)...)
	}
	return effects
}

// run begins an action; whatever ran before is over.
func (m *machine) run(a action) []effect {
	m.seq++
	m.action, m.fetching, m.loose = a, false, false
	if a != actCut {
		m.gate = nil
	}
	e := effect{kind: effectRun, action: a, seq: m.seq, epoch: m.fenceMin}
	if m.gate != nil {
		e.target = m.gate.target
		m.cutIn = m.view.leaderEpoch
	}
	return []effect{e}
}

// abandon forgets the action that runs: its outcome is not of interest any more.
// The next one ends it.
func (m *machine) abandon() {
	m.seq++
	m.action, m.loose = actNone, true
}

// finished takes the outcome of the action that runs.
func (m *machine) finished(in finished) []effect {
	if in.seq != m.seq || m.action == actNone {
		return nil
	}
	done, r := m.action, in.result
	m.action = actNone
	if r.err != nil {
		return m.fail(r.err.Error(), r.retryable)
	}
	switch done {
	case actPrepare, actRecover:
		m.gate = &gate{target: r.target}
		return append(m.armGate(), m.passGate()...)
	case actCut:
		if r.again {
			return m.run(actionOf(m.state))
		}
		if m.gate != nil {
			m.gate.cut(r.epoch, r.logEnd)
		}
		return m.passGate()
	case actFence:
		return m.go_(wish{to: metadata.StateMirroring})
	case actPause:
		return m.go_(wish{to: metadata.StatePaused})
	case actStop:
		return m.go_(wish{to: metadata.StateStopped})
	case actMirror, actResolve, actRelocate:
		switch {
		case r.lost:
			return m.go_(wish{to: metadata.StateULERecovery})
		case r.attached:
			m.fetching = true
			return nil
		case r.again:
			return []effect{{kind: effectTimer, timer: timerWake, delay: fetchAgain}}
		}
		return m.run(actMirror)
	}
	return nil
}

// fetchAgain is the pause before a fetch is repeated that the source refused
// although nothing is wrong: a source's high watermark lags for a moment after
// a clean election.
const fetchAgain = time.Second

func (m *machine) armGate() []effect {
	if m.gateMax <= 0 {
		return nil
	}
	return []effect{{kind: effectTimer, timer: timerGate, delay: m.gateMax}}
}

// passGate evaluates the gate (9.6.4).
func (m *machine) passGate() []effect {
	if m.gate == nil || m.action != actNone || m.wanting {
		return nil
	}
	switch verdict, _ := m.gate.evaluate(m.gateView()); verdict {
	case gateTruncate:
		return m.run(actCut)
	case gatePass:
		return m.go_(wish{to: metadata.StateMirroring, gate: m.gate.passed(m.view)})
	}
	return nil
}

// gateView is the view with the rule that a recovery waits for all replicas.
func (m *machine) gateView() gateView {
	v := m.view
	v.unclean = v.unclean || m.state == metadata.StateULERecovery
	return v
}

// fail wants FAILED. A partition that is being stopped, or was, only fails out
// of its stop: nothing else may take it away from the operator's wish.
func (m *machine) fail(message string, retryable bool) []effect {
	if m.state == metadata.StateStopped || m.desired == metadata.DesiredStopped && m.state != metadata.StateStopping {
		return nil
	}
	m.gate = nil
	return m.go_(wish{to: metadata.StateFailed, message: message, retryable: retryable})
}

// condemned fails the partition because of what the refresh found. STOPPED
// partitions are left alone (S2), and so is what is already known.
func (m *machine) condemned(message string) []effect {
	if m.desired == metadata.DesiredStopped || m.state == metadata.StateStopped || m.state == metadata.StateStopping {
		return nil
	}
	if m.state == metadata.StateFailed && m.failure.attempt == nonRetryable && m.failure.message == message {
		return nil
	}
	if m.wanting && m.want.to == metadata.StateFailed && m.want.message == message {
		return nil
	}
	var effects []effect
	if m.fetching || m.action != actNone {
		effects = m.run(actDetach) // nothing more of this source gets in
	}
	return append(effects, m.fail(message, false)...)
}

// failureToWrite is the failure info of a FAILED write.
func (m *machine) failureToWrite(w wish) failure {
	return m.failure.again(w.message, w.retryable, m.state, m.limits.attempts)
}

// schedule arms the retry of a FAILED partition (8.5).
func (m *machine) schedule() []effect {
	d, ok := m.limits.delay(m.failure, m.random())
	switch {
	case m.failure.attempt == nonRetryable:
		return nil
	case !ok:
		return []effect{{kind: effectGaveUp}}
	}
	return []effect{{kind: effectTimer, timer: timerRetry, delay: d}}
}

// retry leaves FAILED for the state before it (S17).
func (m *machine) retry() []effect {
	to := m.failure.target()
	if m.desired == metadata.DesiredPaused && to != metadata.StatePreparing {
		to = metadata.StatePausing
	}
	return m.go_(wish{to: to})
}

func (m *machine) due(t timerKind) []effect {
	switch t {
	case timerRetry:
		if m.state == metadata.StateFailed && !m.wanting {
			return m.retry()
		}
	case timerGate:
		if m.gate != nil {
			_, missing := m.gate.evaluate(m.gateView())
			slices.Sort(missing)
			return m.fail(fmt.Sprintf("replicas %v did not join and truncate within %v", missing, m.gateMax), true)
		}
	case timerRewrite:
		if m.wanting && !m.writing {
			return m.write()
		}
		return m.passGate()
	case timerWake:
		if m.state == metadata.StateMirroring && !m.wanting && !m.fetching && m.action == actNone {
			return m.run(actMirror)
		}
	}
	return nil
}

// ended takes the fetcher's last word (9.7).
func (m *machine) ended(end pipeline.End) []effect {
	if !m.fetching {
		return nil
	}
	m.fetching = false
	if m.state != metadata.StateMirroring {
		return nil // it would have been taken away in a moment
	}
	text := "fetch ended"
	if end.Err != nil {
		text = end.Err.Error()
	}
	switch end.Reason {
	case pipeline.EpochAhead:
		m.fenceMin = end.Epoch
		return m.go_(wish{to: metadata.StateEpochFencing})
	case pipeline.SourceEpochStale:
		return append([]effect{{kind: effectRefresh}}, m.fail(text, true)...)
	case pipeline.Diverged, pipeline.OutOfRange:
		return m.run(actResolve)
	case pipeline.NotLeader, pipeline.UnknownTopicID:
		return m.run(actRelocate)
	case pipeline.Unreachable:
		return append([]effect{{kind: effectRefresh}}, m.fail(unreachableText(text), true)...)
	case pipeline.Format:
		return m.fail(text, false)
	case pipeline.Local:
		if fencedLocally(end.Err) {
			return m.run(actMirror) // our epoch was raised under the fetcher
		}
	}
	return m.fail(text, true)
}
