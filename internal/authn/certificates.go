package authn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// pollInterval is how soon a replaced certificate counts. Watching the directory
// would not see what a symbolic link further up points to.
const pollInterval = 3 * time.Second

// certificates is a listener's TLS configuration, read again when one of its files
// changes. Connections that stand keep the one they began with.
type certificates struct {
	listener string
	props    map[string]string
	clock    clock.Clock
	logger   *slog.Logger
	current  atomic.Pointer[tls.Config]

	reloads, failures *metrics.Counter

	// files as they were at the last try, good or bad. Only the watcher's.
	files map[string]fs.FileInfo
}

func openCertificates(listener string, props map[string]string, clk clock.Clock, logger *slog.Logger) (*certificates, error) {
	c := &certificates{
		listener: listener, props: props, clock: clk, logger: logger,
		reloads:  obs.Counter("lockstep_tls_certificate_reloads_total", "listener", listener),
		failures: obs.Counter("lockstep_tls_certificate_reload_failures_total", "listener", listener),
	}
	cfg, err := c.read()
	if err != nil {
		return nil, err
	}
	c.current.Store(cfg)
	if end := expiry(cfg); clk.Now().After(end) {
		logger.Warn("the certificate of a listener has expired; clients will refuse it", "listener", listener, "expired", end)
	}
	obs.Gauge("lockstep_tls_certificate_expiry_timestamp_seconds", func() float64 { return float64(expiry(c.current.Load()).Unix()) }, "listener", listener)
	return c, nil
}

func (c *certificates) close() {
	obs.Unregister("lockstep_tls_certificate_expiry_timestamp_seconds", "listener", c.listener)
}

// config is what a connection begins with. Each handshake asks again.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

// read reads the files. Their state is taken before: what changes meanwhile is
// read once more.
func (c *certificates) read() (*tls.Config, error) {
	states := map[string]fs.FileInfo{}
	for path := range c.files {
		states[path], _ = os.Stat(path)
	}
	cfg, files, err := clientconfig.ServerTLS(c.props)
	for _, path := range files {
		if _, ok := states[path]; !ok {
			states[path], _ = os.Stat(path)
		}
	}
	c.files = states
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", c.listener, err)
	}
	return cfg, nil
}

// watch polls until ctx ends.
func (c *certificates) watch(ctx context.Context) {
	for {
		t := c.clock.NewTimer(pollInterval)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C():
			c.poll()
		}
	}
}

// poll reads the files again if one of them changed. A bad file changes nothing and
// is reported once.
func (c *certificates) poll() {
	if !c.changed() {
		return
	}
	cfg, err := c.read()
	if err == nil && c.clock.Now().After(expiry(cfg)) {
		err = fmt.Errorf("listener %s: the new certificate expired at %s", c.listener, expiry(cfg).UTC().Format(time.RFC3339))
	}
	if err != nil {
		c.failures.Inc()
		c.logger.Error("a changed certificate or trust store cannot be used; the listener goes on with the one before", "err", err)
		return
	}
	c.current.Store(cfg)
	c.reloads.Inc()
	c.logger.Info("certificate and trust store were read again", "listener", c.listener, "subject", cfg.Certificates[0].Leaf.Subject.String(), "expires", expiry(cfg))
}

func (c *certificates) changed() bool {
	for path, old := range c.files {
		now, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) && old == nil {
			continue
		}
		if old == nil || err != nil || !os.SameFile(old, now) || !old.ModTime().Equal(now.ModTime()) || old.Size() != now.Size() {
			return true
		}
	}
	return false
}

func expiry(cfg *tls.Config) time.Time { return cfg.Certificates[0].Leaf.NotAfter }
