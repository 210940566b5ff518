package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// ErrDown is the cause of calls while a plugin is not running.
var ErrDown = errors.New("plugin is not running")

// lateLimit is how many questions in a row a policy may leave unanswered before
// its process is taken for hung and started anew.
const lateLimit = 3

// supervisor keeps one plugin running.
type supervisor struct {
	spec     Plugin
	o        *Options
	dir      string // the host's own directory
	versions []int
	logger   *slog.Logger

	stop chan struct{} // closed by the host
	done chan struct{} // closed when the process is gone for good

	// mu guards what callers and the supervisor share. Nothing is called and
	// nothing is waited for under it.
	mu struct {
		sync.Mutex
		run    *run // nil: not running
		status Status
	}

	restarts, decided, defaulted *metrics.Counter
}

// run is one life of the process.
type run struct {
	client  *plugin.Client
	process *process
	conn    *grpc.ClientConn
	dir     string // of its gRPC socket

	late atomic.Int32  // unanswered questions in a row
	hung chan struct{} // cap 1
}

func newSupervisor(spec Plugin, o *Options, dir string, versions []int) *supervisor {
	s := &supervisor{
		spec: spec, o: o, dir: dir, versions: versions,
		logger:    o.Logger.With("plugin", spec.Name),
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
		restarts:  obs.Counter("lockstep_plugin_restarts_total", "plugin", spec.Name),
		decided:   obs.Counter("lockstep_plugin_decisions_total", "plugin", spec.Name, "by", "plugin"),
		defaulted: obs.Counter("lockstep_plugin_decisions_total", "plugin", spec.Name, "by", "default"),
	}
	s.mu.status.Name = spec.Name
	return s
}

// supervise is the supervisor's goroutine. It tells first how the first start
// went, and ends there if it failed.
func (s *supervisor) supervise(first chan<- error) {
	defer close(s.done)
	// The parent-death signal comes when the thread that forked ends, and this
	// goroutine's thread must therefore live as long as the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	again := backoff{
		initial: s.o.BackoffInitial, max: s.o.BackoffMax,
		breaker: s.o.BreakerFailures, breakerWait: s.o.BreakerWait, stableAfter: s.o.StableAfter,
	}
	r, err := s.start()
	first <- err
	if err != nil {
		return
	}
	obs.Gauge("lockstep_plugin_up", s.up, "plugin", s.spec.Name)
	defer obs.Unregister("lockstep_plugin_up", "plugin", s.spec.Name)

	for {
		var ran time.Duration
		if err == nil {
			began := s.o.Clock.Now()
			if err = s.watch(r); err == nil {
				return
			}
			ran = s.o.Clock.Now().Sub(began)
		}
		wait, open := again.failed(ran)
		s.note(err, open)
		s.logger.Warn("plugin failed and will be started again", "error", err, "wait", wait, "failures", again.failures, "breaker_open", open)
		timer := s.o.Clock.NewTimer(wait)
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-timer.C():
		}
		s.restarts.Inc()
		r, err = s.start()
	}
}

// watch waits until a running process ends or hangs, takes it from the callers
// and stops it. A nil error means that the host closes.
func (s *supervisor) watch(r *run) (err error) {
	select {
	case <-s.stop:
	case <-r.process.exited:
		err = errors.New("process ended")
	case <-r.hung:
		err = fmt.Errorf("process was stopped: it left %d questions in a row without an answer", lateLimit)
	}
	s.mu.Lock()
	s.mu.run, s.mu.status.PID = nil, 0
	s.mu.Unlock()
	s.end(r)
	if err != nil {
		return fmt.Errorf("%w: %s", err, r.process.exit())
	}
	s.note(errors.New(r.process.exit()), false)
	s.logger.Info("plugin stopped", "exit", r.process.exit())
	return nil
}

// start starts a process, learns what it offers and shows it to callers.
func (s *supervisor) start() (*run, error) {
	r, err := s.launch()
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", s.spec.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.o.StartTimeout)
	defer cancel()
	about, err := proto.NewPluginClient(r.conn).Describe(ctx, &proto.DescribeRequest{})
	if err != nil {
		s.end(r)
		return nil, fmt.Errorf("plugin %s does not describe itself: %s", s.spec.Name, oneLine(status.Convert(err).Message()))
	}
	var kinds []sdk.Kind
	for _, k := range about.Kinds {
		kinds = append(kinds, sdk.Kind(oneLine(k)))
	}
	for _, k := range s.spec.Kinds {
		if !slices.Contains(kinds, k) {
			s.end(r)
			return nil, fmt.Errorf("plugin %s is configured as %s, but offers %v", s.spec.Name, k, kinds)
		}
	}
	s.mu.Lock()
	s.mu.run = r
	st := &s.mu.status
	st.PID, st.Offers, st.Kinds, st.Protocol = r.process.pid(), oneLine(about.Name+" "+about.Version), kinds, r.client.NegotiatedVersion()
	st.Breaker = false
	st.Starts++
	s.mu.Unlock()
	s.logger.Info("plugin started", "pid", r.process.pid(), "offers", oneLine(about.Name+" "+about.Version),
		"kinds", kinds, "protocol", r.client.NegotiatedVersion())
	return r, nil
}

// launch brings a process to its handshake.
func (s *supervisor) launch() (*run, error) {
	bin, err := openBinary(s.spec.Path, s.spec.SHA256)
	if err != nil {
		return nil, err
	}
	defer bin.Close()
	r := &run{hung: make(chan struct{}, 1)}
	if r.dir, err = os.MkdirTemp(s.dir, "p"); err != nil {
		return nil, err
	}
	sets := map[int]plugin.PluginSet{}
	for _, v := range s.versions {
		sets[v] = plugin.PluginSet{proto.Service: &dispensed{}}
	}
	var said tail
	r.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: sets,
		RunnerFunc: func(_ hclog.Logger, template *exec.Cmd, _ string) (runner.Runner, error) {
			r.process = newProcess(&s.spec, bin, template)
			return r.process, nil
		},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     s.o.StartTimeout,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: r.dir},
		GRPCDialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(
			grpc.MaxCallSendMsgSize(proto.MaxQuestion), grpc.MaxCallRecvMsgSize(proto.MaxAnswer))},
		Logger:     newBridge(s.logger, s.spec.Name),
		Stderr:     &said,
		SyncStdout: &output{s.logger, "stdout"},
		SyncStderr: &output{s.logger, "stderr"},
	})
	client, err := r.client.Client()
	if err == nil {
		var conn any
		if conn, err = client.Dispense(proto.Service); err == nil {
			r.conn = conn.(*grpc.ClientConn)
			return r, nil
		}
	}
	s.end(r) // also waits until all of standard error is read
	err = fmt.Errorf("does not start: %s", oneLine(err.Error()))
	if text := said.String(); text != "" {
		err = fmt.Errorf("%w; it wrote: %s", err, text)
	}
	return nil, err
}

// dispensed hands out the connection; each kind makes its own client of it.
type dispensed struct{ plugin.NetRPCUnsupportedPlugin }

func (*dispensed) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this side asks")
}

func (*dispensed) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// end asks the process to stop, kills it if it does not, and waits for it.
func (s *supervisor) end(r *run) {
	if r.process != nil && r.process.ID() != "" {
		// go-plugin's own limit begins after a call that has none.
		limit := time.AfterFunc(s.o.StopTimeout, func() { r.process.Kill(context.Background()) })
		r.client.Kill()
		limit.Stop()
	}
	os.RemoveAll(r.dir)
}

func (s *supervisor) note(end error, breaker bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.status.LastEnd, s.mu.status.Breaker = end.Error(), breaker
}

func (s *supervisor) current() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.run
}

func (s *supervisor) snapshot() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.status
}

func (s *supervisor) up() float64 {
	if s.current() == nil {
		return 0
	}
	return 1
}

// ask puts one question to the process that runs now, once.
func (s *supervisor) ask(ctx context.Context, question func(context.Context, *grpc.ClientConn) error) error {
	r := s.current()
	if r == nil {
		return ErrDown
	}
	asked, cancel := context.WithTimeoutCause(ctx, s.o.DecisionTimeout, fmt.Errorf("no answer within %v", s.o.DecisionTimeout))
	defer cancel()
	err := question(asked, r.conn)
	if status.Code(err) == codes.DeadlineExceeded {
		<-asked.Done() // gRPC's timer may be a moment ahead of the context's
	}
	switch {
	case err == nil || asked.Err() == nil:
		r.late.Store(0)
	case ctx.Err() == nil:
		if r.late.Add(1) == lateLimit {
			select {
			case r.hung <- struct{}{}:
			default:
			}
		}
		err = context.Cause(asked)
	}
	return err
}
