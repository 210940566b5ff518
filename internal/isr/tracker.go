// Package isr knows who is in sync, and therefore where the high watermark
// stands. It is a pure function of what the replicas reported: no clock, disk
// or network; the partition that owns a Tracker calls it under its own lock and
// brings the time along.
package isr

import (
	"math"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// Settings are what the metadata and the topic's configuration say.
type Settings struct {
	Replicas []int32 // assigned, joining and leaving ones included
	ISR      []int32
	// MinISR is min.insync.replicas. More than there are replicas counts as all of
	// them.
	MinISR int
	// Durable: the high watermark counts what replicas have on disk, not what they
	// have in memory (durability=fsync).
	Durable bool
}

// Fetch is what one fetch of a follower says about it: it has everything below
// End, and on its disk everything below Durable (-1: not told).
type Fetch struct {
	Replica     int32
	BrokerEpoch int64 // -1: not told
	End         int64
	Durable     int64
	Start       int64 // of its log, -1: not told
}

// Tracker is the leader's view of its replicas in one leadership.
//
// Invariants: the high watermark never falls, except by Lower and Restart (a
// truncation), and when it moves it does not pass what any counting member has.
// The members of the ISR count, and those of a proposed one as well: until the
// controller has answered, either may be what the next leader is chosen from
// (KIP-497).
type Tracker struct {
	self          int32
	s             Settings
	members       []member
	proposed      []int32 // nil: nothing is in flight
	highWatermark int64
	epochStart    int64
}

// member is one replica.
type member struct {
	id          int32
	inISR       bool
	counts      bool  // in the ISR or in the proposed one
	end         int64 // -1: unknown
	durable     int64
	start       int64 // of its log, -1: unknown
	brokerEpoch int64
	// caughtUp is when the replica last had everything that the leader had at that
	// moment. goal is the leader's end at goalAt: the replica that reaches it has
	// been caught up then.
	caughtUp     time.Time
	goal         int64 // -1: none
	goalAt       time.Time
	lastFetch    time.Time
	fetchedSince bool
	silent       bool // since Distrust
}

// New begins a leadership: the leader's log ends at end, and highWatermark is
// what it knew as a follower. The other members' ends are unknown until they
// fetch, and it stands still until each of them has.
func New(self int32, s Settings, highWatermark, end int64, now time.Time) *Tracker {
	t := &Tracker{self: self, highWatermark: highWatermark, epochStart: end}
	t.configure(s, now)
	return t
}

// Configure takes over what the metadata say, and tells whether the high
// watermark moved. A proposal stays until Settle.
func (t *Tracker) Configure(s Settings, now time.Time) (moved bool) {
	t.configure(s, now)
	return t.advance()
}

func (t *Tracker) configure(s Settings, now time.Time) {
	s.Replicas, s.ISR = slices.Clone(s.Replicas), slices.Clone(s.ISR)
	old := t.members
	t.s, t.members = s, make([]member, 0, len(s.Replicas))
	for _, id := range s.Replicas {
		t.keep(old, id, now)
	}
	for _, id := range s.ISR {
		if t.find(id) == nil { // not a replica: the metadata say so for no moment, and it counts all the same
			t.keep(old, id, now)
		}
	}
	t.count()
}

func (t *Tracker) keep(old []member, id int32, now time.Time) {
	for i := range old {
		if old[i].id == id {
			t.members = append(t.members, old[i])
			return
		}
	}
	// A new leader gives everybody the whole time to show up.
	t.members = append(t.members, member{id: id, end: -1, durable: -1, start: -1, brokerEpoch: -1, goal: -1, caughtUp: now})
}

func (t *Tracker) count() {
	for i := range t.members {
		m := &t.members[i]
		m.inISR = slices.Contains(t.s.ISR, m.id)
		m.counts = m.inISR || slices.Contains(t.proposed, m.id) && !invariants.Planted("hwIgnoresPendingISR")
	}
}

func (t *Tracker) find(id int32) *member {
	for i := range t.members {
		if t.members[i].id == id {
			return &t.members[i]
		}
	}
	return nil
}

// has is how far a member is by the measure that counts.
func (t *Tracker) has(m *member) int64 {
	if t.s.Durable {
		return min(m.end, m.durable)
	}
	return m.end
}

// HighWatermark is the exclusive end of what every counting member has.
func (t *Tracker) HighWatermark() int64 { return t.highWatermark }

// Confirmed says that the ISR has everything that was in the leader's log when
// its leadership began. Before that it does not know what was committed.
func (t *Tracker) Confirmed() bool { return t.highWatermark >= t.epochStart }

// Heard says that every member that counts has fetched in this leadership: what it has
// the leader has too, and none has more.
func (t *Tracker) Heard() bool {
	return !slices.ContainsFunc(t.members, func(m member) bool { return m.counts && m.id != t.self && m.end < 0 })
}

// ISR is the membership that the controller knows. The caller must not change
// the slice.
func (t *Tracker) ISR() []int32 { return t.s.ISR }

// Replicas is how many replicas there are.
func (t *Tracker) Replicas() int { return len(t.s.Replicas) }

// LowestStart is where the log begins of that follower that counts for the high
// watermark and has deleted the least, -1 while one of them has not told;
// math.MaxInt64 without followers. A member that told it once keeps it.
func (t *Tracker) LowestStart() int64 {
	low := int64(math.MaxInt64)
	for i := range t.members {
		if m := &t.members[i]; m.counts && m.id != t.self {
			low = min(low, m.start)
		}
	}
	return low
}

// IsReplica says whether the partition has a replica on that broker.
func (t *Tracker) IsReplica(id int32) bool { return slices.Contains(t.s.Replicas, id) }

// BelowMinISR says that the ISR is smaller than it has to be for anything to be
// committed (KIP-966: who leaves a small ISR keeps everything committed).
func (t *Tracker) BelowMinISR() bool { return len(t.s.ISR) < min(t.s.MinISR, len(t.s.Replicas)) }

// Local records how far the leader's own log is, and tells whether the high
// watermark moved.
func (t *Tracker) Local(end, durable int64) (moved bool) {
	if m := t.find(t.self); m != nil {
		m.end, m.durable = end, durable
	}
	return t.advance()
}

// Fetched records a follower's fetch, and tells whether the high watermark
// moved. One of a broker that has no replica changes nothing.
func (t *Tracker) Fetched(f Fetch, now time.Time) (moved bool) {
	m := t.find(f.Replica)
	if m == nil || f.Replica == t.self {
		return false
	}
	m.end, m.durable, m.brokerEpoch = f.End, f.Durable, f.BrokerEpoch
	m.start = max(m.start, f.Start)
	m.lastFetch, m.fetchedSince, m.silent = now, true, false
	t.caughtUp(m, now)
	return t.advance()
}

// caughtUp keeps the time at which a follower was last caught up. One that lags
// behind by a constant time reaches its goal again and again.
func (t *Tracker) caughtUp(m *member, now time.Time) {
	leader := t.leaderEnd()
	has := t.has(m)
	switch {
	case has >= leader:
		m.caughtUp, m.goal = now, -1
	case m.goal < 0:
		m.goal, m.goalAt = leader, now
	case has >= m.goal:
		m.caughtUp, m.goal, m.goalAt = m.goalAt, leader, now
	}
}

func (t *Tracker) leaderEnd() int64 {
	if m := t.find(t.self); m != nil {
		return t.has(m)
	}
	return -1
}

// Shrink proposes the ISR without those that were not caught up within lag; nil
// when all of them were, or when a proposal is in flight. It is to be asked at
// least twice per lag, since it also notes who is caught up and silent because
// there is nothing to fetch.
func (t *Tracker) Shrink(now time.Time, lag time.Duration) []int32 {
	leader := t.leaderEnd()
	var left []int32
	for i := range t.members {
		m := &t.members[i]
		if m.id == t.self || !m.inISR {
			continue
		}
		if m.end >= 0 && t.has(m) >= leader && !m.silent {
			m.caughtUp, m.goal = now, -1
			continue
		}
		if now.Sub(m.caughtUp) > lag {
			left = append(left, m.id)
		}
	}
	if len(left) == 0 || t.proposed != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.s.ISR), func(id int32) bool { return slices.Contains(left, id) })
}

// Expand proposes the ISR with those that are caught up to the high watermark
// and to the start of this leadership, and may join; nil when there are none, or
// when a proposal is in flight.
func (t *Tracker) Expand(may func(id int32, brokerEpoch int64) bool) []int32 {
	if t.proposed != nil {
		return nil
	}
	var isr []int32
	for i := range t.members {
		m := &t.members[i]
		if m.inISR || m.id == t.self || !m.fetchedSince || !t.IsReplica(m.id) {
			continue
		}
		if has := t.has(m); has < t.highWatermark && !invariants.Planted("isrJoinBeforeHW") || has < t.epochStart && !invariants.Planted("isrJoinBeforeEpochStart") || !may(m.id, m.brokerEpoch) {
			continue
		}
		if isr == nil {
			isr = slices.Clone(t.s.ISR)
		}
		isr = append(isr, m.id)
	}
	return isr
}

// MayExpand says without looking at brokers whether Expand is worth asking.
func (t *Tracker) MayExpand() bool { return t.proposed == nil && len(t.s.ISR) < len(t.s.Replicas) }

// Propose notes that the controller is being asked for this ISR.
func (t *Tracker) Propose(isr []int32) {
	t.proposed = slices.Clone(isr)
	t.count()
}

// Proposed is the ISR that is being asked for, nil if there is none.
func (t *Tracker) Proposed() []int32 { return t.proposed }

// Forget has every replica outside of the ISR prove anew what it has. One that was
// removed deletes its log, and it may be a replica again in the next image that this
// leader sees; the removal has raised the leader epoch, which fetches name.
func (t *Tracker) Forget() {
	for i := range t.members {
		if m := &t.members[i]; !m.inISR && m.id != t.self {
			m.end, m.durable, m.brokerEpoch, m.goal, m.fetchedSince = -1, -1, -1, -1, false
		}
	}
}

// Distrust says that somebody waits for a fetch of every member, because what they
// had proves nothing any more: the gate of a mirror, whose leader has cut its log. One
// that stays silent is not in sync, though there be nothing that it lacks.
func (t *Tracker) Distrust() {
	for i := range t.members {
		t.members[i].silent = t.members[i].id != t.self
	}
}

// Settle ends a proposal: the controller has refused it for good, or the
// metadata show what became of it.
func (t *Tracker) Settle() (moved bool) {
	if t.proposed == nil {
		return false
	}
	t.proposed = nil
	t.count()
	return t.advance()
}

// BrokerEpoch is that of a member's last fetch, -1 if it is not known.
func (t *Tracker) BrokerEpoch(id int32) int64 {
	if m := t.find(id); m != nil {
		return m.brokerEpoch
	}
	return -1
}

// State is one replica as the leader sees it.
type State struct {
	ID           int32
	InSync       bool
	End, Durable int64 // -1: unknown
	Start        int64 // of its log, -1: unknown
	LastFetch    time.Time
	CaughtUp     time.Time
}

// States lists the replicas, the leader among them.
func (t *Tracker) States() []State {
	out := make([]State, 0, len(t.members))
	for _, m := range t.members {
		out = append(out, State{ID: m.id, InSync: m.inISR, End: m.end, Durable: m.durable, Start: m.start, LastFetch: m.lastFetch, CaughtUp: m.caughtUp})
	}
	return out
}

// Lower follows a truncation of the leader's log to end.
func (t *Tracker) Lower(end int64) {
	t.highWatermark, t.epochStart = min(t.highWatermark, end), min(t.epochStart, end)
	for i := range t.members {
		m := &t.members[i]
		m.end, m.durable, m.goal = min(m.end, end), min(m.durable, end), -1
	}
}

// Restart follows a log that was emptied and begins anew at start, which may
// lie above everything it held (W40).
func (t *Tracker) Restart(start int64) {
	t.highWatermark, t.epochStart = start, start
	for i := range t.members {
		m := &t.members[i]
		m.end, m.durable, m.goal = -1, -1, -1
	}
}

// advance moves the high watermark up to what every counting member has.
func (t *Tracker) advance() (moved bool) {
	low := int64(-1)
	for i := range t.members {
		m := &t.members[i]
		if !m.counts {
			continue
		}
		has := t.has(m)
		if has < 0 {
			return false
		}
		if low < 0 || has < low || invariants.Planted("hwOfSlowestIgnored") {
			low = has
		}
	}
	if low <= t.highWatermark || t.BelowMinISR() {
		return false
	}
	t.highWatermark = low
	return true
}
