package mirror

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/fixtures/apachekafka"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// link is the line to a source: its connections can be cut, and made slow.
type link struct {
	slow atomic.Bool
	mu   sync.Mutex
	open map[net.Conn]bool
}

// listen is for kfake.ListenFn.
func (l *link) listen(network, address string) (net.Listener, error) {
	in, err := net.Listen(network, address)
	return &linkListener{in, l}, err
}

// cut ends all connections; new ones may be made.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.Close()
	}
	clear(l.open)
}

type linkListener struct {
	net.Listener
	link *link
}

func (l *linkListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if l.link.open == nil {
		l.link.open = make(map[net.Conn]bool)
	}
	l.link.open[c] = true
	return &linkConn{c, l.link}, nil
}

const (
	linkDelay   = 100 * time.Millisecond // each way
	linkRate    = 4 << 20                // bytes per second
	linkSegment = 1460                   // of which one in a hundred is lost, and comes again after a round trip
	linkStalls  = 20                     // at most, of one piece: several losses are mended by one round trip
)

// linkConn is the source's end of a connection.
type linkConn struct {
	net.Conn
	link *link
}

func (c *linkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.link.slow.Load() {
		time.Sleep(linkDelay) // what a request takes to get here: the thing that is tried
	}
	return n, err
}

func (c *linkConn) Write(b []byte) (written int, err error) {
	if !c.link.slow.Load() {
		return c.Conn.Write(b)
	}
	time.Sleep(linkDelay) // and its answer back
	for len(b) > 0 && err == nil {
		piece := b[:min(len(b), linkStalls*linkSegment)]
		wait := time.Duration(len(piece)) * time.Second / linkRate
		for range (len(piece) + linkSegment - 1) / linkSegment {
			if rand.IntN(100) == 0 {
				wait += 2 * linkDelay
				break
			}
		}
		time.Sleep(wait) // what the line takes for it
		var n int
		n, err = c.Conn.Write(piece)
		written, b = written+n, b[n:]
	}
	return written, err
}

// MIR-302: 200 ms to the source and back, 4 MiB a second, one packet in a hundred lost. The
// mirror brings at least half a MiB a second, fails at no time, and is behind by no more
// than a few round trips when it has caught up.
func TestSlowLink(t *testing.T) {
	line := &link{}
	src := newSource(t, kfake.ListenFn(line.listen), kfake.SeedTopics(2, "orders"))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = 500 * time.Millisecond })
	const megabytes = 4
	for range megabytes * 16 / 2 {
		for p := range int32(2) {
			produce(t, src, "orders", p, strings.Repeat("x", 64<<10))
		}
	}
	w.create("m", src)
	line.slow.Store(true)
	began := time.Now()
	w.start("m", "orders")
	seen := map[metadata.MirrorState]bool{}
	there := func(end int64) bool {
		for p := range int32(2) {
			d := w.partition("orders", p)
			seen[d.State] = true
			if part := w.parts.Get("orders", p); part == nil || part.HighWatermark() != end {
				return false
			}
		}
		return true
	}
	w.until("caught up", func() bool { return there(megabytes * 8) })
	if took := time.Since(began); took > megabytes*2*time.Second {
		t.Errorf("%d MiB took %v", megabytes, took)
	}
	line.slow.Store(false)
	for p := range int32(2) {
		produce(t, src, "orders", p, "x")
	}
	line.slow.Store(true)
	began = time.Now()
	w.until("one more", func() bool { return there(megabytes*8 + 1) })
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a record took %v", took)
	}
	if seen[metadata.StateFailed] || w.partition("orders", 0).RetryAttempt+w.partition("orders", 1).RetryAttempt > 0 {
		t.Errorf("it failed: %v", seen)
	}
	line.slow.Store(false)
	w.equals(src, "orders", 0)
}

// MIR-374: the source's certificate expires while it is mirrored. A connection that there is
// lives on; a new one fails, and says why; when the certificate is renewed the mirror goes on
// by itself.
func TestCertificateExpires(t *testing.T) {
	authority, err := apachekafka.NewAuthority(t.TempDir())
	must(t, err)
	var current atomic.Pointer[tls.Certificate]
	issue := func(expires time.Time) {
		t.Helper()
		id, err := authority.IssueUntil(expires, fmt.Sprint("source-", expires.Unix()), "127.0.0.1")
		must(t, err)
		current.Store(&id.TLS)
	}
	expires := time.Now().Add(2 * time.Second).Truncate(time.Second).Add(time.Second)
	issue(expires)
	line := &link{}
	src := newSource(t, kfake.ListenFn(line.listen), kfake.SeedTopics(1, "orders"), kfake.TLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil },
	}))
	// The producer does not mind.
	writer, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.DialTLSConfig(&tls.Config{InsecureSkipVerify: true}), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	defer writer.Close()
	write := func() {
		t.Helper()
		must(t, writer.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr())
	}
	write()
	w := newWorld(t, nil)
	must(t, w.c.Create(w.ctx, "m", map[string]string{
		"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
		"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": authority.TrustPEM(),
	}))
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	w.until("it has expired", func() bool { return time.Now().After(expires.Add(100 * time.Millisecond)) })
	write()
	w.caughtUp("orders", 0, 2)
	line.cut()
	if d := w.failed("orders", 0, "expired"); d.RetryAttempt == nonRetryable {
		t.Errorf("%+v", d)
	}
	write()
	issue(time.Now().Add(time.Hour))
	w.caughtUp("orders", 0, 3)
	if w.cut() > 0 {
		t.Error("something was cut")
	}
}
