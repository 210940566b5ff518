package mirror

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// Contact says what is known of a partition's source at this moment. It keeps apart
// what a lag of zero alone does not: nothing is missing, nothing was written, and
// nobody has answered.
type Contact string

const (
	// ContactUnknown: the source has not answered since this broker leads the
	// partition, or the leader does not answer us.
	ContactUnknown Contact = "unknown"
	// ContactStale: it answered before, but not of late, or is not asked now. The lag is that of then, and
	// the true one is at least as much.
	ContactStale Contact = "stale"
	// ContactBehind: it answers, and has records that are not here.
	ContactBehind Contact = "behind"
	// ContactCurrent: it answers, everything it has is here, and records come.
	ContactCurrent Contact = "current"
	// ContactIdle: it answers, everything it has is here, and nothing new has come
	// for a while.
	ContactIdle Contact = "idle"
)

const (
	// stalePatience is how long an answer of the source may be awaited beyond
	// three times what a fetch waits for data: a slow answer is not an outage.
	stalePatience = 5 * time.Second
	// idleAfter is how long nothing has to come for a source to be called idle.
	idleAfter = 10 * time.Second
)

// sighting is what is known of a partition and its source, with the time.
type sighting struct {
	now      time.Time
	fetching bool      // MIRRORING, with a fetcher that hears the source: otherwise nobody is asked
	known    bool      // the source has answered; else only end counts
	seen     int64     // its high watermark then
	end      int64     // our log end now
	heard    time.Time // when it last answered
	caughtUp time.Time // when everything it had was here; zero: never
	moved    time.Time // when either side's end last changed
	newest   time.Time // greatest timestamp of a record here; zero: none
	rate     float64   // records a second that the source took before it last answered, -1 unknown
	patience time.Duration
}

// judge gives the contact, and a bound of the age of the oldest record that is not
// here: a failover now loses nothing that is older. -1 is unknown.
//
// Two bounds hold, and the smaller one counts. The missing records were written
// after the moment at which everything was here; that needs no clock but ours. And
// they are newer than the newest one here; that trusts the producers' timestamps,
// but is known before a mirror has caught up for the first time, and shrinks while
// it does. One from the future bounds nothing.
func (s sighting) judge() (c Contact, lag time.Duration) {
	switch fresh := s.fetching && s.now.Sub(s.heard) <= s.patience; {
	case !s.known:
		return ContactUnknown, -1
	case fresh && s.end >= s.seen && s.now.Sub(s.moved) >= idleAfter:
		return ContactIdle, 0
	case fresh && s.end >= s.seen:
		return ContactCurrent, 0
	case fresh:
		c = ContactBehind
	default:
		c = ContactStale
	}
	lag = -1
	if !s.caughtUp.IsZero() {
		lag = max(0, s.now.Sub(s.caughtUp))
	}
	if age := s.now.Sub(s.newest); !s.newest.IsZero() && age >= 0 && (lag < 0 || age < lag) {
		lag = age
		if c == ContactStale {
			// What was written since it last answered is not here either, and may be as
			// old as that answer, however new the newest record is.
			lag = max(age, s.now.Sub(s.heard))
		}
	}
	return c, lag
}

// lagView is the last known position of the source, kept when the fetcher goes.
type lagView struct {
	mu struct {
		sync.Mutex
		pos   pipeline.Position
		valid bool
		// caughtUp is when our log end last reached the source's high watermark,
		// moved when either of them last changed.
		caughtUp, moved time.Time
		// marks are ends of the source at two earlier times, the older one first, from
		// which its rate is reckoned.
		marks [2]mark
	}
}

// mark is the source's high watermark at some time.
type mark struct {
	end int64
	at  time.Time
}

const (
	// rateWindow is between two marks: a rate is that of one to two of them.
	rateWindow = 5 * time.Second
	// rateLeast is the shortest time that says something of a rate.
	rateLeast = time.Second
)

// note takes an answer of the source for its rate.
func (v *lagView) noteLocked(now mark) {
	if v.mu.marks[1].at.IsZero() || now.end < v.mu.marks[1].end { // it begins, or the source lost records
		v.mu.marks = [2]mark{{}, now}
		return
	}
	if now.at.Sub(v.mu.marks[1].at) >= rateWindow {
		v.mu.marks = [2]mark{v.mu.marks[1], now}
	}
}

// rateLocked is how many records a second the source took before it last answered: the
// larger of its rates since the two marks, because it tells what may be lost. -1 is unknown.
func (v *lagView) rateLocked() float64 {
	rate := -1.0
	for _, m := range v.mu.marks {
		if d := v.mu.pos.FetchedAt.Sub(m.at); !m.at.IsZero() && d >= rateLeast {
			rate = max(rate, float64(max(0, v.mu.pos.SourceHighWatermark-m.end))/d.Seconds())
		}
	}
	return rate
}

func (r *replica) remember(pos pipeline.Position) {
	v := &r.seen
	v.mu.Lock()
	defer v.mu.Unlock()
	if pos.SourceHighWatermark < 0 {
		return
	}
	if was := v.mu.pos; !v.mu.valid || was.End != pos.End || was.SourceHighWatermark != pos.SourceHighWatermark {
		v.mu.moved = pos.FetchedAt
	}
	v.mu.pos, v.mu.valid = pos, true
	v.noteLocked(mark{pos.SourceHighWatermark, pos.FetchedAt})
	if pos.End >= pos.SourceHighWatermark {
		v.mu.caughtUp = pos.FetchedAt
	}
}

func (r *replica) lastSeen() (pos pipeline.Position, caughtUp time.Time, ok bool) {
	v := &r.seen
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.pos, v.mu.caughtUp, v.mu.valid
}

// forgetSource is for a partition that begins, perhaps with another source.
func (v *lagView) forgetSource() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.pos, v.mu.valid, v.mu.caughtUp, v.mu.moved = pipeline.Position{}, false, time.Time{}, time.Time{}
	v.mu.marks = [2]mark{}
}

// sighting is what this broker knows, as the leader of the partition, of its source.
func (r *replica) sighting(source *peer) sighting {
	s := sighting{now: r.m.o.Clock.Now(), patience: stalePatience + 3*source.fetchWait(), end: -1, rate: -1}
	if t := r.m.o.Controller.Image().TopicByID(r.id.topic); t.Partition(r.id.index) != nil {
		s.fetching = t.MirrorState(t.Partition(r.id.index)) == metadata.StateMirroring && r.hears()
	}
	v := &r.seen
	v.mu.Lock()
	s.known, s.seen = v.mu.valid, v.mu.pos.SourceHighWatermark
	s.heard, s.caughtUp, s.moved, s.rate = v.mu.pos.FetchedAt, v.mu.caughtUp, v.mu.moved, v.rateLocked()
	v.mu.Unlock()
	p := r.m.o.Partitions.ByID(r.id.topic, r.id.index)
	if p == nil || p.Log() == nil || !p.HistoryKnown() {
		return s
	}
	s.end, _ = p.LogEnd()
	if s.known && (s.end < s.seen || !s.fetching || s.now.Sub(s.heard) > s.patience) {
		if _, at, _, ok := p.Log().MaxTimestamp(); ok && at > 0 {
			s.newest = time.UnixMilli(at)
		}
	}
	return s
}

// progress is the sighting as other brokers and clients are told it.
func (r *replica) progress(source *peer) *wire.MirrorProgress {
	s := r.sighting(source)
	c, lag := s.judge()
	out := &wire.MirrorProgress{Contact: string(c), SourceSeen: -1, LogEnd: s.end, HeardMillis: -1, LagMillis: -1, MilliRate: -1}
	if s.known && s.rate >= 0 {
		out.MilliRate = int64(math.Ceil(1000 * s.rate))
	}
	if s.known {
		out.SourceSeen, out.HeardMillis = s.seen, max(0, s.now.Sub(s.heard).Milliseconds())
	}
	if lag >= 0 {
		out.LagMillis = lag.Milliseconds()
	}
	if p := r.m.o.Partitions.ByID(r.id.topic, r.id.index); s.end >= 0 && p != nil {
		out.OpenTransactions = int32(len(p.Log().OpenTxns()))
	}
	return out
}

// fetchWait is how long the source may hold an answer back while it has nothing.
func (p *peer) fetchWait() time.Duration {
	n, err := strconv.Atoi(p.config("fetch.wait.max.ms"))
	if err != nil || n < 0 {
		n = 1000
	}
	return time.Duration(n) * time.Millisecond
}
