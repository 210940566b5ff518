package kafka

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// Fetches of the cluster's own brokers, who replicate what this one leads. They
// need ClusterAction and nothing else.
//
// A session (KIP-227) belongs to its connection and has no place in the cache of
// consumers' sessions. It is told by its partitions when they have news: a request
// costs what it says and what is new, not what the session holds. What a request
// does not mention is asked for from where it was: the follower says that it
// still has everything below that.
//
// A partition of a request carries a private tagged field: where the part of the
// follower's log ends that is on its disk (int64). With durability=fsync it is what
// counts.
//
// A follower that wants to say more before its long poll is over sends the next
// request; the poll then ends at once, with what there is.

// TagDurable is the tagged field of a fetch request's partition.
const TagDurable = 10001

var replicaSent = obs.Counter("lockstep_replica_sent_bytes_total")

// heldPause is how long an answer waits for the replication throttle.
const heldPause = 100 * time.Millisecond

// minFollowerFetch is the first version that tells the broker epoch (KIP-903).
const minFollowerFetch = 15

// followerSession is what a follower's connection fetches.
type followerSession struct {
	server  *Server
	id      int32
	epoch   int32 // of the next request
	replica int32
	broker  int64 // epoch of its registration

	parts map[fetchKey]*followerPart
	queue *partition.FollowQueue
	ready []*partition.Follow
}

// followerPart is one partition of a session.
type followerPart struct {
	fetchPart
	durable   int64
	partition *partition.Partition // nil: not here
	err       error                // why it is not here
	follow    *partition.Follow    // nil: forgotten
	// result is the index of this partition in the answer under way, -1 if it has
	// none yet.
	result int
}

// fetchFollower answers a fetch of a broker that follows. release gives back what the
// request took to be decoded.
func (s *Server) fetchFollower(r *request, req *kmsg.FetchRequest, release func()) error {
	c := r.conn
	switch {
	case req.Version < minFollowerFetch:
		return c.refuseFetch(r, req, kerr.InvalidRequest)
	case !s.allowedCluster(r, authz.ClusterAction):
		s.audit(r, nil)
		return c.refuseFetch(r, req, kerr.ClusterAuthorizationFailed)
	}
	f, code := c.followerSession(req)
	if code != nil {
		return c.refuseFetch(r, req, code)
	}
	if f != c.follower {
		defer f.close()
	}
	if code := f.update(req); code != nil {
		return c.refuseFetch(r, req, code)
	}
	s.audit(r, nil)
	// Nothing is kept while it waits that others wait for: where there is one turn, the long
	// poll of one follower held up the news of all others, up to its end.
	release()
	c.leaveTurn()
	a := followerAnswer{f: f, budget: min(int(req.MaxBytes), s.o.FetchMaxBytes)}
	defer a.release()
	a.readUntilEnough(r, int(req.MinBytes), time.Duration(req.MaxWaitMillis)*time.Millisecond)
	replicaSent.Add(a.bytes)
	if err := c.sendFetch(r, &fetchScope{id: f.id}, a.changed()); err != nil {
		return err
	}
	a.again()
	s.metrics.observe(keyFetch, r.received)
	return nil
}

// followerSession finds or begins the session that a request is in. One that is
// not the connection's lasts for this request.
func (c *conn) followerSession(req *kmsg.FetchRequest) (*followerSession, *kerr.Error) {
	replica, broker := req.ReplicaState.ID, req.ReplicaState.Epoch
	switch f := c.follower; {
	case req.SessionEpoch == sessionFinal:
		c.endFollower()
		return newFollowerSession(c.server, 0, replica, broker), nil
	case req.SessionEpoch == sessionInitial:
		c.endFollower()
		c.follower = newFollowerSession(c.server, rand.Int32N(1<<31-1)+1, replica, broker)
		c.follows.Store(true)
		return c.follower, nil
	case f == nil || f.id != req.SessionID || f.replica != replica:
		return nil, kerr.FetchSessionIDNotFound
	case f.epoch != req.SessionEpoch:
		return nil, kerr.InvalidFetchSessionEpoch
	default:
		f.broker = broker
		return f, nil
	}
}

func newFollowerSession(s *Server, id, replica int32, broker int64) *followerSession {
	return &followerSession{server: s, id: id, replica: replica, broker: broker, parts: map[fetchKey]*followerPart{}, queue: partition.NewFollowQueue()}
}

// endFollower ends the connection's session.
func (c *conn) endFollower() {
	if c.follower != nil {
		c.follower.close()
		c.follower = nil
		c.follows.Store(false)
	}
}

func (f *followerSession) close() {
	for _, part := range f.parts {
		part.forget()
	}
}

// forget ends the news of a partition.
func (part *followerPart) forget() {
	if part.partition != nil {
		part.partition.Unfollow(part.follow)
	}
	part.follow = nil
}

// update takes over what a request says. Everything that it mentions is read.
func (f *followerSession) update(req *kmsg.FetchRequest) *kerr.Error {
	if f.epoch++; f.epoch < 0 {
		f.epoch = 1 // 0 and -1 have a meaning of their own
	}
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, index := range t.Partitions {
			key := keyOf(req.Version, t.Topic, t.TopicID, index)
			if part := f.parts[key]; part != nil {
				part.forget()
				delete(f.parts, key)
			}
		}
	}
	img := f.server.o.Controller.Image()
	eachPart(req, func(key fetchKey, from *kmsg.FetchRequestTopicPartition) {
		part := f.parts[key]
		if part == nil {
			part = &followerPart{fetchPart: fetchPart{fetchKey: key}, result: -1}
			part.follow = f.queue.NewFollow(part)
			f.parts[key] = part
		}
		part.set(from)
		part.durable = durableTag(&from.UnknownTags)
		topic := img.TopicByID(key.id)
		at := f.server.o.Partitions.ByID(key.id, key.index)
		if part.partition != at {
			if part.partition != nil {
				part.partition.Unfollow(part.follow)
			}
			if part.partition = at; at != nil {
				at.Follow(part.follow)
			}
		}
		part.err = nil
		if at == nil {
			part.err = missing(topic, key.index, true)
		}
		f.queue.Add(part.follow)
	})
	if len(f.parts) > f.server.o.FetchSessionPartitions {
		return kerr.InvalidRequest
	}
	return nil
}

func durableTag(tags *kmsg.Tags) int64 {
	end := int64(-1)
	if tags.Len() > 0 {
		tags.Each(func(tag uint32, b []byte) {
			if tag == TagDurable && len(b) == 8 {
				end = int64(binary.BigEndian.Uint64(b))
			}
		})
	}
	return end
}

// followerAnswer is what one request brings.
type followerAnswer struct {
	f       *followerSession
	budget  int
	bytes   int
	urgent  bool // an error or a diverging epoch: answer at once
	results []fetchResult
	parts   []*followerPart // of results
	skipped []*partition.Follow
	held    []*partition.Follow // the replication throttle has no room for them
}

func (a *followerAnswer) readUntilEnough(r *request, minBytes int, wait time.Duration) {
	a.read()
	s := a.f.server
	wait = min(wait, s.o.IdleTimeout)
	if len(a.held) > 0 {
		wait = min(wait, heldPause) // they are looked at with the next request
	}
	if a.enough(minBytes) || wait <= 0 || s.closing.Load() {
		return
	}
	ctx, stop := r.conn.untilMore(r.ctx)
	defer stop()
	timer := s.o.Clock.NewTimer(wait)
	defer timer.Stop()
	for !a.enough(minBytes) {
		select {
		case <-a.f.queue.C:
			a.read()
		case <-timer.C():
			a.read()
			return
		case <-ctx.Done():
			return
		}
	}
}

func (a *followerAnswer) enough(minBytes int) bool {
	return a.urgent || a.bytes >= max(minBytes, 0) && (a.bytes > 0 || minBytes <= 0) || len(a.skipped) > 0
}

// read reads the partitions that have news.
func (a *followerAnswer) read() {
	f := a.f
	f.ready = f.queue.Take(f.ready[:0])
	for _, ready := range f.ready {
		part := ready.Owner.(*followerPart)
		switch {
		case part.follow != ready: // forgotten meanwhile
		case a.bytes >= a.budget && a.bytes > 0:
			a.skipped = append(a.skipped, ready)
		default:
			a.readPart(part)
		}
	}
	clear(f.ready)
}

func (a *followerAnswer) readPart(part *followerPart) {
	if part.result < 0 {
		part.result = len(a.results)
		a.results = append(a.results, fetchResult{part: &part.fetchPart})
		a.parts = append(a.parts, part)
	}
	r := &a.results[part.result]
	a.bytes -= r.read.View.Len()
	r.read.View.Release()
	r.read, r.err = partition.ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1, LeaderID: -1, LeaderEpoch: -1}, part.err
	if part.partition != nil {
		r.read, r.err = part.partition.ReadReplica(partition.ReadRequest{
			Offset:             part.offset,
			MaxBytes:           max(0, min(int(part.maxBytes), a.budget-a.bytes)),
			AtLeastOne:         a.bytes == 0,
			CurrentLeaderEpoch: part.currentEpoch,
			LastFetchedEpoch:   part.lastEpoch,
		}, partition.Replica{ID: a.f.replica, BrokerEpoch: a.f.broker, Durable: part.durable, LogStart: part.followerFrom})
	}
	if r.read.HeldBack {
		a.held = append(a.held, part.follow)
	}
	a.bytes += r.read.View.Len()
	a.urgent = a.urgent || r.err != nil || r.read.Diverging != nil ||
		// Somebody waits for the follower to delete what was deleted here.
		part.told && r.read.LogStart > part.logStart ||
		// Consumers read from the follower as far as it has been told (KIP-392).
		a.f.server.o.RackAware && part.told && r.read.HighWatermark > part.highWatermark
}

// changed are the results that the follower has to hear of.
func (a *followerAnswer) changed() []fetchResult {
	kept := make([]fetchResult, 0, len(a.results))
	for i := range a.results {
		if a.results[i].changed() {
			kept = append(kept, a.results[i])
		}
	}
	return kept
}

// again queues what is to be read with the next request whatever that says:
// first the partitions that the answer had no room for, then those that brought
// something, which the follower may have dropped.
func (a *followerAnswer) again() {
	for _, f := range slices.Concat(a.skipped, a.held) {
		a.f.queue.Add(f)
	}
	for i, part := range a.parts {
		if r := &a.results[i]; part.follow != nil && (r.err != nil || r.read.Diverging != nil || r.read.View.Len() > 0) {
			a.f.queue.Add(part.follow)
		}
	}
}

func (a *followerAnswer) release() {
	for i := range a.results {
		a.results[i].read.View.Release()
		a.results[i].read.View = emptyView
		a.parts[i].result = -1
	}
}
