package mirror

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// stuckSource takes the question for last mirrored epochs and does not answer.
type stuckSource struct {
	Source
	stuck *atomic.Bool
	asked chan struct{}
}

func (s stuckSource) LastMirroredEpochs(ctx context.Context, mirror, ours string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
	if !s.stuck.Load() {
		return s.Source.LastMirroredEpochs(ctx, mirror, ours, keys)
	}
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, true, ctx.Err()
}

// A failover waits for no source, nor for anything that waits for one: as many
// partitions as there are places were once enough to hold up the failover of another
// mirror for as long as their source kept silent (W59).
func TestStopPassesAStuckSource(t *testing.T) {
	silent, dying := newSource(t, kfake.SeedTopics(1, "silent")), newSource(t, kfake.SeedTopics(1, "dying"))
	var stuck atomic.Bool
	asked := make(chan struct{}, 1)
	w := newWorld(t, func(o *Options) {
		o.Actions = 1
		o.Open = func(configs map[string]string, so source.Options) (Source, error) {
			s, err := openSource(configs, so)
			if err == nil && configs["bootstrap.servers"] == strings.Join(silent.ListenAddrs(), ",") {
				s = stuckSource{s, &stuck, asked}
			}
			return s, err
		}
	})
	produce(t, silent, "silent", 0, "a")
	produce(t, dying, "dying", 0, "a")
	w.create("m", dying)
	w.start("m", "dying")
	w.create("s", silent)
	w.start("s", "silent")
	w.caughtUp("dying", 0, 1)
	w.caughtUp("silent", 0, 1)
	w.names(w.c.Stop(w.ctx, "s", nil, []string{"silent"}))
	w.state("silent", 0, metadata.StateStopped)
	stuck.Store(true)
	w.start("s", "silent")
	<-asked // the only place is taken

	dying.Close()
	w.names(w.c.Stop(w.ctx, "m", nil, []string{"dying"}))
	w.state("dying", 0, metadata.StateStopped)
	w.state("silent", 0, metadata.StatePreparing)
}
