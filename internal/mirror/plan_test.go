package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// teller is a source that was a mirror of this cluster, and tells what it had last.
type teller struct {
	Source
	last    []source.LastMirrored // of every partition; nothing: it does not answer
	mirrors []source.MirrorListing

	mu    sync.Mutex
	err   error // of asks
	asked *source.OriginsAsk
}

// tells puts another source into the place of a mirror's, and answers the one before.
func (w *world) tells(mirror string, by func(real Source) Source) Source {
	w.t.Helper()
	w.until("the mirror is known", func() bool { return w.m.peer(mirror) != nil })
	p := w.m.peer(mirror)
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.mu.cluster
	p.mu.cluster = by(before)
	return before
}

func (s *teller) LastMirroredEpochs(_ context.Context, _, _ string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
	found := make(map[sdk.PartitionKey]source.LastMirrored)
	for _, k := range keys {
		for _, last := range s.last {
			found[k] = last
		}
	}
	return found, true, nil
}

func (s *teller) ListMirrors(_ context.Context, ask *source.OriginsAsk) ([]source.MirrorListing, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ask == nil {
		return s.mirrors, true, nil // of a refresh
	}
	s.asked = ask
	return s.mirrors, true, s.err
}

// The plan of a start: what would be cut and what of it the source does not have, by what
// the source tells of the last mirrored epoch. It changes nothing, and the start then does
// what it said.
func TestPlanStart(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "new"))
	produce(t, src, "orders", 0, "a", "b", "c")
	w := newWorld(t, nil)
	w.create("m", src)
	var real Source
	w.tells("m", func(s Source) Source { real = s; return s })
	tells := func(s Source) { w.tells("m", func(Source) Source { return s }) }
	// plan is TOPIC: STATE BASIS LOG-END CUT-TO SHARED, or the error.
	plan := func(want ...string) {
		t.Helper()
		planned, err := w.c.PlanStart(w.ctx, StartRequest{Mirror: "m", Include: []string{"orders", "new"}})
		must(t, err)
		var got []string
		for _, topic := range planned {
			line := topic.Name + ":"
			if topic.Err != nil {
				line += " " + topic.Err.Error()
			}
			for _, p := range topic.Partitions {
				line += fmt.Sprintf(" %s %s %d %d %d", p.State, p.Basis, p.LogEnd, p.CutTo, p.Shared)
				if p.ErrorMessage != nil {
					line += " " + *p.ErrorMessage
				}
			}
			got = append(got, line)
		}
		for i := range want {
			if len(got) != len(want) || !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("the plan is %q, want %q", got, want)
				return
			}
		}
	}

	plan("new:", "orders:") // neither is here
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
	plan("new:", "orders: MIRRORING running 3 3 3")

	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	before := w.ctrl.Image().Revision
	plan("new:", "orders: STOPPED not-told 4 0 3") // the reset of producer ids is here alone
	last := &teller{Source: real, last: []source.LastMirrored{{Epoch: 0, Offset: 2}}}
	tells(last)
	plan("new:", "orders: STOPPED last-mirrored 4 2 2")
	tells(&teller{Source: real, last: []source.LastMirrored{{Epoch: 0, Offset: -1}}})
	plan("new:", "orders: STOPPED last-mirrored 4 3 3")
	tells(&teller{Source: real, last: []source.LastMirrored{{Epoch: -1, Offset: -1}}})
	plan("new:", "orders: STOPPED no-record 4 0 3")
	tells(&teller{Source: real})
	plan("new:", "orders: STOPPED unknown 4 -1 -1 the source does not tell")
	tells(&teller{Source: real, mirrors: []source.MirrorListing{{Name: "n", SourceClusterID: w.m.o.ClusterID, Topics: []string{"orders"}}}})
	plan("new:", "orders: mirror loop")
	tells(last)

	denied := errors.New("denied")
	may := w.c.For(func(topics []string) error {
		if slices.Contains(topics, "orders") {
			return denied
		}
		return nil
	})
	if _, err := may.PlanStart(w.ctx, StartRequest{Mirror: "m", Include: []string{"ord.*"}}); !errors.Is(err, denied) {
		t.Errorf("a plan without rights on the topic: %v", err)
	}
	if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 4 || w.cut() > 0 || w.ctrl.Image().Revision != before {
		t.Errorf("the log ends at %d, %d records were cut, revision %d after %d: the plan changed something", end, w.cut(), w.ctrl.Image().Revision, before)
	}
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
	if w.cut() != 2 {
		t.Errorf("the start cut %d records", w.cut())
	}
}
