package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// lockedBuffer is a log that many write.
type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(p)
}

// selfSigned is a certificate that is its own authority, for both ends.
func selfSigned(t *testing.T, name string) (pemText []byte, cert tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(leaf)
	pemText = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	return pemText, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

// readmeListeners is the example of README, with its files in dir, ports that are free
// and a canary for each password.
func readmeListeners(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Listeners with TLS and passwords")
	_, block, _ := strings.Cut(section, "```\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok || !strings.HasPrefix(block, "listeners=") {
		t.Fatalf("README has no example of listeners: %q", block)
	}
	return strings.NewReplacer("/etc/lockstep", dir, ":9094", ":0", ":9095", ":0", "change-me", "canary-plain").Replace(block)
}

// TestReadmeListeners starts a server as README says, logs in right and wrong in each
// way, and then looks for every password wherever a server could have left it.
func TestReadmeListeners(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	serverPEM, _, pool := selfSigned(t, "server")
	clientPEM, clientCert, _ := selfSigned(t, "orders")
	for name, content := range map[string]string{
		"server.pem": string(serverPEM), "clients-ca.pem": string(clientPEM), "admin.password": "canary-admin\n",
		"server.properties": readmeListeners(t, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(filepath.Join(dir, "server.properties"), []string{
		"admin.listener=", "log.dirs=" + data, "log.dir.reserve.bytes=-1", "log.level=debug", "ssl.key.password=canary-key",
		"audit.log.path=" + filepath.Join(data, "audit.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var log, printed lockedBuffer
	cfg.Print(&printed)
	user, err := parseFirstUser("SCRAM-SHA-512=[name=admin,password-file=" + dir + "/admin.password]")
	if err != nil {
		t.Fatal(err)
	}
	b, err := startBroker(t.Context(), cfg, new(slog.LevelVar), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), user)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := b.stop(ctx); err != nil && !stopped {
			t.Error(err)
		}
		stopped = true
	}
	defer func() {
		if !stopped {
			stop()
		}
	}()
	client := func(listener int, cert *tls.Certificate, m sasl.Mechanism) *kadm.Client {
		tc := &tls.Config{RootCAs: pool}
		if cert != nil {
			tc.Certificates = []tls.Certificate{*cert}
		}
		opts := []kgo.Opt{kgo.SeedBrokers(fmt.Sprintf("127.0.0.1:%d", b.endpoints[listener].Port)), kgo.DialTLSConfig(tc), kgo.RequestRetries(0)}
		if m != nil {
			opts = append(opts, kgo.SASL(m))
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return kadm.NewClient(cl)
	}
	admin := client(0, nil, scram.Auth{User: "admin", Pass: "canary-admin"}.AsSha512Mechanism())
	res, err := admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: "alice", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "canary-alice"}})
	if err != nil || res["alice"].Err != nil {
		t.Fatal(err, res["alice"].Err)
	}
	described, err := admin.DescribeUserSCRAMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	configs, err := admin.DescribeBrokerConfigs(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		listener int
		cert     *tls.Certificate
		m        sasl.Mechanism
		ok       bool
	}{
		{"alice", 0, nil, scram.Auth{User: "alice", Pass: "canary-alice"}.AsSha512Mechanism(), true},
		{"alice, wrong", 0, nil, scram.Auth{User: "alice", Pass: "canary-wrong"}.AsSha512Mechanism(), false},
		{"monitor", 0, nil, plain.Auth{User: "monitor", Pass: "canary-plain"}.AsMechanism(), true},
		{"monitor, wrong", 0, nil, plain.Auth{User: "monitor", Pass: "canary-wrong"}.AsMechanism(), false},
		{"certificate", 1, &clientCert, nil, true},
		{"no certificate", 1, nil, nil, false},
	} {
		start := time.Now()
		_, err := client(tt.listener, tt.cert, tt.m).BrokerMetadata(t.Context())
		switch {
		case (err == nil) != tt.ok:
			t.Errorf("%s: %v", tt.name, err)
		case err != nil && tt.m != nil && !errors.Is(err, kerr.SaslAuthenticationFailed):
			t.Errorf("%s: %v", tt.name, err)
		case time.Since(start) > 10*time.Second:
			t.Errorf("%s: it took %v", tt.name, time.Since(start))
		}
	}
	var metrics, profiles bytes.Buffer
	obs.Write(&metrics)
	if !strings.Contains(metrics.String(), `lockstep_tls_certificate_expiry_timestamp_seconds{listener="CLIENTS"}`) {
		t.Error("no metric of the certificate's expiry")
	}
	pprof.Lookup("goroutine").WriteTo(&profiles, 2)
	pprof.Lookup("heap").WriteTo(&profiles, 1)
	stop()
	places := map[string]string{
		"log": log.String(), "printed configuration": printed.String(), "metrics": metrics.String(), "profiles": profiles.String(),
		"DescribeUserScramCredentials": fmt.Sprintf("%+v", described), "DescribeConfigs": describeAll(configs),
	}
	addFiles(t, places, data)
	if len(places) < 10 {
		t.Errorf("only %d places were looked at", len(places))
	}
	secretTexts{}.missing(t, places)
}

func describeAll(rs kadm.ResourceConfigs) string {
	var out strings.Builder
	for _, r := range rs {
		for _, c := range r.Configs {
			fmt.Fprintf(&out, "%s=%s sensitive=%v %v\n", c.Key, c.MaybeValue(), c.Sensitive, c.Synonyms)
		}
	}
	return out.String()
}

func TestFirstUsers(t *testing.T) {
	for _, bad := range []string{
		"", "SCRAM-SHA-1=[name=a,password=canary]", "SCRAM-SHA-256=name=a,password=canary", "SCRAM-SHA-256=[name=a]", "SCRAM-SHA-256=[password=canary]",
		"SCRAM-SHA-256=[name=a,password=canary,iterations=1]", "SCRAM-SHA-256=[name=a,canary]", "SCRAM-SHA-256=[name=a,password-file=/no/such]",
	} {
		if _, err := parseFirstUser(bad); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	u, err := parseFirstUser(`SCRAM-SHA-256=[name="a",iterations=8192,password="with,comma="]`)
	if err != nil || u.name != "a" || u.iterations != 8192 || u.password.Reveal() != "with,comma=" {
		t.Errorf("%+v %v", u, err)
	}
}
