package clientconfig

import (
	"crypto/tls"
	"strings"
)

// KeyClientAuth is the one ssl.* key that only a listener has.
const KeyClientAuth = "ssl.client.auth"

// ServerTLS turns the ssl.* keys of a listener into its TLS configuration, and
// names the files that it was read from. Errors are *KeyError.
func ServerTLS(props map[string]string) (cfg *tls.Config, files []string, err error) {
	p := &parser{props: props, c: &Config{}}
	cfg = &tls.Config{}
	for _, step := range []func(*tls.Config) error{p.tlsVersions, p.tlsCiphers, p.trustStore, p.keyStore, p.serverOnly} {
		if err := step(cfg); err != nil {
			return nil, nil, err
		}
	}
	for _, key := range []string{keyStoreLocation, keyTrustLocation} {
		if path := p.get(key); path != "" {
			files = append(files, path)
		}
	}
	return cfg, files, nil
}

// TrustTLS is the TLS configuration of a client that only checks whom it reaches,
// by the ssl.truststore.* keys. Errors are *KeyError.
func TrustTLS(props map[string]string) (*tls.Config, error) {
	p := &parser{props: props, c: &Config{}}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := p.trustStore(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// serverOnly turns what was read for a client into a listener's.
func (p *parser) serverOnly(cfg *tls.Config) error {
	if len(cfg.Certificates) == 0 {
		return keyErrorf(keyStoreLocation, "is required by a listener with TLS (or %s and %s)", keyStoreChain, keyStoreKey)
	}
	if cfg.MinVersion < tls.VersionTLS12 {
		return keyErrorf(keyTLSEnabled, "a listener speaks TLSv1.2 and TLSv1.3 only")
	}
	cfg.GetClientCertificate = nil
	cfg.ClientCAs, cfg.RootCAs = cfg.RootCAs, nil
	switch v := strings.ToLower(p.get(KeyClientAuth)); v {
	case "", "none":
		return nil
	case "requested":
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	case "required":
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		return keyErrorf(KeyClientAuth, "%q is none of none, requested, required", p.get(KeyClientAuth))
	}
	if cfg.ClientCAs == nil {
		// The system's roots would let in everybody who has any public certificate.
		return keyErrorf(KeyClientAuth, "is %s, but neither %s nor %s says who issues clients' certificates", p.get(KeyClientAuth), keyTrustLocation, keyTrustPEM)
	}
	// A resumed session would keep a client in whom a changed trust store refuses.
	cfg.SessionTicketsDisabled = true
	return nil
}

// ParseJAAS reads the one login module of sasl.jaas.config. Errors name the
// place, never a value.
func ParseJAAS(text string) (module string, options map[string]Secret, err error) {
	l, err := parseJAAS(text)
	if err != nil {
		return "", nil, err
	}
	return l.module, l.options, nil
}

// The login modules that Kafka's files name.
const (
	PlainModule = plainModule
	ScramModule = scramModule
)
