package mirror

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/source"
)

// A loop over three clusters and over four, one topic of it and not the other (MIR-278,
// O12). Each cluster tells what it was told.
func TestOriginsOfChains(t *testing.T) {
	// b mirrors t from a, and u from elsewhere; c both from b; d both from c.
	b := []source.MirrorListing{{Name: "m", SourceClusterID: "a", Topics: []string{"t"}}, {Name: "n", SourceClusterID: "x", Topics: []string{"u"}}}
	tell := func(from string, upstream []source.MirrorListing) []source.MirrorListing {
		return []source.MirrorListing{{Name: "m", SourceClusterID: from, Topics: []string{"t", "u"}, Origins: originsOf(upstream)}}
	}
	c := tell("b", b)
	d := tell("c", c)
	for _, test := range []struct {
		asker   string
		mirrors []source.MirrorListing
		loops   []string
	}{
		{"a", b, []string{"t"}}, {"a", c, []string{"t"}}, {"a", d, []string{"t"}},
		{"b", c, []string{"t", "u"}}, {"b", d, []string{"t", "u"}},
		{"x", d, []string{"u"}},
		{"e", d, nil},
	} {
		var loops []string
		all := originsOf(test.mirrors)
		for _, topic := range slices.Sorted(maps.Keys(all)) {
			if slices.Contains(all[topic], test.asker) {
				loops = append(loops, topic)
			}
		}
		if !slices.Equal(loops, test.loops) {
			t.Errorf("%s from a cluster that tells %v: loops %v, want %v", test.asker, all, loops, test.loops)
		}
	}
	// A loop that exists all the same does not grow what is told of it.
	ring := d
	for range 100 {
		ring = tell("c", tell("d", ring))
	}
	if got := originsOf(ring)["t"]; len(got) > 5 {
		t.Errorf("after going round: %v", got)
	}
}

// listing is a source that tells of mirrors of its own.
type listing struct {
	Source
	mirrors []source.MirrorListing
}

func (l *listing) ListMirrors(context.Context) ([]source.MirrorListing, bool, error) {
	return l.mirrors, true, nil
}

// MIR-278: the start that would close a loop over a third cluster is refused, and nothing is cut;
// it goes on by itself once the other end was stopped.
func TestLoopOverOthersIsRefused(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a")
	ours := ""
	w := newWorld(t, func(o *Options) { ours = o.ClusterID })
	w.create("m", src)
	w.until("the mirror is known", func() bool { return w.m.peer("m") != nil })
	p := w.m.peer("m")
	p.mu.Lock()
	real := p.mu.cluster
	p.mu.cluster = &listing{real, []source.MirrorListing{{Name: "n", SourceClusterID: "third", Topics: []string{"orders"}, Origins: map[string][]string{"orders": {ours}}}}}
	p.mu.Unlock()
	w.start("m", "orders")
	if d := w.failed("orders", 0, "mirror loop"); d.RetryAttempt < 1 {
		t.Errorf("%+v", d)
	}
	// And who asks us is told of both.
	w.until("the origins are told", func() bool {
		l := w.c.List()
		return len(l) == 1 && slices.Equal(l[0].Origins["orders"], []string{"third", ours})
	})
	p.mu.Lock()
	p.mu.cluster = real
	p.mu.Unlock()
	w.caughtUp("orders", 0, 1)
}
