package kafka

import (
	"container/list"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Fetch sessions (KIP-227) let a client name its partitions once and then only
// what changed; the answers leave out what did not change either.

const (
	sessionFinal   = -1 // no session, or its end
	sessionInitial = 0  // begin one

	// sessionKeep is how long an unused session is safe from newcomers, as
	// Kafka's min.incremental.fetch.session.eviction.ms.
	sessionKeep = 2 * time.Minute
	// sessionShare is the part of the cache (one in) that one address may hold
	// before its own sessions make room for its new ones.
	sessionShare = 4
)

// fetchKey names a partition as the client did: by id from v13 on, by name
// before.
type fetchKey struct {
	topic string
	id    metadata.TopicID
	index int32
}

// fetchPart is what a client wants of one partition, and in a session what it
// was told last.
type fetchPart struct {
	fetchKey
	offset       int64
	maxBytes     int32
	currentEpoch int32
	lastEpoch    int32
	followerFrom int64 // a follower's log start

	// told says that the offsets below are what the client knows; an answer
	// with an error clears it, so that the recovery is told too.
	told                                bool
	highWatermark, lastStable, logStart int64
}

func (p *fetchPart) set(from *kmsg.FetchRequestTopicPartition) {
	p.offset, p.maxBytes = from.FetchOffset, from.PartitionMaxBytes
	p.currentEpoch, p.lastEpoch = from.CurrentLeaderEpoch, from.LastFetchedEpoch
	p.followerFrom = from.LogStartOffset
}

// session is one client's cached fetch.
type session struct {
	id    int32
	owner string // the client's address
	byID  bool   // opened with v13 or later

	// mu is held for the whole of a fetch, long poll included: a second fetch
	// on the same session is a confused client and is refused, not queued.
	mu    sync.Mutex
	epoch int32
	parts []*fetchPart
	index map[fetchKey]*fetchPart
	// first is where the next answer starts, so that partitions behind a busy
	// one get their turn when answers are full.
	first int

	// Guarded by the cache.
	element  *list.Element
	size     int
	lastUsed time.Time
}

// sessionCache bounds the sessions of a server in number and in partitions.
type sessionCache struct {
	slots, partitions int
	clock             clock.Clock

	mu       sync.Mutex // taken while a session's mu is held, never the reverse
	sessions map[int32]*session
	order    *list.List // least recently used first
	held     int        // partitions of all sessions
}

func newSessionCache(slots, partitions int, c clock.Clock) *sessionCache {
	return &sessionCache{slots: slots, partitions: partitions, clock: c, sessions: map[int32]*session{}, order: list.New()}
}

func (c *sessionCache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions)
}

// fetchScope is what one request reads: the parts in the order of the answer.
type fetchScope struct {
	session     *session // nil: none; its mu is held
	id          int32    // told to the client
	incremental bool     // leave out what did not change
	parts       []*fetchPart
}

// begin finds what a fetch request means. With an error code there is no
// scope; otherwise end must be called.
func (c *sessionCache) begin(req *kmsg.FetchRequest, owner string) (fetchScope, *kerr.Error) {
	if req.SessionEpoch == sessionFinal || req.SessionEpoch == sessionInitial {
		if req.SessionID != 0 {
			c.remove(req.SessionID)
		}
		scope := fetchScope{parts: partsOf(req)}
		if req.SessionEpoch == sessionInitial && len(scope.parts) > 0 {
			if s := c.create(req, owner, scope.parts); s != nil {
				scope.session, scope.id = s, s.id
			}
		}
		return scope, nil
	}

	c.mu.Lock()
	s := c.sessions[req.SessionID]
	c.mu.Unlock()
	switch {
	case s == nil || s.owner != owner:
		return fetchScope{}, kerr.FetchSessionIDNotFound
	case !s.mu.TryLock():
		return fetchScope{}, kerr.InvalidFetchSessionEpoch
	}
	if code := s.update(req); code != nil {
		s.mu.Unlock()
		return fetchScope{}, code
	}
	if !c.touch(s) {
		s.mu.Unlock()
		return fetchScope{}, kerr.FetchSessionIDNotFound
	}
	return fetchScope{session: s, id: s.id, incremental: true, parts: s.rotated()}, nil
}

// end releases the session of a scope.
func (f *fetchScope) end() {
	if f.session != nil {
		f.session.mu.Unlock()
	}
}

// update takes over what an incremental request changes.
func (s *session) update(req *kmsg.FetchRequest) *kerr.Error {
	if req.SessionEpoch != s.epoch {
		return kerr.InvalidFetchSessionEpoch
	}
	if (req.Version >= 13) != s.byID {
		return kerr.FetchSessionTopicIDError
	}
	if s.epoch++; s.epoch < 0 {
		s.epoch = 1 // 0 and -1 have a meaning of their own
	}
	eachPart(req, func(key fetchKey, from *kmsg.FetchRequestTopicPartition) {
		p := s.index[key]
		if p == nil {
			p = &fetchPart{fetchKey: key}
			s.index[key] = p
			s.parts = append(s.parts, p)
		}
		p.set(from)
	})
	s.forget(req)
	return nil
}

func (s *session) forget(req *kmsg.FetchRequest) {
	gone := false
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, index := range t.Partitions {
			key := keyOf(req.Version, t.Topic, t.TopicID, index)
			if _, ok := s.index[key]; ok {
				delete(s.index, key)
				gone = true
			}
		}
	}
	if !gone {
		return
	}
	kept := s.parts[:0]
	for _, p := range s.parts {
		if s.index[p.fetchKey] == p {
			kept = append(kept, p)
		}
	}
	clear(s.parts[len(kept):])
	s.parts = kept
}

// rotated is the parts beginning with the one whose turn it is.
func (s *session) rotated() []*fetchPart {
	if s.first >= len(s.parts) {
		s.first = 0
	}
	if s.first == 0 {
		return s.parts
	}
	out := make([]*fetchPart, 0, len(s.parts))
	return append(append(out, s.parts[s.first:]...), s.parts[:s.first]...)
}

// create makes a session with mu held, or nil when the cache has no room.
func (c *sessionCache) create(req *kmsg.FetchRequest, owner string, parts []*fetchPart) *session {
	s := &session{owner: owner, byID: req.Version >= 13, epoch: 1, parts: parts, size: len(parts)}
	s.index = make(map[fetchKey]*fetchPart, len(parts))
	for _, p := range parts {
		s.index[p.fetchKey] = p
	}
	if len(s.index) < len(parts) {
		return nil // a partition twice: answered, but not remembered
	}
	s.mu.Lock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.makeRoomLocked(owner, s.size) {
		s.mu.Unlock()
		return nil
	}
	for s.id == 0 || c.sessions[s.id] != nil {
		s.id = rand.Int32()
	}
	s.lastUsed = c.clock.Now()
	s.element = c.order.PushBack(s)
	c.sessions[s.id] = s
	c.held += s.size
	return s
}

// makeRoomLocked evicts until a session of size partitions fits: first the
// owner's own when it holds more than its share, then those nobody used for a
// while. Live sessions of others are never evicted: the newcomer goes without.
func (c *sessionCache) makeRoomLocked(owner string, size int) bool {
	for len(c.sessions) >= c.slots || c.held+size > c.partitions {
		victim := c.victimLocked(owner)
		if victim == nil {
			return false
		}
		c.removeLocked(victim)
	}
	return true
}

func (c *sessionCache) victimLocked(owner string) *session {
	var own *session
	owned := 0
	for e := c.order.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*session); s.owner == owner {
			if owned++; own == nil {
				own = s
			}
		}
	}
	if own != nil && owned > c.slots/sessionShare {
		return own
	}
	if front := c.order.Front(); front != nil {
		if s := front.Value.(*session); c.clock.Now().Sub(s.lastUsed) > sessionKeep {
			return s
		}
	}
	return nil
}

// touch counts a use, with the session's mu held; false when the session is
// gone, or has outgrown the cache and goes now.
func (c *sessionCache) touch(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.id] != s {
		return false
	}
	c.held += len(s.parts) - s.size
	s.size = len(s.parts)
	if c.held > c.partitions {
		c.removeLocked(s)
		return false
	}
	s.lastUsed = c.clock.Now()
	c.order.MoveToBack(s.element)
	return true
}

func (c *sessionCache) remove(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sessions[id]; s != nil {
		c.removeLocked(s)
	}
}

// drop removes the sessions of a closed connection: clients begin a new one
// after they reconnect.
func (c *sessionCache) drop(ids []int32) {
	for _, id := range ids {
		c.remove(id)
	}
}

func (c *sessionCache) removeLocked(s *session) {
	delete(c.sessions, s.id)
	c.order.Remove(s.element)
	c.held -= s.size
}

func keyOf(version int16, topic string, id [16]byte, index int32) fetchKey {
	if version >= 13 {
		return fetchKey{id: id, index: index}
	}
	return fetchKey{topic: topic, index: index}
}

func eachPart(req *kmsg.FetchRequest, fn func(key fetchKey, from *kmsg.FetchRequestTopicPartition)) {
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			fn(keyOf(req.Version, t.Topic, t.TopicID, t.Partitions[j].Partition), &t.Partitions[j])
		}
	}
}

// partsOf is the parts of a full request.
func partsOf(req *kmsg.FetchRequest) []*fetchPart {
	n := 0
	for i := range req.Topics {
		n += len(req.Topics[i].Partitions)
	}
	backing := make([]fetchPart, 0, n)
	out := make([]*fetchPart, 0, n)
	eachPart(req, func(key fetchKey, from *kmsg.FetchRequestTopicPartition) {
		backing = append(backing, fetchPart{fetchKey: key})
		p := &backing[len(backing)-1]
		p.set(from)
		out = append(out, p)
	})
	return out
}
