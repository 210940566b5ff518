package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// watchBackoff is the pause after a watch broke, so that a store that cannot
// answer is not asked in a loop.
const watchBackoff = 100 * time.Millisecond

// follower keeps the image up with the store: it reads everything once, then
// watches from that revision on. One goroutine runs it.
//
// A watch that falls behind the compaction of history is answered with an
// error; then everything is read anew.
type follower struct {
	client *clientv3.Client
	codec  codec
	logger *slog.Logger
	clock  clock.Clock
	meters *meters

	// current is the latest image, for the many who only look. It is stored
	// under mu, before waiters are told.
	current atomic.Pointer[metadata.Image]

	// mu guards what follows. Nothing blocks under it.
	mu struct {
		sync.Mutex
		builder *builder
		// revision is how far the store was read. It can be beyond the image's:
		// election keys move it and change no image.
		revision int64
		// changed is closed and replaced when revision moves.
		changed chan struct{}
		// office is who stands for the controller's office at that revision.
		office office
		// rereads counts full reads after the first.
		rereads int
	}
}

func newFollower(client *clientv3.Client, c codec, logger *slog.Logger, clk clock.Clock, m *meters) *follower {
	f := &follower{client: client, codec: c, logger: logger, clock: clk, meters: m}
	f.current.Store(metadata.NewImage())
	f.mu.builder = newBuilder(f.image())
	f.mu.changed = make(chan struct{})
	return f
}

// image is the latest image.
func (f *follower) image() *metadata.Image { return f.current.Load() }

// latest is the image and a channel that is closed when there is a newer one.
func (f *follower) latest() (*metadata.Image, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.image(), f.mu.changed
}

// office is who stands for the controller's office, and a channel that is closed
// when the store moves on.
func (f *follower) office() (office, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.office, f.mu.changed
}

// orphans is what an interrupted command left behind; see builder.
func (f *follower) orphans() []Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.builder.orphans()
}

// wait returns an image that shows at least revision.
func (f *follower) wait(ctx context.Context, revision int64) (*metadata.Image, error) {
	for {
		f.mu.Lock()
		img, at, changed := f.image(), f.mu.revision, f.mu.changed
		f.mu.Unlock()
		if at >= revision {
			return img, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for metadata revision %d, at %d: %w", revision, at, ctx.Err())
		}
	}
}

// run follows the store until ctx ends. read must have succeeded before.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errCompacted) {
			f.logger.Info("metadata watch fell behind compacted history; reading everything anew", "error", err)
			if err = f.read(ctx); err == nil {
				continue
			}
		}
		f.logger.Warn("metadata watch broke; resuming", "error", err)
		pause(ctx, f.clock, watchBackoff)
	}
}

func pause(ctx context.Context, c clock.Clock, d time.Duration) {
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-ctx.Done():
	}
}

// errCompacted is a watch whose start is older than the history that is kept.
var errCompacted = errors.New("history is compacted")

// watch applies events from where the image stands until the watch ends.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	from := f.mu.revision + 1
	f.mu.Unlock()
	for resp := range f.client.Watch(ctx, keyRoot, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if resp.CompactRevision != 0 {
			return fmt.Errorf("%w: watch from %d, kept from %d", errCompacted, from, resp.CompactRevision)
		}
		if err := resp.Err(); err != nil {
			return err
		}
		if err := f.applyEvents(resp.Events); err != nil {
			// The image no longer tells the truth about the store. Reading
			// everything gives either a true one or the same error again.
			return fmt.Errorf("%w: %w", errCompacted, err)
		}
	}
	return errors.New("watch closed")
}

// applyEvents applies events, one revision after the other, and publishes one
// image for all of them.
func (f *follower) applyEvents(events []*clientv3.Event) error {
	if len(events) == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var (
		changes []Change
		moved   bool
		at      = events[0].Kv.ModRevision
	)
	apply := func() error {
		moved = moved || len(changes) > 0
		err := f.mu.builder.apply(changes, at)
		changes = changes[:0]
		return err
	}
	for _, ev := range events {
		if ev.Kv.ModRevision != at {
			if err := apply(); err != nil {
				return err
			}
			at = ev.Kv.ModRevision
		}
		var value []byte
		if ev.Type == clientv3.EventTypePut {
			value = present(ev.Kv.Value)
		}
		key := string(ev.Kv.Key)
		if isElectionKey(key) {
			if value == nil {
				f.mu.office = f.mu.office.without(key)
			} else {
				f.mu.office = f.mu.office.with(parseContender(ev.Kv))
			}
		}
		// A transaction without effect on an image still has the chain key, so
		// that whoever waits for its revision sees it arrive.
		moved = moved || key == keyChain
		c, err := f.codec.decode(key, value, ev.Kv.ModRevision)
		if err != nil {
			return err
		}
		if c != nil {
			changes = append(changes, c)
		}
	}
	if err := apply(); err != nil {
		return err
	}
	if moved {
		f.current.Store(f.mu.builder.seal(at))
	}
	f.advanceLocked(at)
	return nil
}

// present tells an empty value from a deleted key; the wire format does not.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

func (f *follower) advanceLocked(revision int64) {
	f.mu.revision = revision
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// read builds the image from everything in the store, at one revision.
func (f *follower) read(ctx context.Context) error {
	var (
		changes  []Change
		at       int64
		standing office
	)
	err := readStore(ctx, f.client, func(kv *mvccpb.KeyValue, revision int64) error {
		at = revision
		if isElectionKey(string(kv.Key)) {
			standing = standing.with(parseContender(kv))
		}
		c, err := f.codec.decode(string(kv.Key), present(kv.Value), kv.ModRevision)
		if c != nil {
			changes = append(changes, c)
		}
		return err
	})
	if err != nil {
		return err
	}
	f.meters.fullReads.Inc()
	b := newBuilder(metadata.NewImage())
	if err := b.apply(changes, at); err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	img := b.ed.Image(at)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.revision != 0 {
		f.mu.rereads++
		img.ShareWith(f.image())
	}
	b.ed = img.Edit()
	f.mu.builder = b
	f.mu.office = standing
	f.current.Store(img)
	f.advanceLocked(at)
	return nil
}
