package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// task is one action of one partition while it waits or runs. It runs on a
// goroutine of the pool and may block, until its context ends. Everything it
// does to the log carries the leader epoch it was begun with, so that a deposed
// leader changes nothing (S12).
type task struct {
	r    *replica
	peer *peer

	action      action
	seq         int
	target      int64 // with actCut
	fenceMin    int32 // with actFence
	leaderEpoch int32
	started     bool // of loop

	ctx    context.Context
	cancel context.CancelFunc
}

func (t *task) run() {
	defer t.r.m.send(taskEnded{t})
	was, _ := t.r.detach()
	if t.ctx.Err() != nil {
		return
	}
	var res outcome
	switch t.action {
	case actDetach:
	case actPrepare:
		res = t.prepare()
	case actRecover:
		res = t.recover()
	case actCut:
		res = t.cut()
	case actFence:
		res = t.fence()
	case actMirror:
		res = t.mirror(false, was)
	case actRelocate:
		res = t.mirror(true, was)
	case actResolve:
		res = t.resolve()
	case actPause:
	case actStop:
		res = t.stop()
	}
	if t.ctx.Err() != nil {
		return // superseded: nobody wants to know
	}
	if a := t.r.current(); res.attached && a != nil {
		// The machine must know that it fetches before the fetcher can say that
		// it has ended, so the worker gets the pipeline after this.
		t.report(res)
		a.worker.Add(a.pipeline)
		return
	}
	t.report(res)
}

// log is the replica's logger; a task must not read what the loop may change.
func (t *task) log() *slog.Logger {
	return t.peer.log.With("topic", t.r.key.topic, "partition", t.r.key.index)
}

func (t *task) report(res outcome) {
	t.r.m.send(forReplica{t.r, finished{seq: t.seq, result: res}})
}

// failed is the outcome of an error that may pass.
func failed(err error) outcome { return outcome{err: err, retryable: true} }

// failedSource is failed for an error of a call to the source. An outage is
// marked, because it is retried for ever (S16), and so is one of a single partition:
// while nobody leads it there, nobody can be reached who has it.
func failedSource(err error) outcome {
	if source.ErrorClass(err) == source.Unreachable || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errSourceNoLeader) {
		return outcome{err: errors.New(unreachableText(err.Error())), retryable: true}
	}
	return outcome{err: err, retryable: true}
}

func unreachableText(text string) string {
	if f := (failure{message: text}); f.unreachable() {
		return text
	}
	return prefixUnreachable + text
}

// terminal is the outcome that only an operator can end (S18).
func terminal(format string, args ...any) outcome {
	return outcome{err: fmt.Errorf(format, args...)}
}

func fencedLocally(err error) bool { return errors.Is(err, partition.ErrFencedEpoch) }

// partition is our replica of the partition, once it has seen the metadata that
// this task was begun for: the two follow the metadata side by side. One whose
// log is damaged is repaired first.
func (t *task) partition() (*partition.Partition, error) {
	p, err := t.partitionAbove(t.leaderEpoch - 1)
	var d *segment.DamageError
	if p != nil && errors.As(err, &d) {
		err = t.heal(p, d)
	}
	return p, err
}

// partitionAbove waits until our replica's leader epoch is above least.
func (t *task) partitionAbove(least int32) (*partition.Partition, error) {
	w := partition.NewWaiter()
	deadline := t.r.m.o.Clock.NewTimer(metadataWait)
	defer deadline.Stop()
	for {
		p := t.r.m.o.Partitions.ByID(t.r.id.topic, t.r.id.index)
		poll := t.r.m.o.Clock.NewTimer(metadataPoll)
		if p != nil {
			p.AddWaiter(w)
			info := p.Info()
			if info.LeaderEpoch > least && info.Leader || info.Offline != nil {
				p.RemoveWaiter(w)
				poll.Stop()
				if info.Offline != nil {
					return p, info.Offline
				}
				// A task asks the log for its epochs: what is not known yet must never be
				// taken for nothing.
				return p, p.Ready(t.ctx)
			}
		}
		t.r.m.sched.until(func() bool {
			return len(w.C) > 0 || len(poll.C()) > 0 || len(deadline.C()) > 0 || t.ctx.Err() != nil
		})
		if t.ctx.Err() != nil {
			poll.Stop()
			if p != nil {
				p.RemoveWaiter(w)
			}
			return nil, t.ctx.Err()
		}
		select {
		case <-w.C:
		case <-poll.C(): // not opened yet: there is nothing to wait at
		case <-deadline.C():
			poll.Stop()
			if p != nil {
				p.RemoveWaiter(w)
			}
			return nil, fmt.Errorf("%s-%d did not reach a leader epoch above %d within %v", t.r.key.topic, t.r.key.index, least, metadataWait)
		case <-t.ctx.Done(): // seen above
		}
		poll.Stop()
		if p != nil {
			p.RemoveWaiter(w)
		}
	}
}

const (
	// metadataWait bounds the wait for our own metadata to arrive; it takes
	// milliseconds unless the broker is in trouble.
	metadataWait = 10 * time.Second
	metadataPoll = 20 * time.Millisecond
)

// topic is the topic as the metadata has it now.
func (t *task) topic() (*metadata.Topic, error) {
	topic := t.r.m.o.Controller.Image().TopicByID(t.r.id.topic)
	if topic.Partition(t.r.id.index) == nil {
		return nil, fmt.Errorf("topic %s was deleted", t.r.key.topic)
	}
	return topic, nil
}

// source finds where the partition is read, and refuses a source topic that is
// not the one mirrored so far (W18).
func (t *task) source(fresh bool) (location, outcome) {
	loc, err := t.peer.find(t.ctx, t.r.key.topic, t.r.key.index, fresh)
	if err != nil {
		return location{}, failedSource(err)
	}
	if !t.r.id.topic.IsTopicOf(loc.key.TopicID) {
		return location{}, terminal("%s", recreatedText(t.r.key.topic, loc.key.TopicID, t.r.id.topic))
	}
	return loc, outcome{}
}

func recreatedText(topic string, source, ours metadata.TopicID) string {
	return fmt.Sprintf("source topic %s was created anew with id %s, mirrored was %s; stop and delete the topic here to mirror the new one", topic, source, ours)
}

// questions are what align asks of the source's leader.
func (t *task) questions(cluster Source, loc location) alignQuestions {
	return questionsOf(t.ctx, t.r.m.sched, t.peer.timeout(), cluster, loc)
}

// questionsOf are those questions, each with so much time.
func questionsOf(ctx context.Context, s *scheduler, timeout time.Duration, cluster Source, loc location) alignQuestions {
	return alignQuestions{
		epochEnd: func(epoch int32) (sdk.EpochEnd, error) {
			ctx, cancel := s.within(ctx, timeout)
			defer cancel()
			return cluster.EpochEnd(ctx, loc.broker, loc.key, loc.epoch, epoch)
		},
		bounds: func() (earliest, latest int64, err error) {
			ctx, cancel := s.within(ctx, timeout)
			defer cancel()
			return cluster.Offsets(ctx, loc.broker, loc.key, loc.epoch)
		},
	}
}

// sleep waits, at most until the task is ended.
func (t *task) sleep(d time.Duration) {
	timer := t.r.m.o.Clock.NewTimer(d)
	defer timer.Stop()
	t.r.m.sched.until(func() bool { return len(timer.C()) > 0 || t.ctx.Err() != nil })
	select {
	case <-timer.C():
	case <-t.ctx.Done():
	}
}
