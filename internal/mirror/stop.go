package mirror

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// appendTimeout bounds one append of the failover sequence.
const appendTimeout = 5 * time.Second

// stop is the failover (9.14). The fetcher is already gone and no append of it
// runs. Each step is durable before the next begins, and the whole may be
// repeated from its top: every step first looks whether it was done. The source
// is never asked (W59): this is what happens when it has burnt down.
//
//  1. wait until the ISR has everything, make it durable
//  2. record the last mirrored epoch and offset
//  3. raise the leader epoch above every mirrored one, and above its own where
//     the run may have cut without its gate
//  4. abort the source's open transactions
//  5. reset the source's producer ids
//
// Then the machine writes STOPPED, and clients may write.
func (t *task) stop() outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	ungated, err := t.ungated()
	if err != nil {
		return failed(err)
	}
	// A batch of ours behind the recorded offset means that this is a repetition;
	// waiting for the high watermark is right all the same.
	if err := t.settle(p); err != nil {
		return failed(err)
	}
	if invariants.Planted("stopAsksSource") {
		loc, res := t.source(true)
		if res.err == nil {
			end, _ := p.LogEnd()
			_, res = t.align(p.ReadLog().Epochs(), end, &loc)
		}
		if res.err != nil {
			return res
		}
	}
	if !invariants.Planted("lmeAfterReset") {
		if res := t.recordLast(p); res.err != nil {
			return res
		}
	}
	newest, ok := p.ReadLog().LatestEpoch()
	if !ok {
		newest = -1
	}
	if ungated {
		newest = max(newest, p.Info().LeaderEpoch)
	}
	if !invariants.Planted("stopEpochNotRaised") {
		if res := t.raiseEpoch(newest); res.err != nil {
			return res
		}
	}
	aborted, err := t.abortOpen(p)
	if err != nil {
		return failed(err)
	}
	if !invariants.Planted("pidResetMissing") {
		if err := t.resetProducers(p); err != nil {
			return failed(err)
		}
	}
	if invariants.Planted("lmeAfterReset") {
		if res := t.recordLast(p); res.err != nil {
			return res
		}
	}
	if err := t.settle(p); err != nil {
		return failed(err)
	}
	info := p.Info()
	t.log().Info("mirror partition is failed over", "offset", info.LogEnd, "epoch", info.LeaderEpoch, "aborted_transactions", aborted)
	return outcome{}
}

// stopping is how many partitions this broker fails over now: each of them is about to
// write its state.
func (m *Manager) stopping() int { return int(m.stateCounts[int(metadata.StateStopping)+1].Load()) }

// ungated says that this run may have cut our log without its gate: it never came to
// MIRRORING, or the stop is repeated. Followers may then hold, at the offsets where we
// go on, other records that we wrote in this very leader epoch, and nothing would tell
// theirs and ours apart: we go on in another one.
func (t *task) ungated() (bool, error) {
	topic, err := t.topic()
	if err != nil {
		return false, err
	}
	r := topic.MirrorPartition(topic.Partition(t.r.id.index))
	return r != nil && r.HasLME && !invariants.Planted("stopInOldEpoch"), nil
}

// settle waits until every ISR member has the whole log and nothing else, so that a
// clean change of leader can neither shorten it nor make it longer (one may have got
// more from a leader before us), and until it is on disk (D11). Below
// min.insync.replicas it waits here for ever; the operator sees STOPPING.
func (t *task) settle(p *partition.Partition) error {
	w := partition.NewWaiter()
	p.AddWaiter(w)
	defer p.RemoveWaiter(w)
	for {
		info := p.Info()
		switch {
		case info.Offline != nil:
			return info.Offline
		case !info.Leader:
			return fmt.Errorf("%s: %w", p.Key(), partition.ErrNotLeader)
		case info.HighWatermark >= info.LogEnd && p.Heard():
			return t.flush(p)
		}
		poll := t.r.m.o.Clock.NewTimer(metadataPoll) // nothing tells of a fetch that moves no high watermark
		t.r.m.sched.until(func() bool { return len(w.C) > 0 || len(poll.C()) > 0 || t.ctx.Err() != nil })
		if t.ctx.Err() != nil {
			poll.Stop()
			return t.ctx.Err()
		}
		select {
		case <-w.C:
		case <-poll.C():
		case <-t.ctx.Done(): // seen above
		}
		poll.Stop()
	}
}

// flush makes everything in the log durable.
func (t *task) flush(p *partition.Partition) error {
	done := make(chan error, 1)
	p.FlushThen(func(err error) { done <- err })
	err, stopped := await(t.ctx, t.r.m.sched, done)
	if stopped != nil {
		return stopped
	}
	return err
}

// recordLast persists LME and LMO (9.14 step 2). A record that exists is kept,
// because the log may already hold batches of our own; the controller lowers it
// when the log has become shorter.
func (t *task) recordLast(p *partition.Partition) outcome {
	end, _ := p.LogEnd()
	lme := int32(-1)
	if end > p.Info().LogStart {
		if e, ok := p.ReadLog().EpochAt(end - 1); ok {
			lme = e
		}
	}
	res, err := t.r.m.states.do(t.ctx, stateWrite{r: t.r, mirror: t.peer.name, write: controller.MirrorStateWrite{
		Topic: t.r.id.topic, Partition: t.r.id.index, State: metadata.StateUnknown,
		LeaderEpoch: t.leaderEpoch, StateEpoch: -1, SetLME: true, LME: lme, LMO: end,
	}})
	if err == nil {
		err = res.Err
	}
	if err != nil {
		return failed(fmt.Errorf("record the last mirrored epoch: %w", err))
	}
	return outcome{}
}

// raiseEpoch makes our leader epoch greater than least and waits until our
// replica works in it.
func (t *task) raiseEpoch(least int32) outcome {
	p := t.r.m.o.Partitions.ByID(t.r.id.topic, t.r.id.index)
	if p != nil {
		// It is above already, mostly, and never falls: the controller has no say in that.
		if info := p.Info(); info.Leader && info.LeaderEpoch > least {
			return outcome{}
		}
	}
	err, stopped := t.r.m.bumps.do(t.ctx, controller.Bump{Topic: t.r.id.topic, Partition: t.r.id.index, MinLeaderEpoch: least})
	if stopped != nil {
		return failed(stopped)
	}
	if err != nil {
		return failed(fmt.Errorf("raise the leader epoch above %d: %w", least, err))
	}
	if _, err := t.partitionAbove(least); err != nil {
		return failed(err)
	}
	return outcome{}
}

// abortOpen ends the source's transactions that are still open: an ABORT marker
// each, with the producer's own id and epoch. What was aborted before is not
// open any more, so a repetition does only the rest.
func (t *task) abortOpen(p *partition.Partition) (int, error) {
	open := p.ReadLog().OpenTxns()
	for _, txn := range open {
		marker := record.AbortMarker(txn.ProducerID, txn.Epoch, max(txn.CoordinatorEpoch, 0), t.r.m.o.Clock.Now().UnixMilli())
		if err := t.append(p, marker); err != nil {
			return 0, fmt.Errorf("abort the transaction of producer %d: %w", txn.ProducerID, err)
		}
		t.r.m.metrics.aborted.Inc()
		t.log().Info("transaction of the source was aborted", "producer_id", txn.ProducerID, "producer_epoch", txn.Epoch, "offset", txn.First)
	}
	return len(open), nil
}

// resetProducers appends the MIRROR_PID_RESET batch (10.4): from here on no
// producer id of the source is known in this log. A repetition that finds it at
// the end of the log leaves it at that.
func (t *task) resetProducers(p *partition.Partition) error {
	if endsInReset(p) {
		return nil
	}
	sourceID := ""
	if m := t.r.m.o.Controller.Image().Mirror(t.peer.name); m != nil {
		sourceID = m.SourceClusterID()
	}
	if err := t.append(p, record.PIDReset(sourceID, t.r.m.o.Clock.Now().UnixMilli())); err != nil {
		return fmt.Errorf("reset the producer ids: %w", err)
	}
	return nil
}

// endsInReset reports whether the last batch of the log is a reset of our own
// leadership. One that was mirrored, from a source that was itself failed over,
// has an epoch of the source; it does not count.
func endsInReset(p *partition.Partition) bool {
	end, last := p.LogEnd()
	info := p.Info()
	if end == info.LogStart || last != info.LeaderEpoch {
		return false
	}
	view, err := p.ReadLog().Read(end-1, 1, end, true)
	if err != nil {
		return false
	}
	defer view.Release()
	buf := make([]byte, min(view.Len(), maxControlBatch))
	if _, err := view.ReadAt(buf, 0); err != nil {
		return false
	}
	batch, _, err := record.Next(buf)
	if err != nil || !batch.IsControl() {
		return false
	}
	kind, _, err := batch.Control()
	return err == nil && kind == record.MirrorPIDReset
}

// maxControlBatch is more than any control batch of ours takes: 61 bytes of
// header, one record with a 4 byte key and a cluster id of at most 255 bytes.
const maxControlBatch = 1024

// append writes one batch of our own in the current leader epoch and waits until
// the high watermark has passed it.
func (t *task) append(p *partition.Partition, batch []byte) error {
	done := make(chan error, 1)
	p.AppendInternal(p.Info().LeaderEpoch, batch, func(_ int64, err error) { done <- err })
	timer := t.r.m.o.Clock.NewTimer(appendTimeout)
	defer timer.Stop()
	t.r.m.sched.until(func() bool { return len(done) > 0 || len(timer.C()) > 0 || t.ctx.Err() != nil })
	select {
	case err := <-done:
		return err
	default:
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
	}
	select {
	case err := <-done:
		return err
	case <-timer.C():
		return errors.New("not replicated within " + appendTimeout.String())
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}
