package clientconfig

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"software.sslmate.com/src/go-pkcs12"
)

// maxStoreBytes bounds a store file: a bundle of all public roots is 0.3 MB.
const maxStoreBytes = 16 << 20

// A store's type, from its key or from the first bytes of the file: Java too
// opens a PKCS12 file that is declared as JKS, its default.
const (
	storePEM    = "PEM"
	storePKCS12 = "PKCS12"
	storeJKS    = "JKS"
)

// readStore loads a store file and tells its type.
func readStore(keyType, declared, keyLocation, path string) (kind string, data []byte, err error) {
	declared = strings.ToUpper(declared)
	switch declared {
	case "", storePEM, storePKCS12, storeJKS:
	case "P12", "PFX":
		declared = storePKCS12
	default:
		return "", nil, keyErrorf(keyType, "%q is none of PEM, PKCS12", declared)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, &KeyError{keyLocation, err}
	}
	if info.Size() > maxStoreBytes {
		return "", nil, keyErrorf(keyLocation, "%s: %d bytes is too large for a key store", path, info.Size())
	}
	if data, err = os.ReadFile(path); err != nil {
		return "", nil, &KeyError{keyLocation, err}
	}
	found := storePKCS12
	switch {
	case bytes.Contains(data, []byte("-----BEGIN ")):
		found = storePEM
	case bytes.HasPrefix(data, []byte{0xFE, 0xED, 0xFE, 0xED}), bytes.HasPrefix(data, []byte{0xCE, 0xCE, 0xCE, 0xCE}):
		return "", nil, keyErrorf(keyLocation, "%s is a JKS store, which only Java reads; convert it with: "+
			"keytool -importkeystore -srckeystore %s -destkeystore %s.p12 -deststoretype PKCS12", path, path, strings.TrimSuffix(path, ".jks"))
	case len(data) == 0 || data[0] != 0x30:
		return "", nil, keyErrorf(keyLocation, "%s is neither PEM nor PKCS12", path)
	}
	if declared == storePEM && found != storePEM || declared == storePKCS12 && found == storePEM {
		return "", nil, keyErrorf(keyType, "is %s, but %s is %s", declared, path, found)
	}
	return found, data, nil
}

// trustStore fills RootCAs. Without a trust store the system's roots count.
func (p *parser) trustStore(cfg *tls.Config) error {
	if v := p.get(keyTrustPEM); v != "" {
		if p.get(keyTrustLocation) != "" {
			return keyErrorf(keyTrustPEM, "and %s are both set", keyTrustLocation)
		}
		if t := p.get(keyTrustType); t != "" && !strings.EqualFold(t, storePEM) {
			return keyErrorf(keyTrustType, "must be PEM with %s", keyTrustPEM)
		}
		return addRoots(cfg, keyTrustPEM, []byte(unfold(v)))
	}
	path := p.get(keyTrustLocation)
	if path == "" {
		if strings.EqualFold(p.get(keyTrustType), storePEM) {
			return keyErrorf(keyTrustType, "is PEM, but neither %s nor %s is set", keyTrustPEM, keyTrustLocation)
		}
		return nil
	}
	kind, data, err := readStore(keyTrustType, p.get(keyTrustType), keyTrustLocation, path)
	if err != nil {
		return err
	}
	if kind == storePEM {
		return addRoots(cfg, keyTrustLocation, data)
	}
	certs, err := decodeTrust(data, Secret(p.props[keyTrustPassword]))
	if err != nil {
		return storeError(err, keyTrustPassword, keyTrustLocation, path, p.has(keyTrustPassword))
	}
	cfg.RootCAs = x509.NewCertPool()
	for _, cert := range certs {
		cfg.RootCAs.AddCert(cert)
	}
	return nil
}

func addRoots(cfg *tls.Config, key string, text []byte) error {
	certs, err := parseCertificates(text)
	if err != nil {
		return &KeyError{key, err}
	}
	cfg.RootCAs = x509.NewCertPool()
	for _, cert := range certs {
		cfg.RootCAs.AddCert(cert)
	}
	return nil
}

// decodeTrust reads a PKCS12 trust store: certificates that Java marked as
// trusted, or else the certificates of a key store, whose leaf Java trusts too.
func decodeTrust(data []byte, password Secret) ([]*x509.Certificate, error) {
	certs, err := pkcs12.DecodeTrustStore(data, password.Reveal())
	if err == nil || errors.Is(err, pkcs12.ErrIncorrectPassword) {
		return certs, err
	}
	_, leaf, chain, keyErr := pkcs12.DecodeChain(data, password.Reveal())
	if keyErr == nil {
		return append(chain, leaf), nil
	}
	return nil, err
}

// keyStore fills Certificates, for mutual TLS.
func (p *parser) keyStore(cfg *tls.Config) error {
	chain, key := p.get(keyStoreChain), p.get(keyStoreKey)
	path := p.get(keyStoreLocation)
	switch {
	case chain == "" && key == "" && path == "":
		return nil
	case path != "" && (chain != "" || key != ""):
		return keyErrorf(keyStoreLocation, "and %s or %s are both set", keyStoreKey, keyStoreChain)
	case path != "":
		return p.keyStoreFile(cfg, path)
	case chain == "":
		return keyErrorf(keyStoreChain, "is required with %s", keyStoreKey)
	case key == "":
		return keyErrorf(keyStoreKey, "is required with %s", keyStoreChain)
	}
	if t := p.get(keyStoreType); t != "" && !strings.EqualFold(t, storePEM) {
		return keyErrorf(keyStoreType, "must be PEM with %s", keyStoreKey)
	}
	certs, err := parseCertificates([]byte(unfold(chain)))
	if err != nil {
		return &KeyError{keyStoreChain, err}
	}
	signer, err := parsePrivateKey([]byte(unfold(key)), Secret(p.props[keyKeyPassword]))
	if err != nil {
		return &KeyError{keyOf(err, keyStoreKey), err}
	}
	return setCertificate(cfg, keyStoreKey, certs, signer)
}

func (p *parser) keyStoreFile(cfg *tls.Config, path string) error {
	kind, data, err := readStore(keyStoreType, p.get(keyStoreType), keyStoreLocation, path)
	if err != nil {
		return err
	}
	if kind == storePEM {
		certs, err := parseCertificates(data)
		if err != nil {
			return keyErrorf(keyStoreLocation, "%s: %w", path, err)
		}
		signer, err := parsePrivateKey(data, Secret(p.props[keyKeyPassword]))
		if err != nil {
			return keyErrorf(keyOf(err, keyStoreLocation), "%s: %w", path, err)
		}
		return setCertificate(cfg, keyStoreLocation, certs, signer)
	}
	password := Secret(p.props[keyStorePassword])
	if k := Secret(p.props[keyKeyPassword]); k != "" && k != password {
		return keyErrorf(keyKeyPassword, "differs from %s, but a PKCS12 store has one password", keyStorePassword)
	}
	private, leaf, rest, err := pkcs12.DecodeChain(data, password.Reveal())
	if err != nil {
		return storeError(err, keyStorePassword, keyStoreLocation, path, p.has(keyStorePassword))
	}
	signer, ok := private.(crypto.Signer)
	if !ok {
		return keyErrorf(keyStoreLocation, "%s: a key of type %T cannot sign", path, private)
	}
	return setCertificate(cfg, keyStoreLocation, append([]*x509.Certificate{leaf}, rest...), signer)
}

func setCertificate(cfg *tls.Config, key string, chain []*x509.Certificate, signer crypto.Signer) error {
	public, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(signer.Public()) {
		return keyErrorf(key, "the private key does not belong to the first certificate of the chain (%s)", chain[0].Subject)
	}
	cert := tls.Certificate{PrivateKey: signer, Leaf: chain[0]}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	// GetClientCertificate instead of Certificates: Go would otherwise send
	// nothing when the peer's list of acceptable issuers does not name ours,
	// and the peer could not say what is wrong with the certificate.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	cfg.Certificates = []tls.Certificate{cert}
	return nil
}

func storeError(err error, keyPassword, keyLocation, path string, hasPassword bool) error {
	switch {
	case errors.Is(err, pkcs12.ErrIncorrectPassword) && !hasPassword:
		return keyErrorf(keyPassword, "is missing, and %s has a password", path)
	case errors.Is(err, pkcs12.ErrIncorrectPassword), errors.Is(err, pkcs12.ErrDecryption):
		return keyErrorf(keyPassword, "does not open %s", path)
	}
	if strings.Contains(err.Error(), "not marked as trusted") {
		// As openssl pkcs12 -export -nokeys writes it; Java trusts nothing in it.
		return keyErrorf(keyLocation, "%s: holds a certificate without Java's trust mark; import it with keytool -importcert, or name the PEM file", path)
	}
	return keyErrorf(keyLocation, "%s: %w", path, err)
}

func parseCertificates(text []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("holds no certificate in PEM form")
	}
	return certs, nil
}

// unfold gives a PEM text its line ends back that it lost on its way through
// one line of a properties file or a shell: Kafka accepts it with blanks, and
// some tools leave the two characters \n.
func unfold(text string) string {
	text = strings.ReplaceAll(text, `\n`, "\n")
	if strings.Contains(text, "\n") {
		return text
	}
	return foldMarkers(text)
}

// foldMarkers puts line ends around the BEGIN and END lines and replaces the
// blanks between them.
func foldMarkers(text string) string {
	var b strings.Builder
	for {
		begin := strings.Index(text, "-----BEGIN ")
		if begin < 0 {
			return b.String()
		}
		text = text[begin:]
		head := strings.Index(text[5:], "-----")
		foot := strings.Index(text, "-----END ")
		if head < 0 || foot < 0 {
			return b.String() + text
		}
		tail := strings.Index(text[foot+5:], "-----")
		if tail < 0 {
			return b.String() + text
		}
		b.WriteString(text[:head+10] + "\n")
		b.WriteString(strings.Join(strings.Fields(text[head+10:foot]), "\n"))
		end := foot + 5 + tail + 5
		b.WriteString("\n" + text[foot:end] + "\n")
		text = text[end:]
	}
}
