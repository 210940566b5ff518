package clientconfig

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// The values of security.protocol.
const (
	Plaintext     = "PLAINTEXT"
	SSL           = "SSL"
	SASLPlaintext = "SASL_PLAINTEXT"
	SASLSSL       = "SASL_SSL"
)

// Config is how to reach one cluster.
type Config struct {
	Bootstrap []string       // host:port, never an empty host; may be empty
	TLS       *tls.Config    // nil: plaintext
	SASL      sasl.Mechanism // nil: none

	// Protocol is the security.protocol in effect.
	Protocol string

	RequestTimeout time.Duration // request.timeout.ms, default 30 s
	DialTimeout    time.Duration // socket.connection.setup.timeout.ms, default 10 s
	IdleTimeout    time.Duration // connections.max.idle.ms, default 10 min

	// Dial replaces the network: a transport plugin's way to a broker. TLS and
	// SASL run over what it returns. Nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Warnings are one line each: keys that were accepted and have no effect.
	Warnings []string
	// Unknown are the keys that no Kafka client has, sorted. Parse refuses
	// them unless AllowUnknown is given.
	Unknown []string
}

// Dialer makes connections of our own client. Each call returns a new one.
func (c *Config) Dialer(clientID string) *wire.Dialer {
	return &wire.Dialer{
		TLS:            c.TLS,
		SASL:           c.SASL,
		ClientID:       clientID,
		DialTimeout:    c.DialTimeout,
		RequestTimeout: c.RequestTimeout,
		DialContext:    c.Dial,
	}
}

// Option changes how Parse reads.
type Option func(*parser)

// AllowUnknown makes Parse list unknown keys in Config.Unknown instead of
// refusing them, for properties that also carry other settings.
func AllowUnknown() Option { return func(p *parser) { p.allowUnknown = true } }

// Parse reads Kafka client properties. The first fault it meets is returned as
// a *KeyError.
func Parse(props map[string]string, opts ...Option) (*Config, error) {
	p := &parser{props: props, c: &Config{}}
	for _, o := range opts {
		o(p)
	}
	for _, step := range []func() error{p.names, p.bootstrap, p.timeouts, p.security} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.c, nil
}

type parser struct {
	props        map[string]string
	allowUnknown bool
	c            *Config
}

// get is a trimmed value; Kafka's own parser trims too. Empty counts as not
// set, except where a caller asks with has.
func (p *parser) get(key string) string { return strings.TrimSpace(p.props[key]) }

func (p *parser) has(key string) bool { _, ok := p.props[key]; return ok }

func (p *parser) warn(key, text string) {
	p.c.Warnings = append(p.c.Warnings, key+": "+text)
}

func (p *parser) names() error {
	for _, key := range slices.Sorted(maps.Keys(p.props)) {
		switch {
		case effective[key] || ordinary[key]:
		case jvmOnly[key]:
			p.warn(key, "exists for Java only, ignored")
		case strings.HasPrefix(key, "sasl.oauthbearer.") || strings.HasPrefix(key, "sasl.login."):
			p.warn(key, "has no effect with PLAIN and SCRAM, ignored")
		default:
			p.c.Unknown = append(p.c.Unknown, key)
		}
	}
	if len(p.c.Unknown) > 0 && !p.allowUnknown {
		return keyErrorf(p.c.Unknown[0], "no such client property")
	}
	return nil
}

func (p *parser) timeouts() error {
	for _, t := range []struct {
		key string
		def time.Duration
		dst *time.Duration
	}{
		{keyRequestTimeout, 30 * time.Second, &p.c.RequestTimeout},
		{keyDialTimeout, 10 * time.Second, &p.c.DialTimeout},
		{keyIdleTimeout, 10 * time.Minute, &p.c.IdleTimeout},
	} {
		*t.dst = t.def
		v := p.get(t.key)
		if v == "" {
			continue
		}
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms < 0 || ms > int64(1<<31-1) {
			return keyErrorf(t.key, "%q is not a number of milliseconds", v)
		}
		if ms > 0 {
			*t.dst = time.Duration(ms) * time.Millisecond
		}
	}
	return nil
}

func (p *parser) security() error {
	p.c.Protocol = strings.ToUpper(p.get(keyProtocol))
	if p.c.Protocol == "" {
		p.c.Protocol = Plaintext
	}
	withTLS, withSASL := false, false
	switch p.c.Protocol {
	case Plaintext:
	case SSL:
		withTLS = true
	case SASLPlaintext:
		withSASL = true
	case SASLSSL:
		withTLS, withSASL = true, true
	default:
		return keyErrorf(keyProtocol, "%q is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", p.get(keyProtocol))
	}
	if withTLS {
		if err := p.tls(); err != nil {
			return err
		}
	} else if p.has(keyTrustLocation) || p.has(keyTrustPEM) || p.has(keyStoreLocation) || p.has(keyStoreKey) {
		p.warn(keyProtocol, "is "+p.c.Protocol+": the ssl.* keys have no effect")
	}
	if withSASL {
		return p.sasl()
	}
	if p.has(keyJAAS) {
		p.warn(keyProtocol, "is "+p.c.Protocol+": the sasl.* keys have no effect")
	}
	return nil
}

// LoadFile reads a properties file in the format of java.util.Properties.
// ${…} is left as it stands, as the Kafka tools leave it.
func LoadFile(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	loaded, err := loader.LoadBytes(text)
	if err != nil {
		return nil, &os.PathError{Op: "read properties", Path: path, Err: err}
	}
	return loaded.Map(), nil
}
