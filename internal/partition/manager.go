package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/cores"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Options of a Manager.
type Options struct {
	NodeID int32
	// Stores are the log directories in the order of log.dirs, without those that
	// could not be opened: these are OfflineDirs.
	Stores      []*segment.Store
	OfflineDirs []OfflineDir
	Clock       clock.Clock
	Logger      *slog.Logger

	// TopicDefaults are the broker's own defaults for topic configs (from
	// log.segment.bytes, durability and so on); they stand between a topic's
	// overrides and Kafka's defaults. SetTopicDefaults changes them.
	TopicDefaults map[string]string

	// RetentionCheck is how often old segments are looked for
	// (log.retention.check.interval.ms). Default 5 min.
	RetentionCheck time.Duration

	// ProducerExpiration is how long a log remembers an idle producer
	// (producer.id.expiration.ms). Default 1 day.
	ProducerExpiration time.Duration

	// Cleaner says how compacted logs are compacted.
	Cleaner CleanerOptions

	// Lease tells whether this broker is certain that nobody was elected in its
	// place: the controller has answered its heartbeat within the session. Without
	// one it answers that it leads nothing. It must be quick. Nil: always.
	Lease func() bool
	// PromptWatermark tells followers at once how far they may be read: consumers read
	// from them (KIP-392).
	PromptWatermark bool
	// AlterISR asks the controller for changed ISRs, and answers in their order when
	// the metadata here show what was taken. Nil: the ISR never changes.
	AlterISR func(context.Context, []ISRChange) []ISRResult
	// Offline is told that a partition has gone offline, or was so from the start. It
	// must not block. Nil: nobody is told.
	Offline func()
	// ReplicaLag is how long a follower may not be caught up before it leaves the ISR
	// (replica.lag.time.max.ms). Default 30 s.
	ReplicaLag time.Duration
}

// EnsureDefaults fills what was not set.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.RetentionCheck <= 0 {
		o.RetentionCheck = 5 * time.Minute
	}
	if o.ReplicaLag <= 0 {
		o.ReplicaLag = 30 * time.Second
	}
	if o.ProducerExpiration <= 0 {
		o.ProducerExpiration = 24 * time.Hour
	}
}

// Manager holds the replicas of this broker and follows the metadata image.
type Manager struct {
	o       Options
	dirs    *logDirs
	disk    Disk     // instead of dirs, in a Manual; else nil
	cleaner *cleaner // nil: nothing is compacted
	shared  *shared

	// Of the goroutine that calls Apply.
	defaults map[string]string
	image    *metadata.Image // the last one applied
	// keepStrays says that logs which were not opened are not removed.
	keepStrays bool

	mu struct {
		sync.RWMutex
		byID   map[metadata.TopicID][]*Partition // by index; nil where this broker has no replica
		byName map[string]metadata.TopicID
	}

	retain chan struct{} // capacity 1: look for old segments now
	quit   chan struct{}
	done   sync.WaitGroup
}

// NewManager starts a manager without partitions; Apply brings them.
func NewManager(o Options) *Manager {
	m := newManager(o)
	m.shared.start()
	m.done.Add(1)
	go m.background()
	if o.Cleaner.Enabled {
		var err error
		if m.cleaner, err = newCleaner(o.Cleaner, m.o.Clock, m.o.Logger, m.all); err != nil {
			m.o.Logger.Error("nothing is compacted", "err", err)
		}
	}
	return m
}

// newManager makes a manager without goroutines.
func newManager(o Options) *Manager {
	o.EnsureDefaults()
	m := &Manager{o: o, dirs: newLogDirs(&o), shared: newShared(&o), defaults: o.TopicDefaults, retain: make(chan struct{}, 1), quit: make(chan struct{})}
	for _, dir := range m.dirs.dirs {
		dir.offline = sync.OnceFunc(func() { m.takeOffline(dir) })
	}
	m.mu.byID = make(map[metadata.TopicID][]*Partition)
	m.mu.byName = make(map[string]metadata.TopicID)
	return m
}

// Apply follows the metadata from prev (nil at first) to next. It is called
// from one goroutine, in order. A log that cannot be opened leaves its
// partition offline and is logged once.
//
// Logs on disk whose topic the image does not know are left alone: missing
// metadata is never read as "delete it". One that the image gives to other brokers
// is removed, also if that happened while this one was down; but not if the metadata
// were restored from a backup, which may be older than the move to here.
func (m *Manager) Apply(prev, next *metadata.Image) {
	m.shared.applied(prev, next)
	m.keepStrays = next.Restored != ""
	if prev != nil {
		for _, t := range prev.Topics() {
			if next.TopicByID(t.ID) == nil {
				m.drop(t)
			}
		}
	}
	var changed []*topicChange
	var open errgroup.Group
	open.SetLimit(openersAtOnce(prev == nil, cores.Count()))
	for _, t := range next.Topics() {
		if prev != nil && prev.TopicByID(t.ID) == t {
			continue // images share what did not change
		}
		c := m.prepareTopic(t, prev == nil, &open)
		c.alike = prev != nil && t.OnlyPartitionsDiffer(prev.TopicByID(t.ID))
		changed = append(changed, c)
	}
	_ = open.Wait()
	for _, c := range changed {
		m.applyTopic(c)
	}
	if prev == nil {
		m.dirs.reportStrays()
	}
	m.image = next
}

// SetTopicDefaults replaces the broker's defaults of topic configs and brings
// every topic under them. It is called where Apply is.
func (m *Manager) SetTopicDefaults(defaults map[string]string) {
	m.defaults = defaults
	if m.image == nil {
		return
	}
	for _, t := range m.image.Topics() {
		m.applyTopic(m.prepareTopic(t, false, new(errgroup.Group)))
	}
}

// SetCleaner changes how logs are compacted, from the next round of each log on.
// Whether they are at all is decided at the start.
func (m *Manager) SetCleaner(o CleanerOptions) {
	if m.cleaner != nil {
		m.cleaner.set(o)
	}
}

// openers is how many logs are opened at once by a broker that does nothing else
// yet. Most of the time of one is spent waiting for the disk.
const openers = 16

// openersAtOnce leaves a processor to the clients of a broker that serves. Sixteen
// openers beside them, for a topic of some thousand partitions, keep all processors
// in short system calls for a second or two: the scheduler then looks at the network
// every 10 ms only, and all other requests wait for that, several times.
func openersAtOnce(first bool, processors int) int {
	if first {
		return openers
	}
	return min(openers, max(1, processors-1))
}

// topicChange is one topic that Apply follows.
type topicChange struct {
	topic  *metadata.Topic
	get    func(string) string
	config segment.Config
	// alike says that of the topic only partitions have changed: what they see of the rest
	// is as it was.
	alike  bool
	grown  []*Partition
	gone   []*Partition    // replicas that are not ours any more
	strays []segment.LogID // likewise, of which the log was never opened
}

// prepareTopic opens the logs of a topic that are not open yet, in the
// background; old says that it is of the first image, so that its logs were made
// before this start.
func (m *Manager) prepareTopic(t *metadata.Topic, old bool, open *errgroup.Group) *topicChange {
	m.mu.RLock()
	parts := m.mu.byID[t.ID]
	m.mu.RUnlock()
	get := m.configOf(t)
	c := &topicChange{topic: t, get: get, config: m.segmentConfig(get), grown: make([]*Partition, max(len(parts), len(t.Partitions)))}
	copy(c.grown, parts)
	for _, mp := range t.Partitions {
		if int(mp.Index) >= len(c.grown) {
			continue
		}
		if !slices.Contains(mp.Replicas, m.o.NodeID) {
			if p := c.grown[mp.Index]; p != nil {
				c.gone, c.grown[mp.Index] = append(c.gone, p), nil
			} else if id := (segment.LogID{Topic: t.ID, Partition: mp.Index}); m.holds(id) {
				c.strays = append(c.strays, id)
			}
			continue
		}
		if p := c.grown[mp.Index]; p == nil {
			dir, err := m.place(segment.LogID{Topic: t.ID, Partition: mp.Index}, old)
			work := func() error { c.grown[mp.Index] = m.open(t, mp.Index, c.config, dir, err); return nil }
			if m.disk != nil {
				_ = work() // a Manual has no goroutines
			} else {
				open.Go(work)
			}
		} else if p.log != nil {
			p.log.SetConfig(c.config)
		}
	}
	return c
}

// applyTopic publishes a topic whose logs are open.
func (m *Manager) applyTopic(c *topicChange) {
	t, settings := c.topic, settingsOf(c.get)
	for _, mp := range t.Partitions {
		if int(mp.Index) >= len(c.grown) || c.grown[mp.Index] == nil || !slices.Contains(mp.Replicas, m.o.NodeID) {
			continue
		}
		// Images share what did not change. Each update wakes all who wait at a partition,
		// its followers too: a failover changes thousands, a few in each of many topics.
		if p := c.grown[mp.Index]; !c.alike || p.applied != mp {
			p.update(t, mp, settings)
			p.applied = mp
		}
	}
	m.mu.Lock()
	m.mu.byID[t.ID] = c.grown
	m.mu.byName[t.Name] = t.ID
	m.mu.Unlock()
	for _, p := range c.gone {
		m.remove(t.Name, p)
	}
	for _, id := range c.strays {
		if m.keepStrays {
			m.o.Logger.Warn("log of a replica that is another broker's by the restored metadata is left alone: the backup may be older than its move to here; move it away by hand while the server is stopped",
				"topic", t.Name, "log", id.String())
			continue
		}
		m.o.Logger.Info("log of a replica that is another broker's by now is removed", "topic", t.Name, "partition", id.Partition)
		if err := m.removeLog(id, nil); err != nil {
			m.o.Logger.Error("log could not be removed", "topic", t.Name, "partition", id.Partition, "err", err)
		}
	}
	for _, p := range c.grown {
		if p != nil && p.dir != nil {
			if err := p.dir.failure(); err != nil && p.view.Load().offline == nil {
				p.goOffline(err) // it failed before these partitions could be found
			}
		}
	}
}

// open opens a log in its directory, unless there is an error already.
func (m *Manager) open(t *metadata.Topic, index int32, config segment.Config, dir *logDir, err error) *Partition {
	key := sdk.PartitionKey{Topic: t.Name, TopicID: t.ID, Partition: index}
	var log Log
	if err == nil {
		log, err = m.openLog(dir, segment.LogID{Topic: t.ID, Partition: index}, config)
	}
	if err != nil {
		m.o.Logger.Error("log cannot be opened, partition is offline", "topic", t.Name, "partition", index, "err", err)
	}
	p := newPartition(key, m.o.NodeID, m.o.Clock, log, err, m.shared)
	p.dir = dir
	if log != nil {
		log.WhenReady(p.historyKnown)
	}
	return p
}

func (m *Manager) openLog(dir *logDir, id segment.LogID, config segment.Config) (Log, error) {
	if m.disk != nil {
		return m.disk.Open(id)
	}
	log, err := dir.store.OpenLog(id.Topic, id.Partition, config)
	if log == nil {
		return nil, err // not a nil pointer in an interface
	}
	return log, err // one that is damaged is there, and can be repaired
}

func (m *Manager) drop(t *metadata.Topic) {
	m.mu.Lock()
	parts := m.mu.byID[t.ID]
	delete(m.mu.byID, t.ID)
	if m.mu.byName[t.Name] == t.ID {
		delete(m.mu.byName, t.Name)
	}
	m.mu.Unlock()
	for _, p := range parts {
		if p != nil {
			m.remove(t.Name, p)
		}
	}
}

// remove ends a replica, and its log with it: the metadata say that there is none
// here any more.
func (m *Manager) remove(topic string, p *Partition) {
	p.close()
	if err := m.removeLog(segment.LogID{Topic: p.key.TopicID, Partition: p.key.Partition}, p.dir); err != nil {
		m.o.Logger.Error("log could not be removed", "topic", topic, "partition", p.key.Partition, "err", err)
	}
}

// Get finds a replica by topic name; nil if this broker has none.
func (m *Manager) Get(topic string, partition int32) *Partition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	id, ok := m.mu.byName[topic]
	if !ok {
		return nil
	}
	return at(m.mu.byID[id], partition)
}

// ByID finds a replica by topic id; nil if this broker has none.
func (m *Manager) ByID(id metadata.TopicID, partition int32) *Partition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return at(m.mu.byID[id], partition)
}

func at(parts []*Partition, i int32) *Partition {
	if i < 0 || int(i) >= len(parts) {
		return nil
	}
	return parts[i]
}

// List returns the replicas sorted by topic and partition.
func (m *Manager) List() []*Partition {
	out := m.all()
	slices.SortFunc(out, func(a, b *Partition) int {
		if c := strings.Compare(a.key.Topic, b.key.Topic); c != 0 {
			return c
		}
		return cmp.Compare(a.key.Partition, b.key.Partition)
	})
	return out
}

// all is List in no order.
func (m *Manager) all() []*Partition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []*Partition
	for _, parts := range m.mu.byID {
		for _, p := range parts {
			if p != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// Close ends every partition's waiters and stops the background work. The
// segment store is closed by its owner afterwards.
func (m *Manager) Close() {
	close(m.quit)
	m.done.Wait()
	if m.cleaner != nil {
		m.cleaner.close()
	}
	for _, p := range m.List() {
		p.close()
	}
	m.shared.close()
}

// background applies retention: one goroutine for all partitions, so that an
// idle one costs nothing.
func (m *Manager) background() {
	defer m.done.Done()
	retain := m.o.Clock.NewTimer(m.o.RetentionCheck)
	defer retain.Stop()
	for {
		select {
		case <-m.quit:
			return
		case <-retain.C():
			m.retainAll()
			retain.Reset(m.o.RetentionCheck)
		case <-m.retain:
			m.retainAll()
		}
	}
}

func (m *Manager) retainAll() {
	for _, p := range m.all() {
		v := p.view.Load()
		if p.log == nil || v.gone || v.offline != nil {
			continue
		}
		p.appendMu.Lock()
		n, err := p.log.Retain(m.o.Clock.Now(), p.view.Load().highWatermark)
		p.appendMu.Unlock()
		switch {
		case errors.Is(err, segment.ErrClosed), errors.Is(err, segment.ErrRebuilding):
		case err != nil:
			m.o.Logger.Error("retention failed", "topic", p.key.Topic, "partition", p.key.Partition, "err", err)
		case n > 0:
			m.o.Logger.Info("segments deleted by retention", "topic", p.key.Topic, "partition", p.key.Partition,
				"segments", n, "log_start", p.log.StartOffset())
		}
	}
}

// configOf resolves a topic config: the topic's override, else the broker's
// default, else Kafka's.
func (m *Manager) configOf(t *metadata.Topic) func(string) string {
	return func(name string) string {
		if _, own := t.Configs[name]; !own {
			if v, ok := m.defaults[name]; ok {
				return v
			}
		}
		return t.Config(name)
	}
}

// segmentConfig turns topic configs into what the log needs. Retention is off
// where the cleanup policy has no "delete" in it.
func (m *Manager) segmentConfig(get func(string) string) segment.Config {
	n := func(name string) int64 {
		v, err := strconv.ParseInt(get(name), 10, 64)
		if err != nil {
			return -1
		}
		return v
	}
	c := segment.Config{
		SegmentBytes:   n("segment.bytes"),
		SegmentMs:      n("segment.ms"),
		RetentionMs:    n("retention.ms"),
		RetentionBytes: n("retention.bytes"),

		ProducerExpirationMs: m.o.ProducerExpiration.Milliseconds(),
	}
	compacted, deleted := cleanupPolicy(get)
	if !deleted {
		c.RetentionMs, c.RetentionBytes = -1, -1
	}
	if compacted {
		c.Compact = true
		c.MinCompactionLagMs = n("min.compaction.lag.ms")
		if c.MaxCompactionLagMs = n("max.compaction.lag.ms"); c.MaxCompactionLagMs == math.MaxInt64 {
			c.MaxCompactionLagMs = 0 // never
		}
		c.DeleteRetentionMs = n("delete.retention.ms")
		if ratio, err := strconv.ParseFloat(strings.TrimSpace(get("min.cleanable.dirty.ratio")), 64); err == nil {
			c.MinCleanableRatio = ratio
		}
	}
	return c
}

func cleanupPolicy(get func(string) string) (compacted, deleted bool) {
	for policy := range strings.SplitSeq(get("cleanup.policy"), ",") {
		switch strings.TrimSpace(policy) {
		case "compact":
			compacted = true
		case "delete":
			deleted = true
		}
	}
	return compacted, deleted
}

// String helps in logs and tests.
func (p *Partition) String() string {
	v := p.view.Load()
	return fmt.Sprintf("%s leader %d epoch %d high watermark %d", p.key, v.leaderID, v.leaderEpoch, v.highWatermark)
}
