package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// syncState is what the refresh goroutine of a peer remembers between rounds.
type syncState struct {
	away    bool                           // the last round did not reach the source
	missing map[string]int                 // rounds in which a topic was not on the source (W17)
	configs map[string]map[string]struct{} // keys that the sync has set, by topic (W48)
	told    map[string]string              // what was last logged about a subject
	ids     map[string]metadata.TopicID    // of source topics that have another id here (W13)
}

// minRefreshGap keeps partitions that fail one after another from asking the
// source again and again.
const minRefreshGap = time.Second

// refreshLoop describes the source every RefreshInterval, once after the start,
// and soon after somebody woke it (9.3).
func (p *peer) refreshLoop() {
	defer p.done.Done()
	p.sync = syncState{
		missing: make(map[string]int), configs: make(map[string]map[string]struct{}),
		told: make(map[string]string), ids: make(map[string]metadata.TopicID),
	}
	timer := p.m.o.Clock.NewTimer(p.m.settings.Load().RefreshInterval)
	defer timer.Stop()
	var last time.Time
	for {
		woken := false
		p.m.sched.until(func() bool { return len(timer.C()) > 0 || len(p.wakeup) > 0 || p.ctx.Err() != nil })
		select {
		case <-p.ctx.Done():
			return
		case <-p.wakeup: // before the timer, where both are there: a run has to be the same each time
			woken = true
		default:
			select {
			case <-p.ctx.Done():
				return
			case <-timer.C():
			case <-p.wakeup:
				woken = true
			}
		}
		if gap := min(minRefreshGap, p.m.settings.Load().RefreshInterval); woken && p.m.o.Clock.Now().Sub(last) < gap {
			pause := p.m.o.Clock.NewTimer(gap)
			p.m.sched.until(func() bool { return len(pause.C()) > 0 || p.ctx.Err() != nil })
			select {
			case <-p.ctx.Done():
				pause.Stop()
				return
			case <-pause.C():
			}
		}
		p.refresh(p.ctx)
		last = p.m.o.Clock.Now()
		timer.Reset(p.m.settings.Load().RefreshInterval)
	}
}

// refresh is one round. Its steps do not depend on each other: an error in one
// is logged and counted, and the others run (W10). Only a source that does not
// answer at all, or is another cluster, ends the round.
func (p *peer) refresh(ctx context.Context) {
	img := p.m.o.Controller.Image()
	mirror := img.Mirror(p.name)
	if mirror == nil {
		return // being deleted
	}
	attached := mirroredTopics(img, p.name)
	cluster, err := p.checkSource(ctx, mirror, attached)
	p.note(syncSource, err)
	if err != nil {
		p.sync.away = true
		return
	}

	if p.m.sched == nil { // a simulation has two clusters, and nothing beyond them
		if _, _, err := p.learnOrigins(ctx, cluster, nil); err != nil {
			p.log.Debug("the source's own mirrors cannot be listed", "err", err) // a start will say so
		}
	}
	listing, err := p.describeTopics(ctx, cluster, attached)
	if err == nil {
		err = p.syncTopics(ctx, img, attached, listing)
	}
	p.note(syncTopics, err)
	if p.sync.away && err == nil {
		p.sync.away = false
		p.wakeFailed(attached)
	}
	if !p.m.owns(img, p.name) {
		clear(p.sync.configs) // whoever owned the mirror meanwhile knows better (W48)
		return
	}
	p.note(syncConfigs, p.syncConfigs(ctx, cluster, mirror, attached))
	if p.m.o.CommitGroup != nil {
		p.note(syncGroups, p.syncGroups(ctx, cluster, mirror, attached))
	}
	if p.m.o.Authorizer {
		p.note(syncACLs, p.syncACLs(ctx, cluster, mirror, attached))
	}
	if listing != nil {
		p.note(syncDiscovery, p.discover(ctx, cluster, listing))
	}
}

// mirroredTopics are the topics of a mirror that are not stopped (W11).
func mirroredTopics(img *metadata.Image, mirror string) []*metadata.Topic {
	return slices.DeleteFunc(img.MirrorTopics(mirror), func(t *metadata.Topic) bool {
		return t.Attachment().Desired == metadata.DesiredStopped
	})
}

// checkSource compares the source's cluster id with the one learnt at creation
// (W9): a new cluster behind the same address must not be mirrored into old
// logs.
func (p *peer) checkSource(ctx context.Context, mirror *metadata.Mirror, attached []*metadata.Topic) (Source, error) {
	cluster, err := p.source()
	if err != nil {
		return nil, err
	}
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	id, err := cluster.ID(ctx)
	if err != nil {
		return nil, err
	}
	if want := mirror.SourceClusterID(); want != "" && id != want {
		text := fmt.Sprintf("source cluster id changed from %s to %s; stop the topics and create a new mirror", want, id)
		for _, t := range attached {
			p.condemn(t, text)
		}
		return nil, errors.New(text)
	}
	return cluster, nil
}

func (p *peer) condemn(t *metadata.Topic, text string) {
	for _, mp := range t.Partitions {
		p.m.post(nameKey{t.Name, mp.Index}, condemned{text})
	}
}

// wakeFailed lets partitions that failed because the source was away try again
// now rather than after their backoff.
func (p *peer) wakeFailed(attached []*metadata.Topic) {
	for _, t := range attached {
		for _, mp := range t.Partitions {
			if t.MirrorState(mp) == metadata.StateFailed {
				p.m.post(nameKey{t.Name, mp.Index}, sourceBack{})
			}
		}
	}
}

// describeTopics lists the source's topics. What the listing lacks is asked for
// by name, because only both together say that a topic was deleted.
func (p *peer) describeTopics(ctx context.Context, cluster Source, attached []*metadata.Topic) (*source.Metadata, error) {
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	listing, err := cluster.Metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	known := &source.Metadata{Brokers: listing.Brokers, Topics: make(map[string]*source.Topic, len(attached))}
	var absent []string
	for _, t := range attached {
		if st := listing.Topics[t.Name]; st != nil {
			known.Topics[t.Name] = st
		} else {
			absent = append(absent, t.Name)
		}
	}
	if len(absent) > 0 {
		described, err := cluster.Metadata(ctx, absent)
		if err != nil {
			return nil, err
		}
		for name, st := range described.Topics {
			known.Topics[name] = st
			if !errors.Is(st.Err, kerr.UnknownTopicOrPartition) {
				listing.Topics[name] = st // not visible to us, or just created
			}
		}
	}
	for _, key := range p.learn(cluster, known) {
		p.m.post(key, sourceMoved{})
	}
	return listing, nil
}

// syncTopics follows growth, deletion and re-creation of the source's topics
// (9.4), and raises leader epochs that the source's came near (W31).
func (p *peer) syncTopics(ctx context.Context, img *metadata.Image, attached []*metadata.Topic, listing *source.Metadata) error {
	var errs []error
	var grown []controller.CreatePartitions
	missing := make(map[string]int)
	for _, t := range attached {
		st := listing.Topics[t.Name]
		if st == nil {
			missing[t.Name] = p.sync.missing[t.Name] + 1
			if missing[t.Name] >= 2 {
				p.condemn(t, fmt.Sprintf("source topic %s was deleted; its data stays here: stop it to write to it", t.Name))
			}
			continue
		}
		switch {
		case st.Err != nil:
			errs = append(errs, fmt.Errorf("source topic %s: %w", t.Name, st.Err))
			continue
		case !t.ID.IsTopicOf(st.ID):
			p.condemn(t, recreatedText(t.Name, st.ID, t.ID))
			continue
		case !metadata.TopicID(st.ID).IsZero() && st.ID != t.ID:
			// The source tells ids since it was updated: that it is another topic from now
			// on shows in a change.
			if was, ok := p.sync.ids[t.Name]; ok && was != st.ID {
				p.condemn(t, recreatedText(t.Name, st.ID, was))
				continue
			}
			p.sync.ids[t.Name] = st.ID
		}
		p.compareCounts(t, st)
		if n := int32(len(st.Partitions)); n > int32(len(t.Partitions)) {
			grown = append(grown, controller.CreatePartitions{Topic: t.Name, Total: n, FromMirror: true})
		}
	}
	p.sync.missing = missing
	if len(grown) > 0 && p.m.owns(img, p.name) {
		for _, res := range p.m.o.Controller.CreatePartitions(ctx, grown, false) {
			if res.Err != nil {
				errs = append(errs, fmt.Errorf("grow %s: %w", res.Name, res.Err))
			} else {
				p.log.Info("topic grew after its source", "topic", res.Name)
			}
		}
	}
	return errors.Join(errs...)
}

// compareCounts fails the partitions that the source does not have, and frees
// those that it has got since (W16). For the others it raises epochs.
func (p *peer) compareCounts(t *metadata.Topic, st *source.Topic) {
	for _, mp := range t.Partitions {
		key := nameKey{t.Name, mp.Index}
		if int(mp.Index) >= len(st.Partitions) {
			p.m.post(key, condemned{fmt.Sprintf("%s%s has %d partitions there, so partition %d is not mirrored until it grows or the topic is stopped",
				prefixSurplus, t.Name, len(st.Partitions), mp.Index)})
			continue
		}
		if t.MirrorState(mp) == metadata.StateFailed {
			p.m.post(key, pardoned{})
		}
		epoch := st.Partitions[mp.Index].LeaderEpoch
		if _, need := metadata.NeedBump(epoch, mp.LeaderEpoch); need && t.MirrorState(mp) == metadata.StateMirroring {
			p.m.post(key, nearEpoch{epoch})
		}
	}
}

// tell logs a fact about a subject when it is another one than last time.
func (p *peer) tell(subject, fact string) {
	if p.sync.told[subject] == fact {
		return
	}
	if len(p.sync.told) > 10000 {
		clear(p.sync.told) // repeating a line is better than growing for ever
	}
	p.sync.told[subject] = fact
	p.log.Warn(fact)
}
