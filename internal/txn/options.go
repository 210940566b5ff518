package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Options of a Coordinator. Partitions, Append and Load come from a
// PartitionStore in the server and from a model in tests.
type Options struct {
	// NodeID is this broker's id: Apply leads the partitions whose leader it is.
	NodeID int32

	// Partitions tells how many partitions __transaction_state has; 0 while it
	// does not exist. Required.
	Partitions func() int32
	// Append writes one batch to a partition of __transaction_state in the given
	// leader epoch and calls done once the batch is acknowledged or refused. It
	// must not wait for the acknowledgement itself; done may run on any goroutine
	// and even before Append returns. The batch is the log's from then on.
	// Required.
	Append func(partition, leaderEpoch int32, batch []byte, done func(error))
	// Load calls fn for each batch of a partition, from log start to log end,
	// and returns the first error, or the context's. Batches are valid during the
	// call only. Required.
	Load func(ctx context.Context, partition, leaderEpoch int32, fn func(record.Batch) error) error
	// NewProducerID gives a producer id that nobody else has. Required.
	NewProducerID func(ctx context.Context) (int64, error)
	// WriteMarkers ends a transaction in partitions and waits until the markers
	// are durable; the errors match parts. ErrPartitionGone, ErrMarkerOutdated and
	// ErrCoordinatorFenced are final, everything else is tried again. Required.
	WriteMarkers func(ctx context.Context, m Marker, parts []TopicPartition) []error

	// Alive tells whether the cluster still counts on this broker; while it does
	// not, nothing is answered but ErrNotCoordinator. Default: always.
	Alive func() bool
	// Clock gives time to deadlines. Default: clock.System().
	Clock clock.Clock
	// Logger hears of aborts, loads and refused writes. Default: discard.
	Logger *slog.Logger

	// MaxTimeout is the longest transaction timeout a producer may ask for
	// (transaction.max.timeout.ms). An open transaction holds up every reader of
	// committed records for that long when its producer dies. Default: 15 min.
	MaxTimeout time.Duration
	// TimeoutCheck is the time between two looks for transactions whose time is
	// up (transaction.abort.timed.out.transaction.cleanup.interval.ms).
	// Default: 10 s.
	TimeoutCheck time.Duration
	// IDExpiration is how long an unused transactional id is kept
	// (transactional.id.expiration.ms). Default: 7 days.
	IDExpiration time.Duration
	// ExpiryCheck is the time between two looks for such ids
	// (transaction.remove.expired.transaction.cleanup.interval.ms). Default: 1 h.
	ExpiryCheck time.Duration

	// MaxIDs bounds the transactional ids of this coordinator; one takes half a
	// KiB. Default: 100 000.
	MaxIDs int
	// MaxIDsPerPrincipal bounds those that one principal made, as far as this
	// coordinator saw it. Default: MaxIDs.
	MaxIDsPerPrincipal int
	// MaxWriteBytes bounds one batch, and so the partitions of one transaction:
	// its record is stored whole or not at all. Default: 1 MiB.
	MaxWriteBytes int
	// MaxQueued bounds the requests waiting for one partition's goroutine.
	// Default: 65 536.
	MaxQueued int
	// WriteTimeout is how long a request waits for the log. Then it is told to ask
	// again; what it asked for takes effect all the same when the log acknowledges
	// it. Default: 5 s.
	WriteTimeout time.Duration
	// MaxHeld bounds the adds of one transactional id that wait for the change
	// under way, HoldAdds how long one waits before it is told to ask again.
	// Defaults: 1000, 1 s.
	MaxHeld  int
	HoldAdds time.Duration
	// MarkerWriters is how many transactions get their markers at the same time;
	// each waits for the disk. Default: 256.
	MarkerWriters int
	// RetryInitial and RetryMax space the tries for markers that a partition did
	// not take. Defaults: 20 ms, 5 s.
	RetryInitial time.Duration
	RetryMax     time.Duration

	// TopicPartitions, TopicReplicationFactor, TopicMinISR and TopicSegmentBytes
	// shape __transaction_state when it is created (transaction.state.log.…). While
	// there are fewer live brokers than the factor says, it is lowered to their
	// number, and min.insync.replicas with it, or with TopicStrict the topic is not
	// created. Defaults: 50, 3, 2, 100 MiB.
	TopicStrict            bool
	TopicPartitions        int32
	TopicReplicationFactor int16
	TopicMinISR            int16
	TopicSegmentBytes      int32
}

// EnsureDefaults fills what was left zero.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	def(&o.MaxTimeout, 15*time.Minute)
	def(&o.TimeoutCheck, 10*time.Second)
	def(&o.IDExpiration, 7*24*time.Hour)
	def(&o.ExpiryCheck, time.Hour)
	def(&o.MaxIDs, 100_000)
	def(&o.MaxIDsPerPrincipal, o.MaxIDs)
	def(&o.MaxWriteBytes, 1<<20)
	def(&o.MaxQueued, 1<<16)
	def(&o.WriteTimeout, 5*time.Second)
	def(&o.MaxHeld, 1000)
	def(&o.HoldAdds, time.Second)
	def(&o.MarkerWriters, 256)
	def(&o.RetryInitial, 20*time.Millisecond)
	def(&o.RetryMax, 5*time.Second)
	def(&o.TopicPartitions, 50)
	def(&o.TopicReplicationFactor, 3)
	def(&o.TopicMinISR, 2)
	def(&o.TopicSegmentBytes, 100<<20)
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names every fault at once.
func (o *Options) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Partitions == nil, "txn: Partitions is required")
	fault(o.Append == nil, "txn: Append is required")
	fault(o.Load == nil, "txn: Load is required")
	fault(o.NewProducerID == nil, "txn: NewProducerID is required")
	fault(o.WriteMarkers == nil, "txn: WriteMarkers is required")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"MaxTimeout", o.MaxTimeout}, {"TimeoutCheck", o.TimeoutCheck}, {"IDExpiration", o.IDExpiration},
		{"ExpiryCheck", o.ExpiryCheck}, {"HoldAdds", o.HoldAdds}, {"WriteTimeout", o.WriteTimeout}, {"RetryInitial", o.RetryInitial},
	} {
		fault(d.value <= 0, "txn: %s %s must be positive", d.name, d.value)
	}
	fault(o.RetryMax < o.RetryInitial, "txn: RetryMax %s is below RetryInitial %s", o.RetryMax, o.RetryInitial)
	for _, n := range []struct {
		name  string
		value int
	}{
		{"MaxIDs", o.MaxIDs}, {"MaxIDsPerPrincipal", o.MaxIDsPerPrincipal}, {"MaxQueued", o.MaxQueued}, {"MaxHeld", o.MaxHeld}, {"MarkerWriters", o.MarkerWriters},
		{"TopicPartitions", int(o.TopicPartitions)}, {"TopicReplicationFactor", int(o.TopicReplicationFactor)},
		{"TopicMinISR", int(o.TopicMinISR)},
	} {
		fault(n.value < 1, "txn: %s %d must be positive", n.name, n.value)
	}
	fault(o.MaxWriteBytes < 1024, "txn: MaxWriteBytes %d must be at least 1024", o.MaxWriteBytes)
	fault(o.TopicSegmentBytes < 1<<20, "txn: TopicSegmentBytes %d must be at least 1 MiB", o.TopicSegmentBytes)
	return errors.Join(errs...)
}
