package quota

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ErrExceeded is a mutation of metadata that a quota does not allow now.
var ErrExceeded = errors.New("the controller_mutation_rate quota is used up")

// Options of a Limiter. Names in parentheses are Kafka's.
type Options struct {
	Clock clock.Clock
	// Samples and SampleLength are what rates are measured over
	// (quota.window.num, quota.window.size.seconds). Defaults 11 and 1 s.
	Samples      int
	SampleLength time.Duration
	// MaxEntities is how many users, clients and addresses are told apart; what
	// comes beyond shares one window. Default 20 000, some 300 bytes each.
	MaxEntities int
}

// EnsureDefaults fills what is zero.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Samples <= 0 {
		o.Samples = 11
	}
	o.Samples = min(o.Samples, maxSamples)
	if o.SampleLength < time.Millisecond {
		o.SampleLength = time.Second
	}
	if o.MaxEntities <= 0 {
		o.MaxEntities = 20_000
	}
}

// Limiter measures what clients use. Without quotas it costs one load per call.
type Limiter struct {
	o     Options
	shape shape
	rules atomic.Pointer[rules] // nil: no quotas

	// mu guards the entities; nothing is done under it but arithmetic.
	mu struct {
		sync.Mutex
		entities map[entityKey]*entity
		swept    int64 // when idle ones were last looked for
	}
}

type entityKey struct {
	kind Kind
	who  metadata.QuotaEntity
}

// entity is what one user, client or address has used of one kind.
type entity struct {
	window window
	bucket bucket // of mutations only
}

// NewLimiter makes a limiter without quotas.
func NewLimiter(o Options) *Limiter {
	o.EnsureDefaults()
	l := &Limiter{o: o, shape: shape{o.Samples, o.SampleLength.Milliseconds()}}
	l.mu.entities = make(map[entityKey]*entity)
	return l
}

// Follow takes over the quotas of an image. What was measured stays.
func (l *Limiter) Follow(img *metadata.Image) {
	if img.NumQuotas() == 0 {
		l.rules.Store(nil)
		l.mu.Lock()
		clear(l.mu.entities)
		l.mu.Unlock()
		return
	}
	l.rules.Store(newRules(img.Quotas()))
}

// Limits tells whether anybody has a quota of the kind.
func (l *Limiter) Limits(k Kind) bool {
	r := l.rules.Load()
	return r != nil && r.any[k]
}

// find is a client's quota of a kind, and by which key its use is counted; false: it has none.
func (l *Limiter) find(k Kind, user, client string) (limit float64, key entityKey, ok bool) {
	r := l.rules.Load()
	if r == nil || !r.any[k] {
		return 0, entityKey{}, false
	}
	limit, who, ok := r.find(k, user, client)
	return limit, entityKey{k, who}, ok
}

// Record notes what a client used and tells how long it has to wait. What is not
// sent after all is taken back with a negative n.
func (l *Limiter) Record(k Kind, user, client string, n float64) time.Duration {
	limit, key, ok := l.find(k, user, client)
	if !ok {
		return 0
	}
	now := l.o.Clock.Now().UnixMilli()
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.entityLocked(key, now).window
	w.record(l.shape, now, n)
	return w.over(l.shape, now, limit)
}

// Answer notes what an answer uses if it is within the quota. Otherwise nothing is
// noted, the answer must not be sent, and the client is told when one as large is.
func (l *Limiter) Answer(k Kind, user, client string, n float64) time.Duration {
	limit, key, ok := l.find(k, user, client)
	if !ok {
		return 0
	}
	now := l.o.Clock.Now().UnixMilli()
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.entityLocked(key, now).window
	w.advance(l.shape, now)
	wait := w.fits(l.shape, now, n, limit)
	if wait == 0 {
		w.record(l.shape, now, n)
	}
	return wait
}

// MaxAnswer is the most that one answer may use, so that it fits into a window at
// all; otherwise it would be thrown away again and again.
func (l *Limiter) MaxAnswer(k Kind, user, client string, otherwise int) int {
	limit, _, ok := l.find(k, user, client)
	if !ok {
		return otherwise
	}
	most := limit * float64(int64(l.shape.samples-1)*l.shape.length) / 1000
	return int(min(float64(otherwise), max(most, 1)))
}

// Mutate notes n topics or partitions to be created or deleted and tells how long
// the client has to wait. Strictly, a client whose quota is used up already is
// refused with ErrExceeded, and nothing is noted.
func (l *Limiter) Mutate(user, client string, n float64, strict bool) (time.Duration, error) {
	limit, key, ok := l.find(Mutation, user, client)
	if !ok {
		return 0, nil
	}
	now := l.o.Clock.Now().UnixMilli()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.entityLocked(key, now).bucket
	b.refill(now, limit)
	if wait := b.over(l.shape, limit); strict && wait > 0 {
		return wait, fmt.Errorf("%w: try again in %d ms", ErrExceeded, wait.Milliseconds())
	}
	b.used += n
	return b.over(l.shape, limit), nil
}

// Connect notes a connection and tells how long it has to wait. One that has to
// does not count: it is not admitted.
func (l *Limiter) Connect(ip string) time.Duration {
	r := l.rules.Load()
	if r == nil || !r.any[Connections] {
		return 0
	}
	limit, who, ok := r.findIP(ip)
	if !ok {
		return 0
	}
	now := l.o.Clock.Now().UnixMilli()
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.entityLocked(entityKey{Connections, who}, now).window
	w.record(l.shape, now, 1)
	wait := w.over(l.shape, now, limit)
	if wait > 0 {
		w.record(l.shape, now, -1)
	}
	return wait
}

// entityLocked finds an entity or makes it.
func (l *Limiter) entityLocked(key entityKey, now int64) *entity {
	if e := l.mu.entities[key]; e != nil {
		return e
	}
	if now-l.mu.swept >= l.shape.whole().Milliseconds() || len(l.mu.entities) >= l.o.MaxEntities && now-l.mu.swept >= l.shape.length {
		l.sweepLocked(now)
	}
	if len(l.mu.entities) >= l.o.MaxEntities {
		// Only its own kind is shared: clients that make up names must not stop
		// everybody's fetches with what they produce.
		key.who = metadata.QuotaEntity{}
		if e := l.mu.entities[key]; e != nil {
			return e
		}
	}
	// The names may lie in a request's buffer.
	for _, n := range []*metadata.QuotaName{&key.who.User, &key.who.ClientID, &key.who.IP} {
		n.Name = strings.Clone(n.Name)
	}
	e := &entity{bucket: bucket{last: now}}
	e.window.advance(l.shape, now)
	l.mu.entities[key] = e
	return e
}

// sweepLocked forgets entities without a memory.
func (l *Limiter) sweepLocked(now int64) {
	l.mu.swept = now
	for key, e := range l.mu.entities {
		if key.kind != Mutation && e.window.idle(l.shape, now) ||
			key.kind == Mutation && now-e.bucket.last >= 2*l.shape.whole().Milliseconds() {
			delete(l.mu.entities, key)
		}
	}
}

// Entities is how many are told apart, for the gauge.
func (l *Limiter) Entities() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.entities)
}
