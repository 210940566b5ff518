package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// Peers are the other brokers of the cluster: a peer.Pool.
type Peers interface {
	// Request sends req to a broker and waits for its answer, until ctx ends.
	Request(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error)
}

// MarkerSenderOptions say what a MarkerSender stands on. All but Logger are
// required in a cluster of several brokers; without Peers all partitions are
// taken to be here.
type MarkerSenderOptions struct {
	NodeID int32
	Local  MarkerWriter
	Image  func() *metadata.Image
	Peers  Peers
	Clock  clock.Clock
	Logger *slog.Logger
}

// MarkerSender ends transactions in partitions, wherever they are led: here by a
// MarkerWriter, elsewhere by WriteTxnMarkers to the leader. Nothing is tried twice
// here; the transaction's coordinator does that, with the leaders of then.
//
// For each broker there is a queue; what has collected while requests are under
// way shares the next one. A broker that does not answer fills its own queue only.
type MarkerSender struct {
	o MarkerSenderOptions

	mu struct {
		sync.Mutex
		queues map[int32]*markerQueue
		closed bool
	}
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

// markerQueue is what waits for one broker.
type markerQueue struct {
	calls   []*markerCall
	senders int // goroutines with a request under way
}

// markerCall is one producer's marker for partitions of one broker.
type markerCall struct {
	ctx    context.Context // of who waits
	marker txn.Marker
	parts  []txn.TopicPartition
	errs   chan []error // one answer
}

const (
	// maxMarkerCalls bounds those that wait for one broker: below what
	// transactions write at the same time, so that a broker that does not answer
	// leaves room for the others.
	maxMarkerCalls = 128
	// maxMarkersPerRequest bounds one request; the markers in it are answered
	// together.
	maxMarkersPerRequest = 64
	// markerRequests are under way to one broker at the same time: while one waits
	// for replicas, the next collects.
	markerRequests = 2
	// markerTimeout is how long one may take: longer than a slow replica stays in
	// sync. markerLook is how often it is looked whether the broker is still one to
	// wait for.
	markerTimeout = 40 * time.Second
	markerLook    = 200 * time.Millisecond
)

var (
	errMarkersBusy = errors.New("too many markers wait for the broker")
	errBrokerGone  = errors.New("the broker is fenced or gone")
)

// NewMarkerSender sends nothing yet.
func NewMarkerSender(o MarkerSenderOptions) *MarkerSender {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &MarkerSender{o: o}
	s.mu.queues = map[int32]*markerQueue{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends requests and waits for them.
func (s *MarkerSender) Close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

// WriteMarkers is txn.Options.WriteMarkers.
func (s *MarkerSender) WriteMarkers(ctx context.Context, m txn.Marker, parts []txn.TopicPartition) []error {
	img := s.o.Image()
	errs := make([]error, len(parts))
	byBroker := map[int32][]int{} // positions in parts
	for i, tp := range parts {
		p := img.Topic(tp.Topic).Partition(tp.Partition)
		switch {
		case p == nil || p.Leader == s.o.NodeID || s.o.Peers == nil:
			byBroker[s.o.NodeID] = append(byBroker[s.o.NodeID], i)
		case p.Leader < 0:
			errs[i] = fmt.Errorf("%s-%d has no leader: %w", tp.Topic, tp.Partition, partition.ErrNotLeader)
		default:
			byBroker[p.Leader] = append(byBroker[p.Leader], i)
		}
	}
	var wait sync.WaitGroup
	for broker, at := range byBroker {
		some := make([]txn.TopicPartition, len(at))
		for i, pos := range at {
			some[i] = parts[pos]
		}
		wait.Go(func() {
			write := s.local
			if broker != s.o.NodeID {
				write = func(ctx context.Context, m txn.Marker, parts []txn.TopicPartition) []error {
					return s.remote(ctx, broker, m, parts)
				}
			}
			for i, err := range write(ctx, m, some) {
				errs[at[i]] = err // each position is one goroutine's
			}
		})
	}
	wait.Wait()
	img = s.o.Image()
	for i, tp := range parts {
		errs[i] = markerOutcome(errs[i], img.Topic(tp.Topic).Partition(tp.Partition) != nil)
	}
	return errs
}

func (s *MarkerSender) local(ctx context.Context, m txn.Marker, parts []txn.TopicPartition) []error {
	to := make([]group.TopicPartition, len(parts))
	for i, tp := range parts {
		to[i] = group.TopicPartition(tp)
	}
	return s.o.Local.Write(ctx, partition.Marker(m), to)
}

// remote has a marker sent to a broker, and waits for the answer.
func (s *MarkerSender) remote(ctx context.Context, broker int32, m txn.Marker, parts []txn.TopicPartition) []error {
	call := &markerCall{ctx, m, parts, make(chan []error, 1)}
	if err := s.enqueue(broker, call); err != nil {
		return all(err, len(parts))
	}
	select {
	case errs := <-call.errs:
		return errs
	case <-ctx.Done():
		return all(ctx.Err(), len(parts))
	}
}

func all(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (s *MarkerSender) enqueue(broker int32, call *markerCall) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.mu.queues[broker]
	switch {
	case s.mu.closed:
		return partition.ErrClosed
	case q == nil:
		q = &markerQueue{}
		s.mu.queues[broker] = q
	case len(q.calls) >= maxMarkerCalls:
		return fmt.Errorf("broker %d: %w", broker, errMarkersBusy)
	}
	q.calls = append(q.calls, call)
	if q.senders < markerRequests {
		q.senders++
		s.running.Go(func() { s.send(broker, q) })
	}
	return nil
}

// send empties a queue, and ends when there is nothing left.
func (s *MarkerSender) send(broker int32, q *markerQueue) {
	for {
		s.mu.Lock()
		n := min(len(q.calls), maxMarkersPerRequest)
		if n == 0 {
			if q.senders--; q.senders == 0 {
				delete(s.mu.queues, broker)
			}
			s.mu.Unlock()
			return
		}
		calls := append([]*markerCall(nil), q.calls[:n]...)
		q.calls = append(q.calls[:0], q.calls[n:]...)
		s.mu.Unlock()
		s.request(broker, calls)
	}
}

// request sends the markers that somebody still waits for, and answers all.
func (s *MarkerSender) request(broker int32, calls []*markerCall) {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	var sent []*markerCall
	for _, c := range calls {
		if err := c.ctx.Err(); err != nil {
			c.errs <- all(err, len(c.parts))
			continue
		}
		sent = append(sent, c)
		req.Markers = append(req.Markers, requestMarker(c.marker, c.parts))
	}
	if len(sent) == 0 {
		return
	}
	resp, err := s.exchange(broker, req)
	if err != nil {
		s.o.Logger.Info("markers of transactions not sent", "broker", broker, "markers", len(sent), "err", err)
	}
	for i, c := range sent {
		if err != nil {
			c.errs <- all(err, len(c.parts))
			continue
		}
		c.errs <- markerAnswers(resp, i, c)
	}
}

// exchange asks, and gives up when the cluster has given the broker up.
func (s *MarkerSender) exchange(broker int32, req *kmsg.WriteTxnMarkersRequest) (*kmsg.WriteTxnMarkersResponse, error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	late := s.o.Clock.AfterFunc(markerTimeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	looked := make(chan struct{})
	defer func() { cancel(nil); <-looked }()
	go func() {
		defer close(looked)
		for {
			t := s.o.Clock.NewTimer(markerLook)
			select {
			case <-t.C():
			case <-ctx.Done():
				t.Stop()
				return
			}
			if b := s.o.Image().Broker(broker); b == nil || b.Fenced {
				cancel(errBrokerGone)
			}
		}
	}()
	resp, err := s.o.Peers.Request(ctx, broker, req)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, fmt.Errorf("broker %d: %w", broker, cause)
	}
	if err != nil {
		return nil, err
	}
	answer, ok := resp.(*kmsg.WriteTxnMarkersResponse)
	if !ok || len(answer.Markers) != len(req.Markers) {
		return nil, fmt.Errorf("broker %d: an answer that does not match the markers", broker)
	}
	return answer, nil
}

// requestMarker groups partitions by topic; those of one topic stand together.
func requestMarker(m txn.Marker, parts []txn.TopicPartition) kmsg.WriteTxnMarkersRequestMarker {
	out := kmsg.NewWriteTxnMarkersRequestMarker()
	out.ProducerID, out.ProducerEpoch, out.Committed = m.ProducerID, m.ProducerEpoch, m.Commit
	out.CoordinatorEpoch, out.TransactionVersion = m.CoordinatorEpoch, int8(m.Version)
	for _, tp := range parts {
		if n := len(out.Topics); n == 0 || out.Topics[n-1].Topic != tp.Topic {
			t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			t.Topic = tp.Topic
			out.Topics = append(out.Topics, t)
		}
		last := &out.Topics[len(out.Topics)-1]
		last.Partitions = append(last.Partitions, tp.Partition)
	}
	return out
}

// markerAnswers finds the answers to one call, which are in the order asked.
func markerAnswers(resp *kmsg.WriteTxnMarkersResponse, at int, c *markerCall) []error {
	errs := make([]error, 0, len(c.parts))
	for _, t := range resp.Markers[at].Topics {
		for _, p := range t.Partitions {
			if i := len(errs); i >= len(c.parts) || c.parts[i] != (txn.TopicPartition{Topic: t.Topic, Partition: p.Partition}) {
				return all(fmt.Errorf("an answer about %s-%d that was not asked for", t.Topic, p.Partition), len(c.parts))
			}
			errs = append(errs, peerError(p.ErrorCode, markerErrors))
		}
	}
	if len(errs) != len(c.parts) {
		return all(errors.New("an answer that leaves out partitions"), len(c.parts))
	}
	return errs
}

// markerErrors are the codes of a leader that markerOutcome tells apart.
var markerErrors = []error{producer.ErrFencedEpoch, producer.ErrCoordinatorFenced, partition.ErrReadOnly}
