package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/authn"
	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/quota"
)

// Server is the wire server of one broker.
type Server struct {
	o         Options
	apis      [maxKey + 1]*api
	listeners []*listener
	memory    *memory
	answers   *answers
	turns     *turns
	sessions  *sessionCache
	metrics   *serverMetrics
	quotas    *quota.Limiter
	unwatch   func() // ends the watch of the quotas
	delays    *authn.Delays
	static    map[string]string // the configs that the broker's own file sets

	// How many connections are open at most, in all and from one address. They
	// change while the server runs (SetConnectionLimits).
	maxConns, maxConnsPerIP atomic.Int64
	connRate                *quota.Rate

	// ctx ends when connections must go at once; see Close.
	ctx    context.Context
	cancel context.CancelFunc

	// closing is read by connections between two requests.
	closing atomic.Bool
	// lingering says that asked is kept: when a client last asked, in Unix nanoseconds.
	lingering atomic.Bool
	asked     atomic.Int64
	// stopping is closed with it, for listeners that wait.
	stopping chan struct{}

	// mu guards the open connections; nothing is done under it but book-keeping.
	mu struct {
		sync.Mutex
		conns map[*conn]struct{}
		// turnedAway are connections that came too fast, until they are closed.
		turnedAway   map[net.Conn]clock.Timer
		perIP        map[string]int
		perListener  map[*listener]int
		perPrincipal map[authz.Principal]int
	}
	running sync.WaitGroup // connections
}

// listener is a bound Listener.
type listener struct {
	Listener
	raw      net.Listener
	rate     *quota.Rate // of its connections
	endpoint metadata.Endpoint
}

// NewServer binds the listeners, so that the ports are known before the broker
// registers; nothing is accepted before Serve.
func NewServer(o Options) (*Server, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		o: o, memory: newMemory(o.RequestMemory), answers: newAnswers(answerBudget, o.Clock),
		turns:    newTurns(heavyAtOnce(), o.Clock),
		sessions: newSessionCache(o.FetchSessions, o.FetchSessionPartitions, o.Clock), static: staticConfigs(o.BrokerConfigs), stopping: make(chan struct{}),
	}
	measure := quota.Options{Clock: o.Clock, Samples: o.QuotaSamples, SampleLength: o.QuotaSampleLength}
	s.quotas = quota.NewLimiter(measure)
	s.connRate = quota.NewRate(measure, o.MaxConnectionRate)
	s.SetConnectionLimits(o.MaxConnections, o.MaxConnectionsPerIP)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.conns = map[*conn]struct{}{}
	s.mu.perIP = map[string]int{}
	s.mu.turnedAway = map[net.Conn]clock.Timer{}
	s.mu.perListener = map[*listener]int{}
	s.mu.perPrincipal = map[authz.Principal]int{}
	s.delays = authn.NewDelays(max(o.FailedLoginDelay, 0), o.Clock)
	s.registerAll()
	s.metrics = newServerMetrics(s)
	for _, l := range o.Listeners {
		bound, err := bind(l)
		if err != nil {
			s.closeListeners()
			return nil, err
		}
		bound.rate = quota.NewRate(measure, cmp.Or(l.MaxConnectionRate, quota.NoRate))
		s.listeners = append(s.listeners, bound)
	}
	// At once, and not only when the watch is first called: who asks until then had no
	// quota at all.
	s.followQuotas(nil, o.Controller.Image())
	s.unwatch = o.Controller.Watch(s.followQuotas)
	return s, nil
}

func bind(l Listener) (*listener, error) {
	raw, err := net.Listen("tcp", l.Address)
	if err != nil {
		return nil, fmt.Errorf("listener %s: %w", l.Name, err)
	}
	addr := raw.Addr().(*net.TCPAddr)
	b := &listener{Listener: l, raw: raw}
	b.endpoint = metadata.Endpoint{Name: l.Name, Host: l.AdvertisedHost, Port: l.AdvertisedPort, Protocol: l.Protocol}
	if b.endpoint.Port == 0 {
		b.endpoint.Port = int32(addr.Port)
	}
	if b.endpoint.Host == "" {
		if b.endpoint.Host, err = reachableHost(l.Address, addr); err != nil {
			raw.Close()
			return nil, fmt.Errorf("listener %s: advertised host: %w", l.Name, err)
		}
	}
	return b, nil
}

// reachableHost is what clients are told when nothing is advertised: the host
// as it was written, and the machine's name for a wildcard.
func reachableHost(configured string, bound *net.TCPAddr) (string, error) {
	if bound.IP.IsUnspecified() {
		return os.Hostname()
	}
	if host, _, err := net.SplitHostPort(configured); err == nil && host != "" {
		return host, nil
	}
	return bound.IP.String(), nil
}

// Endpoints is what the broker has to register: one per listener, with the
// real ports.
func (s *Server) Endpoints() []metadata.Endpoint {
	var out []metadata.Endpoint
	for _, l := range s.listeners {
		out = append(out, l.endpoint)
	}
	return out
}

// Serve accepts connections until Close, and then returns nil.
func (s *Server) Serve() error {
	var g errgroup.Group
	for _, l := range s.listeners {
		g.Go(func() error { return s.accept(l) })
	}
	return g.Wait()
}

// accept takes connections of one listener. Running out of descriptors or
// memory must not end the broker: it waits and tries again.
func (s *Server) accept(l *listener) error {
	const maxPause = time.Second
	pause := 5 * time.Millisecond
	for {
		nc, err := l.raw.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.admit(l, nc)
		case s.closing.Load():
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("listener %s: %w", l.Name, err)
		default:
			s.metrics.acceptErrors.Inc()
			s.o.Logger.Warn("cannot accept connections, trying again", "listener", l.Name, "err", err, "in", pause)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
				return nil
			}
			pause = min(2*pause, maxPause)
		}
	}
}

// admit starts a connection, or closes it when there are too many.
func (s *Server) admit(l *listener, nc net.Conn) {
	host := hostOf(nc)
	if wait := s.quotas.Connect(host); wait > 0 {
		s.turnAway(nc, wait)
		return
	}
	s.pace(l)
	perIP, ok := s.o.MaxConnectionsPerIPOverrides[host]
	if !ok {
		perIP = int(s.maxConnsPerIP.Load())
	}
	s.mu.Lock()
	full := int64(len(s.mu.conns)) >= s.maxConns.Load() || s.mu.perIP[host] >= perIP ||
		l.MaxConnections > 0 && s.mu.perListener[l] >= l.MaxConnections
	if s.closing.Load() || full {
		s.mu.Unlock()
		s.metrics.refused.Inc()
		nc.Close()
		return
	}
	c := newConn(s, l, nc, host)
	s.mu.conns[c] = struct{}{}
	s.mu.perIP[host]++
	s.mu.perListener[l]++
	s.running.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.running.Done()
		defer s.forget(c)
		c.serve()
	}()
}

// pace holds a listener up while connections come faster than it, or the broker,
// may take them: those behind wait in the kernel's queue, which is bounded.
func (s *Server) pace(l *listener) {
	wait := max(s.connRate.Note(), l.rate.Note())
	if wait <= 0 {
		return
	}
	s.metrics.paced.Inc()
	timer := s.o.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-s.stopping:
	}
}

// SetConnectionRate changes max.connection.creation.rate.
func (s *Server) SetConnectionRate(perSecond int) { s.connRate.Set(perSecond) }

// SetConnectionLimits changes max.connections and max.connections.per.ip. What is
// open beyond them stays open.
func (s *Server) SetConnectionLimits(all, perIP int) {
	s.maxConns.Store(int64(all))
	s.maxConnsPerIP.Store(int64(perIP))
}

// enter lets a connection speak for a principal, unless that has too many already.
func (s *Server) enter(c *conn, p authz.Principal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.perPrincipal[p] >= s.o.MaxConnectionsPerPrincipal {
		s.metrics.refused.Inc()
		return false
	}
	s.mu.perPrincipal[p]++
	c.principal, c.counted = p, true
	return true
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, c)
	s.mu.perListener[c.listener]--
	if c.counted {
		if s.mu.perPrincipal[c.principal]--; s.mu.perPrincipal[c.principal] == 0 {
			delete(s.mu.perPrincipal, c.principal)
		}
	}
	if s.mu.perIP[c.ip]--; s.mu.perIP[c.ip] == 0 {
		delete(s.mu.perIP, c.ip)
	}
}

// Close stops accepting, ends waits (long polls, joins), lets requests under
// way be answered until ctx ends, then closes what is left, and returns when no
// goroutine of the server runs any more.
func (s *Server) Close(ctx context.Context) error {
	if !s.closing.Swap(true) {
		close(s.stopping)
	}
	s.closeListeners()
	s.dropTurnedAway()
	s.unwatch()
	for _, c := range s.snapshot() {
		c.drainAndLeave()
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		for _, c := range s.snapshot() {
			c.abort()
		}
	}
	s.cancel()
	<-done
	s.metrics.unregister()
	return nil
}

func (s *Server) snapshot() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		out = append(out, c)
	}
	return out
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		l.raw.Close()
	}
}

// settle waits until this broker's partitions follow the metadata that a
// command has just changed, so that a client may use at once what it was told.
// When that takes long, the answer is still right and the client retries.
func (s *Server) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := s.o.Controller.WaitWatchers(ctx); err != nil {
		s.o.Logger.Warn("partitions lag behind the metadata", "err", err)
	}
}

const settleTime = 5 * time.Second

// connections is how many are open, for the gauge.
func (s *Server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
}

func hostOf(nc net.Conn) string {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	return nc.RemoteAddr().String()
}

// endpointOf is a broker's address for clients of this listener.
func (l *listener) endpointOf(b *metadata.Broker) (metadata.Endpoint, bool) {
	i := slices.IndexFunc(b.Endpoints, func(e metadata.Endpoint) bool { return e.Name == l.Name })
	if i < 0 {
		return metadata.Endpoint{}, false
	}
	return b.Endpoints[i], true
}

// wrapTLS is the server side of a connection's TLS, or nc itself. The handshake
// runs with the first read, on the connection's own goroutine.
func (l *listener) wrapTLS(nc net.Conn) net.Conn {
	if l.TLS == nil {
		return nc
	}
	return tls.Server(nc, l.TLS)
}
