package mirror

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// mirror checks the log against the source and puts the fetcher in place (W33,
// W34). With moved set the source said that another broker leads: its metadata
// is asked again unless the answer of the fetch named a newer leader than was.
func (t *task) mirror(moved bool, was location) outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	loc, res := t.source(false)
	if res.err != nil {
		return res
	}
	if moved && loc.broker == was.broker && loc.epoch == was.epoch {
		if loc, res = t.source(true); res.err != nil {
			return res
		}
		if loc.broker == was.broker && loc.epoch == was.epoch {
			return failed(fmt.Errorf("source broker %s (%d) does not lead %s, and the source names no other", loc.broker.Addr(), loc.broker.ID, loc.key))
		}
	}
	if _, need := metadata.NeedBump(loc.epoch, t.leaderEpoch); need {
		t.r.m.send(forReplica{t.r, nearEpoch{loc.epoch}}) // W43, before consumers see such an epoch
	}
	if end, _ := p.LogEnd(); end > p.Info().LogStart {
		target, res := t.align(p.ReadLog().Epochs(), end, &loc)
		if res.err != nil {
			return res
		}
		if target < end {
			return t.lost(p, target)
		}
	}
	if err := t.attach(p, loc); err != nil {
		return failed(err)
	}
	if err := p.Info().Offline; err != nil { // found damaged since it was asked for
		t.r.detach()
		return failed(err)
	}
	return outcome{attached: true}
}

// attach makes the fetcher; run adds it to the worker after the machine has
// been told.
func (t *task) attach(p *partition.Partition, loc location) error {
	cluster, err := t.peer.source()
	if err != nil {
		return err
	}
	key := workerKey{cluster, loc.broker, fetcherIndex(t.r.key.topic, t.r.key.index, t.r.m.settings.Load().FetchersPerBroker)}
	w, err := t.peer.worker(key)
	if err != nil {
		return err
	}
	a := &attachment{peer: t.peer, key: key, worker: w, location: loc}
	a.pipeline = pipeline.New(pipeline.Options{
		Key: loc.key, Mirror: t.peer.name, Target: p,
		LeaderEpoch: t.leaderEpoch, SourceEpoch: loc.epoch, Observer: t.r,
	})
	t.r.fetch.Lock()
	t.r.fetch.attached = a
	t.r.fetch.Unlock()
	return nil
}

// resolve finds out why the source does not have our log end (9.7,
// OFFSET_OUT_OF_RANGE and diverging epochs).
func (t *task) resolve() outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	loc, res := t.source(true)
	if res.err != nil {
		return res
	}
	cluster, err := t.peer.source()
	if err != nil {
		return failed(err)
	}
	ctx, cancel := t.r.m.sched.within(t.ctx, t.peer.timeout())
	defer cancel()
	earliest, latest, err := cluster.Offsets(ctx, loc.broker, loc.key, loc.epoch)
	if err != nil {
		return failedSource(err)
	}
	end, _ := p.LogEnd()
	switch empty := end == p.Info().LogStart; {
	case earliest > end, empty && latest < end:
		// Retention there ran ahead of us (W40), or our empty log is ahead of a
		// source that begins below it. Either way nothing of ours is continued.
		return t.restart(p, earliest)
	case empty:
		return outcome{again: true}
	}
	target, res := t.align(p.ReadLog().Epochs(), end, &loc)
	if res.err != nil {
		return res
	}
	if target < end {
		return t.lost(p, target)
	}
	// Nothing is lost: a source's high watermark lags for a moment after a clean
	// election.
	return outcome{again: true}
}

// restart empties the log and lets it begin where the source's does. A hole is
// legal: consumers get out of range for it, as they do on the source.
func (t *task) restart(p *partition.Partition, start int64) outcome {
	info := p.Info()
	if info.LogEnd > info.LogStart {
		q := sdk.TruncationQuestion{Reason: sdk.TruncateRetention, LastMirroredEpoch: -1, LastMirroredOffset: -1, Target: info.LogStart}
		if _, res := t.askTruncation(p, &q); res.err != nil {
			return res
		}
	}
	cut, err := p.TruncateFully(t.leaderEpoch, start)
	if err != nil {
		return failed(err)
	}
	t.r.m.metrics.gaps.Inc()
	t.log().Warn("source's retention passed our log end: the log begins again at the source's start",
		"offset", start, "log_start", info.LogStart, "log_end", info.LogEnd, "kept", cut.Kept)
	return outcome{}
}

// lost decides what happens when the source lost records that are mirrored
// (9.9): the histories part at target.
func (t *task) lost(p *partition.Partition, target int64) outcome {
	topic, err := t.topic()
	if err != nil {
		return failed(err)
	}
	info := p.Info()
	q := sdk.UncleanElectionQuestion{
		Kind: sdk.UncleanSource, Mirror: t.peer.name, Key: p.Key(),
		UncleanSupport: topic.ConfigBool(metadata.MirrorULEConfig),
		UncleanAllowed: topic.ConfigBool("unclean.leader.election.enable"),
		LogEnd:         info.LogEnd, HighWatermark: info.HighWatermark,
		Diverging: sdk.EpochEnd{Epoch: -1, End: target},
	}
	if e, ok := p.ReadLog().EpochAt(target - 1); ok {
		q.Diverging.Epoch = e
	}
	policy := t.r.m.o.UncleanElection
	d, err := policy.DecideUncleanElection(t.ctx, &q)
	switch {
	case err != nil:
		return failed(fmt.Errorf("unclean election policy %s: %w", policy.Name(), err))
	case d.Action == sdk.UncleanRecover:
		return outcome{lost: true}
	case d.Action != sdk.UncleanFail:
		return terminal("unclean election policy %s gave an answer that does not fit: %d", policy.Name(), d.Action)
	}
	return outcome{err: fmt.Errorf("%s%s", prefixSourceLoss, d.Text), retryable: d.Retryable}
}

// fence raises our leader epoch above what the source uses (9.8): the higher of
// what its metadata and the offending batch say (W44).
func (t *task) fence() outcome {
	least := t.fenceMin
	if loc, err := t.peer.locate(t.r.key.topic, t.r.key.index); err == nil {
		least = max(least, loc.epoch)
	}
	raise, need := metadata.NeedBump(least, t.leaderEpoch)
	if !need {
		if least > t.leaderEpoch {
			return terminal("source's leader epoch %d is at the end of its range", least)
		}
		return outcome{}
	}
	if res := t.raiseEpoch(raise); res.err != nil {
		return res
	}
	t.r.m.metrics.bumps.Inc()
	return outcome{}
}
