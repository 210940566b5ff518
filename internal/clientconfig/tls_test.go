package clientconfig

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// serve accepts connections with the key pair of testdata until the test ends.
func serve(t *testing.T, clientAuth tls.ClientAuthType) string {
	t.Helper()
	own, err := Parse(map[string]string{
		"security.protocol": "SSL", "ssl.keystore.location": "testdata/keystore.p12", "ssl.keystore.password": "changeit",
		"ssl.truststore.location": "testdata/cert.pem",
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: own.TLS.Certificates, ClientCAs: own.TLS.RootCAs, ClientAuth: clientAuth})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if conn.(*tls.Conn).HandshakeContext(context.Background()) == nil {
				conn.Write([]byte("hi"))
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// hello dials as the properties say and reads two bytes: with TLS 1.3 a refused
// client certificate shows only then.
func hello(t *testing.T, addr string, props map[string]string) error {
	t.Helper()
	props["security.protocol"] = "SSL"
	c, err := Parse(props)
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS.ServerName == "" && !c.TLS.InsecureSkipVerify {
		c.TLS.ServerName = "broker.example" // the test's address is an IP
	}
	conn, err := c.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 2))
	return err
}

func TestStores(t *testing.T) {
	addr := serve(t, tls.RequireAndVerifyClientCert)
	key := map[string]string{"ssl.keystore.location": "testdata/keystore.p12", "ssl.keystore.password": "changeit"}
	trust := map[string]string{"ssl.truststore.location": "testdata/cert.pem"}
	oneLine := strings.ReplaceAll(strings.TrimSpace(file(t, "cert.pem")), "\n", " ")
	for name, props := range map[string]map[string]string{
		"trust PKCS12 by keytool":    {"ssl.truststore.location": "testdata/truststore.p12", "ssl.truststore.password": "changeit", "ssl.truststore.type": "PKCS12"},
		"trust PKCS12 named JKS":     {"ssl.truststore.location": "testdata/truststore.p12", "ssl.truststore.password": "changeit", "ssl.truststore.type": "JKS"},
		"trust the key store":        {"ssl.truststore.location": "testdata/keystore.p12", "ssl.truststore.password": "changeit"},
		"trust PEM file":             {"ssl.truststore.location": "testdata/cert.pem", "ssl.truststore.type": "PEM"},
		"trust PEM inline":           {"ssl.truststore.certificates": file(t, "cert.pem"), "ssl.truststore.type": "PEM"},
		"trust PEM on one line":      {"ssl.truststore.certificates": oneLine},
		"trust PEM with literal \\n": {"ssl.truststore.certificates": strings.ReplaceAll(file(t, "cert.pem"), "\n", `\n`)},
		"key PEM inline":             {"ssl.keystore.certificate.chain": oneLine, "ssl.keystore.key": file(t, "key-plain.pem"), "ssl.keystore.type": "PEM"},
		"key PEM encrypted":          {"ssl.keystore.certificate.chain": oneLine, "ssl.keystore.key": file(t, "key-pbes2.pem"), "ssl.key.password": "secret-key"},
		"no check of the host name":  {"ssl.endpoint.identification.algorithm": ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{}
			for k, v := range props {
				all[k] = v
			}
			if !strings.HasPrefix(name, "trust") {
				all["ssl.truststore.location"] = trust["ssl.truststore.location"]
			}
			if !strings.HasPrefix(name, "key") {
				for k, v := range key {
					all[k] = v
				}
			}
			if err := hello(t, addr, all); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTLSRefusals(t *testing.T) {
	addr := serve(t, tls.RequireAndVerifyClientCert)
	trusted := map[string]string{"ssl.truststore.location": "testdata/cert.pem"}

	if err := hello(t, addr, trusted); err == nil || !strings.Contains(err.Error(), "remote error") {
		t.Errorf("without a client certificate: %v", err)
	}
	for _, identification := range []string{"https", ""} {
		err := hello(t, addr, map[string]string{"ssl.endpoint.identification.algorithm": identification})
		var dial *wire.DialError
		var cert *tls.CertificateVerificationError
		if !errors.As(err, &dial) || dial.Stage != wire.StageTLS || dial.Addr != addr || !errors.As(err, &cert) {
			t.Errorf("unknown issuer, identification %q: %v", identification, err)
		}
	}

	c, err := Parse(map[string]string{"security.protocol": "SSL", "ssl.truststore.location": "testdata/cert.pem"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.DialContext(t.Context(), "tcp", addr) // an IP that the certificate does not name
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("wrong name: %v", err)
	}
}

func TestDialErrorsNameStage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c, err := Parse(map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	var dial *wire.DialError
	if _, err := c.DialContext(t.Context(), "tcp", addr); !errors.As(err, &dial) || dial.Stage != wire.StageConnect || strings.Count(err.Error(), addr) != 1 {
		t.Errorf("%v", err)
	}
}
