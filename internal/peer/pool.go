package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Errors of a request. All stand inside an [*Error].
var (
	// ErrUnknown: the metadata has no such broker.
	ErrUnknown = errors.New("broker is not registered")
	// ErrNoEndpoint: the broker does not have the listener that brokers use among
	// themselves here.
	ErrNoEndpoint = errors.New("broker has no such listener")
	// ErrBusy: as many requests wait for that broker as may.
	ErrBusy = errors.New("too many requests wait for the broker")
	// ErrReplaced: the broker's process is another one than when the request
	// began.
	ErrReplaced = errors.New("broker was restarted or removed")
	// ErrClosed: the pool was closed.
	ErrClosed = errors.New("closed")
)

// Error is a request that got no answer.
type Error struct {
	Broker int32
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("broker %d: %v", e.Broker, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Options of a Pool. Zero values of the numbers take the defaults.
type Options struct {
	// Listener is the name of the listener that brokers use among themselves.
	Listener string
	// Image is the newest metadata.
	Image func() *metadata.Image
	// Dialer says how to connect. It is asked for each connection, so that
	// certificates that were replaced count from the next one on.
	Dialer func() (*wire.Dialer, error)
	Clock  clock.Clock

	Connections int // per broker, without those of Dial and of markers; default 4
	Waiting     int // requests per broker that wait for one, and as many markers; default 1024
	// Silence is how long a connection may live whose packets vanish; default 8 s. The
	// kernel asks the other one, and counts what it does not acknowledge.
	Silence    time.Duration
	MinBackoff time.Duration // between two tries to connect; default 50 ms
	MaxBackoff time.Duration // to which it doubles; default 1 s
}

// Pool is all connections to other brokers. Its methods may be called from
// several goroutines.
type Pool struct {
	o Options

	mu     sync.Mutex
	closed bool
	peers  map[int32]*peer
}

// peer is one incarnation of one broker. mu guards everything but what is set
// once.
type peer struct {
	incarnation [16]byte
	addr        string

	// over ends, with the cause, when the process is not talked to any more.
	over context.Context
	end  context.CancelCauseFunc

	mu    sync.Mutex
	idle  []*wire.Client
	open  map[*conn]struct{} // in use or idle, and those of Dial
	lanes [lanes]lane

	failures int           // to connect, one after the other
	backoff  time.Duration // after the last of them; 0: the last try succeeded
	retryAt  time.Time
}

// lane is requests that wait for each other's connections and for no others'.
type lane struct {
	slots   chan struct{} // one token per connection that may be in use
	waiting int           // guarded by the peer's mu
}

// The broker at the other end holds a request that adds a partition to a transaction
// until the markers of the transaction before are written. Where these stood in line
// behind such requests, each waited for the other until the holding ended.
const (
	general = iota
	markers // WriteTxnMarkers: what others are held for, and is never held itself
	lanes
)

// markerConnections is one more than a sender has requests under way to a broker.
const markerConnections = 2

func laneOf(req kmsg.Request) int {
	if _, ok := req.(*kmsg.WriteTxnMarkersRequest); ok {
		return markers
	}
	return general
}

// conn tells its peer when it is closed, by whomever.
type conn struct {
	net.Conn
	pr *peer
}

func (c *conn) Close() error {
	c.pr.mu.Lock()
	delete(c.pr.open, c)
	c.pr.mu.Unlock()
	return c.Conn.Close()
}

// New makes a pool. It dials nothing.
func New(o Options) *Pool {
	if o.Connections <= 0 {
		o.Connections = 4
	}
	if o.Waiting <= 0 {
		o.Waiting = 1024
	}
	if o.Silence <= 0 {
		o.Silence = 8 * time.Second
	}
	if o.MinBackoff <= 0 {
		o.MinBackoff = 50 * time.Millisecond
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = time.Second
	}
	return &Pool{o: o, peers: map[int32]*peer{}}
}

// Request sends req to a broker, in the newest version that both sides know, and
// waits for the answer: for a free connection, for the backoff after a failed
// one, and for the broker, at most until ctx ends.
func (p *Pool) Request(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	pr, err := p.peer(broker)
	if err != nil {
		return nil, &Error{broker, err}
	}
	resp, err := pr.request(ctx, &p.o, req)
	if err != nil {
		return nil, &Error{broker, err}
	}
	return resp, nil
}

// Dial makes a connection of the caller's own, which the caller closes. The pool
// closes it too when the broker's process is replaced, or the pool is closed.
func (p *Pool) Dial(ctx context.Context, broker int32) (*wire.Client, error) {
	pr, err := p.peer(broker)
	if err != nil {
		return nil, &Error{broker, err}
	}
	c, err := pr.dial(ctx, &p.o)
	if err != nil {
		return nil, &Error{broker, err}
	}
	return c, nil
}

// Apply follows the metadata: connections to processes that img does not have
// any more are closed.
func (p *Pool) Apply(img *metadata.Image) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, pr := range p.peers {
		b := img.Broker(id)
		if addr, err := p.address(b); err != nil || !pr.is(b, addr) {
			delete(p.peers, id)
			pr.close(ErrReplaced)
		}
	}
}

// Close ends every connection and every request. The pool stays closed.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, pr := range p.peers {
		pr.close(ErrClosed)
	}
	p.peers = nil
}

// peer is the process that the newest image names.
func (p *Pool) peer(id int32) (*peer, error) {
	b := p.o.Image().Broker(id)
	if b == nil {
		return nil, ErrUnknown
	}
	addr, err := p.address(b)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	old := p.peers[id]
	if old != nil && old.is(b, addr) {
		return old, nil
	}
	if old != nil {
		old.close(ErrReplaced)
	}
	pr := &peer{
		incarnation: b.Incarnation, addr: addr,
		open: map[*conn]struct{}{},
	}
	pr.lanes[general].slots = make(chan struct{}, p.o.Connections)
	pr.lanes[markers].slots = make(chan struct{}, markerConnections)
	pr.over, pr.end = context.WithCancelCause(context.Background())
	p.peers[id] = pr
	return pr, nil
}

func (p *Pool) address(b *metadata.Broker) (string, error) {
	if b == nil {
		return "", ErrUnknown
	}
	for _, e := range b.Endpoints {
		if e.Name == p.o.Listener {
			return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))), nil
		}
	}
	return "", fmt.Errorf("%w: %s", ErrNoEndpoint, p.o.Listener)
}

func (pr *peer) is(b *metadata.Broker, addr string) bool {
	return pr.incarnation == b.Incarnation && pr.addr == addr
}

// close closes what is open; requests under way fail with cause.
func (pr *peer) close(cause error) {
	pr.end(cause)
	pr.mu.Lock()
	open := slices.Collect(maps.Keys(pr.open))
	pr.idle = nil
	pr.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

func (pr *peer) request(ctx context.Context, o *Options, req kmsg.Request) (kmsg.Response, error) {
	l := &pr.lanes[laneOf(req)]
	if err := pr.enter(ctx, o, l); err != nil {
		return nil, err
	}
	defer func() { <-l.slots }()
	for {
		c, kept, err := pr.take(ctx, o)
		if err != nil {
			return nil, err
		}
		resp, err := c.Request(ctx, req)
		if err == nil || errors.Is(err, wire.ErrUnsupported) {
			pr.giveBack(c)
			return resp, err
		}
		c.Close()
		if pr.over.Err() != nil {
			return nil, context.Cause(pr.over)
		}
		if !kept || ctx.Err() != nil || !isBroken(err) {
			return nil, err
		}
		// The peer had closed it while nobody looked, as it does with idle ones;
		// the others that are idle may be dead too, so the loop ends with a new one.
	}
}

// enter waits for one of the connections that a lane may have in use at once.
func (pr *peer) enter(ctx context.Context, o *Options, l *lane) error {
	select {
	case l.slots <- struct{}{}:
		return nil
	default:
	}
	pr.mu.Lock()
	if l.waiting >= o.Waiting {
		pr.mu.Unlock()
		return ErrBusy
	}
	l.waiting++
	pr.mu.Unlock()
	defer func() {
		pr.mu.Lock()
		l.waiting--
		pr.mu.Unlock()
	}()
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-pr.over.Done():
		return context.Cause(pr.over)
	}
}

// take is an idle connection, or a new one.
func (pr *peer) take(ctx context.Context, o *Options) (c *wire.Client, kept bool, err error) {
	pr.mu.Lock()
	if n := len(pr.idle); n > 0 {
		c = pr.idle[n-1]
		pr.idle = pr.idle[:n-1]
		pr.mu.Unlock()
		return c, true, nil
	}
	pr.mu.Unlock()
	c, err = pr.dial(ctx, o)
	return c, false, err
}

// dial waits until the backoff allows a try, and makes it.
func (pr *peer) dial(ctx context.Context, o *Options) (*wire.Client, error) {
	if err := pr.pause(ctx, o); err != nil {
		return nil, err
	}
	dialer, err := o.Dialer()
	if err != nil {
		return nil, err
	}
	// A process that is replaced meanwhile is not waited for.
	try, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(pr.over, cancel)()
	c, err := pr.tracked(dialer, o.Silence).Dial(try, pr.addr)
	switch {
	case pr.over.Err() != nil:
		if c != nil {
			c.Close()
		}
		return nil, context.Cause(pr.over)
	case err != nil && ctx.Err() != nil: // who gives up says nothing about the broker
		return nil, err
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.backoff = 0
	if err != nil {
		pr.failures++
		pr.backoff = min(o.MinBackoff<<min(pr.failures-1, 16), o.MaxBackoff)
		pr.retryAt = o.Clock.Now().Add(pr.backoff)
		return nil, err
	}
	pr.failures = 0
	return c, nil
}

// tracked is d with connections that close finds, and that end when the other one is out
// of reach.
func (pr *peer) tracked(d *wire.Dialer, silence time.Duration) *wire.Dialer {
	dial := d.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	own := *d
	own.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		endWhenLost(nc, silence)
		c := &conn{nc, pr}
		pr.mu.Lock()
		pr.open[c] = struct{}{}
		pr.mu.Unlock()
		return c, nil
	}
	return &own
}

func (pr *peer) pause(ctx context.Context, o *Options) error {
	pr.mu.Lock()
	left := time.Duration(0)
	if pr.backoff > 0 {
		left = pr.retryAt.Sub(o.Clock.Now())
	}
	pr.mu.Unlock()
	if left > 0 {
		t := o.Clock.NewTimer(left)
		defer t.Stop()
		select {
		case <-t.C():
		case <-ctx.Done():
		case <-pr.over.Done():
		}
	}
	if pr.over.Err() != nil {
		return context.Cause(pr.over)
	}
	return ctx.Err()
}

// giveBack keeps a connection for the next request.
func (pr *peer) giveBack(c *wire.Client) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.over.Err() == nil {
		pr.idle = append(pr.idle, c)
	}
}

// isBroken tells a connection that died from one on which no answer came.
func isBroken(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, wire.ErrClosed) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &op) && !op.Timeout()
}
