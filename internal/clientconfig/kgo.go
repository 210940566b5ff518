package clientconfig

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// KgoOpts are the options with which a franz-go client reaches the cluster.
// It dials through DialContext, so that its errors look like our own client's.
func (c *Config) KgoOpts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.Dialer(c.DialContext),
		kgo.RequestTimeoutOverhead(c.RequestTimeout),
		kgo.ConnIdleTimeout(c.IdleTimeout),
	}
	if len(c.Bootstrap) > 0 {
		opts = append(opts, kgo.SeedBrokers(c.Bootstrap...))
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL))
	}
	return opts
}

// DialContext connects to addr and, if the protocol says so, secures the
// connection. Every error is a *wire.DialError.
func (c *Config) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	timeout := c.DialTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, connectError(addr, err)
	}
	if c.TLS == nil {
		return conn, nil
	}
	cfg := c.TLS
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			conn.Close()
			return nil, &wire.DialError{Addr: addr, Stage: wire.StageResolve, Err: err}
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &wire.DialError{Addr: addr, Stage: wire.StageTLS, Err: err}
	}
	return secure, nil
}

func connectError(addr string, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return &wire.DialError{Addr: addr, Stage: wire.StageResolve, Err: dns}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // the address is named already
	}
	return &wire.DialError{Addr: addr, Stage: wire.StageConnect, Err: err}
}
