package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ErrGroupActive is what Options.CommitGroup returns for a group with members
// here: its own progress is never overwritten (W51).
var ErrGroupActive = errors.New("the group is active on this cluster")

// syncGroups copies committed offsets (9.11). A group that fails does not stop
// the others; active groups are skipped. Share groups do not exist here.
func (p *peer) syncGroups(ctx context.Context, cluster Source, mirror *metadata.Mirror, attached []*metadata.Topic) error {
	include, err := metadata.CompileRegexList(mirror.Config(metadata.MirrorGroupsInclude))
	if err != nil {
		return err
	}
	exclude, err := metadata.CompileRegexList(mirror.Config(metadata.MirrorGroupsExclude))
	if err != nil {
		return err
	}
	topics := make(map[string]*metadata.Topic)
	for _, t := range attached {
		if t.Attachment().Desired == metadata.DesiredMirroring {
			topics[t.Name] = t
		}
	}
	if len(topics) == 0 {
		return nil
	}
	listCtx, cancel := p.m.sched.within(ctx, p.timeout())
	groups, err := cluster.Groups(listCtx)
	cancel()
	if err != nil {
		return err
	}
	elsewhere, _ := p.m.offsets(ctx, p.name, slices.Collect(maps.Values(topics)), false, func(_ *metadata.Topic, mp *metadata.Partition) bool {
		return mp.Leader != p.m.o.NodeID
	})
	var firstErr error
	failed := 0
	for _, g := range append(groups, unlisted(mirror.Config(metadata.MirrorGroupsInclude), groups)...) {
		if !wantedGroup(g, include, exclude) {
			continue
		}
		if err := p.syncGroup(ctx, cluster, g.ID, topics, elsewhere); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed++
			p.groupErrors.Inc()
			if firstErr == nil {
				firstErr = fmt.Errorf("group %s: %w", g.ID, err)
			}
			continue
		}
		p.groupsSynced.Inc()
	}
	if failed > 1 {
		return fmt.Errorf("%d groups failed, first %w", failed, firstErr)
	}
	return firstErr
}

// unlisted are groups that a filter names and the source's listing lacks. That leaves out
// what we have no right to see, but says so of a group that is asked for by name. One that
// is not there has no offsets.
func unlisted(include string, listed []source.Group) (groups []source.Group) {
	for _, name := range metadata.SplitList(include) {
		if plainName.MatchString(name) && !slices.ContainsFunc(listed, func(g source.Group) bool { return g.ID == name }) {
			groups = append(groups, source.Group{ID: name})
		}
	}
	return groups
}

func wantedGroup(g source.Group, include, exclude *regexp.Regexp) bool {
	if g.Protocol != "" && g.Protocol != "consumer" {
		return false // Connect workers and the like keep no offsets of topics
	}
	return include.MatchString(g.ID) && !exclude.MatchString(g.ID)
}

func (p *peer) syncGroup(ctx context.Context, cluster Source, group string, topics map[string]*metadata.Topic, elsewhere map[nameKey]wire.MirrorOffsets) error {
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	committed, err := cluster.GroupOffsets(ctx, group)
	if err != nil {
		return err
	}
	var offsets []GroupOffset
	for _, c := range committed {
		t := topics[c.Topic]
		if t == nil || c.Offset < 0 {
			continue
		}
		o, ok := p.translate(t, c, elsewhere)
		if !ok {
			continue
		}
		offsets = append(offsets, o)
	}
	if len(offsets) == 0 {
		return nil
	}
	offsets = p.stillMirrored(offsets)
	if len(offsets) == 0 {
		return nil
	}
	// All of them each round: the coordinator writes only what has changed, and
	// what would otherwise expire here while the source still keeps it.
	errs, err := p.m.o.CommitGroup(ctx, group, offsets)
	if errors.Is(err, ErrGroupActive) {
		return nil
	}
	for i, o := range offsets {
		if i < len(errs) && errs[i] != nil && !errors.Is(errs[i], controller.ErrTopicNotInMirror) { // stopped meanwhile
			err = errors.Join(err, fmt.Errorf("%s-%d: %w", o.Topic, o.Partition, errs[i]))
		}
	}
	return err
}

// stillMirrored leaves out what was paused or stopped since the offsets were asked
// for, because its consumers may have their own by now (GI-71), and partitions whose
// logs may be cut yet: they were measured by what is about to go, and would be set above
// the new end behind the cut's own correction of them (W55). The next round has them.
func (p *peer) stillMirrored(offsets []GroupOffset) []GroupOffset {
	img := p.m.o.Controller.Image()
	return slices.DeleteFunc(offsets, func(o GroupOffset) bool {
		t := img.Topic(o.Topic)
		if t == nil || t.Attachment() != (metadata.Attachment{Mirror: p.name, Desired: metadata.DesiredMirroring}) {
			return true
		}
		mp := t.Partition(o.Partition)
		return mp == nil || beforeCut(t.MirrorState(mp))
	})
}

// beforeCut tells whether a partition that is to be MIRRORING has still to be compared with
// its source, and may be cut.
func beforeCut(s metadata.MirrorState) bool {
	switch s {
	case metadata.StateUnknown, metadata.StateStopped, metadata.StatePreparing, metadata.StateULERecovery:
		return true
	}
	return false
}

// drainPatience bounds the last synchronisation of group offsets before a failover. A
// source that dies in the middle of it costs the failover this long and no longer.
const drainPatience = 5 * time.Second

// drainGroups copies the committed offsets of topics that are about to be stopped once
// more, if the source answers: after a planned failover consumers then go on exactly
// where they were. It is done before the stop is recorded, because after that nothing
// of the source is written any more; the stop itself never asks the source (W59).
func (p *peer) drainGroups(ctx context.Context, mirror *metadata.Mirror, topics []*metadata.Topic) {
	if p.m.o.CommitGroup == nil || !p.answers(topics) {
		return
	}
	cluster, err := p.source()
	if err != nil {
		return
	}
	ctx, cancel := p.m.sched.within(ctx, drainPatience)
	defer cancel()
	begin := p.m.o.Clock.Now()
	if err := p.syncGroups(ctx, cluster, mirror, topics); err != nil {
		p.log.Warn("group offsets could not be synchronised before the failover: those of the last round count", "err", err)
		return
	}
	p.log.Info("group offsets were synchronised before the failover", "took", p.m.o.Clock.Now().Sub(begin))
}

// answers tells whether the source is known to answer: to a fetcher here, or where there
// is none, to the last refresh. Fetchers notice first that it does not any more.
func (p *peer) answers(topics []*metadata.Topic) bool {
	asked := false
	for _, t := range topics {
		for _, mp := range t.Partitions {
			r := p.m.replicaOf(nameKey{t.Name, mp.Index})
			if r == nil || mp.Leader != p.m.o.NodeID {
				continue
			}
			switch t.MirrorState(mp) {
			case metadata.StateMirroring:
				if c, _ := r.sighting(p).judge(); c != ContactUnknown && c != ContactStale {
					return true
				}
				asked = asked || r.attached()
			case metadata.StateFailed:
				m := t.MirrorPartition(mp)
				asked = asked || (failure{message: m.ErrorMessage}).unreachable()
			}
		}
	}
	if asked {
		return false
	}
	h := p.health[syncSource]
	age := h.last.age(p.m.o.Clock.Now())
	return h.lastError.Load() == nil && age <= (2*p.m.settings.Load().RefreshInterval).Seconds() // NaN is not
}

// translate is what is committed here for a commit on the source: the same
// offset, kept inside our log (W52). Log start and end are the leader's; elsewhere
// is what those of other brokers said.
func (p *peer) translate(t *metadata.Topic, c source.GroupOffset, elsewhere map[nameKey]wire.MirrorOffsets) (GroupOffset, bool) {
	at, ok := p.m.LocalOffsets(t.Name, c.Partition, false)
	if !ok {
		if at, ok = elsewhere[nameKey{t.Name, c.Partition}]; !ok || at.LogStart < 0 || at.LogEnd < 0 {
			return GroupOffset{}, false
		}
	}
	o := GroupOffset{Topic: c.Topic, Partition: c.Partition, Offset: clampOffset(c.Offset, at.LogStart, at.LogEnd), LeaderEpoch: -1}
	if o.Offset == c.Offset {
		o.LeaderEpoch, o.Metadata = c.LeaderEpoch, c.Metadata
		return o, true
	}
	if ours := p.m.o.Partitions.ByID(t.ID, c.Partition); ours != nil && ours.ReadLog() != nil {
		// A follower has the leader's epochs, as far as it has its records.
		if epoch, ok := ours.ReadLog().EpochAt(o.Offset); ok {
			o.LeaderEpoch = epoch
			return o, true
		}
	}
	if o.Offset == at.LogEnd {
		o.LeaderEpoch = at.LastEpoch
	}
	return o, true
}
