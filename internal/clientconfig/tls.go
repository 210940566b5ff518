package clientconfig

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
)

// tls builds the TLS configuration from the ssl.* keys. ServerName stays empty:
// the dialler sets it to the host it dials.
func (p *parser) tls() error {
	cfg := &tls.Config{}
	for _, step := range []func(*tls.Config) error{p.tlsVersions, p.tlsCiphers, p.trustStore, p.keyStore, p.tlsIdentification} {
		if err := step(cfg); err != nil {
			return err
		}
	}
	p.c.TLS = cfg
	return nil
}

var tlsVersions = map[string]uint16{
	"TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11,
	"TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13,
}

// tlsVersions: ssl.enabled.protocols gives the range; without it ssl.protocol
// gives the highest version. The default is 1.2 to 1.3, as in Kafka.
func (p *parser) tlsVersions(cfg *tls.Config) error {
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
	if v := p.get(keyTLSProtocol); v != "" && v != "TLS" {
		version, ok := tlsVersions[v]
		if !ok {
			return keyErrorf(keyTLSProtocol, "%q is none of TLSv1.2, TLSv1.3", v)
		}
		cfg.MaxVersion = version
		cfg.MinVersion = min(cfg.MinVersion, version)
	}
	v := p.get(keyTLSEnabled)
	if v == "" {
		return nil
	}
	cfg.MinVersion, cfg.MaxVersion = 0, 0
	for name := range strings.SplitSeq(v, ",") {
		name = strings.TrimSpace(name)
		version, ok := tlsVersions[name]
		if !ok {
			return keyErrorf(keyTLSEnabled, "%q is none of TLSv1.2, TLSv1.3", name)
		}
		if cfg.MinVersion == 0 || version < cfg.MinVersion {
			cfg.MinVersion = version
		}
		cfg.MaxVersion = max(cfg.MaxVersion, version)
	}
	return nil
}

// tlsCiphers takes the standard names, which Java and Go share. The three
// suites of TLS 1.3 cannot be chosen in Go; naming only those means 1.3 alone.
func (p *parser) tlsCiphers(cfg *tls.Config) error {
	v := p.get(keyTLSCiphers)
	if v == "" {
		return nil
	}
	known := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	only13 := true
	for name := range strings.SplitSeq(v, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(known, func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return keyErrorf(keyTLSCiphers, "%q is not a cipher suite known here", name)
		}
		if slices.Equal(known[i].SupportedVersions, []uint16{tls.VersionTLS13}) {
			continue
		}
		only13 = false
		cfg.CipherSuites = append(cfg.CipherSuites, known[i].ID)
	}
	if !only13 {
		return nil
	}
	if cfg.MaxVersion < tls.VersionTLS13 {
		return keyErrorf(keyTLSCiphers, "names suites of TLS 1.3 only, which %s excludes", keyTLSEnabled)
	}
	cfg.MinVersion = tls.VersionTLS13
	return nil
}

// tlsIdentification: an empty value, which must be written out, switches the
// check of the host name off. The chain is verified all the same.
func (p *parser) tlsIdentification(cfg *tls.Config) error {
	v := strings.ToLower(p.get(keyTLSIdentification))
	if v == "https" || !p.has(keyTLSIdentification) {
		return nil
	}
	if v != "" {
		return keyErrorf(keyTLSIdentification, "%q is neither https nor empty", p.get(keyTLSIdentification))
	}
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true // replaced by the check below, which Go calls in every handshake
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		return verifyChain(state.PeerCertificates, roots)
	}
	return nil
}

func verifyChain(chain []*x509.Certificate, roots *x509.CertPool) error {
	if len(chain) == 0 {
		return errors.New("the peer showed no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}
