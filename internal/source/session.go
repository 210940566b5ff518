package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// kafkaTransport opens fetch sessions to the brokers of a source cluster.
type kafkaTransport struct{ c *Cluster }

func (t *kafkaTransport) Name() string { return "kafka" }

// Open connects to a broker. Its errors are *Error.
func (t *kafkaTransport) Open(ctx context.Context, broker sdk.BrokerAddr) (sdk.Session, error) {
	client, err := t.c.dial(ctx, broker.Addr())
	if err != nil {
		return nil, fail(broker.Addr(), "connect", err)
	}
	low, high, ok := client.Versions(keyFetch)
	if !ok || low > maxFetchVersion || high < minFetchVersion {
		client.Close()
		err := fmt.Errorf("Fetch versions %d to %d, we speak %d to %d: %w", low, high, minFetchVersion, maxFetchVersion, wire.ErrUnsupported)
		return nil, fail(broker.Addr(), "connect", err)
	}
	return newKafkaSession(client.Conn(), broker.Addr(), t.c.dialer.ClientID, low, high, t.c.config.RequestTimeout), nil
}

const (
	keyFetch        = 1
	minFetchVersion = 4 // record batches v2 (KIP-98)
	maxFetchVersion = 17

	// lastFetchByName is the last version that names topics; it serves
	// sources, and topics, without ids.
	lastFetchByName = 12
)

// kafkaSession is one connection that fetches as a plain consumer (replica id
// -1, read uncommitted), one request in flight.
type kafkaSession struct {
	conn      net.Conn
	addr      string
	clientID  string
	low, high int16 // Fetch versions of the peer, cut to ours
	timeout   time.Duration

	corr      int32
	session   incremental
	req       *kmsg.FetchRequest
	out       []byte
	parser    *fetchParser
	notBefore time.Time // throttled until then
	replica   *Replica  // nil: a plain consumer
	// silence is how long the peer may say nothing that it should say; 0: as long as the
	// answer may take.
	silence time.Duration
	// reading is the answer under way.
	reading struct {
		ctx context.Context
		end time.Time
	}

	// writing guards what goes out: requests, and interruptions between them.
	writing struct {
		sync.Mutex
		under  bool // a fetch is under way
		poked  bool // it is interrupted, or the next one
		nudged []byte
	}
	closed atomic.Bool
}

func newKafkaSession(conn net.Conn, addr, clientID string, low, high int16, timeout time.Duration) *kafkaSession {
	s := &kafkaSession{
		conn: conn, addr: addr, clientID: clientID, timeout: timeout,
		low: max(low, minFetchVersion), high: min(high, maxFetchVersion),
		req: kmsg.NewPtrFetchRequest(),
	}
	s.parser = newFetchParser(newStream((*answer)(s)))
	s.req.ReplicaID = -1
	s.req.IsolationLevel = 0 // read uncommitted (G5)
	return s
}

// Close ends the connection; a Fetch under way fails.
func (s *kafkaSession) Close() error {
	s.closed.Store(true)
	return s.conn.Close()
}

// Fetch implements sdk.Session.
func (s *kafkaSession) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	if err := s.waitThrottle(ctx); err != nil {
		return fail(s.addr, "fetch", err)
	}
	err := s.fetch(ctx, req, h)
	var refused *sdk.ResponseError
	if errors.As(err, &refused) {
		s.session.reset()
		if forgotten(refused.Code) {
			err = s.fetch(ctx, req, h)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.closed.Load():
		err = net.ErrClosed
	case errors.As(err, &refused):
		return err
	}
	return fail(s.addr, "fetch", err)
}

// forgotten tells the codes by which a source says that it does not know our
// session any more, which a full request mends.
func forgotten(code int16) bool {
	switch kerr.ErrorForCode(code) {
	case kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch, kerr.FetchSessionTopicIDError:
		return true
	}
	return false
}

// minRate is the slowest stream that is still taken for alive: a response may
// last the request timeout plus its size at this rate.
const minRate = 64 << 10 // bytes per second

const (
	minResponse = 4 + 4 // correlation id, throttle time

	// responseSlack is what a response may exceed its limit by: one batch that
	// is larger than the limit, and the partitions' headers.
	responseSlack = 160 << 20
)

func (s *kafkaSession) fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s.conn.SetDeadline(time.Now().Add(req.MaxWait + s.patience()))
	version, err := s.encode(req)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // AfterFunc may have run before the deadline was set
		return ctx.Err()
	}
	if err := s.write(); err != nil {
		return err
	}
	head, n, err := s.readHead(int64(req.MaxBytes) + responseSlack)
	if err != nil {
		return err
	}
	s.reading.ctx, s.reading.end = ctx, time.Now().Add(s.timeout+time.Duration(n/minRate)*time.Second)
	s.conn.SetReadDeadline(s.reading.end)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.parser.s.begin(n, head[:]...)
	err = s.parser.parse(version, s.corr, req.Partitions, h)
	if err == nil {
		s.session.answered(s.parser.sessionID)
	}
	if t := s.parser.throttleMillis; t > 0 {
		s.notBefore = time.Now().Add(min(time.Duration(t)*time.Millisecond, maxThrottle))
	}
	return err
}

// SetSilence bounds how long the peer may say nothing: from the end of a long poll to
// the first byte of its answer, and between two pieces of that. Not while a fetch is under
// way.
func (s *kafkaSession) SetSilence(limit time.Duration) { s.silence = limit }

// patience is how long the peer may say nothing.
func (s *kafkaSession) patience() time.Duration {
	if s.silence <= 0 {
		return s.timeout
	}
	return min(s.silence, s.timeout)
}

// answer reads what is left of the answer under way.
type answer kafkaSession

func (a *answer) Read(p []byte) (int, error) {
	s := (*kafkaSession)(a)
	if s.silence > 0 {
		limit := time.Now().Add(s.patience())
		if limit.After(s.reading.end) {
			limit = s.reading.end
		}
		s.conn.SetReadDeadline(limit)
		if err := s.reading.ctx.Err(); err != nil { // AfterFunc may have run before
			return 0, err
		}
	}
	return s.conn.Read(p)
}

func (s *kafkaSession) write() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.writing.under = true
	_, err := s.conn.Write(s.out)
	if err == nil && s.writing.poked { // between the last response and now
		_, err = s.conn.Write(s.writing.nudged)
	}
	return err
}

// readHead reads the size and the correlation id of the next response, which is
// limit bytes long at most. n counts what is behind the size. Answers to
// interruptions are passed over.
func (s *kafkaSession) readHead(limit int64) (corr [4]byte, n int, err error) {
	for {
		var head [8]byte
		if _, err := io.ReadFull(s.conn, head[:]); err != nil {
			return corr, 0, err
		}
		size := int32(binary.BigEndian.Uint32(head[:]))
		if size < minResponse || int64(size) > limit {
			return corr, 0, fmt.Errorf("source sends a response of %d bytes, at most %d were asked for", size, limit)
		}
		copy(corr[:], head[4:])
		if s.replica == nil || int32(binary.BigEndian.Uint32(corr[:])) != nudgeID {
			s.writing.Lock()
			s.writing.under, s.writing.poked = false, false
			s.writing.Unlock()
			return corr, int(size), nil
		}
		if _, err := io.CopyN(io.Discard, s.conn, int64(size)-4); err != nil {
			return corr, 0, err
		}
	}
}

// maxThrottle bounds what a source may ask for (W41).
const maxThrottle = time.Minute

func (s *kafkaSession) waitThrottle(ctx context.Context) error {
	if s.notBefore.IsZero() {
		return nil
	}
	timer := time.NewTimer(time.Until(s.notBefore))
	defer timer.Stop()
	s.notBefore = time.Time{}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// encode fills s.out. The kmsg structures are reused: in steady state a request
// allocates nothing.
func (s *kafkaSession) encode(req *sdk.FetchRequest) (version int16, err error) {
	version = s.high
	for i := range req.Partitions {
		if req.Partitions[i].TopicID == ([16]byte{}) {
			version = min(version, lastFetchByName)
			break
		}
	}
	if version < s.low {
		return 0, fmt.Errorf("a topic without id needs Fetch version %d, source serves %d and newer: %w", lastFetchByName, s.low, wire.ErrUnsupported)
	}
	r := s.req
	r.SetVersion(version)
	r.MaxWaitMillis = int32(req.MaxWait / time.Millisecond)
	r.MinBytes, r.MaxBytes = req.MinBytes, req.MaxBytes
	if s.replica != nil {
		r.ReplicaState.ID, r.ReplicaState.Epoch = s.replica.ID, s.replica.Epoch()
	}
	s.session.fill(r, req, version)
	s.corr++
	s.out = wire.AppendRequest(s.out[:0], s.corr, s.clientID, r)
	return version, nil
}

// addPartition appends to the last topic of r, or to a new one, with the
// memory of earlier requests.
func addPartition(r *kmsg.FetchRequest, p *sdk.FetchPartition) {
	last := len(r.Topics) - 1
	if last < 0 || r.Topics[last].Topic != p.Topic || r.Topics[last].TopicID != p.TopicID {
		last++
		if last < cap(r.Topics) {
			r.Topics = r.Topics[:last+1]
		} else {
			r.Topics = append(r.Topics, kmsg.NewFetchRequestTopic())
		}
		t := &r.Topics[last]
		t.Topic, t.TopicID = p.Topic, p.TopicID
		t.Partitions = t.Partitions[:0]
	}
	t := &r.Topics[last]
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.Partition = p.Partition
	fp.CurrentLeaderEpoch = p.CurrentLeaderEpoch
	fp.FetchOffset = p.Offset
	fp.LastFetchedEpoch = p.LastFetchedEpoch
	fp.LogStartOffset = p.LogStart
	fp.PartitionMaxBytes = p.MaxBytes
	t.Partitions = append(t.Partitions, fp)
}
