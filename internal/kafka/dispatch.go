package kafka

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// request is one request while it is answered. Handlers may keep nothing of it
// beyond their return: the body's byte fields alias the connection's buffer.
type request struct {
	// ctx ends when the connection or the server closes; for the keys in
	// waits already when the server wants to close. A handler that waits
	// (JoinGroup, SyncGroup, Fetch) must watch it.
	ctx      context.Context
	header   wire.RequestHeader
	flexible bool
	conn     *conn
	received time.Time     // from the server's clock, when the frame was complete
	wait     time.Duration // for so long the client has to be quiet; see quotas.go
	denied   bool          // something that it asks for was refused; see allowed

	rights     []auditRight // for the audit log
	moreRights int          // beyond its bound
}

// clientID is the name the client gave itself, or "".
func (r *request) clientID() string {
	if r.header.ClientID == nil {
		return ""
	}
	return *r.header.ClientID
}

// clientHost is the peer's address in the form of DescribeGroups: "/10.0.0.7".
func (r *request) clientHost() string { return r.conn.host }

// principal is who asks.
func (r *request) principal() authz.Principal { return r.conn.principal }

// A handler answers one request. It runs on the connection's goroutine, so it
// may block (answers leave in order, as with Apache Kafka), and it gets the
// body already decoded in the request's version. The response gets its version
// from the dispatcher. An error closes the connection and is logged: what a
// client can understand goes into the response's error codes instead. A nil
// response without an error means that nothing is answered.
type handler func(r *request, body kmsg.Request) (kmsg.Response, error)

// api is what the server serves of one key.
type api struct {
	key, min, max int16
	handle        handler
	// stream is set instead of handle for the keys whose bytes have their own
	// path (Produce, Fetch): it gets the undecoded body and answers by itself.
	stream func(r *request, body []byte) error
	// advertisedMin is what ApiVersions says instead of min; see key00.
	advertisedMin int16
}

// Keys that this package treats by name.
const (
	keyProduce                = 0
	keyFetch                  = 1
	keyListOffsets            = 2
	keyOffsetCommit           = 8
	keyOffsetFetch            = 9
	keyJoinGroup              = 11
	keySyncGroup              = 14
	keyApiVersions            = 18
	keyTxnOffsetCommit        = 28
	keyConsumerGroupHeartbeat = 68

	keySaslHandshake    = 17
	keySaslAuthenticate = 36

	maxKey = 107
)

// waits tells whether requests of a key wait, for other clients mostly: they end early
// when the server closes, and hold no decoding budget while they wait.
func waits(key int16) bool {
	return key == keyFetch || key == keyListOffsets || key == keyJoinGroup || key == keySyncGroup
}

// register adds a key to the table. Only register* functions called from
// registerAll use it; the same key twice is a bug.
func (s *Server) register(key, min, max int16, h handler) {
	s.add(api{key: key, min: min, max: max, advertisedMin: min, handle: h})
}

// add panics on a contradiction in the table, which is the same at every start.
func (s *Server) add(a api) {
	if s.apis[a.key] != nil {
		panic(fmt.Sprintf("kafka: key %d registered twice", a.key))
	}
	if req := wire.NewRequest(a.key); req == nil || a.max > req.MaxVersion() {
		panic(fmt.Sprintf("kafka: key %d registered up to version %d, which the codec lacks", a.key, a.max))
	}
	s.apis[a.key] = &a
}

// registerAll is the list of everything that ApiVersions advertises.
func (s *Server) registerAll() {
	s.registerProduce()
	s.registerFetch()
	s.registerListOffsets()
	s.registerMetadata()
	s.registerApiVersions()
	s.registerCreateTopics()
	s.registerDeleteTopics()
	s.registerDeleteRecords()
	s.registerInitProducerID()
	s.registerOffsetForLeaderEpoch()
	s.registerDescribeACLs()
	s.registerCreateACLs()
	s.registerDeleteACLs()
	s.registerDescribeConfigs()
	s.registerAlterConfigs()
	s.registerDescribeLogDirs()
	s.registerCreatePartitions()
	s.registerIncrementalAlterConfigs()
	s.registerDescribeClientQuotas()
	s.registerAlterClientQuotas()
	s.registerSaslHandshake()
	s.registerSaslAuthenticate()
	s.registerElectLeaders()
	s.registerAlterPartitionReassignments()
	s.registerListPartitionReassignments()
	s.registerUnregisterBroker()
	s.registerUpdateFeatures()
	s.registerListConfigResources()
	s.registerDescribeTopicPartitions()
	s.registerDescribeUserScramCredentials()
	s.registerAlterUserScramCredentials()
	s.registerDescribeCluster()
	s.registerDescribeQuorum()
	s.registerWriteTxnMarkers()
	s.registerDescribeProducers()
	s.registerGroups()
	s.registerTransactions()
	s.registerMirrors()
}

// lookup is the entry that serves a key in a version, or nil.
func (s *Server) lookup(key, version int16) *api {
	if key < 0 || key > maxKey {
		return nil
	}
	a := s.apis[key]
	if a == nil || version < a.advertisedMin || version > a.max {
		return nil
	}
	return a
}

// dispatch handles the request in c.frame.
func (c *conn) dispatch() error {
	s := c.server
	if c.login.wantsRaw() {
		return c.stepRaw()
	}
	c.queued = 0
	r := request{ctx: c.ctx, conn: c, received: s.o.Clock.Now()}
	var body []byte
	var err error
	if r.header, body, err = wire.ParseRequestHeader(c.frame.buf); err != nil {
		return err
	}
	r.flexible = wire.IsFlexible(r.header.Key, r.header.Version)
	if v := c.login.admit(r.header.Key, r.received); v != serve {
		return c.decline(&r, v)
	}
	a := s.lookup(r.header.Key, r.header.Version)
	if a == nil {
		if r.header.Key == keyApiVersions {
			return c.refuseVersions(&r)
		}
		return fmt.Errorf("client %q asks for %s version %d, which is not served", r.clientID(), keyName(r.header.Key), r.header.Version)
	}
	if waits(a.key) {
		r.ctx = c.waitCtx
	}
	s.heard(c, a.key)
	if a.stream != nil {
		err = a.stream(&r, body)
	} else {
		err = c.handleDecoded(&r, a, body)
	}
	if err != nil {
		return fmt.Errorf("%s version %d from client %q: %w", keyName(a.key), r.header.Version, r.clientID(), err)
	}
	return c.login.failed
}

// decline does what login.admit decided about a request that is not served.
func (c *conn) decline(r *request, v verdict) error {
	if v == expired {
		c.server.metrics.sessionsOver.Inc()
		return errSessionOver
	}
	if v != hangUp {
		if err := c.answerIllegal(r); err != nil || v == illegal {
			return err
		}
	}
	return fmt.Errorf("client %q sends %s instead of a login", r.clientID(), keyName(r.header.Key))
}

// handleDecoded is the way of every key without a path of its own.
func (c *conn) handleDecoded(r *request, a *api, body []byte) error {
	// A handler may block, so what was answered before must be out.
	if err := c.flush(); err != nil {
		return err
	}
	if len(body) > heavyBody {
		c.takeTurn()
	} else {
		lookout() // its handler may still have much to do
	}
	defer c.leaveTurn()
	req := wire.NewRequest(a.key)
	req.SetVersion(r.header.Version)
	release, err := c.server.memory.acquireDecode(c.ctx, &r.header, body)
	if err != nil {
		return err
	}
	defer release()
	if err := req.ReadFrom(body); err != nil {
		return err
	}
	dropRepeats(req)
	if asksForAll(req) {
		c.takeTurn()
	}
	if !computes(a.key) {
		c.leaveTurn()
	}
	if waits(a.key) {
		release()
	}
	stop := func() {}
	if waits(a.key) {
		r.ctx, stop = c.untilGone(r.ctx)
	}
	resp, err := a.handle(r, req)
	stop()
	c.server.audit(r, resp)
	if err != nil || resp == nil {
		return err
	}
	release() // a peer that does not read its answer must not keep it
	if !exempt(a.key) {
		c.server.recordTime(r, 0)
	}
	c.mute(r, resp)
	err = c.answer(r, resp)
	c.server.metrics.observe(a.key, r.received)
	return err
}

// keyName is a key's name in logs and metrics.
func keyName(key int16) string {
	if key < 94 {
		return kmsg.NameForKey(key)
	}
	if req := wire.NewRequest(key); req != nil {
		return strings.TrimSuffix(reflect.TypeOf(req).Elem().Name(), "Request")
	}
	return fmt.Sprintf("key %d", key)
}
