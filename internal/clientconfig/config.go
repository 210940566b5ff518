package clientconfig

import (
	"crypto/tls"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Config is how to reach one cluster.
type Config struct {
	Bootstrap []string       // host:port, never empty hosts
	TLS       *tls.Config    // nil: plaintext
	SASL      sasl.Mechanism // nil: none

	// Protocol is the security.protocol in effect.
	Protocol string

	RequestTimeout time.Duration // request.timeout.ms, default 30 s
	DialTimeout    time.Duration // socket.connection.setup.timeout.ms, default 10 s
	IdleTimeout    time.Duration // connections.max.idle.ms, default 10 min

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
	}
}

// KgoOpts are the options with which a franz-go client reaches the cluster.
func (c *Config) KgoOpts() []kgo.Opt { return nil }

// Parse reads Kafka client properties.
func Parse(props map[string]string, opts ...Option) (*Config, error) {
	return nil, errors.New("not built yet")
}

// Option changes how Parse reads.
type Option func(*parser)

type parser struct{ allowUnknown bool }

// AllowUnknown makes Parse list unknown keys in Config.Unknown instead of
// refusing them, for properties that also carry other settings.
func AllowUnknown() Option { return func(p *parser) { p.allowUnknown = true } }

// LoadFile reads a properties file as the Kafka tools take it: no expansion.
func LoadFile(path string) (map[string]string, error) { return nil, errors.New("not built yet") }
