package replica

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Options of a Manager. Names in parentheses are Kafka's keys.
type Options struct {
	NodeID     int32
	Partitions *partition.Manager
	// Dial connects to a broker of the cluster. It must end with ctx.
	Dial func(ctx context.Context, broker int32) (*wire.Client, error)
	// Ask sends one request to a broker of the cluster; damaged ranges come by it.
	Ask func(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error)
	// BrokerEpoch is the epoch of this broker's registration, -1 before the first.
	// Nil: it is not told.
	BrokerEpoch func() int64

	Fetchers          int           // connections per leader (num.replica.fetchers), default 1
	MaxWait           time.Duration // replica.fetch.wait.max.ms, default 500 ms
	MinBytes          int32         // replica.fetch.min.bytes, default 1
	MaxBytes          int32         // replica.fetch.response.max.bytes, default 10 MiB
	PartitionMaxBytes int32         // replica.fetch.max.bytes, default 1 MiB
	// Backoff is the longest pause after failures in a row (replica.fetch.backoff.ms),
	// default 1 s. The first ones are shorter.
	Backoff time.Duration
	// Timeout is what an answer may take beyond MaxWait (replica.socket.timeout.ms),
	// default 30 s.
	Timeout time.Duration
	// Silence is how long a leader may say nothing of an answer that is due, before the
	// connection is given up: the packets of it may vanish. Default 8 s, at most Timeout.
	Silence time.Duration

	Clock  clock.Clock
	Logger *slog.Logger
}

// EnsureDefaults fills what is not set.
func (o *Options) EnsureDefaults() {
	if o.BrokerEpoch == nil {
		o.BrokerEpoch = func() int64 { return -1 }
	}
	if o.Fetchers <= 0 {
		o.Fetchers = 1
	}
	if o.MaxWait <= 0 {
		o.MaxWait = 500 * time.Millisecond
	}
	if o.MinBytes <= 0 {
		o.MinBytes = 1
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 10 << 20
	}
	if o.PartitionMaxBytes <= 0 {
		o.PartitionMaxBytes = 1 << 20
	}
	if o.Backoff <= 0 {
		o.Backoff = time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Silence <= 0 {
		o.Silence = silenceLimit
	}
	o.Silence = min(o.Silence, o.Timeout)
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

const (
	// firstBackoff is the pause after the first failure, and doubles from there.
	firstBackoff = 50 * time.Millisecond
	// silenceLimit is that of controllers among themselves.
	silenceLimit = 8 * time.Second
	// notYetBackoff is between a leader's answers that mean "not yet": one of us has
	// older metadata than the other.
	notYetBackoff = 100 * time.Millisecond
	// cutters is how many logs are cut at once. A cut waits for five syncs, one after the
	// other, and those of several logs that overlap are few for the disk.
	cutters = 16
)

type partitionID struct {
	topic metadata.TopicID
	index int32
}

// Manager has this broker's replicas follow their leaders.
type Manager struct {
	o Options

	inbox struct {
		sync.Mutex
		events []func() // run by the loop
	}
	wake   chan struct{} // capacity 1
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	cuts   chan struct{} // places for those who cut

	// Of the loop. followers is also read by Lag, under mu; the loop alone writes.
	image    *metadata.Image
	fetchers map[fetcherKey]*fetcher
	mu       struct {
		sync.Mutex
		followers map[partitionID]*follower
	}

	// spawn runs what waits: for the disk, or for a fetcher's goroutine. newWorker makes a
	// fetcher's. A Manual has others.
	spawn     func(work func())
	newWorker func(pipeline.WorkerOptions, *fetcher) *pipeline.Worker
	// session makes a fetcher's session to a leader; tests have networks of their own.
	session func(ctx context.Context, leader int32) (sdk.Session, error)
	outages struct {
		sync.Mutex
		since map[int32]time.Time
	}
}

// follower is one replica that follows.
type follower struct {
	m  *Manager
	id partitionID

	// Of the loop.
	leader, epoch int32
	fetcher       *fetcher           // nil: not fetching
	pipeline      *pipeline.Pipeline // nil: not fetching
	target        *partition.Follower
	failures      int
	stopHealing   context.CancelFunc // of a repair under way, else nil
	generation    int                // grows with each change: what was begun before it is void

	fetched atomic.Bool  // since the last failure
	behind  atomic.Int64 // how far the leader's high watermark is ahead
}

// NewManager starts a manager that follows nobody; Apply brings the metadata.
func NewManager(o Options) *Manager {
	m := newManager(o)
	m.done.Add(1)
	go m.loop()
	return m
}

// newManager makes a manager without its loop.
func newManager(o Options) *Manager {
	o.EnsureDefaults()
	m := &Manager{o: o, wake: make(chan struct{}, 1), fetchers: map[fetcherKey]*fetcher{}, cuts: make(chan struct{}, cutters)}
	m.mu.followers = map[partitionID]*follower{}
	m.session = m.dial
	m.outages.since = map[int32]time.Time{}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.spawn = m.done.Go
	m.newWorker = func(o pipeline.WorkerOptions, _ *fetcher) *pipeline.Worker { return pipeline.NewWorker(o) }
	return m
}

// Apply follows the metadata. It is called after the partitions have applied the
// same image, in the same order.
func (m *Manager) Apply(next *metadata.Image) { m.post(func() { m.apply(next) }) }

// Close ends all fetching. The partitions may be closed after it.
func (m *Manager) Close() {
	m.cancel()
	m.done.Wait()
}

// Lag is how many offsets the replica furthest behind lacks of what its leader has
// committed, as far as the fetches tell.
func (m *Manager) Lag() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	lag := int64(0)
	for _, f := range m.mu.followers {
		lag = max(lag, f.behind.Load())
	}
	return lag
}

// post has the loop run fn. It never blocks: fetchers and flushers call it. What
// waits is bounded by the replicas, each of which has one thing to say at a time.
func (m *Manager) post(fn func()) {
	m.inbox.Lock()
	m.inbox.events = append(m.inbox.events, fn)
	m.inbox.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) loop() {
	defer m.done.Done()
	defer m.closeFetchers()
	for {
		select {
		case <-m.wake:
		case <-m.ctx.Done():
			return
		}
		m.handle()
	}
}

// handle runs what was posted.
func (m *Manager) handle() {
	m.inbox.Lock()
	events := m.inbox.events
	m.inbox.events = nil
	m.inbox.Unlock()
	for _, fn := range events {
		fn()
	}
}

func (m *Manager) closeFetchers() {
	var closing sync.WaitGroup
	for _, f := range m.fetchers {
		closing.Go(f.worker.Close)
	}
	closing.Wait()
}

func (m *Manager) apply(next *metadata.Image) {
	prev := m.image
	m.image = next
	if prev != nil {
		for _, t := range prev.Topics() {
			if next.TopicByID(t.ID) == nil {
				for _, p := range t.Partitions {
					m.forget(partitionID{t.ID, p.Index})
				}
			}
		}
	}
	for _, t := range next.Topics() {
		if prev != nil && prev.TopicByID(t.ID) == t {
			continue // images share what did not change
		}
		for _, p := range t.Partitions {
			id := partitionID{t.ID, p.Index}
			if p.Leader < 0 || p.Leader == m.o.NodeID || !slices.Contains(p.Replicas, m.o.NodeID) {
				m.forget(id)
				continue
			}
			m.follow(id, p.Leader, p.LeaderEpoch)
		}
	}
}

func (m *Manager) forget(id partitionID) {
	f := m.mu.followers[id]
	if f == nil {
		return
	}
	f.detach()
	m.mu.Lock()
	delete(m.mu.followers, id)
	m.mu.Unlock()
}

func (m *Manager) follow(id partitionID, leader, epoch int32) {
	f := m.mu.followers[id]
	switch {
	case f == nil:
		f = &follower{m: m, id: id}
		m.mu.Lock()
		m.mu.followers[id] = f
		m.mu.Unlock()
	case f.leader == leader && f.epoch == epoch:
		return
	default:
		f.detach()
	}
	f.leader, f.epoch, f.failures = leader, epoch, 0
	f.place()
}

// detach ends the fetching. When it returns no append of it runs or will run.
func (f *follower) detach() {
	f.generation++
	if f.stopHealing != nil {
		f.stopHealing()
		f.stopHealing = nil
	}
	if f.pipeline == nil {
		return
	}
	f.fetcher.worker.Remove(f.pipeline)
	f.release()
}

func (f *follower) release() {
	fetcher := f.fetcher
	f.fetcher, f.pipeline, f.target = nil, nil, nil
	if fetcher.users--; fetcher.users > 0 {
		return
	}
	delete(f.m.fetchers, fetcher.key)
	f.m.spawn(fetcher.worker.Close) // it waits for its goroutine, which may be telling us something
}

// place begins to fetch, as soon as that is possible.
func (f *follower) place() {
	m := f.m
	p := m.o.Partitions.ByID(f.id.topic, f.id.index)
	if p != nil && p.Damage() != nil {
		f.heal(p)
		return
	}
	if p == nil || !p.Opened() || p.Info().Offline != nil || p.Barred() {
		f.retry() // it comes back when its disk does
		return
	}
	if !p.HistoryKnown() {
		f.background(func() error { return p.Ready(m.ctx) })
		return
	}
	key := fetcherKey{leader: f.leader, slot: f.slot(), durable: p.WaitsForDisk()}
	at := m.fetchers[key]
	if at == nil {
		at = m.newFetcher(key)
		m.fetchers[key] = at
	}
	at.users++
	f.fetcher = at
	f.target = p.Follower(at.flushes.asked, at.flushes.done)
	f.pipeline = pipeline.New(pipeline.Options{
		Key: p.Key(), Target: f.target, LeaderEpoch: f.epoch, SourceEpoch: f.epoch, Observer: f,
	})
	at.worker.Add(f.pipeline)
}

// slot spreads the partitions of a leader over its fetchers.
func (f *follower) slot() int {
	sum := uint32(f.id.index)
	for _, b := range f.id.topic {
		sum = 31*sum + uint32(b)
	}
	return int(sum % uint32(f.m.o.Fetchers))
}

// retry places the follower again after a pause.
func (f *follower) retry() {
	if f.fetched.Swap(false) {
		f.failures = 0
	}
	pause := min(f.m.o.Backoff, firstBackoff<<min(f.failures, 10))
	f.failures++
	f.after(pause, f.place)
}

// after has the loop do something later, unless the follower does something else then.
func (f *follower) after(pause time.Duration, fn func()) {
	generation := f.generation
	f.m.o.Clock.AfterFunc(pause, func() {
		f.m.post(func() {
			if f.generation == generation && f.pipeline == nil {
				fn()
			}
		})
	})
}

// background runs work that waits for the disk, and then places the follower.
func (f *follower) background(work func() error) {
	m, generation := f.m, f.generation
	m.spawn(func() {
		select {
		case m.cuts <- struct{}{}:
		case <-m.ctx.Done():
			return
		}
		err := work()
		<-m.cuts
		if m.ctx.Err() != nil {
			return
		}
		m.post(func() {
			switch {
			case f.generation != generation || f.pipeline != nil:
			case err != nil:
				f.log().Warn("replica cannot follow", "err", err)
				f.retry()
			default:
				f.place()
			}
		})
	})
}

func (f *follower) log() *slog.Logger {
	name := ""
	if t := f.m.image.TopicByID(f.id.topic); t != nil {
		name = t.Name
	}
	return f.m.o.Logger.With("topic", name, "partition", f.id.index, "leader", f.leader, "epoch", f.epoch)
}

// Progress, NearEpoch and Ended make a follower the pipeline.Observer of its
// fetching. They run on the fetcher's goroutine.

func (f *follower) Progress(_ *pipeline.Pipeline, pos pipeline.Position) {
	f.behind.Store(max(0, pos.SourceHighWatermark-pos.End))
	if !f.fetched.Load() {
		f.fetched.Store(true)
	}
}

func (f *follower) NearEpoch(*pipeline.Pipeline, int32) {} // a leader's epochs are never ahead of its own

func (f *follower) Ended(p *pipeline.Pipeline, end pipeline.End) {
	f.m.post(func() {
		if f.pipeline == p {
			f.ended(end)
		}
	})
}

func (f *follower) ended(end pipeline.End) {
	target, epoch := f.target, f.epoch
	f.release()
	switch end.Reason {
	case pipeline.Diverged:
		f.cut(func() (partition.Cut, error) { return target.Truncate(epoch, end.Diverging) }, end)
	case pipeline.OutOfRange:
		if end.LogStart < 0 {
			f.retry()
			return
		}
		f.cut(func() (partition.Cut, error) { return target.Restart(epoch, end.LogStart) }, end)
	case pipeline.NotLeader, pipeline.UnknownTopicID, pipeline.Unreachable:
		f.retry() // until the metadata say more
	default:
		f.log().Warn("replica stopped following, it tries again", "reason", end.Reason.String(), "err", end.Err)
		f.retry()
	}
}

// cut shortens the log to what the leader's history has in common with it, and
// goes on. A second cut in a row without a fetch between them waits.
func (f *follower) cut(work func() (partition.Cut, error), end pipeline.End) {
	log, epoch := f.log(), f.epoch
	again := !f.fetched.Swap(false) && f.failures > 0
	f.failures++
	cut := func() error {
		cut, err := work()
		if err == nil && (cut.Offsets > 0 || cut.Kept != "") {
			log.Info("replica was cut to its leader's history", "offsets", cut.Offsets, "kept", cut.Kept, "in_epoch", epoch, "because", end.Err)
		}
		return err
	}
	if !again {
		f.background(cut)
		return
	}
	f.after(f.m.o.Backoff, func() { f.background(cut) })
}
