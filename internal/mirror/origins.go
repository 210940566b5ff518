package mirror

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/source"
)

// A mirror's topic may come from further than its source: the source mirrors it too.
// Each cluster tells, beside its mirrors' topics (key 98), from which clusters they
// come beyond the direct source, as it was told by that source in turn. So a cluster
// that is about to mirror from one that mirrors from it, over however many others, sees
// its own id, without a connection to any but its source (O12).
//
// What is remembered of that may be a refresh interval old, which is not enough for who is
// about to cut a log: two links of one loop, begun at the same time, would each see the
// others without the other one. So a start is recorded first, and then the source asks its
// own sources before it answers, and they theirs, up to the one that has been asked
// already: of two links the one that asks later sees the other. Who cannot be reached on
// the way leaves the answer stale, and nothing is cut by a stale one. Apache Kafka tells
// nothing, and ends every chain.

// maxOrigins bounds what is believed of one topic.
const maxOrigins = 64

// An ask takes at most longestAsk, each further cluster gets half of what its asker has,
// and one that would get less than shortestAsk is not asked any more: some seven clusters.
// That many asks of one mirror run at a time, whoever wants to know.
const (
	longestAsk  = 5 * time.Second
	shortestAsk = 50 * time.Millisecond
	maxAsks     = 8
)

// originsOf are the clusters that topics of a source come from beyond it, by topic:
// direct are those of whom the source itself mirrors, and all with them those of whom
// these did. Ids stand once, which ends the telling where a loop exists already.
func originsOf(mirrors []source.MirrorListing) (all map[string]source.Origin) {
	all = make(map[string]source.Origin)
	for _, m := range mirrors {
		for _, t := range m.Topics {
			o := all[t]
			for _, id := range append([]string{m.SourceClusterID}, m.Origins[t].ClusterIDs...) {
				if id != "" && !slices.Contains(o.ClusterIDs, id) && len(o.ClusterIDs) < maxOrigins {
					o.ClusterIDs = append(o.ClusterIDs, id)
				}
			}
			o.Stale = o.Stale || m.Origins[t].Stale
			all[t] = o
		}
	}
	return all
}

// learnOrigins asks the source from where its topics come, and with an ask has it ask on.
func (p *peer) learnOrigins(ctx context.Context, cluster Source, ask *source.OriginsAsk) (mirrors []source.MirrorListing, supported bool, err error) {
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	if mirrors, supported, err = cluster.ListMirrors(ctx, ask); err != nil {
		return nil, supported, err
	}
	all := originsOf(mirrors)
	p.mu.Lock()
	p.mu.origins = all
	p.mu.Unlock()
	return mirrors, supported, nil
}

// loopAnswer is what the source's mirrors are, asked through.
type loopAnswer struct {
	mirrors   []source.MirrorListing
	supported bool
	err       error
}

// askLoops is the batched call of loops: all partitions that wait share one ask, which
// begins after they began to wait.
func (p *peer) askLoops(ctx context.Context, topics []string) []loopAnswer {
	var a loopAnswer
	cluster, err := p.source()
	if a.err = err; err == nil {
		ask := &source.OriginsAsk{Asked: []string{p.m.o.ClusterID}, Within: min(longestAsk, p.timeout()/2)}
		a.mirrors, a.supported, a.err = p.learnOrigins(ctx, cluster, ask)
	}
	return slices.Repeat([]loopAnswer{a}, len(topics))
}

// originOf is from where a topic of this mirror comes beyond its source, as far as is
// known.
func (p *peer) originOf(topic string) source.Origin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.origins[topic]
}

// ListAsking is List for a cluster that is about to mirror from us: the sources of our
// mirrors are asked now from where their topics come. A topic whose source does not say is
// stale. If we have been asked already, the way has come round, and the mirrors are told
// alone.
func (c *Coordinator) ListAsking(ctx context.Context, ask source.OriginsAsk) []Listing {
	round := slices.Contains(ask.Asked, c.m.o.ClusterID) || len(ask.Asked) > maxOrigins
	var fresh map[string]map[string]source.Origin
	if !round {
		fresh = c.m.askOrigins(ctx, ask)
	}
	out := c.List()
	for i := range out {
		l := &out[i]
		if round {
			l.Origins = nil
			continue
		}
		known := l.Origins
		l.Origins = make(map[string]source.Origin)
		for _, t := range l.Topics {
			if origins, answered := fresh[l.Name]; answered {
				l.Origins[t] = origins[t]
			} else {
				l.Origins[t] = source.Origin{ClusterIDs: known[t].ClusterIDs, Stale: true}
			}
		}
	}
	return out
}

// askOrigins asks the sources of all mirrors that mirror something, and returns the answers
// by mirror and topic.
func (m *Manager) askOrigins(ctx context.Context, ask source.OriginsAsk) map[string]map[string]source.Origin {
	within := min(ask.Within, longestAsk)
	next := &source.OriginsAsk{Asked: append(slices.Clone(ask.Asked), m.o.ClusterID), Within: within / 2}
	ctx, cancel := m.sched.within(ctx, within)
	defer cancel()
	img := m.o.Controller.Image()
	fresh := make(map[string]map[string]source.Origin)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, mirror := range img.Mirrors() {
		if len(mirroredTopics(img, mirror.Name)) == 0 {
			continue
		}
		wg.Go(func() {
			mirrors, ok := m.askSource(ctx, mirror.Name, next)
			if ok {
				mu.Lock()
				defer mu.Unlock()
				fresh[mirror.Name] = originsOf(mirrors)
			}
		})
	}
	wg.Wait()
	return fresh
}

// askSource asks one source; false if it did not answer. One that does not know the
// question has no mirrors.
func (m *Manager) askSource(ctx context.Context, mirror string, ask *source.OriginsAsk) ([]source.MirrorListing, bool) {
	p := m.peer(mirror)
	if p == nil || ask.Within < shortestAsk {
		return nil, false
	}
	select {
	case p.asks <- struct{}{}:
		defer func() { <-p.asks }()
	case <-ctx.Done():
		return nil, false
	}
	cluster, err := p.source()
	if err != nil {
		return nil, false
	}
	mirrors, _, err := p.learnOrigins(ctx, cluster, ask)
	return mirrors, err == nil
}
