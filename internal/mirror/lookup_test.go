package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// telling is a source that answers the question for last mirrored epochs by a function.
type telling struct {
	Source
	answer func(keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error)
	asked  atomic.Int32
}

func (l *telling) LastMirroredEpochs(_ context.Context, _, _ string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
	l.asked.Add(1)
	return l.answer(keys)
}

// answers has a mirror's source answer that question by fn.
func (w *world) answers(mirror string, fn func(keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error)) *telling {
	w.t.Helper()
	p := w.m.peer(mirror)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, ok := p.mu.cluster.(*telling); ok {
		l.answer = fn
		return l
	}
	l := &telling{Source: p.mu.cluster, answer: fn}
	p.mu.cluster = l
	return l
}

func everywhere(keys []sdk.PartitionKey, l source.LastMirrored) map[sdk.PartitionKey]source.LastMirrored {
	found := map[sdk.PartitionKey]source.LastMirrored{}
	for _, k := range keys {
		found[k] = l
	}
	return found
}

// stoppedAt mirrors a topic with three records, stops it, and goes on at the source with
// two more. The log here ends at 4, behind the reset.
func (w *world) stoppedAt(src *kfake.Cluster, topic string) {
	w.t.Helper()
	produce(w.t, src, topic, 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", topic)
	w.caughtUp(topic, 0, 3)
	w.names(w.c.Stop(w.ctx, "m", nil, []string{topic}))
	w.state(topic, 0, metadata.StateStopped)
	produce(w.t, src, topic, 0, "d", "e")
}

// MIR-157: the question for the last mirrored epoch fails in any way: FAILED, tried again,
// and nothing is cut. MIR-158: an answer that leaves our partition out is no "never". With
// the answer at last the log is cut to what it says, and no further. MIR-176: that nobody
// could be reached is not that the source does not know the question.
func TestLookupFails(t *testing.T) {
	for name, fails := range map[string]func(keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error){
		"time-out": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return nil, true, context.DeadlineExceeded
		},
		"disconnect": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return nil, true, io.ErrUnexpectedEOF
		},
		"not authorised": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return nil, true, kerr.ClusterAuthorizationFailed
		},
		"loading": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return nil, true, kerr.CoordinatorLoadInProgress
		},
		"wrong coordinator": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return nil, true, kerr.NotCoordinator
		},
		"left out": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return map[sdk.PartitionKey]source.LastMirrored{}, true, errors.New("orders-0: partition is missing in the answer")
		},
		"left out in silence": func([]sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
			return map[sdk.PartitionKey]source.LastMirrored{}, true, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := newSource(t, kfake.SeedTopics(1, "orders"))
			w := newWorld(t, nil)
			w.stoppedAt(src, "orders")
			l := w.answers("m", fails)
			w.start("m", "orders")
			w.until("asked and failed", func() bool { return l.asked.Load() > 1 && w.partition("orders", 0).RetryAttempt > 0 })
			if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 4 {
				t.Fatalf("cut to %d because of an error", end)
			}
			w.answers("m", func(keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
				return everywhere(keys, source.LastMirrored{Epoch: 0, Offset: 3}), true, nil
			})
			w.caughtUp("orders", 0, 5)
			w.equals(src, "orders", 0)
			if got := w.cut(); got != 1 {
				t.Errorf("%d records were cut, and one was not the source's", got)
			}
		})
	}
}

// MIR-025 (O5 of the specification instead of DEC-19): a topic with the source's id and
// records of its own, of which the source knows nothing. Where the mirror forbids it,
// FAILED and nothing is cut; else everything is, which is counted, and what the source has
// comes.
func TestStartOverLocalRecords(t *testing.T) {
	for _, forbid := range []string{"true", "false"} {
		t.Run("start.requires.empty.or.lme="+forbid, func(t *testing.T) {
			src := newSource(t, kfake.SeedTopics(1, "orders"))
			w := newWorld(t, nil)
			w.stoppedAt(src, "orders")
			w.alterMirror(metadata.MirrorStartRequiresEmptyLME, forbid)
			w.refreshes(1)
			w.answers("m", func(keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
				return everywhere(keys, source.LastMirrored{Epoch: -1, Offset: -1}), true, nil
			})
			if forbid == "true" {
				w.start("m", "orders")
				if d := w.failed("orders", 0, "over 4 records"); d.RetryAttempt != nonRetryable {
					t.Errorf("attempt %d", d.RetryAttempt)
				}
				if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 4 || w.cut() != 0 {
					t.Errorf("cut to %d", end)
				}
				return
			}
			w.start("m", "orders")
			w.caughtUp("orders", 0, 5)
			w.equals(src, "orders", 0)
			if got := w.cut(); got != 4 {
				t.Errorf("%d records were cut", got)
			}
		})
	}
}

func (w *world) alterMirror(key, value string) {
	w.t.Helper()
	for _, err := range w.ctrl.AlterConfigs(w.ctx, mirrorConfig("m", key, value), false) {
		if err != nil {
			w.t.Fatal(fmt.Errorf("%s=%s: %w", key, value, err))
		}
	}
}
