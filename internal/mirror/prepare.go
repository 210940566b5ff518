package mirror

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// prepare finds the offset to which the log is cut before anything is fetched
// (9.6.1): loop check, last mirrored epoch, alignment with the source. Nothing
// is cut here: the gate decides when. Tiered storage (W22) does not exist in
// this broker.
func (t *task) prepare() outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	loc, res := t.source(false)
	if res.err != nil {
		return res
	}
	if _, res := t.checkLoop(); res.err != nil {
		return res
	}
	end, _ := p.LogEnd()
	if end == 0 {
		return outcome{target: 0} // W24: on an empty log the answer changes nothing
	}

	answer, err := t.peer.epochs.do(t.ctx, loc.key)
	if err != nil {
		return failed(err)
	}
	if answer.err != nil && !invariants.Planted("lmeErrorAsNone") {
		return failedSource(answer.err)
	}
	lme := answer.found
	if answer.err != nil { // planted
		lme = source.LastMirrored{Epoch: -1, Offset: -1}
	}
	if lme.Epoch < 0 && answer.supported && end > p.Info().LogStart {
		if t.peer.config(metadata.MirrorStartRequiresEmptyLME) == "true" {
			return outcome{err: fromZeroForbidden(loc.key, end-p.Info().LogStart)}
		}
		t.log().Warn("source knows no last mirrored epoch: the log is cut to zero and mirrored from scratch", "offset", end)
	}

	entries := p.ReadLog().Epochs()
	target, reason := epoch.MirrorTarget(entries, end, lme.Epoch, lme.Offset), sdk.TruncateLastMirrored
	if lme.Epoch >= 0 && !invariants.Planted("alignmentSkipped") {
		aligned, res := t.align(entries, target, &loc)
		if res.err != nil {
			return res
		}
		if aligned < target {
			target, reason = aligned, sdk.TruncateAlign
		}
	}
	if target < end {
		// Once more: that we are about to follow this source is known to all our brokers
		// by now, whichever of them is asked by another link of the same loop.
		if stale, res := t.checkLoop(); res.err != nil {
			return res
		} else if stale != nil {
			return failed(fmt.Errorf("nothing is cut: the source mirrors %s too, from %v, and not all on that way say from where they have it, which might be here; stop the topic on the source if they do not come back",
				t.r.key.topic, stale))
		}
	}
	return t.decideCut(p, sdk.TruncationQuestion{
		Reason: reason, LastMirroredEpoch: lme.Epoch, LastMirroredOffset: lme.Offset, Target: target,
	})
}

func fromZeroForbidden(key sdk.PartitionKey, records int64) error {
	return fmt.Errorf("source knows no last mirrored epoch of %s, and %s forbids to start from zero over %d records",
		key, metadata.MirrorStartRequiresEmptyLME, records)
}

// recover finds where to cut after the source lost records, in ULE_RECOVERY
// (9.9): alignment alone.
func (t *task) recover() outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	loc, res := t.source(true)
	if res.err != nil {
		return res
	}
	end, _ := p.LogEnd()
	target, res := t.align(p.ReadLog().Epochs(), end, &loc)
	if res.err != nil {
		return res
	}
	return t.decideCut(p, sdk.TruncationQuestion{
		Reason: sdk.TruncateSourceLoss, LastMirroredEpoch: -1, LastMirroredOffset: -1, Target: target,
	})
}

// align asks the source's leader where its history and ours part. What we know
// of the leader may be old: when it does not answer, the source is asked who
// leads now, and the leader that it names is asked instead, and put into loc.
func (t *task) align(entries []epoch.Entry, end int64, loc *location) (int64, outcome) {
	cluster, err := t.peer.source()
	if err != nil {
		return 0, failed(err)
	}
	target, err := align(entries, end, t.questions(cluster, *loc))
	if err != nil {
		fresh, res := t.source(true)
		if res.err != nil {
			return 0, res
		}
		if fresh == *loc {
			return 0, failedSource(fmt.Errorf("align with the source: %w", err))
		}
		*loc = fresh
		if target, err = align(entries, end, t.questions(cluster, fresh)); err != nil {
			return 0, failedSource(fmt.Errorf("align with the source: %w", err))
		}
	}
	return target, outcome{}
}

// checkLoop refuses a source that mirrors this very topic from us (W23), itself or
// over other clusters (O12): all ends of such a loop would be read-only and cut each
// other to zero. The latter passes by itself when another link is stopped. stale is from
// where the topic comes, if not all that are on the way could be asked.
func (t *task) checkLoop() (stale []string, res outcome) {
	answer, err := t.peer.loops.do(t.ctx, t.r.key.topic)
	if err != nil {
		return nil, failed(err)
	}
	if answer.err != nil {
		return nil, failedSource(fmt.Errorf("list the source's mirrors: %w", answer.err))
	}
	if !answer.supported {
		return nil, outcome{}
	}
	return loopOver(answer.mirrors, t.r.m.o.ClusterID, t.r.key.topic)
}

// loopOver is why a topic of a source with such mirrors must not be mirrored here.
func loopOver(mirrors []source.MirrorListing, ours, topic string) (stale []string, res outcome) {
	for _, m := range mirrors {
		if m.SourceClusterID == ours && slices.Contains(m.Topics, topic) {
			return nil, terminal("mirror loop: the source's mirror %s already mirrors %s from this cluster (%s)", m.Name, topic, ours)
		}
	}
	chain := originsOf(mirrors)[topic]
	if slices.Contains(chain.ClusterIDs, ours) {
		return nil, failed(fmt.Errorf("mirror loop: the source mirrors %s from this cluster (%s) over others: it comes from %v", topic, ours, chain.ClusterIDs))
	}
	if chain.Stale {
		stale = chain.ClusterIDs
	}
	return stale, outcome{}
}

// decideCut asks the policy whether the log may be cut to q.Target. The policy
// is asked once, and only if there is something to lose.
func (t *task) decideCut(p *partition.Partition, q sdk.TruncationQuestion) outcome {
	info := p.Info()
	if q.Target >= info.LogEnd {
		return outcome{target: info.LogEnd}
	}
	decision, res := t.askTruncation(p, &q)
	if res.err != nil {
		return res
	}
	return outcome{target: decision}
}

// askTruncation fills the question in and checks the answer.
func (t *task) askTruncation(p *partition.Partition, q *sdk.TruncationQuestion) (int64, outcome) {
	info := p.Info()
	q.Mirror, q.Key = t.peer.name, p.Key()
	q.LogStart, q.HighWatermark, q.LogEnd = info.LogStart, info.HighWatermark, info.LogEnd
	for _, e := range p.ReadLog().Epochs() {
		q.Epochs = append(q.Epochs, sdk.EpochStart{Epoch: e.Epoch, Start: e.Start})
	}
	if topic, err := t.topic(); err == nil {
		q.UncleanSupport = topic.ConfigBool(metadata.MirrorULEConfig)
	}
	policy := t.r.m.o.Truncation
	d, err := policy.DecideTruncation(t.ctx, q)
	if err != nil {
		return 0, failed(fmt.Errorf("truncation policy %s: %w", policy.Name(), err))
	}
	switch {
	case d.Action == sdk.TruncateHold:
		return 0, failed(fmt.Errorf("truncation policy %s holds %s at %d: %s", policy.Name(), p.Key(), info.LogEnd, d.Text))
	case d.Action == sdk.TruncateFail:
		return 0, outcome{err: fmt.Errorf("truncation policy %s: %s", policy.Name(), d.Text), retryable: d.Retryable}
	case d.Action != sdk.TruncateCut || d.Target < 0 || d.Target > q.Target:
		return 0, terminal("truncation policy %s answered %d, %d: a target above %d would keep records the source does not have",
			policy.Name(), d.Action, d.Target, q.Target)
	}
	return d.Target, outcome{}
}

// cut is the leader's part behind the gate (W29). It is done also when there is
// nothing to cut: the gate counts what followers show after it.
func (t *task) cut() outcome {
	p, err := t.partition()
	if err != nil {
		return failed(err)
	}
	cut, err := p.Truncate(t.leaderEpoch, t.target)
	if fencedLocally(err) {
		return outcome{again: true} // our epoch was raised meanwhile
	}
	if err != nil {
		return failed(err)
	}
	end, _ := p.LogEnd()
	if cut.Offsets > 0 {
		t.r.m.metrics.recordsCut.Add(int(cut.Offsets))
		t.log().Warn("log was cut to what the source has", "offset", end, "cut", cut.Offsets, "kept", cut.Kept)
		t.rewindGroups(end)
	}
	epoch := t.leaderEpoch
	if p.CutIn(epoch) && !invariants.Planted("lateFetchConfirms") {
		// What a follower fetched in this epoch, it may have got before the cut, and a
		// fetch that it sent even earlier may come yet: in another epoch there is none
		// of these (W30). And a consumer that has read what is cut would go on behind it
		// in what the source writes there: in another epoch it asks first where the
		// histories part (GI-87, KIP-320).
		if res := t.raiseEpoch(epoch); res.err != nil {
			return res
		}
		if epoch++; p.Info().LeaderEpoch != epoch {
			return outcome{again: true} // somebody else led in between
		}
	}
	return outcome{logEnd: end, epoch: epoch}
}

// rewindGroups moves committed offsets of our groups that lie above the cut
// down to it (W55): otherwise a consumer would skip what the source writes
// there. Groups with members are left alone: they ask where the
// histories part, in the epoch that follows.
func (t *task) rewindGroups(end int64) {
	o := &t.r.m.o
	if o.GroupsAbove == nil || o.CommitGroup == nil {
		return
	}
	deadline := o.Clock.Now().Add(rewindPatience)
	groups, err := o.GroupsAbove(t.ctx, t.r.key.topic, t.r.key.index, end)
	for err != nil && t.ctx.Err() == nil && o.Clock.Now().Before(deadline) {
		t.sleep(rewindPause) // a coordinator is about to move, or loads
		groups, err = o.GroupsAbove(t.ctx, t.r.key.topic, t.r.key.index, end)
	}
	if err != nil {
		t.log().Warn("committed offsets above the cut could not be listed", "offset", end, "err", err)
		return
	}
	for _, g := range groups {
		offset := GroupOffset{Topic: t.r.key.topic, Partition: t.r.key.index, Offset: end, LeaderEpoch: -1}
		errs, err := o.CommitGroup(t.ctx, g, []GroupOffset{offset})
		if err == nil && len(errs) > 0 {
			err = errs[0]
		}
		if err != nil {
			t.log().Warn("committed offset above the cut was left", "group", g, "offset", end, "err", err)
		}
	}
}

const (
	// rewindPatience is how long a cut waits for coordinators of groups that cannot be
	// asked: longer than a broker's death goes unnoticed. The cut is not undone by
	// what they say.
	rewindPatience = 20 * time.Second
	rewindPause    = 250 * time.Millisecond
)
