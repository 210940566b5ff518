package host

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Host runs the plugin processes of one broker. Its methods are safe for use by
// several goroutines.
type Host struct {
	o       Options
	dir     *runDir
	plugins map[string]*supervisor // never changes after Open
	closed  sync.Once
}

// Open starts all plugins, at the same time, and returns when they run. If one
// does not, none is left running and the error says why for each.
func Open(o Options) (*Host, error) { return open(o, proto.Versions) }

// open lets a test be a broker of another time.
func open(o Options, versions []int) (*Host, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	h := &Host{o: o, plugins: map[string]*supervisor{}}
	if len(o.Plugins) == 0 {
		return h, nil
	}
	dir, swept, err := openRunDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("plugins: %w", err)
	}
	h.dir = dir
	if swept > 0 {
		o.Logger.Info("removed the plugin sockets of brokers that died", "directories", swept)
	}
	first := make(chan error, len(o.Plugins))
	for _, spec := range o.Plugins {
		s := newSupervisor(spec, &h.o, dir.path, versions)
		h.plugins[spec.Name] = s
		go s.supervise(first)
	}
	var errs []error
	for range o.Plugins {
		if err := <-first; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		h.Close()
		return nil, errors.Join(errs...)
	}
	return h, nil
}

// Close stops all plugins and waits for them. Connections that they carry
// break; questions from now on are answered by the built-in policies.
func (h *Host) Close() {
	h.closed.Do(func() {
		for _, s := range h.plugins {
			close(s.stop)
		}
		for _, s := range h.plugins {
			<-s.done
		}
		if h.dir != nil {
			h.dir.close()
		}
	})
}

// Status is what an operator wants to know of one plugin.
type Status struct {
	Name     string
	PID      int    // 0: not running
	Offers   string // the plugin's own name and version
	Kinds    []sdk.Kind
	Protocol int
	Starts   int    // successful ones since Open
	Breaker  bool   // open: too many failures in a row
	LastEnd  string // how the last process ended or why it did not start; empty if none did
}

// Status lists all plugins by name.
func (h *Host) Status() []Status {
	all := make([]Status, 0, len(h.plugins))
	for _, s := range h.plugins {
		all = append(all, s.snapshot())
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// find returns the plugin that is configured under name, if it offers kind.
func (h *Host) find(name string, kind sdk.Kind) (*supervisor, error) {
	s := h.plugins[name]
	if s == nil {
		return nil, fmt.Errorf("there is no plugin %q: set plugin.%s.path and plugin.%s.sha256", name, name, name)
	}
	if !slices.Contains(s.snapshot().Kinds, kind) {
		return nil, fmt.Errorf("plugin %s does not offer %s", name, kind)
	}
	return s, nil
}

// TruncationPolicy is the plugin called name, with fallback for the moments in
// which it does not answer.
func (h *Host) TruncationPolicy(name string, fallback sdk.TruncationPolicy) (sdk.TruncationPolicy, error) {
	s, err := h.find(name, sdk.KindTruncation)
	if err == nil && fallback == nil {
		err = fmt.Errorf("plugin %s has no default beside it", name)
	}
	if err != nil {
		return nil, err
	}
	return &truncation{s, fallback}, nil
}

// UncleanElectionPolicy is the plugin called name, with fallback for the
// moments in which it does not answer.
func (h *Host) UncleanElectionPolicy(name string, fallback sdk.UncleanElectionPolicy) (sdk.UncleanElectionPolicy, error) {
	s, err := h.find(name, sdk.KindUncleanElection)
	if err == nil && fallback == nil {
		err = fmt.Errorf("plugin %s has no default beside it", name)
	}
	if err != nil {
		return nil, err
	}
	return &unclean{s, fallback}, nil
}

// Dialer gets byte streams through the plugin called name. The function has the
// shape of net.Dialer.DialContext, so that whoever speaks the Kafka protocol
// over TCP speaks it over the plugin.
func (h *Host) Dialer(name string) (sdk.DialFunc, error) {
	s, err := h.find(name, sdk.KindTransport)
	if err != nil {
		return nil, err
	}
	return s.dial, nil
}
