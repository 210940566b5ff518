package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Options are one listener's. Keys of Props are Kafka's without a prefix, but for
// those of one mechanism, which begin with its name in lower case and a dot.
type Options struct {
	Name     string
	Protocol string // PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
	// Loopback: nobody but this machine reaches the address.
	Loopback bool
	// ClearPasswords allows PLAIN and OAUTHBEARER where neither TLS nor the
	// loopback hides what they send.
	ClearPasswords bool
	Props          map[string]string

	Scram  ScramStore
	Clock  clock.Clock
	Logger *slog.Logger
}

// Listener is how one listener knows its clients.
type Listener struct {
	TLS   *tls.Config // nil: bytes in clear
	SASL  *SASL       // nil: no login
	certs *certificates
	rules Rules
}

// Open reads a listener's keys and the files that they name.
func Open(o Options) (*Listener, error) {
	l := &Listener{}
	fault := func(key string, err error) (*Listener, error) {
		l.Close()
		return nil, fmt.Errorf("listener %s: %s: %w", o.Name, key, err)
	}
	secure, login := false, false
	switch o.Protocol {
	case clientconfig.Plaintext:
	case clientconfig.SSL:
		secure = true
	case clientconfig.SASLPlaintext:
		login = true
	case clientconfig.SASLSSL:
		secure, login = true, true
	default:
		return fault("listener.security.protocol.map", fmt.Errorf("%q is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", o.Protocol))
	}
	if !secure && !o.Loopback {
		o.Logger.Warn("a listener without TLS can be reached from other machines: anybody on the way reads and changes what clients send", "listener", o.Name, "protocol", o.Protocol)
	}
	var err error
	if l.rules, err = ParseRules(o.Props["ssl.principal.mapping.rules"]); err != nil {
		return fault("ssl.principal.mapping.rules", err)
	}
	if secure {
		if l.certs, err = openCertificates(o.Name, o.Props, o.Clock, o.Logger); err != nil {
			return nil, err
		}
		l.TLS = l.certs.config()
	}
	if login {
		var key string
		if l.SASL, key, err = openSASL(o, secure || o.Loopback || o.ClearPasswords); err != nil {
			return fault(key, err)
		}
	}
	return l, nil
}

// Watch reads certificates again when their files change, until ctx ends.
func (l *Listener) Watch(ctx context.Context) {
	if l.certs != nil {
		l.certs.watch(ctx)
	}
}

// Close forgets the listener's gauge.
func (l *Listener) Close() {
	if l.certs != nil {
		l.certs.close()
	}
}

// CertificateName is the principal's name of a client's certificate.
func (l *Listener) CertificateName(cert *x509.Certificate) (string, error) {
	return l.rules.Name(cert)
}

// SASL is the mechanisms of one listener.
type SASL struct {
	enabled   []string
	plain     *plainUsers
	scram     map[string]*scramUsers
	tokens    *tokens
	maxReauth map[string]time.Duration
}

// Mechanisms are those that clients may choose from.
func (s *SASL) Mechanisms() []string { return s.enabled }

// Start begins a login, nil if the mechanism is not enabled.
func (s *SASL) Start(mechanism string) Exchange {
	switch {
	case mechanism == Plain && s.plain != nil:
		return &plainExchange{users: s.plain}
	case mechanism == OAuthBearer && s.tokens != nil:
		return &bearerExchange{tokens: s.tokens}
	}
	if users := s.scram[mechanism]; users != nil {
		return users.exchange()
	}
	return nil
}

// Lifetime is how long a session of a mechanism lasts from now, zero for ever: to
// the end of its credential or of connections.max.reauth.ms, whichever is first
// (KIP-368). A credential that ends at this moment has one millisecond left, because
// zero says that there is no end.
func (s *SASL) Lifetime(mechanism string, id *Identity, now time.Time) time.Duration {
	longest := s.maxReauth[mechanism]
	if id.Expires.IsZero() {
		return longest
	}
	left := max(id.Expires.Sub(now), time.Millisecond)
	if longest > 0 {
		left = min(left, longest)
	}
	return left
}

// openSASL answers the key at fault with an error.
func openSASL(o Options, hidden bool) (*SASL, string, error) {
	const enabled = "sasl.enabled.mechanisms"
	s := &SASL{scram: map[string]*scramUsers{}, maxReauth: map[string]time.Duration{}}
	for _, m := range metadata.SplitList(strings.ToUpper(o.Props[enabled])) {
		prefix := strings.ToLower(m) + "."
		jaasKey := prefix + "sasl.jaas.config"
		jaas := o.Props[jaasKey]
		var err error
		switch m {
		case Plain:
			if jaas == "" {
				return nil, jaasKey, errors.New("is missing; it names the users")
			}
			s.plain, err = openPlain(jaas)
		case OAuthBearer:
			if key, err := s.openTokens(o, prefix); err != nil {
				return nil, key, err
			}
		default:
			mechanism := metadata.ParseScramMechanism(m)
			if mechanism == 0 {
				return nil, enabled, fmt.Errorf("%q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER", m)
			}
			if jaas != "" {
				_, err = loginModule(jaas, clientconfig.ScramModule)
			}
			s.scram[m] = &scramUsers{mechanism, o.Scram}
		}
		if err != nil {
			return nil, jaasKey, err
		}
		if !hidden && (m == Plain || m == OAuthBearer) {
			return nil, enabled, fmt.Errorf("%s over %s shows what a client sends to everybody on the way; use SASL_SSL or SCRAM, or set sasl.plaintext.passwords.allow=true", m, o.Protocol)
		}
		s.enabled = append(s.enabled, m)
		s.maxReauth[m] = o.duration(prefix, "connections.max.reauth.ms", 0)
	}
	if len(s.enabled) == 0 {
		return nil, enabled, fmt.Errorf("is required by %s", o.Protocol)
	}
	return s, "", nil
}

func (s *SASL) openTokens(o Options, prefix string) (key string, err error) {
	const url = "sasl.oauthbearer.jwks.endpoint.url"
	address := o.value(prefix, url)
	if address == "" {
		return url, errors.New("is missing; tokens without a signature are not taken")
	}
	t := &tokens{
		clock:     o.Clock,
		issuer:    o.value(prefix, "sasl.oauthbearer.expected.issuer"),
		audiences: metadata.SplitList(o.value(prefix, "sasl.oauthbearer.expected.audience")),
		skew:      time.Duration(o.number(prefix, "sasl.oauthbearer.clock.skew.seconds", 30)) * time.Second,
		subject:   o.value(prefix, "sasl.oauthbearer.sub.claim.name"),
	}
	if t.subject == "" {
		t.subject = "sub"
	}
	if t.issuer == "" && len(t.audiences) == 0 {
		o.Logger.Warn("a listener takes every token that is signed with the key set; set sasl.oauthbearer.expected.issuer and .audience", "listener", o.Name)
	}
	// Those of the listener say who issues clients' certificates, which is another matter.
	trust := map[string]string{}
	for key, value := range o.Props {
		if key, ok := strings.CutPrefix(key, prefix); ok && strings.HasPrefix(key, "ssl.truststore.") {
			trust[key] = value
		}
	}
	if _, err := clientconfig.TrustTLS(trust); err != nil {
		if bad, ok := errors.AsType[*clientconfig.KeyError](err); ok {
			return prefix + bad.Key, bad.Err
		}
		return url, err
	}
	if t.keys, err = openKeySet(address, trust, o.duration(prefix, "sasl.oauthbearer.jwks.endpoint.refresh.ms", time.Hour),
		o.duration(prefix, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10*time.Second), o.Clock); err != nil {
		return url, err
	}
	// A file has to be there; who answers at an address may come later.
	if _, err := t.keys.read(context.Background()); err != nil {
		if t.keys.address.Scheme == "file" {
			return url, err
		}
		o.Logger.Warn("the keys that tokens are signed with are not there yet; logins fail until they are", "listener", o.Name, "err", err)
	}
	s.tokens = t
	return "", nil
}

// value is a key for one mechanism, or else for all.
func (o *Options) value(prefix, key string) string {
	if v, ok := o.Props[prefix+key]; ok {
		return v
	}
	return o.Props[key]
}

// number is a value that the configuration has checked already.
func (o *Options) number(prefix, key string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(o.value(prefix, key), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func (o *Options) duration(prefix, key string, otherwise time.Duration) time.Duration {
	return time.Duration(o.number(prefix, key, otherwise.Milliseconds())) * time.Millisecond
}
