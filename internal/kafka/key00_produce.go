package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/quota"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Produce (v3-v13)
//
// Behavior:
//   - One record batch of format 2 per partition; it is verified and appended
//     before the next request of the connection is read, so the order of a
//     connection's batches is the order in the log.
//   - acks=0 has no answer, an error closes the connection. acks=1 answers after
//     the append, acks=-1 when the high watermark has passed the batch. Requests
//     that wait for that do not keep the next one from being appended.
//   - Errors are per partition; partitions of one request do not know each other.
//     Each topic needs Write.
//   - A mirrored topic that is not stopped answers 134 READ_ONLY_TOPIC (spec
//     L18, 10.5). Clients that do not know the code take it as an unknown, final
//     error.
//   - Idempotent batches (KIP-98) are answered again with their first offset
//     when they come twice.
//   - Transactional batches need the right to write with their transactional id,
//     of which a request has one, and one producer. The first of a transaction in
//     a partition waits for the coordinator (produce_txn.go).
//
// Version notes:
//   - v0-v2: advertised and answered with UNSUPPORTED_VERSION, as Apache Kafka 4
//     advertises them (KIP-896): librdkafka before 2.9 switches compression off
//     for a broker that does not list v0.
//   - v4: KafkaStorageException is a code of its own
//   - v5: log_start_offset
//   - v8: record_errors, error_message (KIP-467)
//   - v9: flexible (KIP-482)
//   - v10: current leader and node endpoints on NOT_LEADER_OR_FOLLOWER (KIP-951)
//   - v11: TRANSACTION_ABORTABLE for a partition that is not in the transaction;
//     INVALID_TXN_STATE before (KIP-890)
//   - v12: adds the partition to the transaction (KIP-890, transaction version 2)
//   - v13: topics by id (KIP-516)
//
// Not done: record_errors (a batch is
// refused as a whole), throttle time.
func (s *Server) registerProduce() {
	s.add(api{key: keyProduce, min: 3, max: 13, advertisedMin: 0, stream: s.produce})
}

// internalClient is the client id that may write to the topics of our
// coordinators: what Apache Kafka's tools call themselves when they mean it.
const internalClient = "__admin_client"

// producePart is one partition of a produce request and its answer. Names alias
// the request's frame until name is set.
type producePart struct {
	topic     string // of our metadata, or a copy of the client's
	topicID   metadata.TopicID
	index     int32
	newTopic  bool // first part of its topic in the request
	records   []byte
	partition *partition.Partition

	transactional bool                    // as far as verify has looked
	verification  *partition.Verification // between verify and the append

	code   int16
	result partition.ProduceResult
	err    error
}

// produceCall is one produce request until its answer has left.
type produceCall struct {
	conn     *conn
	version  int16
	corr     int32
	acks     int16
	timeout  time.Duration // for acks of other replicas
	received time.Time
	parts    []producePart
	throttle int32 // milliseconds
	checkTxn bool  // transactional batches must be of a transaction that is under way

	// open counts the partitions that have not answered, and one for the
	// handler itself until it has put the call into the outbox. Whoever takes
	// it to zero finishes the call. parts[i] is written by i's done only, and
	// read after zero.
	open   atomic.Int32
	ticket uint64
	boxed  bool
}

var produceCalls = sync.Pool{New: func() any { return new(produceCall) }}

func (s *Server) produce(r *request, body []byte) error {
	if len(body) > freeFrame {
		lookout()
	}
	p := produceCalls.Get().(*produceCall)
	p.conn, p.version, p.corr, p.received = r.conn, r.header.Version, r.header.CorrelationID, r.received
	p.boxed, p.checkTxn = false, true
	txnID, err := p.parse(body)
	if err != nil {
		p.recycle()
		return err
	}
	p.resolve(s, r)
	refused := p.verify(s, r, txnID)
	s.audit(r, nil)
	p.append(s, refused)
	p.endVerifications()
	s.throttleProduce(r, len(body))
	p.throttle = millis(r.wait)
	r.conn.mute(r, nil)
	return p.hand()
}

// throttleProduce counts a produce request against its client's quotas.
func (s *Server) throttleProduce(r *request, size int) {
	r.throttle(s.record(r, quota.Produce, float64(size)))
	s.recordTime(r, 0)
}

// parse reads the request without the message codec: it is the hottest one,
// may be 100 MiB long, and its records must stay where they are.
func (p *produceCall) parse(body []byte) (txnID *string, err error) {
	r := bodyReader{kbin.Reader{Src: body}, p.version >= 9}
	if p.version >= 3 {
		txnID = r.unsafeNullableString()
	}
	p.acks = r.Int16()
	p.timeout = time.Duration(max(r.Int32(), 1)) * time.Millisecond
	for range r.arrayLen(1 + 4) {
		part := producePart{newTopic: true}
		if p.version >= 13 {
			part.topicID = r.Uuid()
		} else {
			part.topic = r.unsafeString()
		}
		n := r.arrayLen(4 + 1)
		for range n {
			part.index = r.Int32()
			part.records = r.nullableBytes()
			r.tags()
			p.parts = append(p.parts, part)
			part.newTopic = false
		}
		r.tags()
	}
	r.tags()
	return txnID, r.Complete()
}

// resolve finds the partitions and gives the parts names that outlive the
// frame.
func (p *produceCall) resolve(s *Server, r *request) {
	img := s.o.Controller.Image()
	var topic *metadata.Topic
	var denied bool
	for i := range p.parts {
		part := &p.parts[i]
		if part.newTopic {
			if p.version >= 13 {
				topic = img.TopicByID(part.topicID)
			} else {
				topic = img.Topic(part.topic)
			}
			// An id that nobody has needs no right: ids cannot be guessed.
			denied = (topic != nil || p.version < 13) && !s.allowedTopic(r, authz.Write, topicName(topic, part.topic))
		}
		if topic != nil {
			part.topic, part.topicID = topic.Name, topic.ID
			part.partition = s.o.Partitions.ByID(topic.ID, part.index)
		} else if part.newTopic {
			part.topic = string(append([]byte(nil), part.topic...))
		} else {
			part.topic = p.parts[i-1].topic
		}
		if topic != nil && topic.Internal && r.clientID() != internalClient {
			part.err = errInternalTopic
		} else if part.partition == nil {
			part.err = missing(topic, part.index, p.version >= 13)
		}
		if denied {
			part.partition, part.err = nil, errTopicDenied
		}
	}
}

// topicName is the name of a topic that may not exist, as the client gave it.
func topicName(t *metadata.Topic, given string) string {
	if t != nil {
		return t.Name
	}
	return given
}

// missing says why a partition is not here.
func missing(t *metadata.Topic, index int32, byID bool) error {
	switch {
	case t == nil && byID:
		return errUnknownTopicID
	case t.Partition(index) == nil:
		return errUnknownPartition
	}
	return partition.ErrNotLeader
}

// append hands every partition its batch; refused is what is wrong with the
// request.
func (p *produceCall) append(s *Server, refused error) {
	p.open.Store(1)
	for i := range p.parts {
		part := &p.parts[i]
		switch {
		case refused == errTxnDenied: // whatever else is wrong, as in Kafka
			part.err = refused
		case part.err != nil:
		case p.version < 3:
			part.err = kerr.UnsupportedVersion
		case p.acks < -1 || p.acks > 1:
			part.err = kerr.InvalidRequiredAcks
		case refused != nil:
			part.err = refused
		}
		if part.err != nil {
			part.result = partition.ProduceResult{BaseOffset: -1, LogAppendTime: -1, LogStart: -1}
			continue
		}
		s.metrics.produced.Add(len(part.records))
		p.open.Add(1)
		part.partition.Produce(part.records, partition.ProduceOptions{Acks: p.acks, Timeout: p.timeout, Verify: p.checkTxn, Verification: part.verification}, func(res partition.ProduceResult, err error) {
			part.result, part.err = res, err
			if p.open.Add(-1) == 0 {
				p.finish()
			}
		})
	}
}

// hand puts the call where its answer leaves in order: straight into the
// collected answers if it is complete and nothing is before it, otherwise into
// the outbox.
func (p *produceCall) hand() error {
	c := p.conn
	done := p.open.Load() == 1
	switch {
	case p.acks == 0:
		if p.open.Add(-1) == 0 {
			return p.endUnanswered()
		}
		return nil
	case done && c.box.empty():
		c.out = p.appendFrame(c.out)
		if len(c.out) > readBuffer {
			return c.flush()
		}
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	var ok bool
	if p.ticket, ok = c.box.push(p, c.write); !ok {
		return errConnClosing
	}
	p.boxed = true
	if p.open.Add(-1) == 0 {
		p.finish()
	}
	return nil
}

// finish runs once, on the goroutine of the last acknowledgement.
func (p *produceCall) finish() {
	if p.boxed {
		p.conn.box.complete(p.ticket)
		return
	}
	if p.endUnanswered() != nil {
		p.conn.abort() // acks=0, and the error came after the handler returned
	}
}

// endUnanswered ends an acks=0 call. Its only way to tell an error is to close
// the connection, as the client is to ask for metadata anew.
func (p *produceCall) endUnanswered() error {
	defer p.recycle()
	for i := range p.parts {
		if err := p.parts[i].err; err != nil {
			return fmt.Errorf("acks=0 on %s-%d: %w", p.parts[i].topic, p.parts[i].index, err)
		}
	}
	return nil
}

func (p *produceCall) recycle() {
	clear(p.parts)
	p.parts, p.conn = p.parts[:0], nil
	if cap(p.parts) <= 1024 {
		produceCalls.Put(p)
	}
}

// appendFrame encodes the answer, counts it and recycles the call.
func (p *produceCall) appendFrame(dst []byte) []byte {
	flexible := p.version >= 9
	start := len(dst)
	dst = wire.AppendResponseHeader(append(dst, 0, 0, 0, 0), p.corr, keyProduce, flexible)
	topics := 0
	for i := range p.parts {
		if p.parts[i].newTopic {
			topics++
		}
	}
	w := bodyWriter{dst, flexible}
	w.arrayLen(topics)
	var movedTo []int32
	for i := 0; i < len(p.parts); {
		end := i + 1
		for end < len(p.parts) && !p.parts[end].newTopic {
			end++
		}
		if p.version >= 13 {
			w.b = kbin.AppendUuid(w.b, p.parts[i].topicID)
		} else {
			w.string(p.parts[i].topic)
		}
		w.arrayLen(end - i)
		for ; i < end; i++ {
			if leader := p.appendPart(&w, &p.parts[i]); leader >= 0 {
				movedTo = append(movedTo, leader)
			}
		}
		w.tags()
	}
	if p.version >= 1 {
		w.int32(p.throttle)
	}
	p.appendEndpoints(&w, movedTo)
	binary.BigEndian.PutUint32(w.b[start:], uint32(len(w.b)-start-4))
	p.conn.server.metrics.observe(keyProduce, p.received)
	p.recycle()
	return w.b
}

// appendPart returns the leader to name in the endpoints, or -1.
func (p *produceCall) appendPart(w *bodyWriter, part *producePart) (movedTo int32) {
	code, message := errorCode(part.err)
	w.int32(part.index)
	w.int16(code)
	w.int64(part.result.BaseOffset)
	if p.version >= 2 {
		w.int64(part.result.LogAppendTime)
	}
	if p.version >= 5 {
		w.int64(part.result.LogStart)
	}
	if p.version >= 8 {
		w.arrayLen(0) // record errors
		w.nullableString(message)
	}
	movedTo = -1
	if p.version >= 10 && errors.Is(part.err, partition.ErrNotLeader) {
		if at := p.conn.server.o.Controller.Image().Partition(part.topicID, part.index); at != nil {
			w.leaderTag(0, at.Leader, at.LeaderEpoch)
			return at.Leader
		}
	}
	w.tags()
	return movedTo
}

// appendEndpoints is tag 0 of the answer: where the leaders named above listen.
func (p *produceCall) appendEndpoints(w *bodyWriter, brokers []int32) {
	if p.version >= 10 && len(brokers) > 0 {
		w.endpointsTag(p.conn.server.nodes(p.conn, brokers))
		return
	}
	w.tags()
}
