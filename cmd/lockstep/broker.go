package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/kafka"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/peer"
	"github.com/lockstep-kafka/lockstep/internal/replica"
	"github.com/lockstep-kafka/lockstep/internal/txn"
	"github.com/lockstep-kafka/lockstep/plugins/host"
	"github.com/lockstep-kafka/lockstep/segment"
)

// broker is everything that runs in one server process, in the order in which
// it is started; stop goes the other way.
type broker struct {
	nodeID    int32
	clusterID string
	endpoints []metadata.Endpoint
	adminAddr string
	failed    chan error // a part that cannot go on

	logger     *slog.Logger
	cfg        *config.Config
	controller *controller.Controller
	logDirs    *logDirs
	partitions *partition.Manager
	groups     *group.Coordinator
	txns       *txn.Coordinator
	markers    *kafka.MarkerSender
	mirrors    *mirror.Manager
	plugins    *host.Host // nil: none configured
	server     *kafka.Server
	peers      *peer.Pool
	replicas   *replica.Manager
	member     atomic.Pointer[member] // nil: not registered
	applied    atomic.Int64           // revision of the image that the watcher has seen
	lastStop   int64                  // broker epoch of the last clean stop of this node
	audit      io.WriteCloser         // nil: none is written
	listeners  *listeners
	admin      *admin
	unwatch    []func()
	ready      atomic.Bool
	served     chan struct{}
	stopped    chan struct{}  // closed by stop
	running    sync.WaitGroup // goroutines of this struct that use its parts
}

// startBroker opens what is on disk, then the doors: controller, logs,
// coordinators, listeners, registration, and last the mirrors. A process that is no
// broker has a controller and nothing else. An error leaves nothing running.
func startBroker(ctx context.Context, cfg *config.Config, level *slog.LevelVar, logger *slog.Logger, users ...*firstUser) (_ *broker, err error) {
	b := &broker{
		nodeID: int32(cfg.Int("node.id")), logger: logger, cfg: cfg, lastStop: noCleanStop,
		failed: make(chan error, 1), served: make(chan struct{}), stopped: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			stopCtx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			b.stop(stopCtx)
		}
	}()
	var manager atomic.Pointer[partition.Manager] // once there is one
	onHealth := func(dir string, h segment.Health) {
		if m := manager.Load(); m != nil {
			m.DirHealth(dir, h)
		}
	}
	// The logs come first: their locks keep a second server out of the directories.
	var dirs []string
	if cfg.IsBroker() {
		dirs = cfg.LogDirs()
	}
	if b.logDirs, err = openLogDirs(dirs, cfg.MetadataDir(), b.nodeID, logger, onHealth, segment.Options{
		Clock: clock.System(), Logger: logger.With("part", "segment"),
		FlushInterval: cfg.Duration("mirror.flush.ms"), MaxOpenFiles: maxOpenFiles(descriptorLimit(), len(cfg.LogDirs())),
		ReserveBytes: cfg.Int("log.dir.reserve.bytes"), StallTimeout: cfg.Duration("log.dir.stall.ms"),
		OnDamage: b.damaged, ScrubBytesPerSecond: cfg.Int("log.scrub.bytes.per.second"), ScrubInterval: cfg.Duration("log.scrub.interval.ms"),
		QuarantineBytes: cfg.Int("log.quarantine.bytes"), QuarantineAge: cfg.Duration("log.quarantine.ms"),
		KeepBytes: keepBytes(cfg), KeepAge: cfg.Duration("mirror.truncation.keep.ms"), KeepRequired: cfg.Bool("mirror.truncation.keep.required"),
	}); err != nil {
		return nil, err
	}
	if b.lastStop, err = b.logDirs.takeCleanStops(); err != nil {
		return nil, err
	}
	o, err := controllerOptions(cfg, b)
	if err != nil {
		return nil, err
	}
	// Policies come before the controller, which asks one of them about elections.
	var seams mirror.Options
	if b.plugins, err = startPlugins(cfg, &seams, logger); err != nil {
		return nil, err
	}
	o.UncleanElection = seams.UncleanElection
	if b.controller, err = controller.Open(ctx, o); err != nil {
		return nil, err
	}
	b.clusterID = b.controller.Image().ClusterID
	if err := b.logDirs.claim(b.clusterID); err != nil {
		return nil, err
	}
	if !cfg.IsBroker() {
		return b, b.serveController(level)
	}
	live := newLiveConfig(cfg, b.nodeID, level, b.controller.Image())
	b.partitions = partition.NewManager(partition.Options{
		NodeID: b.nodeID, Stores: b.logDirs.stores(), OfflineDirs: b.logDirs.offline, Logger: logger.With("part", "partition"),
		TopicDefaults: live.settings.TopicDefaults(), RetentionCheck: cfg.Duration("log.retention.check.interval.ms"),
		ProducerExpiration: cfg.Duration("producer.id.expiration.ms"),
		Cleaner:            live.cleaner(),
		Lease:              b.lease, ReplicaLag: cfg.Duration("replica.lag.time.max.ms"),
		PromptWatermark: cfg.RackAware(), Offline: b.wentOffline,
		AlterISR: replica.AlterISR(b.controller, b.nodeID, b.brokerEpoch),
	})
	b.partitions.SetThrottles(live.throttles())
	manager.Store(b.partitions)
	if b.peers, err = newPeers(cfg, b); err != nil {
		return nil, err
	}
	if b.groups, err = newGroups(cfg, live, b); err != nil {
		return nil, err
	}
	if b.txns, err = newTransactions(cfg, b); err != nil {
		return nil, err
	}
	if b.mirrors, err = newMirrors(cfg, live, b, seams); err != nil {
		return nil, err
	}
	if b.audit, err = openAudit(cfg); err != nil {
		return nil, err
	}
	b.replicas = newReplicas(cfg, b)
	if b.server, err = newServer(ctx, cfg, live, b); err != nil {
		return nil, err
	}
	// Listeners are bound but nothing is accepted yet: the real ports are known.
	b.endpoints = b.server.Endpoints()
	if err := b.startAdmin(); err != nil {
		return nil, err
	}
	if err := b.enter(ctx, live); err != nil {
		return nil, err
	}
	if err := addFirstUsers(ctx, b.controller, users, logger); err != nil {
		return nil, err
	}
	if err := b.logDirs.settle(b.partitions.OfflineDirs()); err != nil {
		return nil, err
	}
	b.mirrors.Start()
	go func() {
		defer close(b.served)
		if err := b.server.Serve(); err != nil {
			b.fail(err)
		}
	}()
	b.watchController()
	b.tellEnds()
	b.ready.Store(true)
	b.running.Go(giveBack)
	registerGauges(b)
	logger.Info("serving", "node", b.nodeID, "cluster", b.clusterID, "endpoints", b.endpoints, "data", cfg.LogDirs())
	return b, nil
}

// enter registers this broker, opens its logs by the metadata, and returns when the
// controller takes it for alive and it leads what it was given.
func (b *broker) enter(ctx context.Context, live *liveConfig) error {
	timeout := b.cfg.Duration("initial.broker.registration.timeout.ms")
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("initial.broker.registration.timeout.ms: not registered within %v", timeout))
	defer cancel()
	m, err := join(ctx, memberOptions{
		Office: b.controller, Registration: b.registration(), Applied: b.applied.Load, Unusable: b.unusable, Others: b.others,
		Interval: b.cfg.Duration("broker.heartbeat.interval.ms"), Session: b.cfg.Duration("broker.session.timeout.ms"),
		Clock: clock.System(), Logger: b.logger.With("part", "member"), Fail: b.fail,
	})
	if err != nil {
		return fmt.Errorf("register broker %d: %w", b.nodeID, errors.Join(context.Cause(ctx), err))
	}
	b.member.Store(m)
	// One watcher keeps the order: a coordinator must find the partitions of the
	// image that it is told about.
	b.unwatch = append(b.unwatch, b.controller.Watch(func(prev, next *metadata.Image) {
		live.follow(b, next)
		b.peers.Apply(next)
		b.partitions.Apply(prev, next)
		b.replicas.Apply(next)
		b.groups.Apply(prev, next)
		b.txns.Apply(next)
		b.applied.Store(next.Revision)
		if m.Fenced() {
			m.wake()
		}
	}))
	// Logs are open and recovered before this broker is given anything to lead, and
	// it leads that before the first client is answered.
	for _, step := range []func(context.Context) error{b.controller.WaitWatchers, m.waitUnfenced, b.controller.WaitWatchers} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("broker %d was not let into the cluster: %w", b.nodeID, context.Cause(ctx))
		}
	}
	return nil
}

func (b *broker) registration() controller.RegisterBroker {
	r := controller.RegisterBroker{
		ID: b.nodeID, Rack: b.cfg.String("broker.rack"), Endpoints: b.endpoints,
		Durability: b.cfg.String("durability"), PreviousEpoch: b.lastStop,
		Restored: b.controller.Image().Restored,
	}
	rand.Read(r.Incarnation[:])
	return r
}

// others tells whether the cluster has brokers beside this one.
func (b *broker) others() bool {
	for _, o := range b.controller.Image().Brokers() {
		if o.ID != b.nodeID {
			return true
		}
	}
	return false
}

// lease tells whether this broker may act as a leader (reliability rule 9).
func (b *broker) lease() bool {
	m := b.member.Load()
	return m == nil || m.Lease()
}

// serveController is the rest of a start without the role of a broker.
func (b *broker) serveController(level *slog.LevelVar) error {
	level.Set(logLevel(b.cfg.String("log.level")))
	if err := b.startAdmin(); err != nil {
		return err
	}
	close(b.served)
	b.watchController()
	b.ready.Store(true)
	obs.Gauge("lockstep_metadata_revision", func() float64 { return float64(b.controller.Image().Revision) })
	b.logger.Info("serving as a controller", "node", b.nodeID, "cluster", b.clusterID)
	return nil
}

func (b *broker) startAdmin() (err error) {
	addr := b.cfg.String("admin.listener")
	if addr == "" {
		return nil
	}
	if b.admin, err = startAdmin(addr, b.cfg.Bool("admin.pprof.enable"), b.checks(), b.logger); err != nil {
		return err
	}
	b.adminAddr = b.admin.addr
	return nil
}

// watchController ends the process with its metadata store.
func (b *broker) watchController() {
	go func() {
		select {
		case <-b.controller.Done():
			b.fail(errors.New("the metadata store has stopped by itself; the log above says why"))
		case <-b.stopped:
		}
	}()
}

// damaged takes the partition of a damaged log offline, and has it repaired: from its
// leader, or, where this broker leads a mirror, from the source. It is only called for
// logs that were opened, hence when there are partitions, replicas and mirrors.
func (b *broker) damaged(id segment.LogID, d *segment.DamageError) {
	if p := b.partitions.Damaged(id, d); p != nil {
		b.replicas.Damaged(id.Topic, id.Partition)
		b.mirrors.Damaged(p.Key().Topic, p.Key().Partition, d)
	}
}

// wentOffline has the controller told without delay that a log cannot be used.
func (b *broker) wentOffline() {
	if m := b.member.Load(); m != nil {
		m.wake()
	}
}

// unusable are the replicas here whose logs cannot be used, and those of them that
// others can replace.
func (b *broker) unusable() ([]controller.UnusableReplicas, []controller.OfflineReplica) {
	offline := b.partitions.Offline()
	if len(offline) == 0 {
		return nil, nil
	}
	list := make([]controller.OfflineReplica, len(offline))
	for i, p := range offline {
		list[i] = controller.OfflineReplica{Topic: p.Key().TopicID, Partition: p.Key().Partition}
	}
	return controller.Unusable(list), controller.Resignable(b.controller.Image(), b.nodeID, list)
}

// maxOpenFiles is what each log directory may keep open: with unsynced files it
// may have twice as many, and half of the process' descriptors belong to
// connections and etcd. 0 leaves it to the package.
func maxOpenFiles(limit, dirs int) int {
	if limit <= 0 {
		return 0
	}
	return min(4096, max(64, limit/4/max(dirs, 1)))
}

// keepBytes: 0 is off for an operator, and the default for the package.
func keepBytes(cfg *config.Config) int64 {
	if n := cfg.Int("mirror.truncation.keep.bytes"); n > 0 {
		return n
	}
	return -1
}

// fail reports the first part that cannot go on.
func (b *broker) fail(err error) {
	select {
	case b.failed <- err:
	default:
	}
}

// stop ends what startBroker started, also after half a start. What this broker
// leads is handed over while clients are still answered, so that they move without
// an error; that gets half of the time there is.
func (b *broker) stop(ctx context.Context) error {
	served := b.ready.Swap(false)
	close(b.stopped)
	b.running.Wait()
	var errs []error
	m := b.member.Load()
	if m != nil && b.cfg.Bool("controlled.shutdown.enable") {
		half, cancel := withHalf(ctx)
		if m.handOver(half, int(b.cfg.Int("controlled.shutdown.max.retries")), b.cfg.Duration("controlled.shutdown.retry.backoff.ms")) && served {
			b.server.Linger(half)
		}
		cancel()
	}
	if b.server != nil {
		errs = append(errs, b.server.Close(ctx))
	}
	if b.listeners != nil {
		b.listeners.close()
	}
	if b.mirrors != nil {
		b.mirrors.Close()
	}
	if b.plugins != nil {
		b.plugins.Close()
	}
	if b.txns != nil { // its markers go through groups
		b.txns.Close()
	}
	if b.markers != nil {
		b.markers.Close()
	}
	if b.groups != nil {
		b.groups.Close()
	}
	for _, f := range b.unwatch {
		f()
	}
	if b.replicas != nil {
		b.replicas.Close()
	}
	if b.peers != nil {
		b.peers.Close()
	}
	if b.partitions != nil {
		b.partitions.Close()
	}
	if b.logDirs != nil {
		errs = append(errs, b.closeLogs(m))
	}
	if m != nil {
		m.leave(ctx)
	}
	if b.controller != nil {
		errs = append(errs, b.controller.Close())
	}
	if b.admin != nil {
		b.admin.stop(ctx)
	}
	if b.audit != nil {
		errs = append(errs, b.audit.Close())
	}
	return errors.Join(errs...)
}

// withHalf ends after half of the time that ctx has left.
func withHalf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return context.WithCancel(ctx)
}

// closeLogs closes the log directories, and marks the stop as clean if every log is
// on disk. A start that was given up before it registered leaves the marks that it
// found: nothing has been written.
func (b *broker) closeLogs(m *member) error {
	epoch := b.lastStop
	if m != nil {
		epoch = m.Epoch()
	}
	well := true
	for _, s := range b.logDirs.stores() {
		well = well && s.Health().State != segment.Failed
	}
	if err := b.logDirs.close(); err != nil {
		return err
	}
	if !well || epoch == noCleanStop {
		return nil
	}
	return b.logDirs.markCleanStops(epoch)
}

func (b *broker) checks() map[string]healthCheck {
	checks := map[string]healthCheck{
		"serving": func() error {
			if !b.ready.Load() {
				return errors.New("starting or stopping")
			}
			return nil
		},
		"controller": func() error {
			if _, _, ok := b.controller.Active(); !ok {
				return errors.New("no active controller")
			}
			return nil
		},
		"metadata store": func() error {
			err := b.controller.StoreAlarm()
			if errors.Is(err, controller.ErrStoreFull) {
				return notice{err} // records are served as before
			}
			return err
		},
	}
	if b.partitions != nil {
		maps.Copy(checks, b.brokerChecks())
	}
	return checks
}

func (b *broker) brokerChecks() map[string]healthCheck {
	return map[string]healthCheck{
		"registered": func() error {
			br := b.controller.Image().Broker(b.nodeID)
			switch {
			case br == nil || br.Fenced:
				return errors.New("this broker is fenced")
			case !b.lease():
				return errors.New("the controller does not answer this broker's heartbeats")
			}
			return nil
		},
		"log directories": func() error {
			var errs []error
			for _, s := range b.logDirs.stores() {
				if h := s.Health(); h.State == segment.Slow {
					errs = append(errs, fmt.Errorf("%s is slow since %s: %w", s.Dir(), h.Since.UTC().Format(time.RFC3339), h.Err))
				}
			}
			for _, off := range b.partitions.OfflineDirs() {
				errs = append(errs, fmt.Errorf("%s is offline: %w", off.Path, off.Err))
			}
			return errors.Join(errs...)
		},
		"disk space": func() error {
			var errs []error
			for _, s := range b.logDirs.stores() {
				if h := s.Health(); h.State == segment.Full {
					errs = append(errs, fmt.Errorf("%s takes no records since %s: %w", s.Dir(), h.Since.UTC().Format(time.RFC3339), h.Err))
				}
			}
			if len(errs) == 0 {
				return nil
			}
			// Consumers and administrators are served; without this server they would
			// not be.
			return notice{errors.Join(errs...)}
		},
		"logs": func() error {
			offline := 0
			var first error
			for _, p := range b.partitions.List() {
				if err := p.Info().Offline; err != nil {
					if offline++; first == nil {
						first = fmt.Errorf("%s: %w", p.Key(), err)
					}
				}
			}
			if offline > 0 {
				return fmt.Errorf("%d partitions are offline, the first: %w", offline, first)
			}
			return nil
		},
	}
}

func newServer(ctx context.Context, cfg *config.Config, live *liveConfig, b *broker) (*kafka.Server, error) {
	listeners, err := openListeners(cfg, b)
	if err != nil {
		return nil, err
	}
	o := kafka.Options{
		NodeID: b.nodeID, Listeners: listeners, Controller: b.controller, Partitions: b.partitions, Groups: b.groups, Transactions: b.txns, Peers: b.peers,
		Mirrors: mirror.NewCoordinator(b.mirrors), Clock: clock.System(), Logger: b.logger.With("part", "kafka"), LogLevel: live.level,
		RackAware:                  cfg.RackAware(),
		AutoCreateTopics:           cfg.Bool("auto.create.topics.enable"),
		AutoCreatePartitions:       int32(cfg.Int("num.partitions")),
		AutoCreateReplicas:         int16(cfg.Int("default.replication.factor")),
		BrokerConfigs:              brokerConfigs(cfg),
		MaxProduceBytes:            int(cfg.Int("socket.request.max.bytes")),
		RequestMemory:              requestMemory(cfg),
		MaxConnections:             live.int("max.connections"),
		MaxConnectionRate:          live.int("max.connection.creation.rate"),
		MaxConnectionsPerIP:        live.int("max.connections.per.ip"),
		IdleTimeout:                cfg.Duration("connections.max.idle.ms"),
		QuotaSamples:               int(cfg.Int("quota.window.num")),
		QuotaSampleLength:          time.Duration(cfg.Int("quota.window.size.seconds")) * time.Second,
		FetchMaxBytes:              int(cfg.Int("fetch.max.bytes")),
		FetchSessions:              int(cfg.Int("max.incremental.fetch.session.cache.slots")),
		MaxConnectionsPerPrincipal: int(cfg.Int("max.connections.per.principal")),
		UnverifiedTransactions:     !cfg.Bool("transaction.partition.verification.enable"),
	}
	rights, err := cfg.Authorizer()
	if err != nil {
		return nil, err
	}
	if b.audit != nil {
		o.Audit = b.audit
	}
	if cfg.Bool("audit.log.required") {
		o.AuditLost = func(err error) { b.fail(fmt.Errorf("audit.log.required: %w", err)) }
	}
	if rights != nil {
		o.Authorizer = authz.New(*rights)
	}
	if o.FailedLoginDelay = cfg.Duration("connection.failed.authentication.delay.ms"); o.FailedLoginDelay == 0 {
		o.FailedLoginDelay = -1 // off; the package's zero is its default
	}
	if o.MaxConnectionsPerIPOverrides, err = perIPOverrides(ctx, cfg); err != nil {
		return nil, err
	}
	return kafka.NewServer(o)
}

// requestMemory is queued.max.request.bytes. Who only allows larger requests means
// them to be taken.
func requestMemory(cfg *config.Config) int64 {
	const key = "queued.max.request.bytes"
	switch n := cfg.Int(key); {
	case n < 0:
		return math.MaxInt64
	case cfg.IsSet(key):
		return n
	default:
		return max(n, cfg.Int("socket.request.max.bytes"))
	}
}

func newGroups(cfg *config.Config, live *liveConfig, b *broker) (*group.Coordinator, error) {
	store := group.NewPartitionStore(b.partitions, b.controller.Image)
	delay := cfg.Duration("group.initial.rebalance.delay.ms")
	if delay == 0 {
		delay = -1 // the package's zero is its default
	}
	return group.New(group.Options{
		NodeID: b.nodeID, Partitions: store.Partitions, Append: store.Append, Load: store.Load,
		AppendOffsets: store.AppendOffsets, AppendMarker: store.AppendMarker, Alive: b.lease,
		Logger:                        b.logger.With("part", "group"),
		MinSessionTimeout:             cfg.Duration("group.min.session.timeout.ms"),
		MaxSessionTimeout:             cfg.Duration("group.max.session.timeout.ms"),
		InitialRebalanceDelay:         delay,
		MaxGroupSize:                  int(cfg.Int("group.max.size")),
		Assignors:                     cfg.Assignors(),
		ConsumerSettings:              live.groups(b.controller.Image),
		ConsumerMaxSize:               int(cfg.Int("group.consumer.max.size")),
		ConsumerMigration:             group.MigrationPolicy(cfg.String("group.consumer.migration.policy")),
		WriteTimeout:                  cfg.Duration("offsets.commit.timeout.ms"),
		MaxOffsetMetadataBytes:        int(cfg.Int("offset.metadata.max.bytes")),
		OffsetsRetention:              time.Duration(cfg.Int("offsets.retention.minutes")) * time.Minute,
		OffsetsRetentionCheck:         cfg.Duration("offsets.retention.check.interval.ms"),
		OffsetsTopicPartitions:        int32(cfg.Int("offsets.topic.num.partitions")),
		OffsetsTopicStrict:            cfg.ManyNodes() || cfg.IsSet("offsets.topic.replication.factor"),
		OffsetsTopicReplicationFactor: int16(cfg.Int("offsets.topic.replication.factor")),
		OffsetsTopicSegmentBytes:      int32(cfg.Int("offsets.topic.segment.bytes")),
	})
}

func newMirrors(cfg *config.Config, live *liveConfig, b *broker, seams mirror.Options) (*mirror.Manager, error) {
	attempts := int(cfg.Int("mirror.failed.retry.max.attempts"))
	if attempts == 0 {
		attempts = -1 // off; the package's zero is its default
	}
	settings := live.mirrors()
	groups := &kafka.MirrorGroups{NodeID: b.nodeID, Groups: b.groups, Image: b.controller.Image, Peers: b.peers}
	o := mirror.Options{
		NodeID: b.nodeID, ClusterID: b.clusterID, Controller: b.controller, Partitions: b.partitions,
		CommitGroup: commitGroup(groups, b),
		GroupsAbove: func(ctx context.Context, topic string, partition int32, end int64) ([]string, error) {
			return groups.Above(ctx, group.TopicPartition{Topic: topic, Partition: partition}, end)
		},
		Ask:               b.peers.Request,
		Authorizer:        cfg.String("authorizer.class.name") != "",
		Logger:            b.logger.With("part", "mirror"),
		RefreshInterval:   settings.RefreshInterval,
		RetryInitial:      cfg.Duration("mirror.failed.retry.initial.backoff.ms"),
		RetryMax:          cfg.Duration("mirror.failed.retry.max.backoff.ms"),
		RetryAttempts:     attempts,
		TruncationTimeout: settings.TruncationTimeout,
		FetchersPerBroker: settings.FetchersPerBroker,
	}
	o.Truncation, o.UncleanElection, o.Transports = seams.Truncation, seams.UncleanElection, seams.Transports
	return mirror.NewManager(o)
}

// commitGroup lets a mirror write group offsets without the two packages
// knowing each other. The mirror may well be the first here to speak of groups.
func commitGroup(groups *kafka.MirrorGroups, b *broker) func(context.Context, string, []mirror.GroupOffset) ([]error, error) {
	return func(ctx context.Context, id string, offsets []mirror.GroupOffset) ([]error, error) {
		if _, err := b.groups.EnsureTopic(ctx, b.controller); err != nil {
			return nil, err
		}
		converted := make([]group.Offset, len(offsets))
		for i, o := range offsets {
			converted[i] = group.Offset{Topic: o.Topic, Partition: o.Partition, Offset: o.Offset, LeaderEpoch: o.LeaderEpoch}
			if o.Metadata != nil {
				converted[i].Metadata = *o.Metadata
			}
		}
		errs, err := groups.Commit(ctx, id, converted)
		if errors.Is(err, group.ErrActive) {
			err = mirror.ErrGroupActive
		}
		return errs, err
	}
}

func registerGauges(b *broker) {
	count := func(of func(partition.Info) bool) func() float64 {
		return func() float64 {
			n := 0
			for _, p := range b.partitions.List() {
				if of(p.Info()) {
					n++
				}
			}
			return float64(n)
		}
	}
	obs.Gauge("lockstep_partitions", count(func(partition.Info) bool { return true }))
	obs.Gauge("lockstep_partitions_leader", count(func(i partition.Info) bool { return i.Leader }))
	obs.Gauge("lockstep_partitions_offline", count(func(i partition.Info) bool { return i.Offline != nil }))
	obs.Gauge("lockstep_partitions_read_only", count(func(i partition.Info) bool { return i.ReadOnly }))
	obs.Gauge("lockstep_partitions_under_replicated", func() float64 { n, _ := b.partitions.Shortfalls(); return float64(n) })
	obs.Gauge("lockstep_partitions_below_min_isr", func() float64 { _, n := b.partitions.Shortfalls(); return float64(n) })
	obs.Gauge("lockstep_replica_lag_max", func() float64 { return float64(b.replicas.Lag()) })
	obs.Gauge("lockstep_log_directories_offline", func() float64 { return float64(len(b.partitions.OfflineDirs())) })
	obs.Gauge("lockstep_metadata_revision", func() float64 { return float64(b.controller.Image().Revision) })
}
