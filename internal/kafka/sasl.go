package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authn"
	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// A connection of a listener with SASL goes through these phases. Until the login
// is done it is worth little: few keys, small requests, one deadline for all.
type loginPhase int8

const (
	// loginNone: the listener asks for no login.
	loginNone loginPhase = iota
	// loginHandshake: ApiVersions, and the choice of a mechanism.
	loginHandshake
	// loginTokens: the mechanism's tokens.
	loginTokens
	// loginDone: everything, until the session is over.
	loginDone
)

// Limits before a login is done (reliability, section 6).
const (
	loginTimeout     = 10 * time.Second
	maxLoginRequest  = 16 << 10
	maxLoginToken    = 64 << 10 // a handshake or a token
	minReauthSpacing = time.Second
)

// What ends a connection because of its login. These are told by the login itself,
// so that the connection's end is not told once more.
var (
	errLogin       = errors.New("login failed")
	errSessionOver = errors.New("session is over")
)

// login is where a connection stands. Only its goroutine touches it.
type login struct {
	phase    loginPhase
	deadline time.Time // of the machine's clock; zero unless a login is under way

	mechanism string
	exchange  authn.Exchange
	// raw: the handshake was v0, tokens and answers come without a header.
	raw bool
	// failed is set once the client has been, or is being, refused: the
	// connection closes behind the answer.
	failed error

	// expires is when the session is over, zero if never. Only a session that ends
	// may be renewed; started is when that was last begun (KIP-368).
	expires, started time.Time
}

// verdict is what becomes of a request.
type verdict int8

const (
	serve   verdict = iota
	illegal         // answered with ILLEGAL_SASL_STATE, and goes on
	refuse          // answered with ILLEGAL_SASL_STATE, then closed
	hangUp          // closed without an answer
	expired         // closed without an answer, and counted
)

// admit decides about a request by its key.
func (l *login) admit(key int16, now time.Time) verdict {
	switch l.phase {
	case loginHandshake:
		if key == keyApiVersions || key == keySaslHandshake {
			return serve
		}
		return hangUp
	case loginTokens:
		if key == keySaslAuthenticate {
			return serve
		}
		return refuse
	}
	switch {
	case key == keySaslHandshake && l.renewable(now):
		return serve
	case !l.expires.IsZero() && !now.Before(l.expires):
		return expired
	case key == keySaslHandshake || key == keySaslAuthenticate:
		return illegal
	}
	return serve
}

// renewable: a session that has an end may be renewed, not more than once a second.
func (l *login) renewable(now time.Time) bool {
	return l.phase == loginDone && !l.expires.IsZero() && (l.started.IsZero() || now.Sub(l.started) >= minReauthSpacing)
}

// pending tells whether a login is under way.
func (l *login) pending() bool { return l.phase == loginHandshake || l.phase == loginTokens }

// wantsRaw tells whether the next frame is a token without a header.
func (l *login) wantsRaw() bool { return l.phase == loginTokens && l.raw }

// clamp moves a deadline of the socket to the login's, while there is one.
func (l *login) clamp(d time.Time) time.Time {
	if !l.deadline.IsZero() && d.After(l.deadline) {
		return l.deadline
	}
	return d
}

// requestLimit is the most bytes a request of the key may have.
func (c *conn) requestLimit(key int16) int {
	switch {
	case !c.login.pending():
		return c.server.o.requestLimit(key)
	case key == keySaslHandshake || key == keySaslAuthenticate:
		return maxLoginToken
	}
	return maxLoginRequest
}

// answerIllegal tells a request that it came at the wrong time. Keys that a login
// has no business with are not answered.
func (c *conn) answerIllegal(r *request) error {
	code := kerr.IllegalSaslState.Code
	switch r.header.Key {
	case keySaslHandshake:
		resp := kmsg.NewPtrSASLHandshakeResponse()
		resp.ErrorCode = code
		return c.answer(r, resp)
	case keySaslAuthenticate:
		resp := kmsg.NewPtrSASLAuthenticateResponse()
		resp.ErrorCode, resp.ErrorMessage = code, kmsg.StringPtr("SaslAuthenticate request received after successful authentication")
		return c.answer(r, resp)
	case keyApiVersions:
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = code
		return c.answer(r, resp)
	}
	return nil
}

// beginLogin takes the client's choice of a mechanism; false if it has none of that
// name.
func (c *conn) beginLogin(mechanism string, raw bool, now time.Time) bool {
	l := &c.login
	exchange := c.listener.SASL.Start(mechanism)
	if exchange == nil {
		c.loginFailed(mechanism, "", fmt.Errorf("mechanism %q is not enabled", clipped(mechanism)))
		return false
	}
	if l.phase == loginDone {
		l.started = now
		l.deadline = time.Now().Add(c.server.o.LoginTimeout)
		if mechanism != l.mechanism {
			exchange = otherMechanism{mechanism, l.mechanism}
		}
	}
	l.phase, l.exchange, l.raw, l.mechanism = loginTokens, exchange, raw, mechanism
	return true
}

// otherMechanism refuses to renew a session with another mechanism than it began.
type otherMechanism struct{ asked, began string }

func (otherMechanism) Name() string { return "" }

func (o otherMechanism) Step(context.Context, []byte) ([]byte, *authn.Identity, error) {
	return nil, nil, &authn.Refusal{Message: fmt.Sprintf("SASL mechanism '%s' requested by client is not supported for re-authentication of mechanism '%s'", o.asked, o.began)}
}

// stepLogin takes the client's next token. A refusal waits here before it is
// answered: longer with each failure, and never for a client that knows its secret.
func (c *conn) stepLogin(token []byte, now time.Time) (answer []byte, lifetime time.Duration, err error) {
	l := &c.login
	answer, id, err := l.exchange.Step(c.waitCtx, token)
	if err == nil && id == nil {
		return answer, 0, nil
	}
	if err == nil {
		err = c.renewAs(id)
	}
	if err != nil {
		c.loginFailed(l.mechanism, l.exchange.Name(), err)
		return nil, 0, err
	}
	lifetime = c.listener.SASL.Lifetime(l.mechanism, id, now)
	again := !l.started.IsZero()
	*l = login{phase: loginDone, mechanism: l.mechanism, started: l.started}
	if lifetime > 0 {
		l.expires = now.Add(lifetime)
	}
	c.server.delays.Succeeded(id.Name)
	c.server.metrics.loggedIn(c.listener.Name, again)
	if !again && !c.server.enter(c, authz.Principal{Type: authz.UserType, Name: id.Name}) {
		l.failed = errLogin
	}
	return answer, lifetime, nil
}

// renewAs refuses a session that is renewed by somebody else.
func (c *conn) renewAs(id *authn.Identity) error {
	if c.login.started.IsZero() || id.Name == c.principal.Name {
		return nil
	}
	return &authn.Refusal{Message: fmt.Sprintf("Cannot change principals during re-authentication from %s to User:%s", c.principal, id.Name)}
}

// loginFailed counts, tells and holds back.
func (c *conn) loginFailed(mechanism, name string, err error) {
	s := c.server
	wait, tell := s.delays.Failed(c.ip, name)
	s.metrics.loginRefused(c.listener.Name)
	if tell {
		attrs := []any{"listener", c.listener.Name, "client", c.ip, "mechanism", clipped(mechanism), "user", clipped(name), "err", err}
		if cause := errors.Unwrap(err); cause != nil {
			attrs = append(attrs, "cause", cause)
		}
		s.o.Logger.Warn("a client failed to log in; the next such lines come after twice as many failures", attrs...)
	}
	c.login.failed = errLogin
	if wait <= 0 {
		return
	}
	t := s.o.Clock.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C():
	case <-c.waitCtx.Done():
	}
}

// clipped bounds what a client may put into the log.
func clipped(s string) string { return s[:min(len(s), 64)] }

// stepRaw is stepLogin for the tokens that follow a handshake of version 0: bytes
// with a length in front, and a closed connection for a refusal.
func (c *conn) stepRaw() error {
	if err := c.flush(); err != nil {
		return err
	}
	answer, _, err := c.stepLogin(c.frame.buf, c.server.o.Clock.Now())
	if err != nil {
		return c.login.failed
	}
	if err := c.send(func(dst []byte) []byte { return append(kbin.AppendInt32(dst, int32(len(answer))), answer...) }); err != nil {
		return err
	}
	return c.login.failed
}
