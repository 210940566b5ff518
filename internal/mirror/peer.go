package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// peer is the source cluster of one mirror as this broker sees it: the
// connection, what is known of its topics, and the workers that fetch from its
// brokers. Its refresh goroutine (refresh.go) lives as long as it does.
type peer struct {
	m    *Manager
	name string
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	wakeup chan struct{} // cap 1: refresh soon

	topics *batcher[string, error]               // asks the source for a topic's leaders
	epochs *batcher[sdk.PartitionKey, lmeAnswer] // asks it for last mirrored epochs
	loops  *batcher[string, loopAnswer]          // asks it from where its topics come, each time anew
	asks   chan struct{}                         // cap maxAsks: such asks for others

	mu struct {
		sync.Mutex
		// cluster and configs change together (C5); cluster is nil while the
		// settings cannot be used, and openErr says why.
		cluster Source
		configs map[string]string
		openErr error

		brokers map[int32]sdk.BrokerAddr
		known   map[string]*source.Topic // by name, as last described
		origins map[string]source.Origin // by topic; see originsOf

		workers map[workerKey]*workerUse
	}

	sync syncState // refresh goroutine only

	health       map[syncTask]*syncHealth // fixed after newPeer
	groupsSynced *metrics.Counter
	groupErrors  *metrics.Counter
}

// workerKey says which partitions share a connection (W20). Other settings are
// another cluster, so that nobody joins a worker of the old ones (C5).
type workerKey struct {
	cluster Source
	broker  sdk.BrokerAddr
	index   int
}

type workerUse struct {
	w    *pipeline.Worker
	uses int
}

// location is where one source partition is read.
type location struct {
	broker sdk.BrokerAddr
	epoch  int32            // of its leader, -1 unknown
	key    sdk.PartitionKey // as the source names it: the id is zero if it has none
}

func newPeer(m *Manager, mirror *metadata.Mirror) *peer {
	p := &peer{m: m, name: mirror.Name, log: m.o.Logger.With("mirror", mirror.Name), wakeup: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(m.ctx)
	p.topics = newBatcher(p.ctx, m.sched, 500, p.describe)
	p.epochs = newBatcher(p.ctx, m.sched, 500, p.lastMirrored)
	p.loops = newBatcher(p.ctx, m.sched, 10_000, p.askLoops)
	p.asks = make(chan struct{}, maxAsks)
	p.mu.known = make(map[string]*source.Topic)
	p.mu.workers = make(map[workerKey]*workerUse)
	p.initMetrics()
	p.configure(mirror.Configs)
	p.done.Add(1)
	m.sched.run(p.refreshLoop)
	return p
}

// configure opens the source with other settings. What was known of it is
// forgotten: it may be another cluster.
func (p *peer) configure(configs map[string]string) {
	cluster, err := p.m.o.Open(configs, source.Options{
		Logger: p.log, ClientID: "lockstep-mirror-" + strconv.Itoa(int(p.m.o.NodeID)), Dial: p.m.o.dial(p.name),
	})
	p.mu.Lock()
	old := p.mu.cluster
	p.mu.cluster, p.mu.configs, p.mu.openErr = cluster, configs, err
	p.mu.brokers, p.mu.known, p.mu.origins = nil, make(map[string]*source.Topic), nil
	p.mu.Unlock()
	if err != nil {
		p.mu.Lock()
		p.mu.cluster = nil
		p.mu.Unlock()
		p.log.Error("source settings cannot be used", "err", err)
	}
	if old != nil {
		old.Close()
	}
	p.wake()
}

// setFilters takes configs that change nothing about the connection.
func (p *peer) setFilters(configs map[string]string) {
	p.mu.Lock()
	p.mu.configs = configs
	p.mu.Unlock()
	p.wake()
}

func (p *peer) close() {
	p.cancel()
	p.mu.Lock()
	cluster := p.mu.cluster
	var workers []*pipeline.Worker
	for _, u := range p.mu.workers {
		workers = append(workers, u.w)
	}
	p.mu.workers = make(map[workerKey]*workerUse)
	p.mu.Unlock()
	if cluster != nil {
		cluster.Close()
	}
	for _, w := range workers {
		w.Close()
	}
	p.topics.wait()
	p.epochs.wait()
	p.loops.wait()
	p.m.sched.wait(&p.done)
}

// wake asks for a refresh soon.
func (p *peer) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// source is the open cluster, or why there is none.
func (p *peer) source() (Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cluster == nil {
		return nil, fmt.Errorf("source settings: %w", p.mu.openErr)
	}
	return p.mu.cluster, nil
}

// config is a setting of the mirror as it is now.
func (p *peer) config(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := metadata.Mirror{Name: p.name, Configs: p.mu.configs}
	return m.Config(name)
}

func (p *peer) configInt(name string, otherwise int64) int64 {
	n, err := strconv.ParseInt(p.config(name), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

func (p *peer) timeout() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return requestTimeout(&metadata.Mirror{Name: p.name, Configs: p.mu.configs})
}

// requestTimeout bounds one call to the source of a mirror.
func requestTimeout(m *metadata.Mirror) time.Duration {
	n, err := strconv.ParseInt(m.Config("request.timeout.ms"), 10, 64)
	if err != nil || n <= 0 {
		n = 30000
	}
	return time.Duration(n) * time.Millisecond
}

var (
	errSourceLacksTopic     = errors.New("source does not have the topic")
	errSourceLacksPartition = errors.New("source does not have the partition")
	errSourceNoLeader       = errors.New("source partition has no leader")
)

// locate is where a partition is read as far as is known.
func (p *peer) locate(topic string, partition int32) (location, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.mu.known[topic]
	switch {
	case t == nil:
		return location{}, fmt.Errorf("%w: %s", errSourceLacksTopic, topic)
	case t.Err != nil:
		return location{}, fmt.Errorf("source topic %s: %w", topic, t.Err)
	case int(partition) >= len(t.Partitions):
		return location{}, fmt.Errorf("%w: %s-%d", errSourceLacksPartition, topic, partition)
	}
	sp := t.Partitions[partition]
	addr, ok := p.mu.brokers[sp.Leader]
	if !ok {
		return location{}, fmt.Errorf("%w: %s-%d", errSourceNoLeader, topic, partition)
	}
	return location{
		broker: addr, epoch: sp.LeaderEpoch,
		key: sdk.PartitionKey{Topic: topic, TopicID: t.ID, Partition: partition},
	}, nil
}

// find is locate that asks the source when nothing is known, or when fresh is
// set.
func (p *peer) find(ctx context.Context, topic string, partition int32, fresh bool) (location, error) {
	if !fresh {
		if loc, err := p.locate(topic, partition); err == nil {
			return loc, nil
		}
	}
	err, stopped := p.topics.do(ctx, topic)
	if stopped != nil {
		return location{}, stopped
	}
	if err != nil {
		return location{}, err
	}
	return p.locate(topic, partition)
}

// describe is the batched call of topics: it refreshes what is known of them.
func (p *peer) describe(ctx context.Context, names []string) []error {
	_, err := p.fetchMetadata(ctx, names)
	errs := make([]error, len(names))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// fetchMetadata describes topics on the source, keeps the answer, and tells the
// partitions whose leader moved.
func (p *peer) fetchMetadata(ctx context.Context, names []string) (*source.Metadata, error) {
	cluster, err := p.source()
	if err != nil {
		return nil, err
	}
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	meta, err := cluster.Metadata(ctx, names)
	if errors.Is(err, source.ErrOtherCluster) {
		// At a broker's old address, or where the settings lead? The latter is final.
		img := p.m.o.Controller.Image()
		if mirror := img.Mirror(p.name); mirror != nil {
			if _, is := p.checkSource(ctx, mirror, mirroredTopics(img, p.name)); is != nil {
				err = is
			}
		}
	}
	if err != nil {
		return nil, err
	}
	moved := p.learn(cluster, meta)
	for _, key := range moved {
		p.m.post(key, sourceMoved{})
	}
	return meta, nil
}

// learn keeps an answer and lists the partitions with another leader, leader's address
// or epoch than before. A leader epoch older than the known one is old news.
func (p *peer) learn(from Source, meta *source.Metadata) (moved []nameKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.cluster != from {
		return nil // reconfigured meanwhile
	}
	addrs := p.mu.brokers
	p.mu.brokers = meta.Brokers
	for _, name := range slices.Sorted(maps.Keys(meta.Topics)) {
		t := meta.Topics[name]
		old := p.mu.known[name]
		if old != nil && old.ID == t.ID && t.Err == nil {
			for i := range t.Partitions {
				if i >= len(old.Partitions) {
					break
				}
				was, is := old.Partitions[i], &t.Partitions[i]
				if was.LeaderEpoch > is.LeaderEpoch && is.LeaderEpoch >= 0 {
					*is = was
				}
				from, at := addrs[was.Leader], p.mu.brokers[is.Leader]
				readdressed := from.Port != 0 && at.Port != 0 && from != at
				if was.Leader != is.Leader || was.LeaderEpoch != is.LeaderEpoch || readdressed {
					moved = append(moved, nameKey{name, int32(i)})
				}
			}
		}
		p.mu.known[name] = t
	}
	return moved
}

// noteLeader takes what a fetch response said about a partition's leader, if it
// is newer than what is known (9.7).
func (p *peer) noteLeader(topic string, partition, leader, epoch int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.mu.known[topic]
	if t == nil || int(partition) >= len(t.Partitions) || leader < 0 {
		return
	}
	if _, ok := p.mu.brokers[leader]; !ok {
		return
	}
	if sp := t.Partitions[partition]; epoch > sp.LeaderEpoch {
		// Topics handed out by the source package are not shared with anybody
		// else, but readers of a refresh may hold this one: change a copy.
		changed := *t
		changed.Partitions = append([]source.Partition(nil), t.Partitions...)
		changed.Partitions[partition].Leader, changed.Partitions[partition].LeaderEpoch = leader, epoch
		p.mu.known[topic] = &changed
	}
}

// lmeAnswer is what the source says about one of our partitions (W24).
type lmeAnswer struct {
	found     source.LastMirrored
	supported bool
	err       error
}

func (p *peer) lastMirrored(ctx context.Context, keys []sdk.PartitionKey) []lmeAnswer {
	answers := make([]lmeAnswer, len(keys))
	var found map[sdk.PartitionKey]source.LastMirrored
	var supported bool
	cluster, err := p.source()
	if err == nil {
		ctx, cancel := p.m.sched.within(ctx, p.timeout())
		defer cancel()
		found, supported, err = cluster.LastMirroredEpochs(ctx, p.name, p.m.o.ClusterID, keys)
	}
	for i, key := range keys {
		lme, answered := found[key]
		switch {
		case answered:
			answers[i] = lmeAnswer{found: lme, supported: true}
		case err == nil && !supported:
			answers[i] = lmeAnswer{found: source.LastMirrored{Epoch: -1, Offset: -1}}
		case err == nil:
			// Never taken as -1: that would cut the log to zero (B6).
			answers[i].err = fmt.Errorf("source did not answer for the last mirrored epoch of %s", key)
		default:
			answers[i].err = fmt.Errorf("last mirrored epoch of %s: %w", key, err)
		}
	}
	return answers
}

// worker gives the worker for a partition, starting it if there is none, and
// counts the use.
func (p *peer) worker(key workerKey) (*pipeline.Worker, error) {
	millis := func(name string, otherwise int64) time.Duration {
		return time.Duration(p.configInt(name, otherwise)) * time.Millisecond
	}
	o := pipeline.WorkerOptions{
		Open:              func(ctx context.Context) (sdk.Session, error) { return key.cluster.Transport().Open(ctx, key.broker) },
		MaxWait:           millis("fetch.wait.max.ms", 1000),
		MinBytes:          int32(p.configInt("fetch.min.bytes", 1)),
		MaxBytes:          int32(p.configInt("fetch.response.max.bytes", 10<<20)),
		PartitionMaxBytes: int32(p.configInt("fetch.max.bytes", 1<<20)),
		Backoff:           millis("fetch.backoff.ms", 1000),
		Budget:            p.m.budget,
		Logger:            p.log.With("broker", key.broker.Addr()),
		Clock:             p.m.o.Clock,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, p.ctx.Err()
	}
	u := p.mu.workers[key]
	if u == nil {
		u = &workerUse{w: p.m.newWorker(p, key, o)}
		p.mu.workers[key] = u
	}
	u.uses++
	return u.w, nil
}

// release gives a worker back; the last one ends its goroutine and connection.
func (p *peer) release(key workerKey, w *pipeline.Worker) {
	p.mu.Lock()
	u := p.mu.workers[key]
	last := false
	if u != nil && u.w == w {
		u.uses--
		if last = u.uses == 0; last {
			delete(p.mu.workers, key)
		}
	}
	p.mu.Unlock()
	if last {
		w.Close()
	}
}

// fetcherIndex spreads the partitions of one source broker over its workers
// (W20). hash is Java's string hash, so that the spread is Kafka's.
func fetcherIndex(topic string, partition int32, fetchers int) int {
	var hash int32
	for _, r := range topic { // topic names are ASCII
		hash = 31*hash + int32(r)
	}
	sum := 31*hash + partition
	if sum < 0 {
		sum = -sum
	}
	if sum < 0 {
		sum = 0 // the smallest integer has no absolute value
	}
	return int(sum) % fetchers
}
