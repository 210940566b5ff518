package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Options are the caller's part of opening a Cluster.
type Options struct {
	Logger   *slog.Logger // nil: discard
	ClientID string       // default "lockstep"
	Dial     sdk.DialFunc // how to reach a broker; nil: TCP
	// ClusterID is the source's, where it is known; otherwise the first answer of
	// [Cluster.ID] says it. Whoever answers as another cluster is asked nothing more.
	ClusterID string
}

// Cluster is one source cluster. Its methods may be called from several
// goroutines.
type Cluster struct {
	config *clientconfig.Config
	dialer *wire.Dialer
	logger *slog.Logger
	opts   []kgo.Opt     // of the franz-go client, without seeds
	pause  time.Duration // between questions to a leader that is not ready

	// mu guards the list of connections, not their use: a connection orders
	// its own requests. Nobody dials while holding it.
	mu struct {
		sync.Mutex
		conns   map[string]*wire.Client // by address; anyBroker for the mirror requests
		control *control
		retired map[*control]struct{} // replaced while in use
		closed  bool

		// What was learnt of the source, for the day when its brokers move (where.go).
		id    string                   // of the cluster, "" if it was never told
		known map[int32]sdk.BrokerAddr // its brokers, as the last answer has them
		last  string                   // the address that answered last
	}
}

// anyBroker is the key of the connection that may lead to any broker.
const anyBroker = ""

// ErrClosed is the cause of calls after Close.
var ErrClosed = errors.New("source was closed")

// Open prepares a Cluster from a mirror's configs. Nothing is dialled yet, so
// the only faults are those of the configs (*clientconfig.KeyError).
func Open(props map[string]string, o Options) (*Cluster, error) {
	config, err := clientconfig.Parse(props, clientconfig.AllowUnknown())
	if err != nil {
		return nil, err
	}
	if len(config.Bootstrap) == 0 {
		return nil, &clientconfig.KeyError{Key: "bootstrap.servers", Err: errors.New("names no broker")}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ClientID == "" {
		o.ClientID = "lockstep"
	}
	for _, w := range config.Warnings {
		o.Logger.Warn("mirror config has no effect", "config", w)
	}
	config.Dial = o.Dial
	c := &Cluster{
		config: config,
		dialer: config.Dialer(o.ClientID),
		logger: o.Logger,
		opts: append(config.KgoOpts(),
			kgo.ClientID(o.ClientID),
			kgo.DisableClientMetrics(), // nothing is pushed to a source (W21)
			kgo.RequestRetries(2),
			kgo.RetryTimeout(config.RequestTimeout),
		),
		pause: 300 * time.Millisecond,
	}
	c.mu.conns = map[string]*wire.Client{}
	c.mu.retired = map[*control]struct{}{}
	c.mu.id = o.ClusterID
	if c.mu.control, err = c.newControl(nil); err != nil {
		return nil, fmt.Errorf("source client: %w", err)
	}
	return c, nil
}

// Close ends all control connections; running calls fail. Fetch sessions
// belong to those who opened them.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	conns, controls := c.mu.conns, []*control{c.mu.control}
	for retired := range c.mu.retired {
		controls = append(controls, retired)
	}
	c.mu.conns, c.mu.retired = nil, nil
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
	for _, control := range controls {
		control.client.Close()
	}
	return nil
}

// ID asks the source for its cluster id over a new connection: it is the first
// thing asked of a mirror's source, and its errors are the operator's first
// answer. Each bootstrap address is tried, and then where its brokers were; the
// most telling failure counts. The answer also says where the brokers are now.
func (c *Cluster) ID(ctx context.Context) (string, error) {
	conn, err := c.dialAny(ctx, true)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	resp, err := askCluster(ctx, conn)
	if err != nil {
		return "", fail(conn.Addr(), "cluster id", err)
	}
	id := resp.ClusterID
	if id == nil || *id == "" {
		return "", fail(conn.Addr(), "cluster id", errors.New("source tells none"))
	}
	c.learn(*id, brokersOf(resp), nil)
	return *id, nil
}

// adminFailed makes the *Error of a franz-go request. Where that library only
// knows that connections break, one of our own tells which broker refuses us,
// and why.
func (c *Cluster) adminFailed(ctx context.Context, op string, err error) error {
	var dial *wire.DialError
	if err == nil || errors.As(err, &dial) || ctx.Err() != nil || !isNetwork(err) {
		return fail("", op, err)
	}
	conn, dialErr := c.dialAny(ctx, false)
	if dialErr != nil {
		return dialErr
	}
	conn.Close()
	return fail("", op, err)
}

// with runs fn on the kept connection to addr. A connection that the source
// closed meanwhile shows at the first request, which is then tried once more
// on a new one.
func (c *Cluster) with(ctx context.Context, addr, op string, fn func(*wire.Client) error) error {
	conn, kept, err := c.conn(ctx, addr)
	if err != nil {
		return fail(addr, op, err)
	}
	err = fn(conn)
	if kept && err != nil && ctx.Err() == nil && isBroken(err) {
		c.drop(addr, conn)
		if conn, _, err = c.conn(ctx, addr); err == nil {
			err = fn(conn)
		}
	}
	if err != nil && conn != nil && isBroken(err) {
		c.drop(addr, conn)
	}
	if conn != nil && addr == anyBroker {
		addr = conn.Addr()
	}
	return fail(addr, op, err)
}

// alone is with on a connection of its own, to any broker.
func (c *Cluster) alone(ctx context.Context, addr, op string, fn func(*wire.Client) error) error {
	conn, err := c.dialAny(ctx, false)
	if err == nil {
		addr = conn.Addr()
		err = fn(conn)
		conn.Close()
	}
	return fail(addr, op, err)
}

// isBroken tells a broken connection from an answer we do not like.
func isBroken(err error) bool {
	return isNetwork(err) || errors.Is(err, wire.ErrClosed)
}

func (c *Cluster) conn(ctx context.Context, addr string) (conn *wire.Client, kept bool, err error) {
	c.mu.Lock()
	conn, closed := c.mu.conns[addr], c.mu.closed
	c.mu.Unlock()
	if closed {
		return nil, false, ErrClosed
	}
	if conn != nil {
		return conn, true, nil
	}
	if addr == anyBroker {
		conn, err = c.dialAny(ctx, false)
	} else {
		conn, err = c.dial(ctx, addr)
	}
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		conn.Close()
		return nil, false, ErrClosed
	}
	if other := c.mu.conns[addr]; other != nil { // somebody was faster
		conn.Close()
		return other, true, nil
	}
	c.mu.conns[addr] = conn
	return conn, false, nil
}

func (c *Cluster) drop(addr string, conn *wire.Client) {
	conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.conns[addr] == conn {
		delete(c.mu.conns, addr)
	}
}

// codeError is the source's error code as an error: kerr's where there is one.
func codeError(code int16, message *string) error {
	if code == 0 {
		return nil
	}
	err := kerr.ErrorForCode(code)
	var known *kerr.Error
	if !errors.As(err, &known) || known.Code != code {
		err = &kerr.Error{Message: fmt.Sprintf("ERROR_%d", code), Code: code}
	}
	if message != nil && *message != "" {
		return fmt.Errorf("%w (%s)", err, oneLine(*message))
	}
	return err
}

// Transport fetches record bytes over the Kafka protocol.
func (c *Cluster) Transport() sdk.Transport { return &kafkaTransport{c} }
