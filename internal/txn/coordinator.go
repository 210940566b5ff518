package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// TopicName is the internal topic that holds the transactional ids.
const TopicName = "__transaction_state"

// Coordinator coordinates the transactional ids whose partitions of
// __transaction_state this broker leads. Its methods are safe for use by several
// goroutines; those with a context wait for their answer, and a context that
// ends gives up the answer, not what was asked.
type Coordinator struct {
	o       Options
	count   atomic.Int64 // transactional ids of all shards
	owners  owners
	markers markerWriters
	census  census
	loads   *metrics.PrometheusHistogram
	// refusals counts batches that the log did not take.
	commits, aborts, fences, refusals *metrics.Counter

	led   *coordinator.Shards[*shard]
	topic *coordinator.Topic
}

// New makes a coordinator that leads nothing yet.
func New(o Options) (*Coordinator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{
		o:        o,
		loads:    obs.Histogram("lockstep_transaction_load_seconds"),
		commits:  obs.Counter("lockstep_transactions_ended_total", "result", "commit"),
		aborts:   obs.Counter("lockstep_transactions_ended_total", "result", "abort"),
		fences:   obs.Counter("lockstep_transactions_ended_total", "result", "fence"),
		refusals: obs.Counter("lockstep_transaction_write_errors_total"),
	}
	c.markers.init(o.MarkerWriters)
	c.owners.max = o.MaxIDsPerPrincipal
	c.led = coordinator.NewShards(TopicName, o.NodeID, func(p, epoch int32) *shard { return newShard(c, p, epoch) })
	c.topic = coordinator.NewTopic(o.Clock, TopicName, c.o.stateTopic)
	c.registerGauges()
	return c, nil
}

// Close drops every partition and waits for their goroutines. What waits is
// answered with ErrNotCoordinator.
func (c *Coordinator) Close() {
	c.led.Close()
	c.markers.wait()
}

// BecomeLeader takes over a partition of __transaction_state: its ids answer
// ErrLoading until the log has been replayed. An epoch that is not newer than
// the one already led changes nothing.
func (c *Coordinator) BecomeLeader(partition, leaderEpoch int32) {
	c.led.BecomeLeader(partition, leaderEpoch)
}

// Resign drops a partition; those who wait find the new coordinator.
func (c *Coordinator) Resign(partition int32) { c.led.Resign(partition) }

// Apply follows the metadata: it takes and drops partitions of
// __transaction_state with their leadership. The partitions themselves must have
// seen next before.
func (c *Coordinator) Apply(next *metadata.Image) { c.led.Follow(next) }

// PartitionFor is the partition of __transaction_state that holds an id.
func PartitionFor(id string, partitions int32) int32 { return coordinator.PartitionFor(id, partitions) }

// shard finds who coordinates an id.
func (c *Coordinator) shard(id string) (*shard, error) {
	if id == "" || len(id) > math.MaxInt16 {
		return nil, fmt.Errorf("%w: transactional id of %d bytes", ErrInvalidRequest, len(id))
	}
	return c.led.For(id, c.o.Partitions())
}

// InitProducer gives a transactional id to a producer and fences the one before.
// While that one's transaction is still being ended the answer is
// ErrConcurrent; ask again.
func (c *Coordinator) InitProducer(ctx context.Context, r *InitRequest) (Producer, error) {
	none := Producer{-1, -1}
	if r.ID == "" {
		return none, fmt.Errorf("%w: empty transactional id", ErrInvalidRequest)
	}
	if r.Timeout <= 0 || r.Timeout > c.o.MaxTimeout {
		return none, fmt.Errorf("%w: %s is not in (0, %s]", ErrInvalidTimeout, r.Timeout, c.o.MaxTimeout)
	}
	if (r.ProducerID < 0) != (r.ProducerEpoch < 0) {
		return none, fmt.Errorf("%w: producer id %d with epoch %d", ErrInvalidRequest, r.ProducerID, r.ProducerEpoch)
	}
	s, err := c.shard(r.ID)
	if err != nil {
		return none, err
	}
	res, err := withProducerID(ctx, c, func(newID int64) (initResult, error) {
		res, err := ask[initResult](ctx, s, func(now time.Time, to ticket) {
			sl, err := s.claim(r.ID, r.Principal)
			if err != nil {
				s.Answer(to, initResult{none, err})
				return
			}
			s.step(sl, now, initInput{to, r, newID})
		})
		return res, first(err, res.err)
	})
	if err != nil {
		return none, err
	}
	return res.producer, nil
}

// AddPartitions takes partitions into a transaction, which the first ones begin;
// the error is for all of them. With verifyOnly nothing is changed, and the errors
// match parts. version is the transaction version that the producer works by.
func (c *Coordinator) AddPartitions(ctx context.Context, id string, producerID int64, epoch int16,
	parts []TopicPartition, version int, verifyOnly bool) ([]error, error) {
	s, err := c.shard(id)
	if err != nil {
		return nil, err
	}
	if verifyOnly {
		res, err := onID(ctx, s, id, func(sl *slot, now time.Time, to ticket) {
			s.step(sl, now, verifyInput{to, producerID, epoch, parts})
		}, verifyResult{err: ErrUnknownProducer})
		return res.errs, first(err, res.err)
	}
	res, err := onID(ctx, s, id, func(sl *slot, now time.Time, to ticket) {
		s.step(sl, now, addInput{to, producerID, epoch, parts, version})
	}, error(ErrUnknownProducer))
	if err = first(err, res); err != nil {
		return nil, err
	}
	return make([]error, len(parts)), nil
}

// End commits or aborts. It answers when the decision is stored, with what the
// producer has to use from then on.
func (c *Coordinator) End(ctx context.Context, r *EndRequest) (Producer, error) {
	none := Producer{-1, -1}
	s, err := c.shard(r.ID)
	if err != nil {
		return none, err
	}
	res, err := withProducerID(ctx, c, func(newID int64) (endResult, error) {
		res, err := onID(ctx, s, r.ID, func(sl *slot, now time.Time, to ticket) {
			s.step(sl, now, endInput{to, r, newID})
		}, endResult{none, ErrUnknownProducer})
		return res, first(err, res.err)
	})
	if err != nil {
		return none, err
	}
	return res.producer, nil
}

// withProducerID asks once without a new producer id and, if one is needed,
// again with it: the shard's goroutine cannot wait for the controller.
func withProducerID[T any](ctx context.Context, c *Coordinator, try func(newID int64) (T, error)) (T, error) {
	res, err := try(-1)
	if !errors.Is(err, errNeedProducerID) {
		return res, err
	}
	id, err := c.o.NewProducerID(ctx)
	if err != nil {
		return res, fmt.Errorf("%w: no producer id: %w", ErrNotAvailable, err)
	}
	return try(id)
}

// onID asks an id that exists; unknown is the answer if it does not.
func onID[T any](ctx context.Context, s *shard, id string, fn func(sl *slot, now time.Time, to ticket), unknown T) (T, error) {
	return ask[T](ctx, s, func(now time.Time, to ticket) {
		sl, err := s.id(id)
		if err != nil {
			s.Answer(to, unknown)
			return
		}
		fn(sl, now, to)
	})
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
