package mirror

import (
	"context"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/source"
)

// A mirror's topic may come from further than its source: the source mirrors it too.
// Each cluster tells, beside its mirrors' topics (key 98), from which clusters they
// come beyond the direct source, as it was told by that source in turn. So a cluster
// that is about to mirror from one that mirrors from it, over however many others, sees
// its own id, without a connection to any but its source (O12). What is told may be a
// refresh interval old; Apache Kafka tells nothing, and ends every chain.

// maxOrigins bounds what is believed of one topic.
const maxOrigins = 64

// originsOf are the clusters that topics of a source come from beyond it, by topic:
// direct are those of whom the source itself mirrors, and all with them those of whom
// these did. Ids stand once, which ends the telling where a loop exists already.
func originsOf(mirrors []source.MirrorListing) (all map[string][]string) {
	all = make(map[string][]string)
	for _, m := range mirrors {
		for _, t := range m.Topics {
			ids := all[t]
			for _, id := range append([]string{m.SourceClusterID}, m.Origins[t]...) {
				if id != "" && !slices.Contains(ids, id) && len(ids) < maxOrigins {
					ids = append(ids, id)
				}
			}
			all[t] = ids
		}
	}
	return all
}

// learnOrigins asks the source from where its topics come.
func (p *peer) learnOrigins(ctx context.Context, cluster Source) (mirrors []source.MirrorListing, supported bool, err error) {
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	if mirrors, supported, err = cluster.ListMirrors(ctx); err != nil {
		return nil, supported, err
	}
	all := originsOf(mirrors)
	p.mu.Lock()
	p.mu.origins = all
	p.mu.Unlock()
	return mirrors, supported, nil
}

// originOf is from where a topic of this mirror comes beyond its source, as far as is
// known.
func (p *peer) originOf(topic string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.origins[topic]
}
