package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// CompactOptions bound one round of compaction.
type CompactOptions struct {
	// Memory is what a round may take in bytes: an eighth of it, at most 16 MiB, for
	// what it reads and writes, the rest for the offset map: 24 for a key, and a
	// tenth more. A log with more keys is compacted in several rounds, each of which
	// reads it from its start. Default 128 MiB (log.cleaner.dedupe.buffer.size): 4.4
	// million keys.
	Memory int64
	// MaxBatchBytes bounds what one batch may decompress to. One beyond it stays as
	// it is. Default 32 MiB.
	MaxBatchBytes int
	// Throttle is told of the bytes that were read or written, and waits for as long
	// as it likes. nil: as fast as it goes.
	Throttle func(ctx context.Context, n int) error
}

func (o CompactOptions) withDefaults() CompactOptions {
	if o.Memory <= 0 {
		o.Memory = 128 << 20
	}
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = maxInflated
	}
	return o
}

// roundBuffers bound what a round takes beside the offset map: the batch that
// is read, its records, the file that is written and its index entries.
const roundBuffers = 16 << 20

func (o CompactOptions) mapMemory() int64 { return o.Memory - min(o.Memory/8, roundBuffers) }

// CompactStats is what one round did.
type CompactStats struct {
	From, End int64 // offsets whose keys were gathered; End is the next round's From

	BytesRead, BytesWritten  int64
	SizeBefore, SizeAfter    int64 // of the segments that were looked at
	SegmentsBefore           int
	SegmentsAfter            int
	RecordsRead, RecordsKept int64
	Tombstones               int64 // removed, their delete horizon having passed
	Markers                  int64 // transaction markers and producer resets, likewise
	Aborted                  int64 // records of aborted transactions that went
	Keyless                  int64 // records without a key that went
	Unreadable               int64 // batches kept because their records cannot be read
	MapKeys                  int
	MapUtilisation           float64 // 1: the map was full, and there are rounds left
	RoundsLeft               int     // as far as can be told
	Overtaken                bool    // a truncation, retention or repair ended the round early
	Duration                 time.Duration
}

// Cleanable says what compaction would have to do.
type Cleanable struct {
	From, End              int64 // [From, End) was never compacted and may be
	DirtyBytes, CleanBytes int64 // of the segments that reach into it, and of those before
	Ratio                  float64
	Overdue                bool  // a record waits longer than max.compaction.lag.ms
	Due                    bool  // Overdue, or the ratio is above min.cleanable.dirty.ratio
	Damaged                error // a segment that cannot be read; never due until it is repaired
}

var (
	// ErrCompacting: another compaction of the log is under way.
	ErrCompacting = errors.New("segment: log is being compacted")
	// ErrNotCompacted: the topic's cleanup.policy has no "compact" in it.
	ErrNotCompacted = errors.New("segment: log is not a compacted one")
)

// part is a closed segment as it was when the round began.
type part struct {
	seg             *segment
	base, end, size int64
	times           times
}

// cleanable is what Cleanable and Compact both look at.
type cleanable struct {
	parts      []part // closed segments below the end, oldest first
	from       int64  // first dirty offset
	end        int64  // nothing at or above it may be cleaned; end of the last of parts
	generation int64
	config     Config
	active     part
}

// cleanableAt finds the segments that may be compacted: whole ones below the
// high watermark, the last stable offset and the durable end, up to the first
// dirty one that is too young (min.compaction.lag.ms). Never the active one.
func (l *Log) cleanableAt(now time.Time, highWatermark int64) cleanable {
	cleaned := l.cleanedUpTo()
	stable := l.LastStable(highWatermark)
	limit := min(stable, l.durable.Load())
	if invariants.Planted("compactAboveLSO") {
		limit = l.EndOffset()
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	c := cleanable{config: l.mu.config, generation: l.mu.generation}
	c.from = max(min(cleaned, l.mu.end), l.mu.start)
	if c.end = c.from; len(l.mu.segments) == 0 {
		return c // a damaged log of which only the marks are known
	}
	c.end = l.mu.segments[0].base
	closed := l.mu.segments[:len(l.mu.segments)-1]
	for _, s := range closed {
		young := c.config.MinCompactionLagMs > 0 && s.end > c.from && s.times.max > now.UnixMilli()-c.config.MinCompactionLagMs
		if s.end > limit || young {
			break
		}
		c.parts = append(c.parts, part{seg: s, base: s.base, end: s.end, size: s.size, times: s.times})
		c.end = s.end
	}
	if a := l.active(); len(c.parts) == len(closed) {
		c.active = part{seg: a, base: a.base, end: a.end, size: a.size, times: a.times}
		if a.end > stable {
			c.active.size = 0 // rolling it would gain nothing yet
		}
	}
	return c
}

// overdue says that a segment's first record waits longer than it may.
func (c *cleanable) overdue(p part, now time.Time) bool {
	lag := c.config.MaxCompactionLagMs
	return lag > 0 && p.size > 0 && p.end > c.from && p.times.first != noTime && now.UnixMilli()-p.times.first > lag
}

// Cleanable says what there is to compact at a high watermark. It costs a look
// at each segment's size in memory.
func (l *Log) Cleanable(now time.Time, highWatermark int64) Cleanable {
	c := l.cleanableAt(now, highWatermark)
	r := Cleanable{From: c.from, End: max(c.end, c.from)}
	for _, p := range c.parts {
		if p.end > c.from {
			r.DirtyBytes += p.size
			r.Overdue = r.Overdue || c.overdue(p, now)
		} else {
			r.CleanBytes += p.size
		}
	}
	if c.overdue(c.active, now) {
		r.Overdue = true
	}
	if r.DirtyBytes > 0 {
		r.Ratio = float64(r.DirtyBytes) / float64(r.DirtyBytes+r.CleanBytes)
	}
	if r.Damaged = l.damagedWithin(c.parts); r.Damaged == nil {
		if d := l.damaged.Load(); d != nil {
			r.Damaged = d
		}
	}
	r.Due = c.config.Compact && r.Damaged == nil && (r.Overdue || r.Ratio > c.config.MinCleanableRatio)
	return r
}

// Compact does one round: it gathers the newest offset of each key from the
// first dirty offset on, for as many keys as the memory holds, and rewrites the
// segments from the log start to there without the records that a newer one of
// their key makes obsolete. As in Kafka:
//
//   - tombstones, markers of transactions that left no records, and producer
//     resets go once their delete horizon has passed (KIP-534), which the first
//     round that could remove them sets;
//   - records of aborted transactions go, if the marker may be cleaned too;
//   - a batch that loses all its records stays empty where its producer or the
//     epochs need it.
//
// Appends and reads go on beside it; only the swap of a finished file takes the
// log's lock. An error leaves the log as it was after the last finished file.
// Damage is a *DamageError, and the log is not due again before it is repaired.
// While the history is being gathered the answer is ErrRebuilding, and Cleanable
// finds nothing due.
func (l *Log) Compact(ctx context.Context, now time.Time, highWatermark int64, o CompactOptions) (CompactStats, error) {
	if !l.compacting.TryLock() {
		return CompactStats{}, fmt.Errorf("compact %s: %w", l.id, ErrCompacting)
	}
	defer l.compacting.Unlock()
	began := l.store.o.Clock.Now()
	stats, err := l.compact(ctx, now, highWatermark, o.withDefaults())
	stats.Duration = l.store.o.Clock.Now().Sub(began)
	if errors.Is(err, errOvertaken) {
		stats.Overtaken, err = true, nil
	}
	if err != nil {
		return stats, fmt.Errorf("compact %s: %w", l.id, err)
	}
	return stats, nil
}

func (l *Log) compact(ctx context.Context, now time.Time, highWatermark int64, o CompactOptions) (CompactStats, error) {
	if err := l.usable(); err != nil {
		return CompactStats{}, err
	}
	// Without the producers nobody knows which transactions were aborted, and which
	// batch a producer's newest is.
	if err := l.Ready(); err != nil {
		return CompactStats{}, err
	}
	if l.store.index.broken.Load() {
		return CompactStats{}, errIndexBroken // nothing could be swapped in
	}
	c := l.cleanableAt(now, highWatermark)
	if !c.config.Compact {
		return CompactStats{}, ErrNotCompacted
	}
	if c.overdue(c.active, now) {
		if err := l.rollFor(ctx, c.active); err != nil {
			return CompactStats{}, err
		}
		c = l.cleanableAt(now, highWatermark)
	}
	if err := l.damagedWithin(c.parts); err != nil {
		return CompactStats{}, err
	}
	r := newRound(ctx, l, now.UnixMilli(), c, o)
	defer r.close()
	err := r.run()
	return r.result(), err
}

// rollFor closes the active segment, so that max.compaction.lag.ms can be kept
// on a log that gets few records, and waits until it is durable.
func (l *Log) rollFor(ctx context.Context, active part) error {
	l.wr.Lock()
	var err error
	if err = l.usable(); err == nil && l.active() == active.seg && active.seg.size > 0 {
		_, err = l.roll()
	}
	l.wr.Unlock()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	l.Flush(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cleaned is the first dirty offset: compaction has been through all below it.
// It lies in the index, as kindCleaned, stamped with the generation; guarded by
// the log's mu. Lost, it costs a compaction from the log start.
type cleaned struct {
	known bool
	upTo  int64

	// damaged is what a compaction met, in the segment at.
	damaged error
	at      *segment
}

// cleanedUpTo is the first dirty offset, from the index the first time.
func (l *Log) cleanedUpTo() int64 {
	l.mu.RLock()
	c, cuts := l.mu.cleaned, l.cuts.Load()
	l.mu.RUnlock()
	for !c.known {
		value := l.store.index.get(l.id.key(kindCleaned))
		l.mu.Lock()
		if l.cuts.Load() == cuts && !l.mu.cleaned.known {
			l.mu.cleaned.known, l.mu.cleaned.upTo = true, l.decodeCleanedLocked(value)
		}
		c, cuts = l.mu.cleaned, l.cuts.Load()
		l.mu.Unlock()
	}
	return c.upTo
}

// decodeCleanedLocked reads what putCleaned wrote. One from before a truncation counts
// as far as no truncation ever reached.
func (l *Log) decodeCleanedLocked(value []byte) int64 {
	generation, n := binary.Varint(value)
	if n <= 0 {
		return 0
	}
	upTo, m := binary.Varint(value[n:])
	if m <= 0 || upTo < 0 {
		return 0
	}
	switch {
	case generation == l.mu.generation:
	case l.ofThisLife(generation):
		upTo = min(upTo, l.mu.floor)
	default:
		return 0
	}
	return min(upTo, l.mu.end)
}

// setCleaned notes how far compaction has come, unless the log was truncated
// since the given generation.
func (l *Log) setCleaned(upTo, generation int64) {
	l.mu.Lock()
	if l.mu.generation != generation {
		l.mu.Unlock()
		return
	}
	l.mu.cleaned.known, l.mu.cleaned.upTo = true, upTo
	l.mu.Unlock()
	value := binary.AppendVarint(binary.AppendVarint(nil, generation), upTo)
	l.store.index.write(func(b *pebble.Batch) { _ = b.Set(l.id.key(kindCleaned), value, nil) })
	l.store.flusher.indexGrew.Store(true)
}

// pullBackLocked keeps the first dirty offset at or below a truncation. The
// index need not be told: the generation that it wrote is over.
func (c *cleaned) pullBackLocked(end int64) { c.upTo = min(c.upTo, end) }

// noteDamage remembers what a compaction could not read.
func (l *Log) noteDamage(s *segment, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cleaned.damaged, l.mu.cleaned.at = err, s
}

// damagedWithin is the damage that a compaction met, while its segment is among
// those to be compacted.
func (l *Log) damagedWithin(parts []part) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.cleaned.damaged == nil {
		return nil
	}
	for _, p := range parts {
		if p.seg == l.mu.cleaned.at {
			return l.mu.cleaned.damaged
		}
	}
	return nil
}
