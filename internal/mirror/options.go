package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// GroupOffset is one committed offset that the mirror writes into a group of
// this cluster. LeaderEpoch is -1 when no epoch belongs to the offset.
type GroupOffset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Metadata    *string
}

// Options make a Manager and a Coordinator. The zero value of a field with a
// default takes it.
type Options struct {
	NodeID    int32
	ClusterID string

	Controller Controller
	Partitions *partition.Manager

	// CommitGroup stores offsets for a consumer group of this cluster, one
	// error per offset. It returns ErrGroupActive when the group has members
	// here (W51). Nil: group offsets are not synchronised.
	CommitGroup func(ctx context.Context, group string, offsets []GroupOffset) ([]error, error)
	// GroupsAbove lists, by group, the committed offsets of one partition that
	// lie above end, so that a truncation can rewrite them (W55). Nil: they are
	// left as they are.
	GroupsAbove func(ctx context.Context, topic string, partition int32, end int64) ([]string, error)

	// Authorizer says that this cluster goes by ACLs; without, they are not copied.
	Authorizer bool

	// Ask sends a request to another broker of this cluster. Nil: there is none.
	Ask func(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error)

	// Open opens the source of a mirror with its settings; default: over the network.
	Open func(configs map[string]string, o source.Options) (Source, error)

	// Truncation and UncleanElection decide what may be lost (D19). Nil: the
	// built-in policies, which do what the specification says.
	Truncation      sdk.TruncationPolicy
	UncleanElection sdk.UncleanElectionPolicy

	// Transports are the ways to a source other than TCP, by mirror name (D20).
	Transports map[string]sdk.DialFunc

	Clock  clock.Clock
	Logger *slog.Logger
	Rand   *rand.Rand // jitter of retries; used by one goroutine only

	// RefreshInterval is mirror.metadata.refresh.interval.ms: how often a
	// source is described. Shorter notices growth, deletion and config changes
	// sooner and costs the source requests. Default 60 s.
	RefreshInterval time.Duration
	// RetryInitial, RetryMax and RetryAttempts are mirror.failed.retry.*: the
	// first and longest delay before a FAILED partition is tried again, and how
	// often. Defaults 100 ms, 300 s, 20. RetryAttempts below zero switches
	// automatic retry off (0 takes the default).
	RetryInitial  time.Duration
	RetryMax      time.Duration
	RetryAttempts int
	// TruncationTimeout is mirror.truncation.timeout.ms: the longest wait for
	// replicas before a partition fails (9.6.4). Default 300 s; below zero
	// waits for ever.
	TruncationTimeout time.Duration
	// FetchersPerBroker is mirror.num.replica.fetchers: connections per mirror
	// and source broker. Default 1.
	FetchersPerBroker int
	// Actions bounds the partitions that prepare or check themselves at the same
	// time. Each holds one goroutine and perhaps one request to the source.
	// Default 64.
	Actions int
	// Stops bounds the partitions that are failed over at the same time, beside
	// those. Each holds one goroutine, and they share what they ask of the controller
	// and of the disk: the next ones begin only when these are done. Default 8192.
	Stops int
	// FetchBytes bounds the bytes all fetchers hold at once. Default 64 MiB.
	FetchBytes int64
}

// EnsureDefaults fills the fields that have a default.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Open == nil {
		o.Open = openSource
	}
	if o.RefreshInterval == 0 {
		o.RefreshInterval = time.Minute
	}
	if o.RetryInitial == 0 {
		o.RetryInitial = 100 * time.Millisecond
	}
	if o.RetryMax == 0 {
		o.RetryMax = 5 * time.Minute
	}
	if o.RetryAttempts == 0 {
		o.RetryAttempts = 20
	}
	if o.TruncationTimeout == 0 {
		o.TruncationTimeout = 5 * time.Minute
	}
	if o.FetchersPerBroker == 0 {
		o.FetchersPerBroker = 1
	}
	if o.Actions == 0 {
		o.Actions = 64
	}
	if o.Stops == 0 {
		o.Stops = 8192
	}
	if o.FetchBytes == 0 {
		o.FetchBytes = 64 << 20
	}
}

// dial is how a mirror's source is reached; nil is TCP.
func (o *Options) dial(mirror string) sdk.DialFunc { return o.Transports[mirror] }

// Validate names every fault of the options at once.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("mirror: "+format, args...)) }
	if o.ClusterID == "" {
		bad("ClusterID is empty")
	}
	if o.Controller == nil || o.Partitions == nil {
		bad("Controller and Partitions are needed")
	}
	if o.RefreshInterval < 0 || o.RetryInitial < 0 || o.RetryMax < o.RetryInitial {
		bad("intervals must not be negative, and RetryMax not below RetryInitial: %v, %v, %v",
			o.RefreshInterval, o.RetryInitial, o.RetryMax)
	}
	if o.RetryAttempts > 32767 {
		bad("RetryAttempts %d is above 32767", o.RetryAttempts)
	}
	if o.FetchersPerBroker < 0 || o.Actions < 0 || o.Stops < 0 || o.FetchBytes < 0 {
		bad("FetchersPerBroker, Actions, Stops and FetchBytes must be positive")
	}
	return errors.Join(errs...)
}

// Settings are those of the options that change while the manager runs. Their
// zero values mean what they mean in Options.
type Settings struct {
	RefreshInterval   time.Duration
	TruncationTimeout time.Duration
	FetchersPerBroker int
}

// Set changes settings. A new period begins with a refresh at once; the timeout is
// that of gates that begin, the connections those of fetches that begin.
func (m *Manager) Set(s Settings) {
	o := Options{RefreshInterval: s.RefreshInterval, TruncationTimeout: s.TruncationTimeout, FetchersPerBroker: s.FetchersPerBroker}
	o.EnsureDefaults()
	next := Settings{o.RefreshInterval, o.TruncationTimeout, o.FetchersPerBroker}
	old := m.settings.Swap(&next)
	if old.RefreshInterval == next.RefreshInterval {
		return
	}
	m.shared.RLock()
	defer m.shared.RUnlock()
	for _, p := range m.shared.peers {
		p.wake()
	}
}
