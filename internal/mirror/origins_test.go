package mirror

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
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
			if slices.Contains(all[topic].ClusterIDs, test.asker) {
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
	if got := originsOf(ring)["t"].ClusterIDs; len(got) > 5 {
		t.Errorf("after going round: %v", got)
	}
}

// MIR-278: the start that would close a loop over a third cluster is refused, and nothing is cut;
// it goes on by itself once the other end was stopped.
func TestLoopOverOthersIsRefused(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a")
	ours := ""
	w := newWorld(t, func(o *Options) { ours = o.ClusterID })
	w.create("m", src)
	real := w.tells("m", func(real Source) Source {
		return &teller{Source: real, mirrors: []source.MirrorListing{{Name: "n", SourceClusterID: "third", Topics: []string{"orders"}, Origins: map[string]source.Origin{"orders": {ClusterIDs: []string{ours}}}}}}
	})
	w.start("m", "orders")
	if d := w.failed("orders", 0, "mirror loop"); d.RetryAttempt < 1 {
		t.Errorf("%+v", d)
	}
	// And who asks us is told of both.
	w.until("the origins are told", func() bool {
		l := w.c.List()
		return len(l) == 1 && slices.Equal(l[0].Origins["orders"].ClusterIDs, []string{"third", ours})
	})
	w.tells("m", func(Source) Source { return real })
	w.caughtUp("orders", 0, 1)
}

// Somebody on the way of a topic cannot be asked from where he has it, which might be here:
// nothing is cut by that, and the start goes on when he answers.
func TestStaleOriginsCutNothing(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a", "b")
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 2)
	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	real := w.tells("m", func(real Source) Source {
		return &teller{Source: real, last: []source.LastMirrored{{Epoch: 0, Offset: 1}}, mirrors: []source.MirrorListing{{
			Name: "n", SourceClusterID: "third", Topics: []string{"orders"}, Origins: map[string]source.Origin{"orders": {Stale: true}},
		}}}
	})
	w.start("m", "orders")
	if d := w.failed("orders", 0, "nothing is cut"); d.RetryAttempt < 1 || !strings.Contains(d.ErrorMessage, "third") {
		t.Errorf("%+v", d)
	}
	if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 3 || w.cut() > 0 {
		t.Errorf("the log ends at %d, %d records were cut", end, w.cut())
	}
	w.tells("m", func(Source) Source { return real })
	w.caughtUp("orders", 0, 2)
}

// Whoever is asked by a cluster that is about to mirror from it asks its own sources, with
// half of the time, and tells them who has been asked; a source that does not answer leaves
// its topics stale, and who has been asked already asks nobody.
func TestListAsking(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a")
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	ours := w.m.o.ClusterID
	there := &teller{mirrors: []source.MirrorListing{{Name: "n", SourceClusterID: "third", Topics: []string{"orders"}, Origins: map[string]source.Origin{"orders": {ClusterIDs: []string{"fourth"}}}}}}
	w.tells("m", func(real Source) Source { there.Source = real; return there })
	for _, c := range []struct {
		what string
		ask  source.OriginsAsk
		err  error
		want source.Origin
		next *source.OriginsAsk
	}{
		{"it answers", source.OriginsAsk{Asked: []string{"asker"}, Within: 2 * time.Second}, nil, source.Origin{ClusterIDs: []string{"third", "fourth"}},
			&source.OriginsAsk{Asked: []string{"asker", ours}, Within: time.Second}},
		{"it does not", source.OriginsAsk{Asked: []string{"asker"}, Within: time.Hour}, errors.New("away"), source.Origin{ClusterIDs: []string{"third", "fourth"}, Stale: true},
			&source.OriginsAsk{Asked: []string{"asker", ours}, Within: longestAsk / 2}},
		{"no time is left", source.OriginsAsk{Asked: []string{"asker"}, Within: shortestAsk}, nil, source.Origin{ClusterIDs: []string{"third", "fourth"}, Stale: true}, nil},
		{"the way has come round", source.OriginsAsk{Asked: []string{"asker", ours, "third"}, Within: time.Second}, nil, source.Origin{}, nil},
	} {
		there.mu.Lock()
		there.asked, there.err = nil, c.err
		there.mu.Unlock()
		l := w.c.ListAsking(w.ctx, c.ask)
		if got := l[0].Origins["orders"]; len(l) != 1 || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.what, l, c.want)
		}
		there.mu.Lock()
		if !reflect.DeepEqual(there.asked, c.next) {
			t.Errorf("%s: it was asked %+v, want %+v", c.what, there.asked, c.next)
		}
		there.mu.Unlock()
	}
}
