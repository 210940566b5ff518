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
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/quota"
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

// noise is what no codec makes smaller.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	return string(b)
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
// mirror brings at least a quarter of a MiB a second, fails at no time, and a record that is
// written then is here within seconds.
func TestSlowLink(t *testing.T) {
	line := &link{}
	src := newSource(t, kfake.ListenFn(line.listen), kfake.SeedTopics(2, "orders"))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = 500 * time.Millisecond })
	const megabytes = 4
	for range megabytes * 16 / 2 {
		for p := range int32(2) {
			produce(t, src, "orders", p, noise(64<<10))
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
	if took := time.Since(began); took > megabytes*4*time.Second {
		t.Errorf("%d MiB took %v", megabytes, took)
	}
	line.slow.Store(false)
	for p := range int32(2) {
		produce(t, src, "orders", p, "x")
	}
	line.slow.Store(true)
	began = time.Now()
	w.until("one more", func() bool { return there(megabytes*8 + 1) })
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a record took %v", took)
	}
	if seen[metadata.StateFailed] || w.partition("orders", 0).RetryAttempt+w.partition("orders", 1).RetryAttempt > 0 {
		t.Errorf("it failed: %v", seen)
	}
	line.slow.Store(false)
	w.equals(src, "orders", 0)
}

// MIR-421: what a mirror takes is bounded, for the replicas that their topic lists: after a
// while by the rate and no more than a tenth above it, and at once no more than one answer.
// Another topic comes meanwhile without waiting, and a rate that is raised counts at once.
func TestMirrorThrottle(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(2, "slow", "fast"))
	w := newWorld(t, nil)
	must(t, w.c.Create(w.ctx, "m", map[string]string{
		"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20", "fetch.max.bytes": "65536",
	}))
	w.start("m", "slow|fast")
	for _, topic := range []string{"slow", "fast"} {
		w.state(topic, 0, metadata.StateMirroring)
	}
	all := "*"
	must(t, w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "slow",
		Ops: []controller.ConfigOp{{Name: metadata.MirrorThrottledReplicasConfig, Value: &all}}}}, false)[0])
	const rate, pieces, size = 128 << 10, 32, 32 << 10 // bytes per second; a MiB in each topic
	w.parts.SetThrottles(quota.NoThrottle, quota.NoThrottle, 0)
	for p := range int32(2) {
		w.until("the list is known", func() bool { return w.parts.Get("slow", p).Held() && !w.parts.Get("fast", p).Held() })
	}
	w.parts.SetThrottles(quota.NoThrottle, quota.NoThrottle, rate)
	began := time.Now()
	for i := range int32(pieces) {
		produce(t, src, "slow", i%2, noise(size))
		produce(t, src, "fast", i%2, noise(size))
	}
	w.caughtUp("fast", 0, pieces/2)
	w.caughtUp("fast", 1, pieces/2)
	got := func() (n int64) {
		for p := range int32(2) {
			n += w.parts.Get("slow", p).HighWatermark()
		}
		return n
	}
	// However long a busy machine takes for anything: never more than the rate.
	bounded := func(when string) {
		t.Helper()
		bytes, took, answer := float64(got()*size), time.Since(began), 65536+size
		if bytes > 1.1*rate*took.Seconds()+float64(answer) {
			t.Errorf("%s: %.0f bytes in %v", when, bytes, took)
		}
	}
	bounded("the other topic is here")
	w.until("three quarters", func() bool { return got() >= pieces*3/4 })
	bounded("three quarters are here")
	if d := w.partition("slow", 0); d.State != metadata.StateMirroring || d.RetryAttempt > 0 {
		t.Errorf("%+v", d)
	}
	w.parts.SetThrottles(quota.NoThrottle, quota.NoThrottle, 1) // which would take hours
	w.parts.SetThrottles(quota.NoThrottle, quota.NoThrottle, quota.NoThrottle)
	w.caughtUp("slow", 0, pieces/2)
	w.caughtUp("slow", 1, pieces/2)
	w.equals(src, "slow", 0)
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
	w := newWorld(t, nil)
	issue(time.Now().Add(time.Hour))
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
	must(t, w.c.Create(w.ctx, "m", map[string]string{
		"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
		"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": authority.TrustPEM(),
	}))
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	// Connections are made with a certificate that is good for a while: as short as this
	// machine can do it in.
	end := int64(1)
	var expires time.Time
	for validity, done := 3*time.Second, false; !done; validity *= 2 {
		expires = time.Now().Add(validity).Truncate(time.Second)
		issue(expires)
		line.cut()
		write()
		end++
		w.until("caught up, or too late", func() bool {
			done = w.parts.Get("orders", 0).HighWatermark() == end && w.partition("orders", 0).State == metadata.StateMirroring
			return done || time.Now().After(expires)
		})
	}
	w.until("it has expired", func() bool { return time.Now().After(expires.Add(100 * time.Millisecond)) })
	write()
	end++
	w.caughtUp("orders", 0, end)
	line.cut()
	if d := w.failed("orders", 0, "expired"); d.RetryAttempt == nonRetryable {
		t.Errorf("%+v", d)
	}
	write()
	issue(time.Now().Add(time.Hour))
	w.caughtUp("orders", 0, end+1)
	if w.cut() > 0 {
		t.Error("something was cut")
	}
}
