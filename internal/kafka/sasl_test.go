package kafka

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/lockstep-kafka/lockstep/internal/authn"
	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// tokenIssuer signs tokens with a key whose public half stands in a file.
type tokenIssuer struct {
	t       *testing.T
	key     *ecdsa.PrivateKey
	keysURL string
}

func newTokenIssuer(t *testing.T) *tokenIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return &tokenIssuer{t, key, "file://" + path}
}

func (i *tokenIssuer) token(subject string, expires time.Time) string {
	i.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k1"}}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Subject: subject, Issuer: "https://issuer.test", Audience: jwt.Audience{"lockstep"}, Expiry: jwt.NewNumericDate(expires),
	}).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

const plainUsers = `org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret" user_bob="bob-secret";`

// loginServer serves the shared broker on a listener with all mechanisms.
func loginServer(t *testing.T, issuer *tokenIssuer, props map[string]string, change func(*Options)) *Server {
	t.Helper()
	b := testBroker(t)
	p := map[string]string{
		"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"plain.sasl.jaas.config":  plainUsers,
	}
	if issuer != nil {
		p["sasl.enabled.mechanisms"] += ",OAUTHBEARER"
		p["sasl.oauthbearer.jwks.endpoint.url"] = issuer.keysURL
		p["sasl.oauthbearer.expected.issuer"], p["sasl.oauthbearer.expected.audience"] = "https://issuer.test", "other,lockstep"
	}
	for k, v := range props {
		p[k] = v
	}
	o := Options{}
	change(&o)
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	a, err := authn.Open(authn.Options{
		Name: testListener, Protocol: "SASL_PLAINTEXT", Loopback: true, Props: p, Clock: o.Clock, Logger: slog.New(slog.DiscardHandler),
		Scram: authn.ScramStore{
			Find: func(user string, m metadata.ScramMechanism) *metadata.ScramCredential {
				return b.controller.Image().Scram(user, m)
			},
			Iterations: func(metadata.ScramMechanism) int32 { return 4096 }, Decoy: []byte("decoy"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return anotherServer(t, func(o *Options) {
		o.FailedLoginDelay = -1
		o.Listeners = []Listener{{Name: testListener, Protocol: "SASL_PLAINTEXT", Address: "127.0.0.1:0", SASL: a.SASL}}
		change(o)
	})
}

func addScramUser(t *testing.T, m metadata.ScramMechanism, name, password string) {
	t.Helper()
	salt := []byte("a salt")
	salted, err := m.SaltedPassword(password, salt, 4096)
	if err != nil {
		t.Fatal(err)
	}
	cred := metadata.NewScramCredential(name, m, 4096, salt, salted)
	if err := testBroker(t).controller.AlterScram(t.Context(), []controller.AlterScram{{User: name, Puts: []*metadata.ScramCredential{cred}}})[0]; err != nil {
		t.Fatal(err)
	}
}

func loginWith(t *testing.T, s *Server, m sasl.Mechanism, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addrOf(s)), kgo.SASL(m), kgo.RequestRetries(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func (s *Server) principals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for p := range s.mu.perPrincipal {
		out = append(out, p.String())
	}
	return out
}

// TestLogins: each mechanism lets in who knows the secret, as the principal that the
// credential names, and refuses at once who does not.
func TestLogins(t *testing.T) {
	issuer := newTokenIssuer(t)
	user := "carol,=" + uniqueName(t) // commas and equals signs are escaped in SCRAM
	addScramUser(t, metadata.ScramSHA256, user, "carol-256")
	addScramUser(t, metadata.ScramSHA512, user, "carol-512")
	hour := time.Now().Add(time.Hour)
	bearer := func(token string) sasl.Mechanism { return oauth.Auth{Token: token}.AsMechanism() }
	unsigned := "eyJhbGciOiJub25lIn0." + strings.Split(issuer.token("eve", hour), ".")[1] + "."
	stranger := newTokenIssuer(t)
	for _, tt := range []struct {
		name string
		m    sasl.Mechanism
		want string // "" is a refusal
	}{
		{"plain", plain.Auth{User: "alice", Pass: "alice-secret"}.AsMechanism(), "User:alice"},
		{"plain wrong", plain.Auth{User: "alice", Pass: "bob-secret"}.AsMechanism(), ""},
		{"plain unknown", plain.Auth{User: "nobody", Pass: "x"}.AsMechanism(), ""},
		{"plain for another", plain.Auth{User: "alice", Pass: "alice-secret", Zid: "bob"}.AsMechanism(), ""},
		{"scram-256", scram.Auth{User: user, Pass: "carol-256"}.AsSha256Mechanism(), "User:" + user},
		{"scram-512", scram.Auth{User: user, Pass: "carol-512"}.AsSha512Mechanism(), "User:" + user},
		{"scram of the other hash", scram.Auth{User: user, Pass: "carol-256"}.AsSha512Mechanism(), ""},
		{"scram unknown", scram.Auth{User: "nobody", Pass: "x"}.AsSha256Mechanism(), ""},
		{"scram for another", scram.Auth{User: user, Pass: "carol-256", Zid: "alice"}.AsSha256Mechanism(), ""},
		{"token", bearer(issuer.token("dave", hour)), "User:dave"},
		{"token expired", bearer(issuer.token("dave", time.Now().Add(-time.Hour))), ""},
		{"token unsigned", bearer(unsigned), ""},
		{"token of a stranger", bearer(stranger.token("dave", hour)), ""},
		{"token cut", bearer(issuer.token("dave", hour)[:80]), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := loginServer(t, issuer, nil, func(*Options) {})
			cl := loginWith(t, s, tt.m)
			_, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), cl)
			if tt.want == "" {
				if got := s.principals(); err == nil || len(got) > 0 {
					t.Fatalf("let in as %v", got)
				}
				return
			}
			if got := s.principals(); err != nil || len(got) != 1 || got[0] != tt.want {
				t.Fatalf("%v, principals %v", err, got)
			}
		})
	}
}

// handshakeFor chooses a mechanism on a raw connection.
func (c *rawConn) handshakeFor(mechanism string, version int16) *kmsg.SASLHandshakeResponse {
	c.t.Helper()
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Mechanism, req.Version = mechanism, version
	c.send(1, req)
	_, resp := c.receive(req)
	return resp.(*kmsg.SASLHandshakeResponse)
}

func (c *rawConn) token(version int16, token string) *kmsg.SASLAuthenticateResponse {
	c.t.Helper()
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.SASLAuthBytes, req.Version = []byte(token), version
	c.send(2, req)
	_, resp := c.receive(req)
	return resp.(*kmsg.SASLAuthenticateResponse)
}

func (c *rawConn) versions() *kmsg.ApiVersionsResponse {
	c.t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	c.send(3, req)
	_, resp := c.receive(req)
	return resp.(*kmsg.ApiVersionsResponse)
}

// TestOrderOfLogin is what a client may ask when, as Kafka has it.
func TestOrderOfLogin(t *testing.T) {
	s := loginServer(t, nil, nil, func(*Options) {})
	t.Run("versions, handshake, token", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		if len(c.versions().ApiKeys) == 0 {
			t.Error("no keys before the login")
		}
		if r := c.handshakeFor("PLAIN", 1); r.ErrorCode != 0 || strings.Join(r.SupportedMechanisms, " ") != "PLAIN SCRAM-SHA-256 SCRAM-SHA-512" {
			t.Fatalf("%+v", r)
		}
		if r := c.token(2, "\x00alice\x00alice-secret"); r.ErrorCode != 0 || r.SessionLifetimeMillis != 0 {
			t.Fatalf("%+v", r)
		}
		// Logged in for good: nothing to log in to, and the connection goes on.
		if r := c.handshakeFor("PLAIN", 1); r.ErrorCode != kerr.IllegalSaslState.Code {
			t.Errorf("%+v", r)
		}
		if r := c.token(1, "x"); r.ErrorCode != kerr.IllegalSaslState.Code {
			t.Errorf("%+v", r)
		}
		c.versions()
	})
	t.Run("handshake v0, bare tokens", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 0)
		const token = "\x00bob\x00bob-secret"
		c.Write(append(kbin.AppendInt32(nil, int32(len(token))), token...))
		if b, err := wire.ReadFrame(c, 1<<10, nil); err != nil || len(b) != 0 {
			t.Fatalf("%q %v", b, err)
		}
		c.versions()
	})
	t.Run("handshake v0, wrong token", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 0)
		c.Write(append(kbin.AppendInt32(nil, 6), "\x00bob\x00x"...))
		c.closedByPeer()
	})
	t.Run("unknown mechanism", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		if r := c.handshakeFor("GSSAPI", 1); r.ErrorCode != kerr.UnsupportedSaslMechanism.Code || len(r.SupportedMechanisms) != 3 {
			t.Errorf("%+v", r)
		}
		c.closedByPeer()
	})
	t.Run("wrong password", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 1)
		if r := c.token(1, "\x00alice\x00x"); r.ErrorCode != kerr.SaslAuthenticationFailed.Code || !strings.Contains(*r.ErrorMessage, "Invalid username or password") {
			t.Errorf("%+v", r)
		}
		c.closedByPeer()
	})
	t.Run("another key instead of a handshake", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.send(1, kmsg.NewPtrMetadataRequest())
		c.closedByPeer()
	})
	t.Run("a token instead of a handshake", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.send(1, kmsg.NewPtrSASLAuthenticateRequest())
		c.closedByPeer()
	})
	t.Run("versions instead of a token", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 1)
		if r := c.versions(); r.ErrorCode != kerr.IllegalSaslState.Code {
			t.Errorf("%+v", r)
		}
		c.closedByPeer()
	})
	t.Run("no login on this listener", func(t *testing.T) {
		c := dialRaw(t, testBroker(t).addr)
		if r := c.handshakeFor("PLAIN", 1); r.ErrorCode != kerr.IllegalSaslState.Code {
			t.Errorf("%+v", r)
		}
		c.versions()
	})
}

// TestUnknownUserLooksLikeWrongPassword: nobody learns which users there are.
func TestUnknownUserLooksLikeWrongPassword(t *testing.T) {
	s := loginServer(t, nil, nil, func(*Options) {})
	user := uniqueName(t)
	addScramUser(t, metadata.ScramSHA256, user, "secret")
	try := func(mechanism, first string, second func(server string) string) (challenge string, code int16, message string) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor(mechanism, 1)
		r := c.token(1, first)
		if second != nil {
			if r.ErrorCode != 0 {
				t.Fatalf("refused before it could prove anything: %s", *r.ErrorMessage)
			}
			challenge = string(r.SASLAuthBytes)
			r = c.token(1, second(challenge))
		}
		c.closedByPeer()
		return challenge, r.ErrorCode, *r.ErrorMessage
	}
	_, code, message := try("PLAIN", "\x00alice\x00x", nil)
	if _, c, m := try("PLAIN", "\x00nobody\x00x", nil); c != code || m != message {
		t.Errorf("PLAIN: %d %q and %d %q", code, message, c, m)
	}
	proof := func(challenge string) string {
		return "c=biws," + strings.SplitN(challenge, ",", 2)[0] + ",p=" + strings.Repeat("A", 43) + "="
	}
	_, code, message = try("SCRAM-SHA-256", "n,,n="+user+",r=abc", proof)
	one, c, m := try("SCRAM-SHA-256", "n,,n=nobody,r=abc", proof)
	if c != code || m != message {
		t.Errorf("SCRAM: %d %q and %d %q", code, message, c, m)
	}
	two, _, _ := try("SCRAM-SHA-256", "n,,n=nobody,r=abc", proof)
	if salt := strings.Split(one, ",")[1:]; strings.Join(salt, ",") != strings.Join(strings.Split(two, ",")[1:], ",") {
		t.Errorf("another salt the second time: %s, %s", one, two)
	}
	// A nonce that is not the one that was sent.
	replayed := func(string) string { return "c=biws,r=abcdef,p=" + strings.Repeat("A", 43) + "=" }
	if _, c, _ := try("SCRAM-SHA-256", "n,,n="+user+",r=abc", replayed); c != kerr.SaslAuthenticationFailed.Code {
		t.Errorf("code %d", c)
	}
}

// TestLimitsBeforeLogin (reliability, section 6).
func TestLimitsBeforeLogin(t *testing.T) {
	s := loginServer(t, nil, nil, func(o *Options) { o.LoginTimeout = 300 * time.Millisecond })
	pad := func(n int) []byte { return make([]byte, n) }
	for _, tt := range []struct {
		name string
		send func(c *rawConn)
	}{
		{"a request above 16 KiB", func(c *rawConn) {
			c.Write(kbin.AppendInt16(kbin.AppendInt16(kbin.AppendInt32(nil, maxLoginRequest+1), keyApiVersions), 3))
		}},
		{"a token above 64 KiB", func(c *rawConn) {
			c.handshakeFor("PLAIN", 1)
			c.Write(kbin.AppendInt16(kbin.AppendInt16(kbin.AppendInt32(nil, maxLoginToken+1), keySaslAuthenticate), 1))
		}},
		{"a bare token above 64 KiB", func(c *rawConn) {
			c.handshakeFor("PLAIN", 0)
			c.Write(kbin.AppendInt32(nil, maxLoginToken+1))
		}},
		{"silence", func(*rawConn) {}},
		{"silence after the handshake", func(c *rawConn) { c.handshakeFor("PLAIN", 1) }},
		{"half a request", func(c *rawConn) { c.Write(append(kbin.AppendInt32(nil, 1000), pad(10)...)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dialRaw(t, addrOf(s))
			tt.send(c)
			// A reset is a closed connection as well: bytes were left unread.
			if b, err := io.ReadAll(c); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
}

// TestSessions: a session that ends is renewed by the same principal and mechanism,
// or its connection is closed at the next request (KIP-368).
func TestSessions(t *testing.T) {
	issuer := newTokenIssuer(t)
	clk := clock.NewManual(time.Now())
	s := loginServer(t, issuer, map[string]string{"connections.max.reauth.ms": "60000", "oauthbearer.connections.max.reauth.ms": "3600000"}, func(o *Options) { o.Clock = clk })
	login := func(t *testing.T) *rawConn {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 1)
		if r := c.token(1, "\x00alice\x00alice-secret"); r.SessionLifetimeMillis != 60_000 {
			t.Fatalf("%+v", r)
		}
		return c
	}
	t.Run("over", func(t *testing.T) {
		c := login(t)
		clk.Advance(59 * time.Second)
		c.versions()
		clk.Advance(time.Second)
		c.send(1, kmsg.NewPtrApiVersionsRequest())
		c.closedByPeer()
	})
	t.Run("renewed late", func(t *testing.T) {
		c := login(t)
		clk.Advance(time.Hour)
		c.handshakeFor("PLAIN", 1)
		if r := c.token(2, "\x00alice\x00alice-secret"); r.ErrorCode != 0 || r.SessionLifetimeMillis != 60_000 {
			t.Fatalf("%+v", r)
		}
		c.versions()
		// Twice within a second is once too often.
		if r := c.handshakeFor("PLAIN", 1); r.ErrorCode != kerr.IllegalSaslState.Code {
			t.Errorf("%+v", r)
		}
		clk.Advance(time.Second)
		if r := c.handshakeFor("PLAIN", 1); r.ErrorCode != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("as somebody else", func(t *testing.T) {
		c := login(t)
		c.handshakeFor("PLAIN", 1)
		if r := c.token(1, "\x00bob\x00bob-secret"); r.ErrorCode != kerr.SaslAuthenticationFailed.Code || !strings.Contains(*r.ErrorMessage, "change principals") {
			t.Errorf("%+v", r)
		}
		c.closedByPeer()
	})
	t.Run("with another mechanism", func(t *testing.T) {
		c := login(t)
		c.handshakeFor("SCRAM-SHA-256", 1)
		if r := c.token(1, "n,,n=alice,r=abc"); r.ErrorCode != kerr.SaslAuthenticationFailed.Code {
			t.Errorf("%+v", r)
		}
		c.closedByPeer()
	})
	t.Run("as long as the token", func(t *testing.T) {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("OAUTHBEARER", 1)
		token := issuer.token("dave", clk.Now().Add(10*time.Minute))
		if r := c.token(1, "n,,\x01auth=Bearer "+token+"\x01\x01"); r.ErrorCode != 0 || r.SessionLifetimeMillis < 599_000 || r.SessionLifetimeMillis > 600_000 {
			t.Fatalf("%+v", r)
		}
		clk.Advance(10 * time.Minute)
		c.send(1, kmsg.NewPtrApiVersionsRequest())
		c.closedByPeer()
	})
}

// TestLoginAdmits is the whole table of what is served when.
func TestLoginAdmits(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(phase loginPhase, expires, started time.Duration) login {
		l := login{phase: phase}
		if expires != 0 {
			l.expires = now.Add(expires)
		}
		if started != 0 {
			l.started = now.Add(started)
		}
		return l
	}
	for _, tt := range []struct {
		name                              string
		l                                 login
		versions, handshake, token, fetch verdict
	}{
		{"no SASL", at(loginNone, 0, 0), serve, illegal, illegal, serve},
		{"first", at(loginHandshake, 0, 0), serve, serve, hangUp, hangUp},
		{"tokens", at(loginTokens, 0, 0), refuse, refuse, serve, refuse},
		{"in for ever", at(loginDone, 0, 0), serve, illegal, illegal, serve},
		{"in for a while", at(loginDone, time.Second, 0), serve, serve, illegal, serve},
		{"just renewed", at(loginDone, time.Minute, -999*time.Millisecond), serve, illegal, illegal, serve},
		{"renewed a second ago", at(loginDone, time.Minute, -time.Second), serve, serve, illegal, serve},
		{"over", at(loginDone, -time.Nanosecond, 0), expired, serve, expired, expired},
	} {
		for key, want := range map[int16]verdict{keyApiVersions: tt.versions, keySaslHandshake: tt.handshake, keySaslAuthenticate: tt.token, keyFetch: tt.fetch} {
			if got := tt.l.admit(key, now); got != want {
				t.Errorf("%s: key %d is %d, want %d", tt.name, key, got, want)
			}
		}
	}
}

// TestLimitsByWho: of one principal, of one listener, and of single addresses.
func TestLimitsByWho(t *testing.T) {
	refused := func(t *testing.T, addr string) {
		t.Helper()
		dialRaw(t, addr).closedByPeer()
	}
	t.Run("principal", func(t *testing.T) {
		s := loginServer(t, nil, nil, func(o *Options) { o.MaxConnectionsPerPrincipal = 1 })
		in := func(user string) *rawConn {
			c := dialRaw(t, addrOf(s))
			c.handshakeFor("PLAIN", 1)
			c.token(1, "\x00"+user+"\x00"+user+"-secret")
			return c
		}
		first := in("alice")
		first.versions()
		in("alice").closedByPeer()
		in("bob").versions()
		first.Close()
		// The server notices a closed connection a moment later.
		for deadline := time.Now().Add(10 * time.Second); len(s.principals()) > 1; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a closed connection still counts")
			}
		}
		in("alice").versions()
	})
	t.Run("listener", func(t *testing.T) {
		s := anotherServer(t, func(o *Options) { o.Listeners[0].MaxConnections = 1 })
		dialRaw(t, addrOf(s)).versions()
		refused(t, addrOf(s))
	})
	t.Run("address", func(t *testing.T) {
		s := anotherServer(t, func(o *Options) { o.MaxConnectionsPerIPOverrides = map[string]int{"127.0.0.1": 1} })
		dialRaw(t, addrOf(s)).versions()
		refused(t, addrOf(s))
	})
}

// TestCertificateNames: with mutual TLS a client is who its certificate says.
func TestCertificateNames(t *testing.T) {
	server, client := testCertificates(t)
	server.ClientAuth, server.ClientCAs = tls.VerifyClientCertIfGiven, client.RootCAs
	rules, err := authn.ParseRules("RULE:^CN=(.*)$/$1/U")
	if err != nil {
		t.Fatal(err)
	}
	s := anotherServer(t, func(o *Options) {
		o.Listeners = []Listener{{Name: testListener, Protocol: "SSL", Address: "127.0.0.1:0", TLS: server, CertificateName: rules.Name}}
	})
	for _, withCertificate := range []bool{false, true} {
		cfg := client.Clone()
		if withCertificate {
			cfg.Certificates = server.Certificates
		}
		nc, err := tls.Dial("tcp", addrOf(s), cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := &rawConn{Conn: nc, t: t}
		c.versions()
		want := []string(nil)
		if withCertificate {
			want = []string{authz.Principal{Type: "User", Name: "TEST"}.String()}
		}
		if got := s.principals(); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("principals %v, want %v", got, want)
		}
		nc.Close()
	}
}

// TestFailedLoginsAreTold once per doubling, with no secret in it, and held back.
func TestFailedLoginsAreTold(t *testing.T) {
	var log bytes.Buffer
	s := loginServer(t, nil, nil, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.FailedLoginDelay = time.Millisecond
	})
	for range 9 {
		c := dialRaw(t, addrOf(s))
		c.handshakeFor("PLAIN", 1)
		c.token(1, "\x00alice\x00wrong-canary")
		c.closedByPeer()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s.Close(ctx)
	if got := strings.Count(log.String(), "failed to log in"); got != 4 || strings.Contains(log.String(), "canary") || !strings.Contains(log.String(), "user=alice") {
		t.Errorf("%d lines:\n%s", got, log.String())
	}
}
