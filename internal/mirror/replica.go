package mirror

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// replica is one mirror partition that this broker leads: its machine, the task
// that runs for it, and its fetcher.
type replica struct {
	m   *Manager
	id  partitionID
	key nameKey
	// life is that of the topic: one that was deleted and came back with its id is
	// another, of which nothing known here is true.
	life int32

	// Of the Manager's loop.
	assigned *metadata.Partition // what the machine was told last
	machine  *machine            // nil: not ours any more, only a task has still to end
	peer     *peer
	task     *task // runs, or waits for a place in the pool
	next     *task // runs after it
	timers   [numTimers]replicaTimer
	// watched is the partition whose followers' fetches the gate hears of, nil if
	// it waits for none.
	watched *partition.Partition

	// fetch is the fetcher. Tasks write it, one at a time; describe handlers
	// and the loop read it.
	fetch struct {
		sync.Mutex
		attached *attachment
	}

	clearing atomic.Bool // the first data is to be reported (S14)
	bumping  atomic.Bool // a raise of the epoch is under way
	seen     lagView
}

// attachment is a fetcher in place.
type attachment struct {
	peer     *peer
	key      workerKey
	worker   *pipeline.Worker
	pipeline *pipeline.Pipeline
	location location
}

// watchFollowers has the gate hear of followers' fetches from the moment that it
// waits for them, and no longer (W30).
func (r *replica) watchFollowers() {
	if r.machine != nil && r.machine.gate != nil && r.machine.gate.truncated {
		if r.watched == nil {
			if r.watched = r.m.o.Partitions.ByID(r.id.topic, r.id.index); r.watched != nil {
				r.watched.WatchFetches(func(replica, leaderEpoch int32, offset int64) {
					r.m.send(forReplica{r, fetchedBy{replica, leaderEpoch, offset}})
				})
			}
		}
		return
	}
	if r.watched != nil {
		r.watched.WatchFetches(nil)
		r.watched = nil
	}
}

func (r *replica) log() *slog.Logger {
	return r.m.o.Logger.With("mirror", r.peer.name, "topic", r.key.topic, "partition", r.key.index)
}

// logState writes the one line per change of state. Retries of the same failure
// are expected and only told at debug level: an outage is one line per partition
// when it begins and one when it is over.
func (r *replica) logState(from, to metadata.MirrorState, was failure) {
	now := r.machine.failure
	level, text := slog.LevelInfo, "mirror partition changed state"
	switch {
	case to == metadata.StateFailed:
		level, text = slog.LevelWarn, "mirror partition failed"
		if was.message == now.message {
			level = slog.LevelDebug
		}
	case from == to:
		text = "mirror partition works again"
	case now != failure{}:
		level, text = slog.LevelDebug, "mirror partition tries again"
	}
	if !r.m.o.Logger.Enabled(r.m.ctx, level) {
		return
	}
	log := r.log().With("from", from.String(), "state", to.String(), "epoch", r.machine.view.leaderEpoch)
	if to == metadata.StateFailed {
		log = log.With("attempt", now.attempt, "err", now.message)
	}
	log.Log(r.m.ctx, level, text)
}

// stateWrite is what goes to the controller for a wish.
type stateWrite struct {
	r      *replica
	mirror string
	write  controller.MirrorStateWrite
}

func (r *replica) stateWrite(w wish) stateWrite {
	out := controller.MirrorStateWrite{
		Topic: r.id.topic, Partition: r.id.index, State: w.to,
		LeaderEpoch: r.machine.view.leaderEpoch, StateEpoch: r.machine.stateEpoch, ClearFailure: w.clear, Gate: w.gate,
	}
	if w.to == metadata.StateFailed {
		f := r.machine.failureToWrite(w)
		out.ErrorMessage, out.NonRetryable = f.message, f.attempt == nonRetryable
		if !out.NonRetryable {
			out.RetryAttempt = int32(f.attempt)
		}
	}
	return stateWrite{r: r, mirror: r.peer.name, write: out}
}

// wrote brings the answer of a state write to the machine, with the record as
// it is now: the controller answers after its image shows the write.
func (r *replica) wrote(res controller.MirrorStateResult) {
	img := r.m.o.Controller.Image()
	in := recorded{err: res.Err}
	if t := img.TopicByID(r.id.topic); t.Partition(r.id.index) != nil {
		in.record = t.MirrorPartition(t.Partition(r.id.index))
	}
	r.m.send(forReplica{r, in})
}

// errNoAnswer stands in where the controller gave fewer answers than questions,
// which it does not: a missing answer must never look like a success.
var errNoAnswer = errors.New("the controller did not answer")

// raiseEpochs is the batched call of bumps.
func (m *Manager) raiseEpochs(ctx context.Context, bumps []controller.Bump) []error {
	errs := m.o.Controller.BumpLeaderEpochs(ctx, bumps)
	for len(errs) < len(bumps) {
		errs = append(errs, errNoAnswer)
	}
	return errs
}

// writeStates is the batched call of states: one call of the controller per
// mirror.
func (m *Manager) writeStates(ctx context.Context, writes []stateWrite) []controller.MirrorStateResult {
	results := make([]controller.MirrorStateResult, len(writes))
	for i := range results {
		results[i] = controller.MirrorStateResult{StateEpoch: -1, Err: errNoAnswer}
	}
	byMirror := make(map[string][]int)
	for i, w := range writes {
		byMirror[w.mirror] = append(byMirror[w.mirror], i)
	}
	for _, mirror := range slices.Sorted(maps.Keys(byMirror)) {
		indexes := byMirror[mirror]
		batch := make([]controller.MirrorStateWrite, len(indexes))
		for i, at := range indexes {
			batch[i] = writes[at].write
		}
		for i, res := range m.o.Controller.WriteMirrorStates(ctx, mirror, batch) {
			results[indexes[i]] = res
		}
	}
	return results
}

func (r *replica) startTimer(kind timerKind, d time.Duration) {
	r.stopTimer(kind)
	t := &r.timers[kind]
	generation := t.generation
	t.timer = r.m.o.Clock.AfterFunc(d, func() { r.m.send(timerFired{r, kind, generation}) })
}

func (r *replica) stopTimer(kind timerKind) {
	t := &r.timers[kind]
	t.generation++
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

func (r *replica) stopTimers() {
	for kind := range r.timers {
		r.stopTimer(timerKind(kind))
	}
}

func (r *replica) attached() bool {
	r.fetch.Lock()
	defer r.fetch.Unlock()
	return r.fetch.attached != nil
}

// hears tells whether the fetcher has a connection on which the source answers.
func (r *replica) hears() bool {
	a := r.current()
	return a != nil && a.worker.Hears()
}

func (r *replica) current() *attachment {
	r.fetch.Lock()
	defer r.fetch.Unlock()
	return r.fetch.attached
}

// detach takes the fetcher away. When it returns no append of it runs or will
// run. It reports where the partition was read.
func (r *replica) detach() (was location, ok bool) {
	r.fetch.Lock()
	a := r.fetch.attached
	r.fetch.attached = nil
	r.fetch.Unlock()
	if a == nil {
		return location{}, false
	}
	r.remember(a.pipeline.Position())
	a.worker.Remove(a.pipeline)
	a.peer.release(a.key, a.worker)
	return a.location, true
}

// setEpochs tells the fetcher that our own leader epoch was raised (W45).
func (r *replica) setEpochs(leaderEpoch int32) {
	if a := r.current(); a != nil {
		a.worker.SetEpochs(a.pipeline, leaderEpoch, a.location.epoch)
	}
}

// bump raises our leader epoch in the background when the source's came near
// (W35, W31). It is asked again at the next refresh if it fails.
func (r *replica) bump(sourceEpoch, leaderEpoch int32) {
	least, need := metadata.NeedBump(sourceEpoch, leaderEpoch)
	if !need || !r.bumping.CompareAndSwap(false, true) {
		return
	}
	log := r.log()
	r.m.bumps.submit(controller.Bump{Topic: r.id.topic, Partition: r.id.index, MinLeaderEpoch: least}, func(err error) {
		r.bumping.Store(false)
		if err != nil {
			log.Warn("leader epoch was not raised", "epoch", leaderEpoch, "source_epoch", sourceEpoch, "err", err)
			return
		}
		r.m.metrics.bumps.Inc()
	})
}

// Progress, NearEpoch and Ended make a replica the pipeline.Observer of its
// fetcher. They run on the worker's goroutine.

func (r *replica) Progress(_ *pipeline.Pipeline, pos pipeline.Position) {
	r.remember(pos)
	if r.clearing.CompareAndSwap(true, false) {
		r.m.send(forReplica{r, progressed{}})
	}
}

func (r *replica) NearEpoch(_ *pipeline.Pipeline, epoch int32) {
	if !r.bumping.Load() {
		r.m.send(forReplica{r, nearEpoch{epoch}})
	}
}

func (r *replica) Ended(p *pipeline.Pipeline, end pipeline.End) {
	if end.NewLeader >= 0 {
		if a := r.current(); a != nil && a.pipeline == p {
			a.peer.noteLeader(r.key.topic, r.key.index, end.NewLeader, end.NewLeaderEpoch)
		}
	}
	r.m.send(forReplica{r, ended{end}})
}
