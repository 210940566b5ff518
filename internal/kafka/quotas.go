package kafka

import (
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/quota"
)

// Throttling (KIP-219): who used more than a quota allows is answered at once, told
// for how long it has to wait, and not read from for so long. Answers that are
// under way leave, waits of groups go on, and a stop of the server ends the mute.
// A mute is at most as long as the quota window.
//
//   - producer_byte_rate counts the whole request, consumer_byte_rate the records
//     of the answer. An answer that would be too much is thrown away, not counted,
//     and an empty one is sent, as by Apache Kafka: the client asks again.
//   - request_percentage counts the time between a request's arrival and its
//     answer where nothing is waited for but our own disk; what waits for other
//     clients (JoinGroup, the long poll of Fetch) does not count. 100 is one thread.
//   - controller_mutation_rate counts partitions created and deleted; from the
//     versions on that have an error for it, the request is refused instead.
//   - connection_creation_rate closes what comes too fast, after the wait.

// exempt are the keys that request_percentage does not count: a login, and what
// brokers of a cluster ask of each other.
func exempt(key int16) bool {
	const writeTxnMarkers = 27
	return waits(key) || key == keySaslHandshake || key == writeTxnMarkers || key == keySaslAuthenticate
}

// throttle makes a request's client wait; the longest of several counts.
func (r *request) throttle(d time.Duration) { r.wait = max(r.wait, d) }

// who names the client for quotas.
func (r *request) who() (user, client string) { return r.principal().Name, r.clientID() }

// record notes what a request used of a quota.
func (s *Server) record(r *request, k quota.Kind, n float64) time.Duration {
	if !s.quotas.Limits(k) {
		return 0
	}
	user, client := r.who()
	return s.quotas.Record(k, user, client, n)
}

// recordTime notes the time that a request took until now, except for waited and
// for what it stood behind other clients' heavy requests.
func (s *Server) recordTime(r *request, waited time.Duration) {
	if !s.quotas.Limits(quota.Request) {
		return
	}
	took := s.o.Clock.Now().Sub(r.received) - waited - r.conn.queued
	wait := s.record(r, quota.Request, 100*took.Seconds())
	r.throttle(min(wait, s.o.QuotaSampleLength))
}

// mute is called when a request's answer is on its way: it tells the answer and
// keeps the connection from reading.
func (c *conn) mute(r *request, resp kmsg.Response) {
	if r.wait <= 0 {
		return
	}
	if t, ok := resp.(kmsg.SetThrottleResponse); ok {
		t.SetThrottle(millis(r.wait))
	}
	c.muted = r.wait
	c.server.metrics.throttled.Inc()
}

// millis rounds up: a client that comes back too early would be throttled again.
func millis(d time.Duration) int32 { return int32((d + time.Millisecond - 1) / time.Millisecond) }

// rest waits a mute out.
func (c *conn) rest() error {
	if c.muted <= 0 {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	c.server.memory.release(&c.frame)
	timer := c.server.o.Clock.NewTimer(c.muted)
	defer timer.Stop()
	c.muted = 0
	select {
	case <-timer.C():
	case <-c.waitCtx.Done():
	}
	return nil
}

// mutate notes partitions to be created or deleted. An error is for the topic that
// they are of.
func (s *Server) mutate(r *request, partitions int, strict bool) error {
	if !s.quotas.Limits(quota.Mutation) {
		return nil
	}
	user, client := r.who()
	wait, err := s.quotas.Mutate(user, client, float64(max(partitions, 1)), strict)
	r.throttle(wait)
	return err
}

// partitionsOf is how many partitions a new topic will have.
func (s *Server) partitionsOf(t *controller.CreateTopic) int {
	switch {
	case len(t.Assignment) > 0:
		return len(t.Assignment)
	case t.Partitions > 0:
		return int(t.Partitions)
	}
	return int(s.o.AutoCreatePartitions)
}

// followQuotas takes over the quotas of each new image.
func (s *Server) followQuotas(prev, next *metadata.Image) {
	if prev == nil || prev.QuotaRevision != next.QuotaRevision {
		s.quotas.Follow(next)
	}
}

// maxTurnedAway bounds the connections that are held only to be closed later.
const maxTurnedAway = 1000

// turnAway closes a connection that came too fast, after the wait: closed at once,
// its client would only come again.
func (s *Server) turnAway(nc net.Conn, wait time.Duration) {
	s.metrics.refused.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || len(s.mu.turnedAway) >= maxTurnedAway {
		nc.Close()
		return
	}
	s.mu.turnedAway[nc] = s.o.Clock.AfterFunc(min(wait, s.o.QuotaSampleLength), func() {
		nc.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.turnedAway, nc)
	})
}

// dropTurnedAway closes what is held; the server is closing.
func (s *Server) dropTurnedAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc, timer := range s.mu.turnedAway {
		timer.Stop()
		nc.Close()
	}
	clear(s.mu.turnedAway)
}

// quotaEntity reads an entity of a request: its parts, none twice. A nil name is
// the default.
func quotaEntity(parts []quotaPart) (metadata.QuotaEntity, error) {
	var e metadata.QuotaEntity
	for _, p := range parts {
		n, err := quotaName(&e, p.kind)
		if err != nil {
			return e, err
		}
		if n.Set {
			return e, fmt.Errorf("%w: entity type %q is named twice", metadata.ErrInvalidQuota, p.kind)
		}
		*n = metadata.QuotaName{Set: true, Default: p.name == nil, Name: orEmpty(p.name)}
		if p.name != nil && *p.name == "" {
			return e, fmt.Errorf("%w: entity type %q has an empty name", metadata.ErrInvalidQuota, p.kind)
		}
	}
	return e, e.Validate()
}

type quotaPart struct {
	kind string
	name *string
}

// quotaName is the place of an entity type in e.
func quotaName(e *metadata.QuotaEntity, kind string) (*metadata.QuotaName, error) {
	switch kind {
	case "user":
		return &e.User, nil
	case "client-id":
		return &e.ClientID, nil
	case "ip":
		return &e.IP, nil
	}
	return nil, fmt.Errorf("%w: entity type %q", metadata.ErrInvalidQuota, kind)
}
