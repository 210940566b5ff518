package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

// Dialer makes Clients. The zero value speaks plaintext without
// authentication.
type Dialer struct {
	TLS  *tls.Config    // nil: plaintext. A missing ServerName is the dialled host
	SASL sasl.Mechanism // nil: none

	ClientID       string        // default "lockstep"
	DialTimeout    time.Duration // whole Dial, all stages; default 10 s
	RequestTimeout time.Duration // one round trip; default 30 s
	MaxResponse    int           // bytes of one answer; default DefaultMaxResponse

	// DialContext replaces the network, for tests and tunnels.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// A Stage is the step of dialling that failed.
type Stage string

// The stages of Dial, in order.
const (
	StageResolve     Stage = "resolve"
	StageConnect     Stage = "connect"
	StageTLS         Stage = "tls"
	StageAPIVersions Stage = "apiversions"
	StageSASL        Stage = "sasl"
)

// DialError says at which step a peer could not be reached. Its text is one
// line that names peer, step and cause.
type DialError struct {
	Addr  string
	Stage Stage
	Err   error
}

func (e *DialError) Error() string {
	var what string
	switch e.Stage {
	case StageResolve:
		what = "cannot resolve host"
	case StageConnect:
		what = "cannot connect"
	case StageTLS:
		what = "TLS handshake failed"
	case StageAPIVersions:
		what = "does not answer as a Kafka broker"
	case StageSASL:
		what = "authentication failed"
	default:
		what = string(e.Stage)
	}
	return fmt.Sprintf("%s: %s: %v", e.Addr, what, e.Err)
}

func (e *DialError) Unwrap() error { return e.Err }

// Dial connects, secures, learns the peer's versions and authenticates. Every
// error but the context's own is a *DialError.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Client, error) {
	timeout := d.DialTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	c, stage, err := d.dial(ctx, addr)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
			// The socket's deadline is the context's and may fire first.
			err = fmt.Errorf("no answer within %v", timeout)
		}
		return nil, &DialError{Addr: addr, Stage: stage, Err: err}
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, addr string) (*Client, Stage, error) {
	conn, stage, err := d.connect(ctx, addr)
	if err != nil {
		return nil, stage, err
	}
	c := &Client{addr: addr, conn: conn, clientID: d.ClientID, timeout: d.RequestTimeout, maxBytes: d.MaxResponse}
	if c.clientID == "" {
		c.clientID = "lockstep"
	}
	if c.timeout <= 0 {
		c.timeout = 30 * time.Second
	}
	if c.maxBytes <= 0 {
		c.maxBytes = DefaultMaxResponse
	}
	if err := c.loadVersions(ctx); err != nil {
		conn.Close()
		return nil, StageAPIVersions, err
	}
	if d.SASL != nil {
		if err := c.authenticate(ctx, d.SASL); err != nil {
			conn.Close()
			return nil, StageSASL, err
		}
	}
	return c, "", nil
}

func (d *Dialer) connect(ctx context.Context, addr string) (net.Conn, Stage, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, StageResolve, err
	}
	dial := d.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) {
			return nil, StageResolve, dns
		}
		return nil, StageConnect, bareCause(err)
	}
	if d.TLS == nil {
		return conn, "", nil
	}
	cfg := d.TLS
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, StageTLS, explainTLS(err)
	}
	return secure, "", nil
}

// bareCause strips "dial tcp 127.0.0.1:9: connect:", which repeats the address
// that a DialError names already.
func bareCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// explainTLS adds what an operator cannot guess from the error of the library.
func explainTLS(err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return fmt.Errorf("the peer does not speak TLS on this port (is security.protocol right?): %w", err)
	}
	return err
}

// loadVersions asks ApiVersions, falling back to version 0 as a peer that does
// not know ours demands (KIP-511).
func (c *Client) loadVersions(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "lockstep", "1"
	for _, version := range []int16{4, 3, 0} {
		req.SetVersion(version)
		resp, err := c.apiVersions(ctx, req)
		if err != nil {
			return err
		}
		if resp.ErrorCode == kerr.UnsupportedVersion.Code && version > 0 {
			continue
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		c.versions = make(map[int16]versionRange, len(resp.ApiKeys))
		for _, k := range resp.ApiKeys {
			c.versions[k.ApiKey] = versionRange{k.MinVersion, k.MaxVersion}
		}
		return nil
	}
	return kerr.UnsupportedVersion
}

// apiVersions is one round trip, reading the answer in version 0 when the peer
// answers in it, whatever was asked.
func (c *Client) apiVersions(ctx context.Context, req *kmsg.ApiVersionsRequest) (*kmsg.ApiVersionsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp, err := c.roundTripLocked(ctx, &lenientApiVersions{ApiVersionsRequest: req})
	if err != nil {
		return nil, err
	}
	return resp.(*lenientApiVersionsResponse).ApiVersionsResponse, nil
}

// lenientApiVersions reads an "unsupported version" answer, which has the
// layout of version 0.
type lenientApiVersions struct{ *kmsg.ApiVersionsRequest }

func (r *lenientApiVersions) ResponseKind() kmsg.Response {
	return &lenientApiVersionsResponse{kmsg.NewPtrApiVersionsResponse()}
}

type lenientApiVersionsResponse struct{ *kmsg.ApiVersionsResponse }

func (r *lenientApiVersionsResponse) ReadFrom(b []byte) error {
	if len(b) >= 2 && int16(b[0])<<8|int16(b[1]) == kerr.UnsupportedVersion.Code {
		r.SetVersion(0)
	}
	return r.ApiVersionsResponse.ReadFrom(b)
}
