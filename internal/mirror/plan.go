package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// PlannedTopic is what a start would do to a topic; see wire.PlannedTopic.
type PlannedTopic struct {
	Name       string
	Err        error
	Partitions []wire.PlannedPartition
}

// planners is how many partitions of a plan are compared with the source at a time.
const planners = 32

// PlanStart tells what Start would do, by the same questions to the source and the same
// rules as prepare, and changes nothing. A truncation policy is not asked: it is asked
// once, before a cut. What the source answers may be another thing when it comes to it.
func (c *Coordinator) PlanStart(ctx context.Context, r StartRequest) ([]PlannedTopic, error) {
	m, err := c.mirror(r.Mirror)
	if err != nil {
		return nil, err
	}
	include, exclude, err := startFilters(m, r)
	if err == nil {
		err = c.may(r.Topics)
	}
	if err != nil {
		return nil, err
	}
	var out []PlannedTopic
	err = c.withSource(ctx, m, false, func(ctx context.Context, cluster Source) error {
		listing, wanted, refused, err := c.startable(ctx, cluster, m, r, include, exclude)
		if err != nil {
			return err
		}
		for _, topic := range refused {
			out = append(out, PlannedTopic{Name: topic.Name, Err: topic.Err})
		}
		p := startPlanner{c: c, cluster: cluster, mirror: m, brokers: listing.Brokers}
		planned, err := p.plan(ctx, wanted)
		out = append(out, planned...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mirror %s: %w", r.Mirror, err)
	}
	return out, nil
}

// startPlanner plans one start.
type startPlanner struct {
	c       *Coordinator
	cluster Source
	mirror  *metadata.Mirror
	brokers map[int32]sdk.BrokerAddr
}

// planning is a partition whose log may be cut.
type planning struct {
	loc  location
	ours wire.MirrorOffsets
	out  *wire.PlannedPartition
}

func (s *startPlanner) plan(ctx context.Context, wanted []*source.Topic) ([]PlannedTopic, error) {
	img := s.c.image()
	mirrors, _, err := s.cluster.ListMirrors(ctx, &source.OriginsAsk{Asked: []string{s.c.m.o.ClusterID}, Within: longestAsk})
	if err != nil {
		return nil, fmt.Errorf("list the source's mirrors: %w", err)
	}
	out := make([]PlannedTopic, len(wanted))
	var existing []*metadata.Topic
	for i, st := range wanted {
		out[i].Name = st.Name
		t := img.Topic(st.Name)
		if t == nil {
			continue
		}
		if out[i].Err = controller.CheckStart(t, s.mirror.Name, st.ID); out[i].Err == nil {
			_, res := loopOver(mirrors, s.c.m.o.ClusterID, st.Name)
			out[i].Err = res.err
		}
		if out[i].Err == nil {
			existing = append(existing, t)
		}
	}
	offsets, _ := s.c.m.offsets(ctx, s.mirror.Name, existing, true, func(*metadata.Topic, *metadata.Partition) bool { return true })

	var all []planning
	for i, st := range wanted {
		t := img.Topic(st.Name)
		if t == nil || out[i].Err != nil {
			continue
		}
		out[i].Partitions = make([]wire.PlannedPartition, len(t.Partitions))
		for j, mp := range t.Partitions {
			o, known := offsets[nameKey{t.Name, mp.Index}]
			planned := &out[i].Partitions[j]
			*planned = s.begin(t, mp, o, known)
			if planned.Basis == "" {
				all = append(all, planning{s.where(st, mp.Index), o, planned})
			}
		}
	}
	return out, s.compare(ctx, all)
}

// begin is the plan of a partition as far as the source need not be asked. The basis is
// empty where it must.
func (s *startPlanner) begin(t *metadata.Topic, mp *metadata.Partition, o wire.MirrorOffsets, known bool) wire.PlannedPartition {
	state := t.MirrorState(mp)
	p := wire.PlannedPartition{Partition: mp.Index, State: state.String(), LastMirroredEpoch: -1, LogStart: -1, LogEnd: -1, CutTo: -1, Shared: -1}
	a := t.Attachment()
	if known {
		p.LogStart, p.LogEnd = o.LogStart, o.LogEnd
	}
	switch {
	case a.Mirror == s.mirror.Name && a.Desired == metadata.DesiredMirroring && state != metadata.StateFailed:
		p.Basis, p.CutTo, p.Shared = wire.BasisRunning, p.LogEnd, p.LogEnd
	case !known || p.LogEnd < 0:
		unknown(&p, "its leader here does not answer")
	case p.LogEnd == p.LogStart:
		p.Basis, p.CutTo, p.Shared = wire.BasisEmpty, p.LogEnd, p.LogEnd
	case len(o.Epochs) == 0:
		unknown(&p, "the history of its log is not known: it is read anew after a start, or its leader here is of an older version")
	}
	return p
}

// where is the source's partition. One without a leader has no address.
func (s *startPlanner) where(st *source.Topic, index int32) location {
	loc := location{epoch: -1, key: sdk.PartitionKey{Topic: st.Name, TopicID: st.ID, Partition: index}}
	if int(index) < len(st.Partitions) {
		sp := st.Partitions[index]
		loc.broker, loc.epoch = s.brokers[sp.Leader], sp.LeaderEpoch
	}
	return loc
}

// compare finishes plans by what the source says.
func (s *startPlanner) compare(ctx context.Context, all []planning) error {
	if len(all) == 0 {
		return nil
	}
	keys := make([]sdk.PartitionKey, len(all))
	for i, p := range all {
		keys[i] = p.loc.key
	}
	found, supported, err := s.cluster.LastMirroredEpochs(ctx, s.mirror.Name, s.c.m.o.ClusterID, keys)
	if err != nil && len(found) == 0 {
		return fmt.Errorf("last mirrored epochs: %w", err)
	}
	next := make(chan planning)
	var wg sync.WaitGroup
	for range min(planners, len(all)) {
		wg.Go(func() {
			for p := range next {
				lme, answered := found[p.loc.key]
				if supported && !answered {
					unknown(p.out, "the source does not tell its last mirrored epoch: "+cmp.Or(err, errors.New("no answer")).Error())
					continue
				}
				if !supported {
					lme = source.LastMirrored{Epoch: -1, Offset: -1}
				}
				s.cut(ctx, p, lme, supported)
			}
		})
	}
	for _, p := range all {
		next <- p
	}
	close(next)
	wg.Wait()
	return ctx.Err()
}

// cut is the rule of prepare.
func (s *startPlanner) cut(ctx context.Context, p planning, lme source.LastMirrored, supported bool) {
	entries := make([]epoch.Entry, len(p.ours.Epochs))
	for i, e := range p.ours.Epochs {
		entries[i] = epoch.Entry{Epoch: e.Epoch, Start: e.Start}
	}
	p.out.LastMirroredEpoch = lme.Epoch
	p.out.CutTo = epoch.MirrorTarget(entries, p.ours.LogEnd, lme.Epoch, lme.Offset)
	from := p.ours.LogEnd // all of the log is compared, where all of it is copied again
	switch {
	case lme.Epoch >= 0:
		p.out.Basis, from = wire.BasisLastMirrored, p.out.CutTo
	case supported:
		p.out.Basis = wire.BasisNeverThere
	default:
		p.out.Basis = wire.BasisUnsupported
	}
	if supported && lme.Epoch < 0 && s.mirror.Config(metadata.MirrorStartRequiresEmptyLME) == "true" {
		say(p.out, fromZeroForbidden(p.loc.key, p.ours.LogEnd-p.ours.LogStart).Error())
	}
	if p.loc.broker == (sdk.BrokerAddr{}) {
		say(p.out, errSourceNoLeader.Error())
		return
	}
	shared, err := align(entries, from, s.questions(ctx, p.loc))
	if err != nil {
		say(p.out, fmt.Sprintf("align with the source: %v", err))
		return
	}
	p.out.Shared = shared
	if lme.Epoch >= 0 {
		p.out.CutTo = shared
	}
}

func (s *startPlanner) questions(ctx context.Context, loc location) alignQuestions {
	return questionsOf(ctx, s.c.m.sched, requestTimeout(s.mirror), s.cluster, loc)
}

// unknown ends a plan that nobody can make.
func unknown(p *wire.PlannedPartition, why string) {
	p.Basis = wire.BasisUnknown
	say(p, why)
}

func say(p *wire.PlannedPartition, text string) { p.ErrorMessage = &text }
