package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf16"

	"github.com/VictoriaMetrics/metrics"

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
	markers markerWriters
	census  census
	loads   *metrics.PrometheusHistogram
	// refusals counts batches that the log did not take.
	commits, aborts, fences, refusals *metrics.Counter

	mu struct {
		sync.RWMutex
		shards map[int32]*shard
		closed bool
	}
	running  sync.WaitGroup // the shards' goroutines
	creating chan struct{}  // one token: the right to create the topic

	// topicSeen is closed once Apply has seen __transaction_state.
	topicSeen chan struct{}
	sawTopic  func()
}

// New makes a coordinator that leads nothing yet.
func New(o Options) (*Coordinator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{
		o: o, creating: make(chan struct{}, 1),
		loads:    obs.Histogram("lockstep_transaction_load_seconds"),
		commits:  obs.Counter("lockstep_transactions_ended_total", "result", "commit"),
		aborts:   obs.Counter("lockstep_transactions_ended_total", "result", "abort"),
		fences:   obs.Counter("lockstep_transactions_ended_total", "result", "fence"),
		refusals: obs.Counter("lockstep_transaction_write_errors_total"),
	}
	c.markers.max = o.MarkerWriters
	c.mu.shards = map[int32]*shard{}
	c.topicSeen = make(chan struct{})
	c.sawTopic = sync.OnceFunc(func() { close(c.topicSeen) })
	c.registerGauges()
	return c, nil
}

// Close drops every partition and waits for their goroutines. What waits is
// answered with ErrNotCoordinator.
func (c *Coordinator) Close() {
	c.mu.Lock()
	c.mu.closed = true
	for p, s := range c.mu.shards {
		s.stop()
		delete(c.mu.shards, p)
	}
	c.mu.Unlock()
	c.running.Wait()
	c.markers.running.Wait()
}

// BecomeLeader takes over a partition of __transaction_state: its ids answer
// ErrLoading until the log has been replayed. An epoch that is not newer than
// the one already led changes nothing.
func (c *Coordinator) BecomeLeader(partition, leaderEpoch int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	if old := c.mu.shards[partition]; old != nil {
		if old.epoch >= leaderEpoch {
			return
		}
		old.stop()
	}
	s := newShard(c, partition, leaderEpoch)
	c.mu.shards[partition] = s
	c.running.Go(s.run)
}

// Resign drops a partition; those who wait find the new coordinator.
func (c *Coordinator) Resign(partition int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mu.shards[partition]; s != nil {
		s.stop()
		delete(c.mu.shards, partition)
	}
}

// Apply follows the metadata: it takes and drops partitions of
// __transaction_state with their leadership. The partitions themselves must have
// seen next before.
func (c *Coordinator) Apply(next *metadata.Image) {
	lead := map[int32]int32{}
	if t := next.Topic(TopicName); t != nil {
		for _, p := range t.Partitions {
			if p.Leader == c.o.NodeID {
				lead[p.Index] = p.LeaderEpoch
			}
		}
	}
	for _, s := range c.shards() {
		if _, ok := lead[s.partition]; !ok {
			c.Resign(s.partition)
		}
	}
	for p, epoch := range lead {
		c.BecomeLeader(p, epoch)
	}
	if next.Topic(TopicName) != nil {
		c.sawTopic()
	}
}

func (c *Coordinator) shards() []*shard {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make([]*shard, 0, len(c.mu.shards))
	for _, s := range c.mu.shards {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *shard) int { return int(a.partition) - int(b.partition) })
	return all
}

// PartitionFor is the partition of __transaction_state that holds an id: the
// absolute value of its Java hash, modulo the number of partitions.
func PartitionFor(id string, partitions int32) int32 {
	var h int32
	for _, unit := range utf16.Encode([]rune(id)) {
		h = 31*h + int32(unit)
	}
	if h == math.MinInt32 {
		h = 0 // as Kafka does, because it has no absolute value
	} else if h < 0 {
		h = -h
	}
	return h % partitions
}

// shard finds who coordinates an id.
func (c *Coordinator) shard(id string) (*shard, error) {
	if id == "" || len(id) > math.MaxInt16 {
		return nil, fmt.Errorf("%w: transactional id of %d bytes", ErrInvalidRequest, len(id))
	}
	n := c.o.Partitions()
	if n <= 0 {
		return nil, fmt.Errorf("%w: %s does not exist yet", ErrNotAvailable, TopicName)
	}
	c.mu.RLock()
	s := c.mu.shards[PartitionFor(id, n)]
	c.mu.RUnlock()
	if s == nil {
		return nil, ErrNotCoordinator
	}
	return s, nil
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
			sl, err := s.id(r.ID, true)
			if err != nil {
				s.answer(to, initResult{none, err})
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
		sl, err := s.id(id, false)
		if err != nil {
			s.answer(to, unknown)
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
