package controller

import (
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// identity is how the nodes of a cluster know each other. All of them derive the
// same authority from the cluster's key, and each makes a certificate of its own
// at every start: nothing has to be handed around, renewed or revoked, and who
// does not have the key is nobody.
type identity struct {
	authority *x509.Certificate
	pool      *x509.CertPool
	leaf      tls.Certificate
}

// nodeName is what every certificate is for. Nodes are told apart by what they
// say: all of them have the cluster's key anyway.
const nodeName = "controller.lockstep"

// Certificates are valid as long as the key is: clocks of nodes differ, and a
// certificate lives no longer than its process.
var (
	validFrom  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	validUntil = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) // RFC 5280's "no end"
)

// newIdentity derives the authority from key, which is the cluster's, and draws
// this node's certificate.
func newIdentity(key []byte, node int32, random io.Reader) (*identity, error) {
	seed, err := hkdf.Key(sha256.New, key, nil, "lockstep controller authority", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("controller listener: derive its authority: %w", err)
	}
	signer := ed25519.NewKeyFromSeed(seed)
	id := sha256.Sum256(signer.Public().(ed25519.PublicKey))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Lockstep cluster"},
		NotBefore: validFrom, NotAfter: validUntil, SubjectKeyId: id[:20],
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authority, err := certificate(random, template, template, signer.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("controller listener: %w", err)
	}
	public, private, err := ed25519.GenerateKey(random)
	if err != nil {
		return nil, fmt.Errorf("controller listener: draw a key: %w", err)
	}
	var serial [16]byte
	if _, err := io.ReadFull(random, serial[:]); err != nil {
		return nil, fmt.Errorf("controller listener: draw a serial number: %w", err)
	}
	serial[0] &= 0x7f
	leaf, err := certificate(random, &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial[:]), Subject: pkix.Name{CommonName: memberName(node)}, DNSNames: []string{nodeName},
		NotBefore: validFrom, NotAfter: validUntil, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority, public, signer)
	if err != nil {
		return nil, fmt.Errorf("controller listener: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return &identity{authority, pool, tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: private, Leaf: leaf}}, nil
}

func certificate(random io.Reader, template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(random, template, parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// What is spoken on a connection of the controller listener, by ALPN. etcd's
// members name nothing when they call each other.
const (
	protocolCalls  = "lockstep/1"
	protocolClient = "h2"       // etcd's clients
	protocolPeer   = "http/1.1" // etcd's members
)

func (id *identity) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.leaf},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: id.pool,
		NextProtos:             []string{protocolCalls, protocolClient, protocolPeer},
		SessionTicketsDisabled: true, // connections last
	}
}

func (id *identity) clientTLS(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.leaf},
		RootCAs: id.pool, ServerName: nodeName, NextProtos: []string{protocol},
	}
}

// storeTLS is clientTLS for etcd's client, which asks for a certificate of the address
// that it dials and not of the name that it is told. Nodes' certificates are of one
// name, whatever their addresses are, so the check is ours.
func (id *identity) storeTLS() *tls.Config {
	cfg := id.clientTLS(protocolClient)
	cfg.InsecureSkipVerify = true // VerifyConnection does
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		chain := x509.NewCertPool()
		for _, cert := range cs.PeerCertificates[1:] {
			chain.AddCert(cert)
		}
		_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
			Roots: id.pool, Intermediates: chain, DNSName: nodeName, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		return err
	}
	return cfg
}

// errOtherKey is a node of another cluster, or of this one with another secret.
var errOtherKey = errors.New("it has another cluster.secret than this node, or belongs to another cluster")

// otherKey tells from a failed handshake whether it failed for the keys.
func otherKey(err error) bool {
	var unknown x509.UnknownAuthorityError
	var alert tls.AlertError
	if errors.As(err, &unknown) {
		return true
	}
	// Alerts 42, 46 and 48: the other side could not verify our certificate.
	return errors.As(err, &alert) && (alert == 42 || alert == 46 || alert == 48)
}

// files writes the identity where etcd can read it, which takes files only, and
// answers their names. They are made anew at every start.
func (id *identity) files(dir string) (cert, key, ca string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", "", fmt.Errorf("controller listener: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(id.leaf.PrivateKey)
	if err != nil {
		return "", "", "", fmt.Errorf("controller listener: %w", err)
	}
	cert, key, ca = filepath.Join(dir, "node.pem"), filepath.Join(dir, "node.key"), filepath.Join(dir, "authority.pem")
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{{cert, "CERTIFICATE", id.leaf.Certificate[0]}, {key, "PRIVATE KEY", private}, {ca, "CERTIFICATE", id.authority.Raw}} {
		if err := os.WriteFile(f.name, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			return "", "", "", fmt.Errorf("controller listener: %w", err)
		}
	}
	return cert, key, ca, nil
}
