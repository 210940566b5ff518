package peer

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// broker answers ApiVersions and Metadata over a real socket.
type broker struct {
	addr net.Addr

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn

	accepted atomic.Int32
	hold     atomic.Pointer[chan struct{}] // answers to Metadata wait for it
	asked    chan struct{}                 // one per Metadata request
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{asked: make(chan struct{}, 1000)}
	b.listen(t, "127.0.0.1:0")
	t.Cleanup(b.stop)
	return b
}

func (b *broker) listen(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	b.l, b.addr = l, l.Addr()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.accepted.Add(1)
			b.mu.Lock()
			b.conns = append(b.conns, c)
			b.mu.Unlock()
			go b.serve(c)
		}
	}()
}

func (b *broker) stop() {
	b.l.Close()
	b.dropAll()
}

// dropAll closes what is connected, as a broker does with idle connections.
func (b *broker) dropAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

func (b *broker) serve(c net.Conn) {
	for {
		frame, err := wire.ReadFrame(c, 1<<20, nil)
		if err != nil {
			return
		}
		h, body, err := wire.ParseRequestHeader(frame)
		if err != nil {
			return
		}
		req := wire.NewRequest(h.Key)
		req.SetVersion(h.Version)
		if req.ReadFrom(body) != nil {
			return
		}
		resp := req.ResponseKind()
		resp.SetVersion(h.Version)
		switch r := resp.(type) {
		case *kmsg.ApiVersionsResponse:
			r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 18, MaxVersion: 3}, {ApiKey: 3, MaxVersion: 12}, {ApiKey: 27, MaxVersion: 1}}
			if h.Version > 3 {
				r.ErrorCode = 35
				r.SetVersion(0)
			}
		case *kmsg.MetadataResponse:
			b.asked <- struct{}{}
			if hold := b.hold.Load(); hold != nil {
				<-*hold
			}
			r.ControllerID = 7
		}
		if _, err := c.Write(wire.AppendResponse(nil, h.CorrelationID, resp, resp.IsFlexible())); err != nil {
			return
		}
	}
}

// world is an image with brokers that tests replace, and a pool over it.
type world struct {
	*Pool
	img atomic.Pointer[metadata.Image]
}

func newWorld(t *testing.T, o Options) *world {
	w := &world{}
	w.img.Store(metadata.NewImage())
	o.Listener, o.Image, o.Clock = "INTERNAL", w.img.Load, clock.System()
	if o.Dialer == nil {
		o.Dialer = func() (*wire.Dialer, error) { return &wire.Dialer{ClientID: "test"}, nil }
	}
	w.Pool = New(o)
	t.Cleanup(w.Close)
	return w
}

// register shows the pool an image in which a broker's process is at addr.
func (w *world) register(id int32, incarnation byte, addr net.Addr) {
	host, port, _ := net.SplitHostPort(addr.String())
	n, _ := strconv.Atoi(port)
	e := w.img.Load().Edit()
	e.PutBroker(&metadata.Broker{ID: id, Incarnation: [16]byte{incarnation}, Endpoints: []metadata.Endpoint{
		{Name: "CLIENTS", Host: "192.0.2.1", Port: 1}, {Name: "INTERNAL", Host: host, Port: int32(n)},
	}})
	w.img.Store(e.Image(w.img.Load().Revision + 1))
	w.Apply(w.img.Load())
}

func (w *world) ask(ctx context.Context, id int32) error {
	resp, err := w.Request(ctx, id, kmsg.NewPtrMetadataRequest())
	if err == nil && resp.(*kmsg.MetadataResponse).ControllerID != 7 {
		return errors.New("another answer")
	}
	return err
}

func (w *world) must(t *testing.T, id int32) {
	t.Helper()
	if err := w.ask(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func TestRequestKeepsItsConnection(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{})
	w.register(2, 1, b.addr)
	for range 5 {
		w.must(t, 2)
	}
	// An unknown request is no reason to connect anew.
	if _, err := w.Request(t.Context(), 2, kmsg.NewPtrFetchRequest()); !errors.Is(err, wire.ErrUnsupported) {
		t.Errorf("unsupported request: %v", err)
	}
	w.must(t, 2)
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	// The broker closes it, as it does after connections.max.idle.ms: the next
	// request does not see that.
	b.dropAll()
	w.must(t, 2)
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// A broker that is down is dialled no faster than the backoff, and found again
// when it is back.
func TestReconnect(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{MinBackoff: 20 * time.Millisecond, MaxBackoff: 40 * time.Millisecond})
	w.register(2, 1, b.addr)
	w.must(t, 2)
	b.stop()
	began := time.Now()
	for i := range 4 {
		err := w.ask(t.Context(), 2)
		var dial *wire.DialError
		if !errors.As(err, &dial) || dial.Stage != wire.StageConnect {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	// 20 + 40 + 40 ms lie between the four tries.
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("four tries in %v", d)
	}
	b.listen(t, b.addr.String())
	w.must(t, 2)
}

// A new incarnation ends what waits for the old one, which may never answer, and
// is talked to at once, whatever the backoff of the old one.
func TestIncarnation(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{MinBackoff: time.Hour, MaxBackoff: time.Hour})
	w.register(2, 1, b.addr)
	hold := make(chan struct{})
	defer close(hold)
	b.hold.Store(&hold)
	own, err := w.Dial(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.ask(t.Context(), 2) }()
	<-b.asked
	b.hold.Store(nil)
	w.register(2, 2, b.addr)
	if err := <-done; !errors.Is(err, ErrReplaced) {
		t.Errorf("the request to the old process: %v", err)
	}
	if _, err := own.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err == nil {
		t.Error("the caller's own connection to the old process is open")
	}
	w.must(t, 2)

	b.stop()
	if err := w.ask(t.Context(), 2); err == nil {
		t.Error("a stopped broker answers")
	}
	next := startBroker(t)
	w.register(2, 3, next.addr)
	w.must(t, 2)
}

func TestBrokersThatAreNotThere(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{})
	if err := w.ask(t.Context(), 2); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown broker: %v", err)
	}
	e := w.img.Load().Edit()
	e.PutBroker(&metadata.Broker{ID: 3, Endpoints: []metadata.Endpoint{{Name: "CLIENTS", Host: "localhost", Port: 1}}})
	w.img.Store(e.Image(1))
	var at *Error
	if err := w.ask(t.Context(), 3); !errors.Is(err, ErrNoEndpoint) || !errors.As(err, &at) || at.Broker != 3 {
		t.Errorf("broker without the listener: %v", err)
	}
	w.register(2, 1, b.addr)
	w.must(t, 2)
	w.Close()
	if err := w.ask(t.Context(), 2); !errors.Is(err, ErrClosed) {
		t.Errorf("closed pool: %v", err)
	}
	if _, err := w.Dial(t.Context(), 2); !errors.Is(err, ErrClosed) {
		t.Errorf("closed pool: %v", err)
	}
}

// Requests that a broker does not answer take a bounded number of connections,
// and a bounded number of callers wait for one; each as long as it wants to.
func TestBounds(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{Connections: 2, Waiting: 3})
	w.register(2, 1, b.addr)
	hold := make(chan struct{})
	b.hold.Store(&hold)
	done := make(chan error, 10)
	ask := func(ctx context.Context) { done <- w.ask(ctx, 2) }
	for range 2 {
		go ask(t.Context())
		<-b.asked
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ask(short)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no free connection in time: %v", err)
	}
	for range 3 {
		go ask(t.Context())
	}
	pr := w.peers[2]
	for waiting := 0; waiting < 3; { // until they stand in line
		pr.mu.Lock()
		waiting = pr.lanes[general].waiting
		pr.mu.Unlock()
	}
	if err := w.ask(t.Context(), 2); !errors.Is(err, ErrBusy) {
		t.Errorf("one too many: %v", err)
	}
	close(hold)
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// Brokers held back requests that add partitions to transactions until the markers of the
// transactions before were written. They had taken every connection between two brokers,
// and the markers waited in line behind them: transactions of many producers stood still
// for a second or more.
func TestMarkersPassWhatIsHeldForThem(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{Connections: 2, Waiting: 3})
	w.register(2, 1, b.addr)
	hold := make(chan struct{})
	b.hold.Store(&hold)
	done := make(chan error, 5)
	for range 2 {
		go func() { done <- w.ask(t.Context(), 2) }()
		<-b.asked
	}
	for range 3 { // as many as may stand in line
		go func() { done <- w.ask(t.Context(), 2) }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 5 {
		if _, err := w.Request(ctx, 2, kmsg.NewPtrWriteTxnMarkersRequest()); err != nil {
			t.Errorf("markers: %v", err)
		}
	}
	close(hold)
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// An answer that does not come in time costs the connection, not the next request.
func TestDeadline(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{Connections: 1})
	w.register(2, 1, b.addr)
	w.must(t, 2)
	hold := make(chan struct{})
	defer close(hold)
	b.hold.Store(&hold)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.ask(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	b.hold.Store(nil)
	w.must(t, 2)
}

// Closed connections are forgotten, also those of Dial, which others close.
func TestDialLeavesNothing(t *testing.T) {
	b, w := startBroker(t), newWorld(t, Options{})
	w.register(2, 1, b.addr)
	for range 3 {
		c, err := w.Dial(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if n := len(w.peers[2].open); n != 0 {
		t.Errorf("%d connections are remembered", n)
	}
}
