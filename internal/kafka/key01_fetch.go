package kafka

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/quota"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Fetch (v4-v17)
//
// Behavior:
//   - Serves consumers (and mirrors of other clusters, which fetch like
//     consumers) below the high watermark, with read_committed below the last
//     stable offset together with the aborted transactions.
//   - Serves the brokers of the cluster up to the log's end, see followerfetch.go.
//   - Serves a replica id of -2, Kafka's for debugging, like a consumer, but up to the
//     log's end and with ClusterAction instead of Read, unlike Kafka: a broker that
//     repairs its replica fetches the damaged range so, and does not say by it how far
//     it is.
//   - Sends consumers that say their rack to a replica there, and serves consumers as
//     a follower, see replicaselector.go (KIP-392).
//   - Waits until min_bytes are there, at most max_wait_ms. Any error or
//     diverging epoch ends the wait.
//   - The first batch of an answer is sent whole even where it exceeds every
//     limit, so that a consumer never starves (KIP-74).
//   - Sessions as in fetchsession.go.
//   - Each topic needs Read, asked at every request, also within a session.
//   - The body is written by hand: its header bytes are built in memory and the
//     records go from file to socket (sendrecords.go).
//
// Version notes:
//   - v5: log_start_offset
//   - v7: sessions (KIP-227)
//   - v9: current leader epoch, fencing (KIP-320)
//   - v11: rack and preferred_read_replica (KIP-392)
//   - v12: flexible; last fetched epoch, diverging epoch and current leader
//   - v13: topics by id (KIP-516)
//   - v15: replica id moves to a tagged field
//   - v16: node endpoints (KIP-951)
//   - v17: replica directory id, ignored
func (s *Server) registerFetch() {
	s.add(api{key: keyFetch, min: 4, max: 17, advertisedMin: 4, stream: s.fetch})
}

// repairReplica is the replica id of a broker that repairs what it has.
const repairReplica = -2

// fetchResult is the answer for one part.
type fetchResult struct {
	part      *fetchPart
	topic     *metadata.Topic      // nil: unknown
	denied    bool                 // the client may not read it
	partition *partition.Partition // nil: not here
	read      partition.ReadResult
	err       error
	preferred int32 // whom to ask instead (KIP-392), 0 for nobody, else its id + 1
}

// wideResults are the results of fetches of many partitions, zeroed: a few MiB each,
// which would be garbage with every request. Those of small fetches are left to the
// collector, and so are those that nobody but an attacker would need.
var wideResults sync.Pool // of *[]fetchResult

// mostResults is how many partitions pooled results are for: some 5 MiB of them.
const mostResults = 32 << 10

func takeResults(n int) []fetchResult {
	if n <= heavyParts || n > mostResults {
		return make([]fetchResult, n)
	}
	if p, ok := wideResults.Get().(*[]fetchResult); ok && cap(*p) >= n {
		return (*p)[:n]
	}
	return make([]fetchResult, n, roundUp(n))
}

// giveResults ends the use of results; nothing of them may be kept.
func giveResults(results []fetchResult) {
	if n := cap(results); n > heavyParts && n <= mostResults {
		clear(results)
		wideResults.Put(&results)
	}
}

func (s *Server) fetch(r *request, body []byte) error {
	c := r.conn
	if err := c.flush(); err != nil { // the long poll must not hold answers back
		return err
	}
	if len(body) > heavyBody && c.follower == nil { // replication waits for no client
		c.takeTurn()
	}
	defer c.leaveTurn()
	release, err := s.memory.acquireDecode(r.ctx, &r.header, body)
	if err != nil {
		return err
	}
	defer release()
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(r.header.Version)
	if err := req.ReadFrom(body); err != nil {
		return err
	}
	if req.ReplicaID >= 0 || req.ReplicaState.ID >= 0 {
		return s.fetchFollower(r, req, release)
	}
	toEnd := req.ReplicaID == repairReplica || req.ReplicaState.ID == repairReplica
	if toEnd && !s.allowedCluster(r, authz.ClusterAction) {
		s.audit(r, nil)
		return c.refuseFetch(r, req, kerr.ClusterAuthorizationFailed)
	}
	scope, code := s.sessions.begin(req, c.ip)
	if code != nil {
		return c.refuseFetch(r, req, code)
	}
	defer scope.end()
	if scope.session != nil && !scope.incremental {
		c.ownSession(scope.id)
	}
	release() // nothing of the request is needed beyond its few numbers

	f := fetcher{server: s, conn: c, req: req, toEnd: toEnd, results: takeResults(len(scope.parts)), budget: min(int(req.MaxBytes), s.o.FetchMaxBytes)}
	if s.quotas.Limits(quota.Fetch) {
		user, client := r.who()
		f.budget = s.quotas.MaxAnswer(quota.Fetch, user, client, f.budget)
	}
	defer func() {
		f.releaseViews()
		giveResults(f.results)
	}()
	f.takeTurn(r)
	f.resolve(r, scope.parts)
	s.audit(r, nil)
	f.readUntilEnough(r)
	results := f.results
	if s.throttleFetch(r, f.bytes, f.waited); r.wait > 0 {
		results = nil
		c.mute(r, nil)
	}
	if err := c.sendFetch(r, &scope, results); err != nil {
		return err
	}
	s.metrics.observe(keyFetch, r.received)
	return nil
}

// throttleFetch counts an answer against its client's quotas. One that is held back
// does not count.
func (s *Server) throttleFetch(r *request, bytes int, waited time.Duration) {
	s.recordTime(r, waited)
	if !s.quotas.Limits(quota.Fetch) {
		return
	}
	user, client := r.who()
	wait := s.quotas.Answer(quota.Fetch, user, client, float64(bytes))
	if wait == 0 && r.wait > 0 { // for its time
		s.record(r, quota.Fetch, -float64(bytes))
	}
	r.throttle(wait)
}

// ownSession remembers a session to drop with the connection.
func (c *conn) ownSession(id int32) {
	// Of a connection that opens one session after the other only the last
	// few can be alive: its own requests removed the others.
	const remembered = 16
	if len(c.sessions) >= remembered {
		c.server.sessions.remove(c.sessions[0])
		c.sessions = append(c.sessions[:0], c.sessions[1:]...)
	}
	c.sessions = append(c.sessions, id)
}

// fetcher reads the parts of one request, again and again until there is
// enough.
type fetcher struct {
	server  *Server
	conn    *conn
	req     *kmsg.FetchRequest
	toEnd   bool // repairReplica asks
	results []fetchResult
	bytes   int
	budget  int // the most that the answer may have
	waited  time.Duration
	urgent  bool // an error or a diverging epoch: answer at once
}

func (f *fetcher) resolve(req *request, parts []*fetchPart) {
	img := f.server.o.Controller.Image()
	for i, part := range parts {
		r := &f.results[i]
		r.part = part
		if i > 0 && parts[i-1].topic == part.topic && parts[i-1].id == part.id {
			r.topic, r.denied = f.results[i-1].topic, f.results[i-1].denied
		} else if f.req.Version >= 13 {
			r.topic = img.TopicByID(part.id)
			r.denied = r.topic != nil && !f.toEnd && !f.server.allowedTopic(req, authz.Read, r.topic.Name)
		} else {
			r.topic = img.Topic(part.topic)
			r.denied = !f.toEnd && !f.server.allowedTopic(req, authz.Read, part.topic)
		}
		if r.topic != nil && !r.denied {
			r.partition = f.server.o.Partitions.ByID(r.topic.ID, part.index)
		}
	}
}

// readUntilEnough reads, and waits for more while there is too little.
func (f *fetcher) readUntilEnough(r *request) {
	f.readAll()
	wait := min(time.Duration(f.req.MaxWaitMillis)*time.Millisecond, f.server.o.IdleTimeout)
	if f.enough() || wait <= 0 || r.conn.server.closing.Load() {
		return
	}
	defer f.takeTurn(r) // for the answer
	ctx, stop := r.conn.untilGone(r.ctx)
	defer stop()
	timer := f.server.o.Clock.NewTimer(wait)
	defer timer.Stop()
	begun, queued := f.server.o.Clock.Now(), r.conn.queued
	defer func() { f.waited = f.server.o.Clock.Now().Sub(begun) - (r.conn.queued - queued) }()
	w := partition.NewWaiter()
	for i := range f.results {
		f.results[i].partition.AddWaiter(w)
	}
	defer func() {
		for i := range f.results {
			f.results[i].partition.RemoveWaiter(w)
		}
	}()
	for {
		// Read after adding, or an append in between would go unseen.
		f.takeTurn(r)
		f.readAll()
		if f.enough() {
			return
		}
		r.conn.leaveTurn()
		select {
		case <-w.C:
		case <-timer.C():
			f.takeTurn(r)
			f.readAll()
			return
		case <-ctx.Done():
			return
		}
	}
}

// takeTurn is for what is done to every partition of the request.
func (f *fetcher) takeTurn(r *request) {
	if len(f.results) > heavyParts {
		r.conn.takeTurn()
	}
}

// enough tells whether to answer now. A fetch of nothing waits its time out,
// or a client without partitions would spin.
func (f *fetcher) enough() bool {
	return f.urgent || f.bytes >= int(max(f.req.MinBytes, 0)) && (f.bytes > 0 || f.req.MinBytes <= 0)
}

func (f *fetcher) readAll() {
	f.releaseViews()
	f.bytes, f.urgent = 0, false
	for i := range f.results {
		r := &f.results[i]
		r.read, r.err = partition.ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1, LeaderID: -1, LeaderEpoch: -1}, nil
		if r.denied {
			r.err, f.urgent = errTopicDenied, true
			continue
		}
		if r.partition == nil {
			r.err = missing(r.topic, r.part.index, f.req.Version >= 13)
			if at := r.topic.Partition(r.part.index); at != nil {
				r.read.LeaderID, r.read.LeaderEpoch = at.Leader, at.LeaderEpoch
			}
			f.urgent = true
			continue
		}
		room := max(0, min(int(r.part.maxBytes), f.budget-f.bytes))
		r.preferred = f.prefer(r)
		if r.preferred > 0 {
			room = 0 // the client gets its records there
		}
		r.read, r.err = r.partition.Read(partition.ReadRequest{
			Offset:             r.part.offset,
			MaxBytes:           room,
			AtLeastOne:         f.bytes == 0 && r.preferred == 0,
			AnyReplica:         f.req.Version >= minAnyReplicaFetch && !f.toEnd,
			ToEnd:              f.toEnd,
			Isolation:          f.req.IsolationLevel,
			CurrentLeaderEpoch: r.part.currentEpoch,
			LastFetchedEpoch:   r.part.lastEpoch,
		})
		if r.err != nil || r.read.Diverging != nil {
			r.preferred = 0
		}
		f.bytes += r.read.View.Len()
		f.urgent = f.urgent || r.err != nil || r.read.Diverging != nil || r.preferred > 0
	}
}

// prefer answers the id + 1 of a replica that is nearer to the client, 0 if none is.
func (f *fetcher) prefer(r *fetchResult) int32 {
	if !f.server.o.RackAware || f.req.Rack == "" || f.req.Version < minAnyReplicaFetch {
		return 0
	}
	return f.server.preferredReplica(f.conn, f.server.o.Controller.Image(), r.partition, f.req.Rack, r.part.offset) + 1
}

func (f *fetcher) releaseViews() {
	for i := range f.results {
		f.results[i].read.View.Release()
		f.results[i].read.View = emptyView
	}
}

// refuseFetch answers with an error for the whole request.
func (c *conn) refuseFetch(r *request, req *kmsg.FetchRequest, code *kerr.Error) error {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	resp.ErrorCode = code.Code
	if r.header.Version < 7 {
		// There is no place for it before v7, so it goes to every partition.
		for i := range req.Topics {
			t := kmsg.NewFetchResponseTopic()
			t.Topic = req.Topics[i].Topic
			for j := range req.Topics[i].Partitions {
				p := kmsg.NewFetchResponseTopicPartition()
				p.Partition = req.Topics[i].Partitions[j].Partition
				p.ErrorCode, p.HighWatermark, p.LastStableOffset, p.LogStartOffset = code.Code, -1, -1, -1
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
	}
	return c.answer(r, resp)
}

// changed tells whether a session's client has to hear of a result.
func (r *fetchResult) changed() bool {
	p := r.part
	return r.err != nil || r.preferred > 0 || r.read.View.Len() > 0 || r.read.Diverging != nil || !p.told ||
		p.highWatermark != r.read.HighWatermark || p.lastStable != r.read.LastStable || p.logStart != r.read.LogStart
}

// tell notes in a session what the client is told.
func (r *fetchResult) tell() {
	p := r.part
	p.told = r.err == nil
	p.highWatermark, p.lastStable, p.logStart = r.read.HighWatermark, r.read.LastStable, r.read.LogStart
}

// sendFetch builds the header bytes around the records and sends both.
func (c *conn) sendFetch(r *request, scope *fetchScope, results []fetchResult) error {
	if scope.incremental {
		kept := results[:0:0]
		for i := range results {
			if results[i].changed() {
				kept = append(kept, results[i])
			}
		}
		scope.advance(results)
		results = kept
	}
	w := fetchWriter{bodyWriter: bodyWriter{flexible: r.flexible}, version: r.header.Version}
	head := c.out[:0]
	if n := headSize(results); n > cap(head) {
		head = c.server.memory.get(roundUp(n))
	}
	w.b = append(head, 0, 0, 0, 0)
	w.b = wire.AppendResponseHeader(w.b, r.header.CorrelationID, keyFetch, r.flexible)
	w.int32(millis(r.wait))
	if w.version >= 7 {
		w.int16(0)
		w.int32(scope.id)
	}
	leaders := w.topics(results)
	if w.version >= 16 && len(leaders) > 0 {
		w.endpointsTag(c.server.nodes(c, leaders))
	} else {
		w.tags()
	}
	size := len(w.b) - 4
	for i := range w.cuts {
		size += w.cuts[i].view.Len()
	}
	binary.BigEndian.PutUint32(w.b, uint32(size))
	if cap(w.b) <= freeFrame {
		c.out = w.b[:0]
	} else {
		defer c.server.memory.put(w.b) // it has left by then, or the connection ends
	}
	for i := range results {
		results[i].tell()
	}
	c.server.metrics.fetched.Add(size)
	c.leaveTurn()
	return c.sendRecords(w.b, w.cuts)
}

// headSize is about how many bytes an answer has around its records: more than
// enough where nothing was aborted and no leader is named. Growing by doubling, a
// head of thousands of partitions is copied many times, and all of it is garbage.
func headSize(results []fetchResult) int {
	const frame, perTopic, perPart = 64, 24, 52
	n := frame + perPart*len(results)
	for i := range results {
		if i == 0 || results[i-1].part.topic != results[i].part.topic || results[i-1].part.id != results[i].part.id {
			n += perTopic + len(results[i].part.topic)
		}
	}
	return n
}

// advance gives the first part that went without data the next turn, when
// another one had some.
func (f *fetchScope) advance(results []fetchResult) {
	last := -1
	for i := range results {
		if results[i].read.View.Len() > 0 {
			last = i
		}
	}
	if last >= 0 && len(f.session.parts) > 0 {
		f.session.first = (f.session.first + last + 1) % len(f.session.parts)
	}
}

// fetchWriter writes a fetch answer's header bytes and notes where the records
// go between them.
type fetchWriter struct {
	bodyWriter
	version int16
	cuts    []cut
}

// topics writes the results grouped by runs of one topic, and returns the
// leaders that were named as such.
func (w *fetchWriter) topics(results []fetchResult) (leaders []int32) {
	same := func(a, b *fetchPart) bool { return a.topic == b.topic && a.id == b.id }
	runs := 0
	for i := range results {
		if i == 0 || !same(results[i-1].part, results[i].part) {
			runs++
		}
	}
	w.arrayLen(runs)
	for i := 0; i < len(results); {
		end := i + 1
		for end < len(results) && same(results[i].part, results[end].part) {
			end++
		}
		if w.version >= 13 {
			w.b = kbin.AppendUuid(w.b, results[i].part.id)
		} else {
			w.string(results[i].part.topic)
		}
		w.arrayLen(end - i)
		for ; i < end; i++ {
			if leader := w.part(&results[i]); leader >= 0 {
				leaders = append(leaders, leader)
			}
		}
		w.tags()
	}
	return leaders
}

// part writes one partition; the records' place is noted in cuts.
func (w *fetchWriter) part(r *fetchResult) (leader int32) {
	code, _ := errorCode(r.err)
	w.int32(r.part.index)
	w.int16(code)
	w.int64(r.read.HighWatermark)
	w.int64(r.read.LastStable)
	if w.version >= 5 {
		w.int64(r.read.LogStart)
	}
	w.aborted(r)
	if w.version >= 11 {
		w.int32(r.preferred - 1)
	}
	w.bytesLen(r.read.View.Len())
	if r.read.View.Len() > 0 {
		w.cuts = append(w.cuts, cut{at: len(w.b), view: &r.read.View})
	}
	return w.partTags(r)
}

// aborted writes the aborted transactions: null where the client did not ask.
func (w *fetchWriter) aborted(r *fetchResult) {
	if r.read.Aborted == nil {
		w.nullArray()
		return
	}
	w.arrayLen(len(r.read.Aborted))
	for _, a := range r.read.Aborted {
		w.int64(a.ProducerID)
		w.int64(a.FirstOffset)
		w.tags()
	}
}

// partTags writes the diverging epoch (tag 0) and, when the client should look
// elsewhere, the current leader (tag 1).
func (w *fetchWriter) partTags(r *fetchResult) (leader int32) {
	if w.version < 12 {
		return -1
	}
	moved := errors.Is(r.err, partition.ErrNotLeader) || errors.Is(r.err, partition.ErrFencedEpoch)
	n := uint32(0)
	if r.read.Diverging != nil {
		n++
	}
	if moved {
		n++
	}
	w.b = kbin.AppendUvarint(w.b, n)
	if d := r.read.Diverging; d != nil {
		w.tag(0, func(b []byte) []byte { return append(kbin.AppendInt64(kbin.AppendInt32(b, d.Epoch), d.End), 0) })
	}
	if !moved {
		return -1
	}
	w.leader(1, r.read.LeaderID, r.read.LeaderEpoch)
	return r.read.LeaderID
}
