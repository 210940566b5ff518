package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// writePEM makes a certificate and its key, and puts both into a file.
func writePEM(t *testing.T, path, name string, expires time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Unix(0, 0), NotAfter: expires,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// shown is the name in the certificate that a listener shows.
func shown(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go tls.Server(server, cfg).Handshake()
	c := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// TestCertificatesAreReadAgain when their file changes, whichever way it does; a file
// that is no good is reported once and changes nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	clk := clock.NewManual(time.Now())
	later := clk.Now().Add(time.Hour)
	dir := t.TempDir()
	path := filepath.Join(dir, "server.pem")
	writePEM(t, path, "first", later)
	var log strings.Builder
	l, err := Open(Options{
		Name: "SECURE", Protocol: "SSL", Props: map[string]string{"ssl.keystore.location": path},
		Clock: clk, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	steps := []struct {
		name   string
		change func()
		want   string
		errors int
	}{
		{"nothing", func() {}, "first", 0},
		{"written in place", func() { writePEM(t, path, "second-certificate", later) }, "second-certificate", 0},
		{"replaced by rename", func() {
			writePEM(t, path+".new", "third", later)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, "third", 0},
		{"nonsense", func() { os.WriteFile(path, []byte("half a fi"), 0o600) }, "third", 1},
		{"still nonsense", func() {}, "third", 1},
		{"gone", func() { os.Remove(path) }, "third", 2},
		{"still gone", func() {}, "third", 2},
		{"expired", func() { writePEM(t, path, "expired", clk.Now().Add(-time.Minute)) }, "third", 3},
		{"good again", func() { writePEM(t, path, "fourth", later) }, "fourth", 3},
	}
	for _, s := range steps {
		s.change()
		l.certs.poll()
		if got := shown(t, l.TLS); got != s.want {
			t.Errorf("%s: shows %q, want %q", s.name, got, s.want)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != s.errors {
			t.Errorf("%s: %d errors in the log, want %d", s.name, n, s.errors)
		}
	}
}

// TestDelays: each failure of an address or a name doubles the wait, up to a limit,
// and is forgiven in time; success of a name does not make its address quicker.
func TestDelays(t *testing.T) {
	clk := clock.NewManual(time.Unix(1000, 0))
	d := NewDelays(100*time.Millisecond, clk)
	fail := func(address, name string, want time.Duration) {
		t.Helper()
		if got, _ := d.Failed(address, name); got != want {
			t.Errorf("%s, %s waits %v, want %v", address, name, got, want)
		}
	}
	ms := time.Millisecond
	fail("a", "alice", 100*ms)
	fail("a", "bob", 200*ms)   // the address's second
	fail("b", "alice", 200*ms) // the name's second
	fail("c", "carol", 100*ms) // neither
	d.Succeeded("alice")
	fail("d", "alice", 100*ms)
	fail("a", "alice", 400*ms)
	for range 20 {
		d.Failed("a", "x")
	}
	fail("a", "x", 5*time.Second)
	clk.Advance(forgiveness + time.Second)
	fail("a", "x", 100*ms)
	for i := range 2 * maxFailures {
		d.Failed("z", strings.Repeat("n", i%50)+time.Duration(i).String())
	}
	if n := d.mu.order.Len(); n > maxFailures || n != len(d.mu.byKey) {
		t.Errorf("%d entries, %d of them found", n, len(d.mu.byKey))
	}
	if got, _ := NewDelays(0, clk).Failed("a", "b"); got != 0 {
		t.Errorf("waits %v where nothing is to wait", got)
	}
}

// TestKeysOfTokens: a new key is found at once, however many ask, and a source that
// fails is not asked again for a while.
func TestKeysOfTokens(t *testing.T) {
	clk := clock.NewManual(time.Unix(1_700_000_000, 0))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	asked, published, broken := 0, []string{"k1"}, false
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		var set jose.JSONWebKeySet
		for _, id := range published {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id})
		}
		if broken {
			w.WriteHeader(http.StatusInternalServerError)
		}
		json.NewEncoder(w).Encode(set)
	}))
	defer server.Close()
	stranger, err := openKeySet(server.URL, nil, time.Hour, 10*time.Second, clk)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.find(t.Context(), "k1"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that nobody trusts: %v", err)
	}
	trust := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	keys, err := openKeySet(server.URL, map[string]string{"ssl.truststore.certificates": string(trust)}, time.Hour, 10*time.Second, clk)
	if err != nil {
		t.Fatal(err)
	}
	find := func(id string, found bool, questions int) {
		t.Helper()
		if _, err := keys.find(t.Context(), id); (err == nil) != found || asked != questions {
			t.Errorf("%s: %v after %d questions", id, err, asked)
		}
	}
	find("k1", true, 1)
	find("k1", true, 1)
	find("k2", false, 1) // asked a moment ago
	published = append(published, "k2")
	clk.Advance(10 * time.Second)
	find("k2", true, 2)
	broken = true
	clk.Advance(time.Hour)
	find("k1", true, 3) // old, and better than none
	find("k1", true, 3)
	find("k3", false, 3)

	tok := &tokens{keys: keys, clock: clk, issuer: "i", audiences: []string{"a"}, skew: 30 * time.Second, subject: "client"}
	claims := func(change func(m map[string]any)) string {
		m := map[string]any{"client": "dave", "iss": "i", "aud": "a", "exp": clk.Now().Add(time.Minute).Unix()}
		change(m)
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k1"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(signer).Claims(m).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, tt := range []struct {
		name   string
		change func(m map[string]any)
		ok     bool
	}{
		{"good", func(map[string]any) {}, true},
		{"within the skew", func(m map[string]any) { m["exp"] = clk.Now().Add(-29 * time.Second).Unix() }, true},
		{"expired", func(m map[string]any) { m["exp"] = clk.Now().Add(-31 * time.Second).Unix() }, false},
		{"not yet", func(m map[string]any) { m["nbf"] = clk.Now().Add(time.Minute).Unix() }, false},
		{"never expires", func(m map[string]any) { delete(m, "exp") }, false},
		{"another issuer", func(m map[string]any) { m["iss"] = "x" }, false},
		{"another audience", func(m map[string]any) { m["aud"] = []string{"x"} }, false},
		{"one audience of two", func(m map[string]any) { m["aud"] = []string{"x", "a"} }, true},
		{"nobody", func(m map[string]any) { delete(m, "client") }, false},
		{"a number", func(m map[string]any) { m["client"] = 7 }, false},
	} {
		if id, err := tok.check(t.Context(), claims(tt.change)); (err == nil) != tt.ok || tt.ok && id.Name != "dave" {
			t.Errorf("%s: %+v, %v", tt.name, id, err)
		}
	}
	// The published key as the secret of a symmetric signature.
	der, _ := x509.MarshalPKIXPublicKey(key.Public())
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: der}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := jwt.Signed(signer).Claims(map[string]any{"client": "eve", "iss": "i", "aud": "a", "exp": clk.Now().Add(time.Minute).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if id, err := tok.check(t.Context(), forged); err == nil {
		t.Errorf("a token that anybody can make is taken for %s", id.Name)
	}
}

func TestMessagesOfOAuth(t *testing.T) {
	for _, bad := range []string{"", "n,,", "n,,\x01\x01", "y,,\x01auth=Bearer x\x01\x01", "n,,\x01auth=Basic x\x01\x01", "n,b=c,\x01auth=Bearer x\x01\x01", "n,,\x01auth=Bearer x\x01", "n,,\x01auth=Bearer \x01\x01"} {
		if _, token, err := parseBearer([]byte(bad)); err == nil {
			t.Errorf("%q has the token %q", bad, token)
		}
	}
	authz, token, err := parseBearer([]byte("n,a=da=2Cve,\x01host=x\x01auth=bearer abc\x01ext=1\x01\x01"))
	if authz != "da,ve" || token != "abc" || err != nil {
		t.Errorf("%q %q %v", authz, token, err)
	}
	// The client is told, acknowledges, and is refused.
	x := &bearerExchange{tokens: &tokens{}}
	answer, id, err := x.Step(context.Background(), []byte("n,,\x01auth=Bearer nonsense\x01\x01"))
	if string(answer) != invalidToken || id != nil || err != nil {
		t.Fatalf("%q %v %v", answer, id, err)
	}
	var refusal *Refusal
	if _, _, err = x.Step(context.Background(), []byte{1}); !errors.As(err, &refusal) {
		t.Fatal(err)
	}
}

// TestFaultsOfListeners names the key, and never a secret.
func TestFaultsOfListeners(t *testing.T) {
	const jaas, users = "plain.sasl.jaas.config", `org.apache.kafka.common.security.plain.PlainLoginModule required user_a="canary";`
	pem := filepath.Join(t.TempDir(), "s.pem")
	writePEM(t, pem, "x", time.Now().Add(time.Hour))
	for _, tt := range []struct {
		protocol string
		props    map[string]string
		loopback bool
		want     string // "" is no fault
	}{
		{"SSL", nil, true, "ssl.keystore.location"},
		{"SSL", map[string]string{"ssl.keystore.location": pem}, true, ""},
		{"SSL", map[string]string{"ssl.keystore.location": pem, "ssl.client.auth": "required"}, true, "ssl.client.auth"},
		{"SSL", map[string]string{"ssl.keystore.location": pem, "ssl.client.auth": "maybe"}, true, "ssl.client.auth"},
		{"SSL", map[string]string{"ssl.keystore.location": pem, "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, true, "ssl.enabled.protocols"},
		{"SSL", map[string]string{"ssl.keystore.location": pem, "ssl.principal.mapping.rules": "RULE:x"}, true, "ssl.principal.mapping.rules"},
		{"SASL_PLAINTEXT", nil, true, "sasl.enabled.mechanisms"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "GSSAPI"}, true, "sasl.enabled.mechanisms"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "PLAIN"}, true, jaas},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "PLAIN", jaas: strings.TrimSuffix(users, ";")}, true, jaas},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "PLAIN", jaas: strings.Replace(users, "user_", "x_", 1)}, true, jaas},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "PLAIN", jaas: users}, true, ""},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "PLAIN", jaas: users}, false, "sasl.plaintext.passwords.allow"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, false, ""},
		{"SASL_SSL", map[string]string{"sasl.enabled.mechanisms": "PLAIN", jaas: users, "ssl.keystore.location": pem}, false, ""},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "OAUTHBEARER"}, true, "sasl.oauthbearer.jwks.endpoint.url"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "https://127.0.0.1:1/", "oauthbearer.ssl.truststore.location": "/no/such"}, true, "oauthbearer.ssl.truststore.location"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "http://x/"}, true, "sasl.oauthbearer.jwks.endpoint.url"},
		{"SASL_PLAINTEXT", map[string]string{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///no/such"}, true, "sasl.oauthbearer.jwks.endpoint.url"},
	} {
		l, err := Open(Options{Name: "L", Protocol: tt.protocol, Loopback: tt.loopback, Props: tt.props, Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)})
		switch {
		case (err == nil) != (tt.want == ""), err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "canary")):
			t.Errorf("%s %v: %v, want %q", tt.protocol, tt.props, err, tt.want)
		case err == nil:
			l.Close()
		}
	}
}
