package kafka

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// readBuffer is what one read takes from the socket at most before a large
// body goes straight into its frame: many small pipelined requests then cost
// one system call.
const readBuffer = 16 << 10

// readers are the buffers of connections that have ended. Clients that connect anew
// for each request would make garbage of readBuffer bytes each time.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

// writePiece is what has to leave within one write timeout. It is small enough
// to show that a reader of a few hundred KiB a second is not one that stands
// still.
const writePiece = 256 << 10

// crowdedWait is how long a request waits for other clients with a full read buffer
// behind it: more than a usual long poll, and soon for those who are gone.
const crowdedWait = 10 * time.Second

// conn is one client connection. Its goroutine owns everything but the outbox.
type conn struct {
	server   *Server
	listener *listener
	nc       net.Conn
	tcp      *net.TCPConn // nil where bytes cannot go from file to socket (TLS)
	ip       string
	host     string // "/" and the ip, as Kafka prints it
	// principal is who the peer is: ANONYMOUS where the listener asks for nothing.
	principal authz.Principal
	counted   bool // in the server's count of the principal's connections
	login     login

	// ctx ends with the connection. waitCtx ends earlier: when the server
	// wants to close and nobody should wait for events any more.
	ctx, waitCtx       context.Context
	cancel, cancelWait context.CancelFunc

	r     *bufio.Reader
	frame frame
	limit func(key int16) int // requestLimit and growFrame, made once
	grow  wire.Grow
	out   []byte // answers that wait for the next flush; only complete frames
	box   outbox

	hasTurn bool          // see heavy.go
	queued  time.Duration // for turns, of the request at hand

	muted    time.Duration // nothing is read for so long; see quotas.go
	sessions []int32       // fetch sessions to drop at the end
	follower *followerSession
	follows  atomic.Bool // follower is set, for other goroutines
	aborted  atomic.Bool // closed by us, so its read error is no news
	gone     atomic.Bool // the peer hung up while its request waited
}

func newConn(s *Server, l *listener, nc net.Conn, ip string) *conn {
	c := &conn{server: s, listener: l, ip: ip, host: "/" + ip, principal: authz.Anonymous}
	c.nc = l.wrapTLS(nc)
	c.tcp, _ = c.nc.(*net.TCPConn)
	if l.SASL != nil {
		c.login.phase = loginHandshake
	}
	c.r = readers.Get().(*bufio.Reader)
	c.r.Reset(c.nc)
	c.limit, c.grow = c.requestLimit, c.growFrame
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.waitCtx, c.cancelWait = context.WithCancel(c.ctx)
	c.box.init()
	return c
}

// serve runs the connection to its end.
func (c *conn) serve() {
	log := c.server.o.Logger
	defer func() {
		p := recover()
		if p != nil {
			// One bad request costs its own connection.
			c.server.metrics.panics.Inc()
			log.Error("panic while handling a request; connection closed", "client", c.ip, "panic", p, "stack", string(debug.Stack()))
		}
		c.leaveTurn()
		c.abort()
		c.box.wait()
		c.server.memory.release(&c.frame)
		c.server.sessions.drop(c.sessions)
		c.endFollower()
		if p == nil { // else untilHeard may be reading still
			c.r.Reset(nil)
			readers.Put(c.r)
		}
	}()
	err := c.loop()
	switch {
	case err == nil, errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF), c.aborted.Load(), c.gone.Load():
	case errors.Is(err, errLogin), errors.Is(err, errSessionOver):
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
		log.Debug("connection closed", "client", c.ip, "err", err)
	default:
		c.server.metrics.broken.Inc()
		log.Info("connection closed", "client", c.ip, "err", err)
	}
}

// loop reads and answers requests until the peer or the server wants no more.
func (c *conn) loop() error {
	if err := c.handshake(); err != nil {
		return err
	}
	for {
		if err := c.rest(); err != nil {
			return err
		}
		if c.r.Buffered() == 0 {
			if err := c.idle(); err != nil {
				return err
			}
		}
		if c.server.closing.Load() {
			c.flush()
			c.box.drain()
			return nil
		}
		if err := c.readFrame(); err != nil {
			return err
		}
		if err := c.dispatch(); err != nil {
			return err
		}
	}
}

// handshake secures the connection, where it is to be, and learns who the peer is
// from its certificate.
func (c *conn) handshake() error {
	if c.login.pending() {
		c.login.deadline = time.Now().Add(c.server.o.LoginTimeout)
	}
	secure, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.waitCtx, c.server.o.LoginTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake on listener %s: %w", c.listener.Name, err)
	}
	peer := secure.ConnectionState().PeerCertificates
	if len(peer) == 0 || c.listener.SASL != nil || c.listener.CertificateName == nil {
		return nil
	}
	name, err := c.listener.CertificateName(peer[0])
	if err != nil {
		return fmt.Errorf("client certificate on listener %s: %w", c.listener.Name, err)
	}
	if !c.server.enter(c, authz.Principal{Type: authz.UserType, Name: name}) {
		return errLogin
	}
	return nil
}

// untilGone gives ctx an end with the peer: while a request waits for other
// clients nobody reads, and a join or a long poll of a client that has hung up
// would keep its connection for as long as it had asked to wait. What the peer
// sends meanwhile stays in the buffer; behind a full one its end cannot be seen,
// and it waits for crowdedWait. stop gives the reader back.
func (c *conn) untilGone(ctx context.Context) (_ context.Context, stop func()) {
	return c.untilHeard(ctx, false)
}

// untilMore is untilGone for a peer that ends its wait by sending its next request.
func (c *conn) untilMore(ctx context.Context) (_ context.Context, stop func()) {
	return c.untilHeard(ctx, true)
}

func (c *conn) untilHeard(ctx context.Context, more bool) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	if more && c.r.Buffered() > 0 {
		cancel()
		return ctx, func() {}
	}
	c.nc.SetReadDeadline(time.Time{})
	go func() {
		defer close(watched)
		for c.r.Buffered() < c.r.Size() {
			if _, err := c.r.Peek(c.r.Buffered() + 1); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					c.gone.Store(true)
				}
				cancel()
				return
			}
			if more {
				cancel()
				return
			}
		}
		longest := c.server.o.Clock.NewTimer(min(crowdedWait, c.server.o.IdleTimeout))
		defer longest.Stop()
		select {
		case <-longest.C():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		c.nc.SetReadDeadline(time.Unix(1, 0))
		<-watched
	}
}

// idle waits for the next request: everything answered so far goes out, and
// large buffers go back.
func (c *conn) idle() error {
	if err := c.flush(); err != nil {
		return err
	}
	c.server.memory.release(&c.frame)
	c.nc.SetReadDeadline(c.login.clamp(time.Now().Add(c.server.o.IdleTimeout)))
	if c.server.closing.Load() {
		return nil // drainAndLeave may have set its deadline before ours
	}
	_, err := c.r.Peek(1)
	if c.server.closing.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// readFrame reads one request into c.frame. How long it may take grows with
// its size as it arrives, so that a slow peer holds neither memory nor a place.
func (c *conn) readFrame() error {
	if c.login.wantsRaw() {
		c.extend(0)
		buf, err := wire.ReadFrame(c.r, maxLoginToken, c.frame.buf)
		c.frame.buf = buf
		return err
	}
	if !c.buffersWhole() {
		c.frame.deadline = c.extend(cap(c.frame.buf))
	}
	buf, err := wire.ReadRequestFrame(c.r, c.limit, c.frame.buf, c.grow)
	if c.frame.buf = buf; err == nil {
		c.frame.filled(len(buf))
	}
	return err
}

// buffersWhole tells whether the next frame is in memory already.
func (c *conn) buffersWhole() bool {
	if c.r.Buffered() < 4 {
		return false
	}
	b, _ := c.r.Peek(4)
	size := int32(binary.BigEndian.Uint32(b))
	return size >= 0 && c.r.Buffered()-4 >= int(size)
}

// growFrame is the wire.Grow of c.frame.
func (c *conn) growFrame(b []byte, n, size int) ([]byte, error) {
	if n > freeFrame {
		c.extend(n)
	}
	if n <= cap(b) {
		return b, nil
	}
	return c.server.memory.grow(c.ctx, &c.frame, b, c.frame.want(n, size))
}

// extend gives the peer time for n more bytes.
func (c *conn) extend(n int) time.Time {
	const bytesPerSecond = 256 << 10
	d := c.login.clamp(time.Now().Add(c.server.o.FrameTimeout + time.Duration(n/bytesPerSecond)*time.Second))
	c.nc.SetReadDeadline(d)
	return d
}

// answer sends resp after everything that came before it.
func (c *conn) answer(r *request, resp kmsg.Response) error {
	resp.SetVersion(r.header.Version)
	return c.send(func(dst []byte) []byte {
		return wire.AppendResponse(dst, r.header.CorrelationID, resp, r.flexible)
	})
}

// send writes what encode appends, after everything that came before it.
func (c *conn) send(encode func(dst []byte) []byte) error {
	if !c.box.drain() {
		return net.ErrClosed
	}
	c.out = encode(c.out)
	c.leaveTurn()
	return c.flush()
}

// flush writes the collected answers. The outbox is empty whenever there are
// any, because only answers behind an empty box are collected.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	err := c.write(c.out)
	if c.out = c.out[:0]; cap(c.out) > freeFrame {
		c.out = nil
	}
	return err
}

// write sends b within the write timeout. The writer's goroutine calls it too;
// never both at once (see outbox).
func (c *conn) write(b []byte) error {
	if len(b) <= freeFrame {
		return c.writePieces(b, nil)
	}
	w, err := c.enterAnswer(len(b))
	if err != nil {
		return err
	}
	defer c.server.answers.leave(w)
	return c.writePieces(b, w)
}

// enterAnswer waits for room for a large answer.
func (c *conn) enterAnswer(size int) (*writing, error) {
	slow := func() {
		c.server.metrics.slowReaders.Inc()
		c.abort()
	}
	if w := c.server.answers.enter(size, slow, c.ctx.Done()); w != nil {
		return w, nil
	}
	return nil, net.ErrClosed
}

func (c *conn) writePieces(b []byte, w *writing) error {
	for len(b) > 0 {
		// A deadline per piece: a slow reader is fine, a stuck one is not.
		piece := b[:min(len(b), writePiece)]
		c.nc.SetWriteDeadline(time.Now().Add(c.server.o.WriteTimeout))
		n, err := c.nc.Write(piece)
		if err != nil {
			c.abort()
			return fmt.Errorf("send answer: %w", err)
		}
		b = b[n:]
		c.server.answers.advance(w)
	}
	return nil
}

// drainAndLeave asks the connection to end when it has answered what it read.
func (c *conn) drainAndLeave() {
	c.cancelWait()
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// abort closes the connection at once.
func (c *conn) abort() {
	c.aborted.Store(true)
	c.cancel()
	c.box.close()
	c.nc.Close()
}
