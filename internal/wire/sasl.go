package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

// maxSASLSteps bounds the exchange; SCRAM needs two.
const maxSASLSteps = 16

// authenticate runs SaslHandshake v1 and as many SaslAuthenticate rounds as
// the mechanism wants (KIP-152).
func (c *Client) authenticate(ctx context.Context, m sasl.Mechanism) error {
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Mechanism = m.Name()
	resp, err := c.Request(ctx, handshake)
	if errors.Is(err, ErrUnsupported) {
		return errors.New("the peer's listener does not offer SASL (is security.protocol right?)")
	}
	if err != nil {
		return saslCause(err)
	}
	hs := resp.(*kmsg.SASLHandshakeResponse)
	switch kerr.ErrorForCode(hs.ErrorCode) {
	case nil:
	case kerr.UnsupportedSaslMechanism:
		return fmt.Errorf("mechanism %s refused, the peer offers %s", m.Name(), strings.Join(hs.SupportedMechanisms, ", "))
	case kerr.IllegalSaslState:
		return errors.New("the peer's listener does not use SASL (is security.protocol right?)")
	default:
		return kerr.ErrorForCode(hs.ErrorCode)
	}

	host, _, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	session, out, err := m.Authenticate(ctx, host)
	if err != nil {
		return err
	}
	for range maxSASLSteps {
		in, err := c.saslStep(ctx, out)
		if err != nil {
			return err
		}
		done, next, err := session.Challenge(in)
		if err != nil {
			return err
		}
		if done {
			return nil
		}
		out = next
	}
	return fmt.Errorf("mechanism %s did not finish within %d steps", m.Name(), maxSASLSteps)
}

func (c *Client) saslStep(ctx context.Context, token []byte) ([]byte, error) {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.SASLAuthBytes = token
	resp, err := c.Request(ctx, req)
	if err != nil {
		return nil, saslCause(err)
	}
	auth := resp.(*kmsg.SASLAuthenticateResponse)
	if err := kerr.ErrorForCode(auth.ErrorCode); err != nil {
		if auth.ErrorMessage != nil && *auth.ErrorMessage != "" {
			return nil, fmt.Errorf("%s: %w", *auth.ErrorMessage, err)
		}
		return nil, err
	}
	return auth.SASLAuthBytes, nil
}

// saslCause drops the address in front of an error, which DialError repeats,
// and explains the silence of brokers that hang up on wrong credentials.
func saslCause(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the peer closed the connection during authentication (wrong credentials?): %w", io.EOF)
	}
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
