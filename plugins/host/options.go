package host

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Plugin is one configured plugin process.
type Plugin struct {
	Name   string   // the <name> in plugin.<name>.path: a-z, 0-9, '-', at most 32
	Path   string   // plugin.<name>.path: absolute path of the executable; others must not be able to write it
	SHA256 string   // plugin.<name>.sha256: of the file, 64 hexadecimal digits; required
	Args   []string // plugin.<name>.args: passed as they are
	Env    []string // plugin.<name>.env: KEY=value; the plugin gets no other environment

	// Kinds are what the broker's configuration uses the plugin for. Open fails
	// if the process does not offer all of them.
	Kinds []sdk.Kind
}

// Options make a Host. The zero value of a field with a default takes it.
type Options struct {
	Plugins []Plugin

	// Dir holds sockets; it is made if missing, belongs to the broker's user
	// and is open to nobody else. Socket paths are limited to about 100 bytes,
	// so it has to be short. Brokers may share it. Default:
	// lockstep-plugins-<uid> in the directory for temporary files.
	Dir string

	Logger *slog.Logger // nil: discard
	Clock  clock.Clock

	// StartTimeout is from fork to the handshake; a plugin connects to what it
	// needs afterwards. Default 5 s.
	StartTimeout time.Duration
	// StopTimeout is how long a plugin that is told to stop may take before it
	// is killed. Default 2 s, which is also the most.
	StopTimeout time.Duration
	// DecisionTimeout bounds one question to a policy. A partition waits for
	// it, so it is a trade between a policy that looks things up and a mirror
	// that goes on. Default 2 s.
	DecisionTimeout time.Duration
	// DialTimeout bounds one connection through a transport, beside the
	// caller's own context. Default 10 s.
	DialTimeout time.Duration

	// BackoffInitial and BackoffMax are the first and the longest pause before
	// a plugin that failed is started again; it doubles in between. Defaults
	// 100 ms, 30 s.
	BackoffInitial time.Duration
	BackoffMax     time.Duration
	// BreakerFailures in a row open the breaker; then there is one try per
	// BreakerWait. Defaults 8, 5 min.
	BreakerFailures int
	BreakerWait     time.Duration
	// StableAfter is how long a process must run for its end to count as a
	// first failure. Default 1 min.
	StableAfter time.Duration
}

// EnsureDefaults fills the fields that have a default.
func (o *Options) EnsureDefaults() {
	if o.Dir == "" {
		o.Dir = defaultDir()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.StartTimeout, 5*time.Second)
	set(&o.StopTimeout, 2*time.Second)
	set(&o.DecisionTimeout, 2*time.Second)
	set(&o.DialTimeout, 10*time.Second)
	set(&o.BackoffInitial, 100*time.Millisecond)
	set(&o.BackoffMax, 30*time.Second)
	set(&o.BreakerWait, 5*time.Minute)
	set(&o.StableAfter, time.Minute)
	if o.BreakerFailures == 0 {
		o.BreakerFailures = 8
	}
}

var pluginName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Validate names every fault at once, by configuration key.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	for _, p := range o.Plugins {
		if !pluginName.MatchString(p.Name) {
			bad("plugin name %q: a to z, 0 to 9 and '-', at most 32 characters, not beginning with '-'", p.Name)
			continue
		}
		if seen[p.Name] {
			bad("plugin %s is configured twice", p.Name)
		}
		seen[p.Name] = true
		if !filepath.IsAbs(p.Path) {
			bad("plugin.%s.path: %q is not an absolute path", p.Name, p.Path)
		}
		if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != 32 {
			bad("plugin.%s.sha256: want 64 hexadecimal digits (sha256sum prints them), got %q", p.Name, p.SHA256)
		}
		for _, k := range p.Kinds {
			if k != sdk.KindTruncation && k != sdk.KindUncleanElection && k != sdk.KindTransport {
				bad("plugin %s: unknown kind %q", p.Name, k)
			}
		}
	}
	for _, d := range []time.Duration{o.StartTimeout, o.StopTimeout, o.DecisionTimeout, o.DialTimeout,
		o.BackoffInitial, o.BackoffMax, o.BreakerWait, o.StableAfter} {
		if d < 0 {
			bad("plugins: a timeout is negative: %v", d)
		}
	}
	return errors.Join(errs...)
}
