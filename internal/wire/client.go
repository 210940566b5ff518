package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Errors of a client's request.
var (
	// ErrUnsupported: the peer does not serve the key, or no version that we
	// know too.
	ErrUnsupported = errors.New("request not supported by the peer")
	ErrClosed      = errors.New("connection closed")
)

// DefaultMaxResponse bounds a peer's answer when Dialer.MaxResponse is zero:
// metadata of 100 000 partitions fits, a hostile frame costs no more.
const DefaultMaxResponse = 64 << 20

// Client is one authenticated connection with one request in flight. Methods
// may be called from several goroutines, who wait for each other. After any
// failure that leaves the stream in doubt (I/O, deadline, wrong correlation id)
// the client is closed and every later call answers ErrClosed.
type Client struct {
	addr     string
	clientID string
	timeout  time.Duration
	maxBytes int
	versions map[int16]versionRange

	// mu is held for a whole round trip; it guards conn's stream, corr, the
	// buffers and err.
	mu   sync.Mutex
	conn net.Conn
	corr int32
	out  []byte
	in   []byte
	err  error // why the client is closed
}

type versionRange struct{ min, max int16 }

// Addr is the peer's address as it was dialled.
func (c *Client) Addr() string { return c.addr }

// Conn is the connection, for a caller that takes over the stream (the fetch
// session reads its answers itself). It must not be mixed with Request.
func (c *Client) Conn() net.Conn { return c.conn }

// Versions is what the peer advertises for a key.
func (c *Client) Versions(key int16) (min, max int16, ok bool) {
	v, ok := c.versions[key]
	return v.min, v.max, ok
}

// negotiate sets the highest version that both sides speak.
func (c *Client) negotiate(req kmsg.Request) error {
	v, ok := c.versions[req.Key()]
	if !ok {
		return fmt.Errorf("%s: %s: %w", c.addr, kmsg.NameForKey(req.Key()), ErrUnsupported)
	}
	version := min(req.MaxVersion(), v.max)
	if version < v.min {
		return fmt.Errorf("%s: %s: the peer serves versions %d to %d, we speak up to %d: %w",
			c.addr, kmsg.NameForKey(req.Key()), v.min, v.max, req.MaxVersion(), ErrUnsupported)
	}
	req.SetVersion(version)
	return nil
}

// Request sends req in the newest version both sides speak and waits for the
// answer, at most until ctx ends or the request timeout has passed.
func (c *Client) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if err := c.negotiate(req); err != nil {
		return nil, err
	}
	return c.RequestVersion(ctx, req)
}

// RequestVersion is Request in the version that req already carries, for
// callers who need an old form of a message.
func (c *Client) RequestVersion(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	resp, err := c.roundTripLocked(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.addr, err)
	}
	return resp, nil
}

func (c *Client) roundTripLocked(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // nothing was sent: the stream is fine
	}
	stop := guardDeadline(ctx, c.conn, c.timeout)
	defer stop()
	c.corr++
	c.out = AppendRequest(c.out[:0], c.corr, c.clientID, req)
	if _, err := c.conn.Write(c.out); err != nil {
		return nil, c.failLocked(ctx, err)
	}
	c.out = shrink(c.out)
	frame, err := ReadFrame(c.conn, c.maxBytes, c.in)
	if err != nil {
		return nil, c.failLocked(ctx, err)
	}
	corr, body, err := ParseResponseHeader(frame, req.Key(), req.IsFlexible())
	if err == nil && corr != c.corr {
		err = fmt.Errorf("answer to request %d came for request %d", corr, c.corr)
	}
	if err != nil {
		return nil, c.failLocked(ctx, err)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	// kmsg's byte fields alias the input: the frame is given away with the
	// answer unless it is small enough to copy.
	if len(frame) <= frameStep {
		c.in = frame[:0]
		body = append([]byte(nil), body...)
	} else {
		c.in = nil
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, c.failLocked(ctx, fmt.Errorf("%s version %d: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), err))
	}
	return resp, nil
}

// failLocked closes the connection for good and says why.
func (c *Client) failLocked(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		err = cause
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	}
	c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	c.conn.Close()
	return err
}

// Close ends the connection. A request under way ends with an error.
func (c *Client) Close() error { return c.conn.Close() }

// guardDeadline makes conn give up when the timeout has passed or ctx ends.
// The returned function must be called when the exchange is over.
func guardDeadline(ctx context.Context, conn net.Conn, timeout time.Duration) (stop func()) {
	deadline := time.Time{}
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		deadline = d
	}
	conn.SetDeadline(deadline)
	cancel := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if cancel() {
			conn.SetDeadline(time.Time{})
		}
	}
}

// shrink lets go of a buffer that one large message has blown up.
func shrink(b []byte) []byte {
	if cap(b) > 1<<20 {
		return nil
	}
	return b[:0]
}
