package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// mirrors is what one broker does for mirrors: the real manager and coordinator, driven
// by hand, and the connections to the other cluster.
type mirrors struct {
	b        *broker
	m        *mirror.Manual
	c        *mirror.Coordinator
	fetchers []*mirrorFetcher
}

const (
	mirrorFetchWait = 250 * time.Millisecond
	sourceTimeout   = time.Second
)

func newMirrors(b *broker) *mirrors {
	x := &mirrors{b: b}
	rng := b.w.loop.rng
	m, err := mirror.NewManual(mirror.Options{
		NodeID: b.id, ClusterID: "cluster-" + b.w.name, Controller: &control{b}, Partitions: b.mgr.Manager,
		Open: func(map[string]string, source.Options) (mirror.Source, error) {
			return &remote{b: b, w: b.w.other()}, nil
		},
		Clock: channelClock{procClock{b.w.loop, &b.proc}}, Logger: discard, Rand: rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())),
		RefreshInterval: time.Second, RetryInitial: 100 * time.Millisecond, RetryMax: 3 * time.Second, RetryAttempts: cmp.Or(b.w.pair.o.Retries, 1000),
		TruncationTimeout: 20 * time.Second,
	}, mirror.ManualHooks{Fetcher: func(f *mirror.Fetcher) { x.fetchers = append(x.fetchers, &mirrorFetcher{x: x, f: f}) }})
	if err != nil {
		b.w.check.fail("MIRROR", "no manager: %v", err)
	}
	x.m, x.c = m, mirror.NewCoordinator(m.Manager())
	return x
}

// settle is what goroutines would do now.
func (x *mirrors) settle() {
	x.b.w.cause = "task"
	x.m.Handle()
	x.b.w.cause = ""
	for i := 0; i < len(x.fetchers); i++ {
		x.fetchers[i].pump()
	}
}

// wait lets a coroutine wait until done is set.
func (x *mirrors) wait(done *bool) { x.m.Park(func() bool { return *done }) }

// channelClock has timers for coroutines, which wait for channels.
type channelClock struct{ procClock }

func (c channelClock) NewTimer(d time.Duration) clockTimer {
	t := &channelTimer{c: make(chan time.Time, 1)}
	t.simTimer = &simTimer{c: c.procClock, f: func() {
		select {
		case t.c <- c.Now():
		default:
		}
	}}
	t.Reset(d)
	return t
}

type channelTimer struct {
	*simTimer
	c chan time.Time
}

func (t *channelTimer) C() <-chan time.Time { return t.c }

func (t *channelTimer) Stop() bool {
	was := t.simTimer.Stop()
	select {
	case <-t.c:
	default:
	}
	return was
}

func (t *channelTimer) Reset(d time.Duration) bool {
	was := t.Stop()
	t.simTimer.Reset(d)
	return was
}

// control is the controller as a broker's mirrors see it.
type control struct{ b *broker }

var _ mirror.Controller = (*control)(nil)

func (c *control) Image() *metadata.Image {
	if c.b.img == nil {
		return metadata.NewImage()
	}
	return c.b.img
}

func (c *control) Watch(func(prev, next *metadata.Image)) (stop func()) { return func() {} }

// ask waits for the office, and then for the broker's own image to show what it did.
func (c *control) ask(call any) (answer, error) {
	b := c.b
	if b.w.pair.asking != nil {
		b.w.pair.asking(b, call)
	}
	b.w.pair.asked(b, call)
	var a answer
	var failed error
	done := new(bool)
	b.office(call, 2*time.Second, func(v any, err error) {
		a, _ = v.(answer)
		failed = err
		if err != nil || a.img == nil || b.revision() >= a.img.Revision {
			*done = true
			return
		}
		b.waiting = append(b.waiting, waiting{a.img.Revision, func() { *done = true }})
	})
	b.mirrors.wait(done)
	return a, failed
}

func (c *control) errors(call any, n, skip int) ([]error, error) {
	a, err := c.ask(call)
	errs := make([]error, n)
	for i := range errs {
		if errs[i] = err; err == nil {
			errs[i] = a.outcomes[i+skip].Err
		}
	}
	return errs, err
}

func (c *control) topics(call any, names []string) ([]controller.TopicResult, error) {
	errs, err := c.errors(call, len(names), 1)
	if err != nil {
		return nil, err
	}
	results := make([]controller.TopicResult, len(names))
	for i, name := range names {
		results[i] = controller.TopicResult{Name: name, Err: errs[i], Topic: c.Image().Topic(name)}
	}
	return results, nil
}

func (c *control) CreateMirror(_ context.Context, name string, configs map[string]string) error {
	errs, _ := c.errors(controller.NewMirror{Name: name, Configs: configs}, 1, 0)
	return errs[0]
}

func (c *control) DeleteMirror(_ context.Context, name string, validation int64) error {
	errs, _ := c.errors(controller.DropMirror{Name: name, Validation: validation}, 1, 0)
	return errs[0]
}

func (c *control) StartMirrorTopics(_ context.Context, r controller.StartMirrorTopics) ([]controller.TopicResult, error) {
	var names []string
	for _, t := range r.Topics {
		names = append(names, t.Name)
	}
	return c.topics(r, names)
}

func (c *control) SetMirrorTopics(_ context.Context, r controller.SetMirrorTopics) ([]controller.TopicResult, error) {
	return c.topics(r, r.Topics)
}

func (c *control) RecoverMirrorTopics(_ context.Context, name string, topics []string) ([]controller.TopicResult, error) {
	return c.topics(controller.RecoverMirror{Mirror: name, Topics: topics}, topics)
}

func (c *control) WriteMirrorStates(_ context.Context, name string, writes []controller.MirrorStateWrite) []controller.MirrorStateResult {
	errs, _ := c.errors(controller.WriteStates{Mirror: name, Writes: writes}, len(writes), 0)
	results := make([]controller.MirrorStateResult, len(writes))
	for i, err := range errs {
		results[i] = controller.MirrorStateResult{StateEpoch: -1, Err: err}
	}
	return results
}

func (c *control) BumpLeaderEpochs(_ context.Context, bumps []controller.Bump) []error {
	errs, _ := c.errors(controller.BumpEpochs(bumps), len(bumps), 0)
	return errs
}

// CopyACLs is never asked: no cluster here has an authorizer.
func (c *control) CopyACLs(_ context.Context, acls []controller.CopyACL) []error {
	return make([]error, len(acls))
}

func (c *control) CreatePartitions(_ context.Context, topics []controller.CreatePartitions, _ bool) []controller.TopicResult {
	errs, _ := c.errors(controller.GrowTopics(topics), len(topics), 0)
	results := make([]controller.TopicResult, len(topics))
	for i, err := range errs {
		results[i] = controller.TopicResult{Name: topics[i].Topic, Err: err}
	}
	return results
}

func (c *control) AlterConfigs(_ context.Context, resources []controller.AlterConfigs, _ bool) []error {
	out := make([]error, len(resources))
	for i, r := range resources {
		errs, _ := c.errors(r, 1, 0)
		out[i] = errs[0]
	}
	return out
}

// mirrorFetcher carries the requests of a mirror to a broker of its source.
type mirrorFetcher struct {
	x    *mirrors
	f    *mirror.Fetcher
	busy bool
	wake bool
}

func (f *mirrorFetcher) pump() {
	b := f.x.b
	w := b.w
	if f.busy {
		return
	}
	req, wait := f.f.Request()
	if req == nil {
		if wait > 0 && !f.wake {
			f.wake = true
			w.loop.after(wait, &b.proc, func() { f.wake = false })
		}
		return
	}
	f.busy = true
	copied := *req
	copied.Partitions = slices.Clone(req.Partitions)
	from := w.other()
	sb := from.brokers[f.f.Broker.ID]
	w.pair.link.call(&b.proc, &sb.proc, mirrorFetchWait+sourceTimeout, func(reply func(any)) {
		sb.mirrorFetch(&copied, w.loop.now+mirrorFetchWait, reply)
	}, func(v any, err error) {
		f.busy = false
		if err == nil && w.pair.fetching != nil {
			w.pair.fetching(b, v.([]mirrorFetched))
		}
		w.cause = "mirror"
		f.f.Respond(func(h sdk.FetchHandler) error {
			if err != nil {
				return fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
			}
			for _, r := range v.([]mirrorFetched) {
				w.pair.heard(w, b.id, segment.LogID{Topic: r.header.Key.TopicID, Partition: r.header.Key.Partition}, r.version)
				if err := h.Partition(&r.header, newReader(r.records)); err != nil {
					return err
				}
			}
			return nil
		})
		w.cause = ""
	})
}

// mirrorFetched is a partition's answer, and in which version of the timeline it was
// true.
type mirrorFetched struct {
	fetched
	version int
}

// mirrorFetch serves the other cluster as a consumer, waiting for something to tell.
func (b *broker) mirrorFetch(req *sdk.FetchRequest, until time.Duration, reply func(any)) {
	if !b.serving {
		return
	}
	var out []mirrorFetched
	say := b.w.loop.now >= until
	left := int(req.MaxBytes)
	for i := range req.Partitions {
		q := &req.Partitions[i]
		r := mirrorFetched{fetched: b.consumerRead(q, left, len(out) == 0)}
		r.version = b.w.pair.version(b, segment.LogID{Topic: q.TopicID, Partition: q.Partition})
		left -= len(r.records)
		say = say || len(r.records) > 0 || r.header.ErrorCode != 0 || r.header.Diverging != sdk.Undefined
		out = append(out, r)
	}
	if say {
		reply(out)
		return
	}
	b.w.loop.after(b.w.loop.between(20*time.Millisecond, 80*time.Millisecond), &b.proc, func() { b.mirrorFetch(req, until, reply) })
}

func (b *broker) consumerRead(q *sdk.FetchPartition, left int, first bool) fetched {
	r := fetched{header: sdk.PartitionHeader{Key: q.PartitionKey, Diverging: sdk.Undefined, HighWatermark: -1, LogStart: -1, LeaderID: -1, LeaderEpoch: -1}}
	x := b.mgr.ByID(q.TopicID, q.Partition)
	if x == nil {
		r.header.ErrorCode = code(partition.ErrUnknown)
		return r
	}
	last := q.LastFetchedEpoch
	if b.w.pair.old {
		last = -1
	}
	res, err := x.Read(partition.ReadRequest{
		Offset: q.Offset, MaxBytes: min(int(q.MaxBytes), left), AtLeastOne: first,
		CurrentLeaderEpoch: q.CurrentLeaderEpoch, LastFetchedEpoch: last,
	})
	r.header.HighWatermark, r.header.LogStart = res.HighWatermark, res.LogStart
	if err != nil {
		r.header.ErrorCode = code(err)
		r.header.LeaderID, r.header.LeaderEpoch = res.LeaderID, res.LeaderEpoch
		return r
	}
	if res.Diverging != nil {
		r.header.Diverging = *res.Diverging
		return r
	}
	r.records = make([]byte, res.View.Len())
	if _, err := res.View.ReadAt(r.records, 0); err != nil && !errors.Is(err, io.EOF) {
		b.w.check.fail("READ", "a view cannot be read: %v", err)
	}
	res.View.Release()
	r.header.RecordBytes = len(r.records)
	return r
}

// flushInterval is how long appended bytes stay unsynced when nobody asks for them:
// mirrored ones, for whose end the leader waits as soon as the mirror is stopped.
const flushInterval = time.Second

// syncSoon has what was appended synced in the background.
func (l *memLog) syncSoon() {
	w := l.d.w
	if l.soon > w.loop.now {
		return
	}
	l.soon = w.loop.now + flushInterval
	w.loop.after(flushInterval, &l.d.node.proc, func() {
		if l.durable < l.end && !l.flushing {
			l.sync()
		}
	})
}

// Barrier and SetBarrier make a log remember the truncation barriers it has passed.
func (l *memLog) Barrier() (int32, error)       { return l.barrier, nil }
func (l *memLog) SetBarrier(number int32) error { l.barrier = number; return nil }
