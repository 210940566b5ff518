package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func newFake(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

func TestClientRequest(t *testing.T) {
	d := Dialer{ClientID: "test"}
	c, err := d.Dial(t.Context(), newFake(t, kfake.SeedTopics(3, "orders")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if min, max, ok := c.Versions(3); !ok || max < min {
		t.Fatalf("metadata versions %d to %d, %v", min, max, ok)
	}
	resp, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest())
	if err != nil {
		t.Fatal(err)
	}
	topics := resp.(*kmsg.MetadataResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 3 {
		t.Fatalf("%+v", topics)
	}
	// A key that the peer lacks costs nothing: the next request works.
	if _, err := c.Request(t.Context(), new(CreateClusterMirrorRequest)); !errors.Is(err, ErrUnsupported) {
		t.Fatalf("mirror request against Kafka: %v", err)
	}
	// A context that has ended already leaves the stream alone.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Request(gone, kmsg.NewPtrMetadataRequest()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
		t.Fatal(err)
	}
}

func TestClientSASL(t *testing.T) {
	addr := newFake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"),
		kfake.Superuser("SCRAM-SHA-256", "bob", "secret2"), kfake.Superuser("SCRAM-SHA-512", "carol", "secret3"))
	for _, tc := range []struct {
		mechanism   sasl.Mechanism
		err, secret string
	}{
		{plain.Auth{User: "alice", Pass: "secret"}.AsMechanism(), "", "secret"},
		{scram.Auth{User: "bob", Pass: "secret2"}.AsSha256Mechanism(), "", "secret2"},
		{scram.Auth{User: "carol", Pass: "secret3"}.AsSha512Mechanism(), "", "secret3"},
		{plain.Auth{User: "alice", Pass: "hunter2"}.AsMechanism(), "closed the connection during authentication", "hunter2"}, // as kfake does; Kafka answers
		{scram.Auth{User: "bob", Pass: "hunter2"}.AsSha256Mechanism(), "closed the connection during authentication", "hunter2"},
	} {
		d := Dialer{SASL: tc.mechanism}
		c, err := d.Dial(t.Context(), addr)
		if tc.err == "" {
			if err != nil {
				t.Fatalf("%s: %v", tc.mechanism.Name(), err)
			}
			if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
				t.Fatalf("%s: %v", tc.mechanism.Name(), err)
			}
			c.Close()
			continue
		}
		var dial *DialError
		if !errors.As(err, &dial) || dial.Stage != StageSASL || !strings.Contains(err.Error(), tc.err) {
			t.Fatalf("%s: %v", tc.mechanism.Name(), err)
		}
		oneLine(t, err, addr)
		if strings.Contains(err.Error(), tc.secret) {
			t.Fatalf("the password is in the error: %v", err)
		}
	}
}

// A broker says why it refused; the operator reads that and no secret.
func TestSASLRefusal(t *testing.T) {
	reason := "Authentication failed: Invalid username or password"
	addr := fakePeer(t, func(conn net.Conn) {
		answerFrames(conn, func(h RequestHeader) []byte {
			if h.Key == keyApiVersions {
				return versionsAnswer(h, h.Version)
			}
			resp := NewRequest(h.Key).ResponseKind()
			resp.SetVersion(h.Version)
			if auth, ok := resp.(*kmsg.SASLAuthenticateResponse); ok {
				auth.ErrorCode, auth.ErrorMessage = kerr.SaslAuthenticationFailed.Code, &reason
			}
			return AppendResponse(nil, h.CorrelationID, resp, IsFlexible(h.Key, h.Version))
		})
	})
	d := Dialer{SASL: plain.Auth{User: "alice", Pass: "hunter2"}.AsMechanism()}
	_, err := d.Dial(t.Context(), addr)
	var dial *DialError
	if !errors.As(err, &dial) || dial.Stage != StageSASL || !errors.Is(err, kerr.SaslAuthenticationFailed) || !strings.Contains(err.Error(), reason) {
		t.Fatal(err)
	}
	oneLine(t, err, addr)
}

// oneLine checks what an operator is promised: one line that names the peer.
func oneLine(t *testing.T, err error, addr string) {
	t.Helper()
	if text := err.Error(); strings.Contains(text, "\n") || strings.Count(text, addr) != 1 {
		t.Fatalf("not one line with %s once: %q", addr, text)
	}
}

func TestDialErrors(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	server, client := testCertificates(t, "localhost")
	plaintext := newFake(t)
	secure := newFake(t, kfake.TLS(server))
	mute := fakePeer(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	http := fakePeer(t, func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n") })

	for _, tc := range []struct {
		name, addr string
		tls        *tls.Config
		stage      Stage
		text       string
	}{
		{"no port", "127.0.0.1", nil, StageResolve, "missing port"},
		{"nobody listens", closed.Addr().String(), nil, StageConnect, "connection refused"},
		{"TLS to a plaintext port", plaintext, client, StageTLS, ""},
		{"plaintext to a TLS port", secure, nil, StageAPIVersions, ""},
		{"wrong host name", secure, client, StageTLS, "127.0.0.1"},
		{"unknown authority", secure, &tls.Config{}, StageTLS, "certificate"},
		{"no answer", mute, nil, StageAPIVersions, "no answer within"},
		{"not Kafka", http, nil, StageAPIVersions, "frame size"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := Dialer{TLS: tc.tls, DialTimeout: 300 * time.Millisecond}
			_, err := d.Dial(t.Context(), tc.addr)
			var dial *DialError
			if !errors.As(err, &dial) || dial.Stage != tc.stage || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("%v, want stage %s and %q", err, tc.stage, tc.text)
			}
			if !strings.HasPrefix(err.Error(), tc.addr+": ") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
		})
	}

	d := Dialer{TLS: &tls.Config{RootCAs: client.RootCAs, ServerName: "localhost"}}
	c, err := d.Dial(t.Context(), secure)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// fakePeer serves each connection with serve.
func fakePeer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// answerFrames reads requests and writes what answer gives for each.
func answerFrames(conn net.Conn, answer func(h RequestHeader) []byte) {
	for {
		frame, err := ReadFrame(conn, 1<<20, nil)
		if err != nil {
			return
		}
		h, _, err := ParseRequestHeader(frame)
		if err != nil {
			return
		}
		if _, err := conn.Write(answer(h)); err != nil {
			return
		}
	}
}

func versionsAnswer(h RequestHeader, version int16) []byte {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.SetVersion(version)
	for key := int16(0); key < 80; key++ {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: 1})
	}
	if h.Version != version {
		resp.ErrorCode = kerr.UnsupportedVersion.Code
	}
	return AppendResponse(nil, h.CorrelationID, resp, true)
}

// An old broker answers our ApiVersions in version 0 with an error; we ask
// again in a version it knows (KIP-511).
func TestApiVersionsFallback(t *testing.T) {
	addr := fakePeer(t, func(conn net.Conn) {
		answerFrames(conn, func(h RequestHeader) []byte { return versionsAnswer(h, 0) })
	})
	c, err := new(Dialer).Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, max, ok := c.Versions(3); !ok || max != 1 {
		t.Fatalf("versions %d %v", max, ok)
	}
}

// A peer that answers nonsense costs its connection, not memory or a hang.
func TestClientHostilePeer(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		answer     func(h RequestHeader) []byte
	}{
		{"wrong correlation id", "answer to request", func(h RequestHeader) []byte {
			return []byte{0, 0, 0, 4, 0, 0, 0, 99}
		}},
		{"2 GiB", "frame size", func(h RequestHeader) []byte { return []byte{0x7f, 0xff, 0xff, 0xff} }},
		{"empty", "shorter", func(h RequestHeader) []byte { return []byte{0, 0, 0, 0} }},
		{"body too short", "Metadata", func(h RequestHeader) []byte {
			return append([]byte{0, 0, 0, 8}, 0, 0, 0, byte(h.CorrelationID), 0xff, 0xff, 0xff, 0xff)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := fakePeer(t, func(conn net.Conn) {
				answerFrames(conn, func(h RequestHeader) []byte {
					if h.Key == keyApiVersions {
						return versionsAnswer(h, h.Version)
					}
					return tc.answer(h)
				})
			})
			c, err := new(Dialer).Dial(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("%v", err)
			}
			if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); !errors.Is(err, ErrClosed) {
				t.Fatalf("after a broken answer: %v", err)
			}
		})
	}
}

func TestRequestEndsWithContext(t *testing.T) {
	addr := fakePeer(t, func(conn net.Conn) {
		answerFrames(conn, func(h RequestHeader) []byte {
			if h.Key == keyApiVersions {
				return versionsAnswer(h, h.Version)
			}
			return nil
		})
	})
	c, err := new(Dialer).Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := c.Request(ctx, kmsg.NewPtrMetadataRequest()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// testCertificates makes a server's certificate for a host and the client side
// that trusts it.
func testCertificates(t *testing.T, host string) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}
