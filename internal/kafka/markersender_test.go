package kafka

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// askedPeer is one other broker: what it was asked, and what it answers.
type askedPeer struct {
	asked  chan *kmsg.WriteTxnMarkersRequest
	answer chan func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error)
}

func newAskedPeer() *askedPeer {
	return &askedPeer{make(chan *kmsg.WriteTxnMarkersRequest, 10), make(chan func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error), 10)}
}

func (p *askedPeer) Request(ctx context.Context, _ int32, req kmsg.Request) (kmsg.Response, error) {
	r := req.(*kmsg.WriteTxnMarkersRequest)
	p.asked <- r
	select {
	case answer := <-p.answer:
		return answer(r)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// with answers every partition with a code.
func with(code int16) func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
	return func(r *kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
		resp := kmsg.NewPtrWriteTxnMarkersResponse()
		for _, m := range r.Markers {
			out := kmsg.WriteTxnMarkersResponseMarker{ProducerID: m.ProducerID}
			for _, t := range m.Topics {
				ot := kmsg.WriteTxnMarkersResponseMarkerTopic{Topic: t.Topic}
				for _, p := range t.Partitions {
					ot.Partitions = append(ot.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: code})
				}
				out.Topics = append(out.Topics, ot)
			}
			resp.Markers = append(resp.Markers, out)
		}
		return resp, nil
	}
}

// twoBrokerImage is a cluster in which broker 2 leads the partitions of "orders".
func twoBrokerImage(fenced bool) *metadata.Image {
	e := metadata.NewImage().Edit()
	e.PutBroker(&metadata.Broker{ID: 1})
	e.PutBroker(&metadata.Broker{ID: 2, Fenced: fenced})
	e.PutTopic(&metadata.Topic{ID: metadata.TopicID{1}, Name: "orders", Configs: map[string]string{}, Partitions: []*metadata.Partition{
		{Index: 0, Leader: 2, LeaderEpoch: 1, Replicas: []int32{2}, ISR: []int32{2}},
		{Index: 1, Leader: 2, LeaderEpoch: 1, Replicas: []int32{2}, ISR: []int32{2}},
		{Index: 2, Leader: -1, LeaderEpoch: 1, Replicas: []int32{3}, ISR: []int32{3}},
	}})
	return e.Image(1)
}

type senderWorld struct {
	*MarkerSender
	peer  *askedPeer
	clock *clock.Manual
	image atomic.Pointer[metadata.Image]
}

func newSenderWorld(t *testing.T) *senderWorld {
	w := &senderWorld{peer: newAskedPeer(), clock: clock.NewManual(time.Unix(0, 0))}
	w.image.Store(twoBrokerImage(false))
	w.MarkerSender = NewMarkerSender(MarkerSenderOptions{NodeID: 1, Image: w.image.Load, Peers: w.peer, Clock: w.clock})
	t.Cleanup(w.Close)
	return w
}

// write asks for the marker of a producer, and hands the errors over.
func (w *senderWorld) write(ctx context.Context, producer int64, indexes ...int32) <-chan []error {
	var parts []txn.TopicPartition
	for _, i := range indexes {
		parts = append(parts, txn.TopicPartition{Topic: "orders", Partition: i})
	}
	out := make(chan []error, 1)
	go func() {
		out <- w.WriteMarkers(ctx, txn.Marker{ProducerID: producer, ProducerEpoch: 3, Commit: true, CoordinatorEpoch: 7, Version: 2}, parts)
	}()
	return out
}

// What a leader elsewhere says is final where it must be, and tried again
// everywhere else.
//
// MIR-239: a partition that follows another cluster by now is gone for the coordinator,
// which ends the transaction in the others.
func TestMarkerAnswers(t *testing.T) {
	w := newSenderWorld(t)
	for code, final := range map[int16]error{
		kerr.InvalidProducerEpoch.Code: txn.ErrMarkerOutdated, kerr.TransactionCoordinatorFenced.Code: txn.ErrCoordinatorFenced,
		codeReadOnlyTopic: txn.ErrPartitionGone, kerr.NotLeaderForPartition.Code: nil, kerr.UnknownTopicOrPartition.Code: nil,
		kerr.ClusterAuthorizationFailed.Code: nil, kerr.NotEnoughReplicas.Code: nil, 9999: nil,
	} {
		w.peer.answer <- with(code)
		errs := <-w.write(t.Context(), 1, 0, 1)
		<-w.peer.asked
		for _, err := range errs {
			if err == nil || final != nil && !errors.Is(err, final) {
				t.Errorf("code %d: %v, want %v", code, err, final)
			}
			for _, other := range []error{txn.ErrMarkerOutdated, txn.ErrCoordinatorFenced, txn.ErrPartitionGone} {
				if other != final && errors.Is(err, other) {
					t.Errorf("code %d is final: %v", code, err)
				}
			}
		}
	}
	for name, answer := range map[string]func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error){
		"no answer": func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) { return nil, errors.New("broken") },
		"nothing in it": func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
			return kmsg.NewPtrWriteTxnMarkersResponse(), nil
		},
		"another message": func(*kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) { return kmsg.NewPtrEndTxnResponse(), nil },
		"other partitions": func(r *kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
			r.Markers[0].Topics[0].Partitions[0] = 5
			return with(0)(r)
		},
	} {
		w.peer.answer <- answer
		if errs := <-w.write(t.Context(), 1, 0, 1); errs[0] == nil || errs[1] == nil {
			t.Errorf("%s: %v", name, errs)
		}
		<-w.peer.asked
	}

	w.peer.answer <- with(0)
	if errs := <-w.write(t.Context(), 1, 0, 1, 2); errs[0] != nil || errs[1] != nil || errs[2] == nil {
		t.Errorf("the last one has no leader: %v", errs)
	}
	m := (<-w.peer.asked).Markers[0]
	if m.ProducerID != 1 || m.ProducerEpoch != 3 || !m.Committed || m.CoordinatorEpoch != 7 || m.TransactionVersion != 2 || len(m.Topics) != 1 || len(m.Topics[0].Partitions) != 2 {
		t.Errorf("%+v", m)
	}
}

// What comes while requests are under way shares the next one, up to a bound, and
// a broker that the cluster gives up is not waited for.
func TestMarkerQueue(t *testing.T) {
	w := newSenderWorld(t)
	var writing []<-chan []error
	for i := range markerRequests {
		writing = append(writing, w.write(t.Context(), int64(i), 0))
		<-w.peer.asked
	}
	waiting := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.mu.queues[2].calls)
	}
	given, giveUp := context.WithCancel(t.Context())
	abandoned := w.write(given, 99, 0)
	for waiting() < 1 {
		time.Sleep(time.Millisecond) // until the call is in the queue
	}
	giveUp()
	if errs := <-abandoned; !errors.Is(errs[0], context.Canceled) {
		t.Fatal(errs)
	}
	for i := 1; i < maxMarkerCalls; i++ {
		writing = append(writing, w.write(t.Context(), int64(100+i), 0))
	}
	for waiting() < maxMarkerCalls {
		time.Sleep(time.Millisecond) // until all calls are in the queue
	}
	if errs := <-w.write(t.Context(), 1, 0); !errors.Is(errs[0], errMarkersBusy) {
		t.Fatalf("beyond the bound: %v", errs)
	}
	w.peer.answer <- with(0)
	if r := <-w.peer.asked; len(r.Markers) != maxMarkersPerRequest-1 { // without the one that nobody waits for
		t.Fatalf("%d markers in the next request", len(r.Markers))
	}

	// Nobody answers from here on.
	w.image.Store(twoBrokerImage(true))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, one := range writing {
			<-one
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
			w.clock.Advance(markerLook)
		}
	}
}
