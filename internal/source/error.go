package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Class is the kind of a failure, for the operator and for the retry rules.
type Class int8

const (
	Other          Class = iota
	Unreachable          // no connection, or it broke, or no answer in time
	Authentication       // wrong user, password or mechanism
	TLS                  // certificates, names, protocol versions
	Authorization        // the source's ACLs refuse us
	Unsupported          // the source does not know the request
)

func (c Class) String() string {
	switch c {
	case Unreachable:
		return "unreachable"
	case Authentication:
		return "authentication"
	case TLS:
		return "tls"
	case Authorization:
		return "authorization"
	case Unsupported:
		return "unsupported"
	}
	return "other"
}

// Error is a failure of or at the source.
type Error struct {
	Peer  string // address as dialled; empty if no single broker is to blame
	Op    string // what was asked: "fetch", "metadata", …
	Class Class
	Err   error // the cause, with the codes of kerr where the source sent one
	text  string
}

// Error is one line: who, what, which side, why.
func (e *Error) Error() string { return e.text }
func (e *Error) Unwrap() error { return e.Err }

// ErrorClass tells what kind of failure err is.
func ErrorClass(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	class, _ := explain(err)
	return class
}

// fail makes the *Error of a request to peer.
func fail(peer, op string, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	var dial *wire.DialError
	if errors.As(err, &dial) {
		peer = dial.Addr
	}
	class, why := explain(err)
	who := "source"
	if peer != "" {
		who += " " + peer
	}
	text := fmt.Sprintf("%s: %s: %s", who, op, why)
	if dial != nil {
		text = who + ": " + why // the operation never began
	}
	return &Error{Peer: peer, Op: op, Class: class, Err: err, text: oneLine(text)}
}

func oneLine(s string) string {
	if strings.ContainsAny(s, "\r\n") {
		s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	}
	return s
}

// explain sorts an error and says in words which side refused what.
func explain(err error) (Class, string) {
	if class, why := explainTLS(err); class == TLS {
		return class, why
	}
	var dial *wire.DialError
	if errors.As(err, &dial) {
		return explainDial(dial)
	}
	if class := codeClass(err); class != Other {
		return class, "source answers " + bare(err)
	}
	var protocol *kerr.Error
	if errors.As(err, &protocol) {
		return Other, "source answers " + bare(err)
	}
	switch {
	case errors.Is(err, wire.ErrUnsupported), isUnsupportedByClient(err):
		return Unsupported, "source does not serve this request: " + bare(err)
	case errors.Is(err, context.Canceled):
		return Other, "cancelled by us"
	case errors.Is(err, ErrClosed), errors.Is(err, kgo.ErrClientClosed):
		return Other, "closed by us"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Unreachable, "no answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Unreachable, "source closed the connection"
	case errors.Is(err, net.ErrClosed):
		return Unreachable, "connection was closed by us"
	}
	var op *net.OpError
	var errno syscall.Errno
	if errors.As(err, &op) || errors.As(err, &errno) {
		return Unreachable, "connection broke: " + bare(err)
	}
	return Other, bare(err)
}

func explainDial(e *wire.DialError) (Class, string) {
	switch e.Stage {
	case wire.StageResolve:
		return Unreachable, "cannot resolve the host: " + bare(e.Err)
	case wire.StageConnect:
		if errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, os.ErrDeadlineExceeded) {
			return Unreachable, "cannot connect: no answer in time"
		}
		return Unreachable, "cannot connect: " + bare(e.Err)
	case wire.StageTLS:
		return TLS, "TLS handshake failed (is security.protocol right?): " + bare(e.Err)
	case wire.StageSASL:
		// Some brokers close the connection instead of answering.
		hungUp := errors.Is(e.Err, io.EOF) || errors.Is(e.Err, syscall.ECONNRESET)
		if isNetwork(e.Err) && !hungUp && codeClass(e.Err) == Other {
			return Unreachable, "connection broke during authentication: " + bare(e.Err)
		}
		return Authentication, "authentication failed, source refuses our credentials (sasl.*): " + bare(e.Err)
	case wire.StageAPIVersions:
		if isNetwork(e.Err) {
			return Unreachable, "source does not answer as a Kafka broker (is security.protocol right?): " + bare(e.Err)
		}
		return Other, "source does not answer as a Kafka broker (is security.protocol right?): " + bare(e.Err)
	}
	return Other, bare(e)
}

// explainTLS names both certificates' owners where names differ, and the side
// that refused.
func explainTLS(err error) (Class, string) {
	var name x509.HostnameError
	var issuer x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	switch {
	case errors.As(err, &name):
		return TLS, fmt.Sprintf("we refuse its certificate: expected the name %s, found %s (ssl.endpoint.identification.algorithm)", name.Host, certificateNames(name.Certificate))
	case errors.As(err, &issuer):
		who := "of an unknown issuer"
		if issuer.Cert != nil {
			who = fmt.Sprintf("of %s, issued by %s", describeName(issuer.Cert.Subject.String()), describeName(issuer.Cert.Issuer.String()))
		}
		return TLS, fmt.Sprintf("we refuse its certificate %s: the issuer is not in the trust store (ssl.truststore.*)", who)
	case errors.As(err, &invalid):
		return TLS, fmt.Sprintf("we refuse its certificate of %s: %s", describeName(invalid.Cert.Subject.String()), bare(invalid))
	case errors.As(err, &verify):
		return TLS, "we refuse its certificate: " + bare(verify.Err)
	case errors.As(err, &record):
		return TLS, "source does not speak TLS on this port (is security.protocol right?)"
	}
	// Go keeps the type of a received alert to itself; the operation's name is
	// documented.
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return TLS, "source refuses our side of the TLS handshake (ssl.keystore.*, ssl.enabled.protocols): " + bare(op.Err)
	}
	return Other, ""
}

func certificateNames(c *x509.Certificate) string {
	var names []string
	names = append(names, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return fmt.Sprintf("no name but the subject %s, which does not count", describeName(c.Subject.String()))
	}
	if len(names) > 5 {
		names = append(names[:5], "…")
	}
	return strings.Join(names, ", ")
}

func describeName(s string) string {
	if s == "" {
		return "(no name)"
	}
	return s
}

func isNetwork(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &errno) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// codeClass sorts the error codes that a broker sends.
func codeClass(err error) Class {
	var code *kerr.Error
	if !errors.As(err, &code) {
		return Other
	}
	switch code {
	case kerr.SaslAuthenticationFailed, kerr.IllegalSaslState, kerr.UnsupportedSaslMechanism:
		return Authentication
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed:
		return Authorization
	case kerr.UnsupportedVersion:
		return Unsupported
	case kerr.BrokerNotAvailable, kerr.NetworkException, kerr.RequestTimedOut, kerr.CoordinatorNotAvailable:
		return Unreachable
	}
	if code.Code == codeMirrorAuthorization {
		return Authorization
	}
	return Other
}

// isUnsupportedByClient recognises franz-go's own "broker is too old", which
// has no exported value.
func isUnsupportedByClient(err error) bool {
	return strings.Contains(err.Error(), "broker is too old")
}

// bare is the text of the innermost useful error: prefixes that repeat the
// address or a library's name are left out.
func bare(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls: "), "x509: ")
}

// IsClosed tells that a call failed because its Cluster was closed beside it.
func IsClosed(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, kgo.ErrClientClosed)
}
