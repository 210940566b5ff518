package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

const (
	// maxHandshakes bounds the connections that have not shown a certificate yet:
	// those beyond wait in the kernel's queue, as strangers may open any number.
	maxHandshakes    = 64
	handshakeTimeout = 10 * time.Second
	// strangerInterval is how often the log tells of connections that are not of
	// this cluster; each would be a line a second from a node with a wrong secret.
	strangerInterval = 10 * time.Second
)

// listener is the controller listener: one port on which the nodes of the cluster
// reach this one, each with a certificate of the cluster. What is spoken is agreed
// in the handshake, and the connection goes to whoever speaks it.
type listener struct {
	tcp    net.Listener
	config *tls.Config
	logger *slog.Logger
	clock  clock.Clock
	slots  chan struct{}
	wg     sync.WaitGroup
	doors  map[string]*door

	strangers struct {
		sync.Mutex
		told time.Time
	}
}

func listen(addr string, id *identity, logger *slog.Logger, clk clock.Clock) (*listener, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("controller listener: %w", err)
	}
	l := &listener{
		tcp: tcp, config: id.serverTLS(), logger: logger, clock: clk,
		slots: make(chan struct{}, maxHandshakes), doors: make(map[string]*door),
	}
	for _, p := range []string{protocolCalls, protocolClient, protocolPeer} {
		l.doors[p] = &door{addr: tcp.Addr(), clock: clk, conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	l.wg.Go(l.accept)
	return l, nil
}

// door is where connections of one protocol come out.
func (l *listener) door(protocol string) net.Listener { return l.doors[protocol] }

// close ends accepting; connections that were handed out belong to their takers.
func (l *listener) close() error {
	err := l.tcp.Close()
	for _, d := range l.doors {
		d.Close()
	}
	l.wg.Wait()
	return err
}

func (l *listener) accept() {
	for {
		l.slots <- struct{}{}
		conn, err := l.tcp.Accept()
		if err != nil {
			<-l.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.logger.Warn("controller listener: accept failed", "error", err)
			t := l.clock.NewTimer(100 * time.Millisecond) // out of descriptors, most likely
			<-t.C()
			continue
		}
		l.wg.Go(func() {
			defer func() { <-l.slots }()
			l.admit(conn)
		})
	}
}

// admit wants a certificate of the cluster and hands the connection on.
func (l *listener) admit(raw net.Conn) {
	conn := tls.Server(raw, l.config)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		l.stranger(raw.RemoteAddr(), err)
		raw.Close()
		return
	}
	protocol := conn.ConnectionState().NegotiatedProtocol
	if protocol == "" {
		protocol = protocolPeer
	}
	l.doors[protocol].hand(conn)
}

func (l *listener) stranger(from net.Addr, err error) {
	var alert tls.AlertError
	if !otherKey(err) && !errors.As(err, &alert) {
		l.logger.Debug("controller listener: a connection was not completed", "from", from.String(), "error", err)
		return
	}
	l.strangers.Lock()
	defer l.strangers.Unlock()
	now := l.clock.Now()
	if now.Sub(l.strangers.told) < strangerInterval {
		return
	}
	l.strangers.told = now
	l.logger.Error("controller listener: a node was turned away: "+errOtherKey.Error(), "from", from.String(), "error", err)
}

// door is a net.Listener whose connections somebody else accepted. While nobody
// takes them, because etcd is starting, they are closed after a moment; the other
// side dials again.
type door struct {
	addr   net.Addr
	clock  clock.Clock
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (d *door) hand(conn net.Conn) {
	t := d.clock.NewTimer(handshakeTimeout)
	defer t.Stop()
	select {
	case d.conns <- conn:
	case <-d.closed:
		conn.Close()
	case <-t.C():
		conn.Close()
	}
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

func (d *door) Addr() net.Addr { return d.addr }

// dial opens a connection to another node's controller listener.
func dial(ctx context.Context, id *identity, addr, protocol string) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: handshakeTimeout}, Config: id.clientTLS(protocol)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		if otherKey(err) {
			return nil, fmt.Errorf("controller at %s: %w", addr, errOtherKey)
		}
		return nil, fmt.Errorf("controller at %s: %w", addr, err)
	}
	return conn, nil
}
