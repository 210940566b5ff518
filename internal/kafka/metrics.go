package kafka

import (
	"strconv"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// serverMetrics holds the pointers, so that nothing is looked up per request.
type serverMetrics struct {
	clock   clock.Clock
	node    string
	seconds [maxKey + 1]*metrics.PrometheusHistogram // nil for what is not served

	refused, acceptErrors, broken, panics, slowReaders *metrics.Counter
	produced, fetched                                  *metrics.Counter
	denied, auditLost                                  *metrics.Counter
	throttled, paced                                   *metrics.Counter
	sessionsOver                                       *metrics.Counter
}

func newServerMetrics(s *Server) *serverMetrics {
	m := &serverMetrics{
		clock:        s.o.Clock,
		node:         strconv.Itoa(int(s.o.NodeID)),
		refused:      obs.Counter("lockstep_connections_refused_total"),
		acceptErrors: obs.Counter("lockstep_accept_errors_total"),
		broken:       obs.Counter("lockstep_connections_broken_total"),
		panics:       obs.Counter("lockstep_request_panics_total"),
		slowReaders:  obs.Counter("lockstep_slow_readers_closed_total"),
		throttled:    obs.Counter("lockstep_requests_throttled_total"),
		paced:        obs.Counter("lockstep_accepts_delayed_total"),
		produced:     obs.Counter("lockstep_produced_bytes_total"),
		fetched:      obs.Counter("lockstep_fetched_bytes_total"),
		sessionsOver: obs.Counter("lockstep_sessions_expired_total"),
		denied:       obs.Counter("lockstep_requests_denied_total"),
		auditLost:    obs.Counter("lockstep_audit_lines_lost_total"),
	}
	for _, a := range s.apis {
		if a != nil {
			m.seconds[a.key] = obs.Histogram("lockstep_request_seconds", "request", keyName(a.key))
		}
	}
	obs.Gauge("lockstep_connections", func() float64 { return float64(s.connections()) }, "node", m.node)
	obs.Gauge("lockstep_fetch_sessions", func() float64 { return float64(s.sessions.len()) }, "node", m.node)
	return m
}

// loggedIn counts a login, or the renewal of a session.
func (m *serverMetrics) loggedIn(listener string, again bool) {
	if again {
		obs.Counter("lockstep_reauthentications_total", "listener", listener).Inc()
		return
	}
	obs.Counter("lockstep_authentications_total", "listener", listener).Inc()
}

func (m *serverMetrics) loginRefused(listener string) {
	obs.Counter("lockstep_authentication_failures_total", "listener", listener).Inc()
}

func (m *serverMetrics) unregister() {
	obs.Unregister("lockstep_connections", "node", m.node)
	obs.Unregister("lockstep_fetch_sessions", "node", m.node)
}

// observe records how long a request took from its last byte to its answer.
func (m *serverMetrics) observe(key int16, received time.Time) {
	if h := m.seconds[key]; h != nil {
		h.Update(m.clock.Now().Sub(received).Seconds())
	}
}
