package segment

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// SetStartOffset makes start the first offset that can be read, and deletes the
// segments that lie wholly below it. A start at or below the present one changes
// nothing; one above the log end is ErrOutOfRange (TruncateFully is the way
// there). While the history is being gathered no segment may go, since what it says
// of producers is not known: where one would, the answer is ErrRebuilding.
func (l *Log) SetStartOffset(start int64) error {
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	_, err := l.advance(start)
	return err
}

// advance moves the log start and deletes what is below; for holders of wr.
func (l *Log) advance(start int64) (deleted int, err error) {
	switch {
	case start <= l.mu.start:
		return 0, nil
	case start > l.mu.end:
		return 0, fmt.Errorf("log start of %s: %w: %d is above the log end %d", l.id, ErrOutOfRange, start, l.mu.end)
	}
	if seg := l.active(); start == l.mu.end && seg.size > 0 {
		if _, err := l.roll(); err != nil { // so that the last bytes can go too
			return 0, err
		}
	}
	n := 0
	for n < len(l.mu.segments)-1 && l.mu.segments[n].end <= start {
		n++
	}
	gone := l.mu.segments[:n:n]
	if n > 0 {
		if err := l.Ready(); err != nil {
			return 0, err
		}
		// Before the mark: from then on a recovery removes them.
		if err := l.keepProducers(l.mu.segments[n].base); err != nil {
			return 0, fmt.Errorf("log start of %s: %w", l.id, err)
		}
	}
	l.markMu.Lock() // no checkpoint writes the old start down again in between
	if n > 0 {
		// Before the files go: a hole must not look like damage. And before anything
		// is changed: a disk so full that it takes no mark must not cost the log.
		if err := l.putMarkLocked(!invariants.Planted("markNotSyncedBeforeRemove"), func(m *mark) { m.start = start }); err != nil {
			l.markMu.Unlock()
			// Compaction may change what the new file says while the log begins where it did.
			err = errors.Join(err, l.dropProducers(l.mu.segments[0].base))
			return 0, fmt.Errorf("log start of %s: %w", l.id, err)
		}
		invariants.Fault("segment.startMarked")
	}
	l.mu.Lock()
	for _, s := range gone {
		l.mu.size -= s.size
	}
	l.mu.segments = append([]*segment(nil), l.mu.segments[n:]...)
	l.mu.start = start
	l.mu.epochs.TruncateStart(start)
	// Not up to the start: a power cut may take back where it is inside a segment, and
	// the index would go on saying that nothing was aborted there.
	l.mu.producers.TruncateStart(l.mu.segments[0].base)
	if n > 0 {
		l.mu.names++
	}
	l.publishLocked()
	l.mu.Unlock()
	l.markMu.Unlock()
	if n == 0 {
		l.noteMark()
		return 0, l.putMark(false, -1) // a kill cannot take it back; a power cut can, until the next checkpoint
	}
	// The segment that stays may be new: its name must not get lost while an older
	// one's removal does, or the log would seem to end below its durable end.
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return 0, l.fail(err)
	}
	invariants.Fault("segment.startSynced")
	for _, s := range gone {
		if err := l.removeSegment(s); err != nil {
			return 0, l.fail(err)
		}
		invariants.Fault("segment.startRemoved")
	}
	if err := l.dropProducers(l.mu.segments[0].base); err != nil {
		return 0, l.fail(err)
	}
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.DeleteRange(l.id.key(kindProducer, 0), l.id.key(kindProducer, l.mu.segments[0].base), nil)
		for _, kind := range []byte{kindOffset, kindTime, kindSummary} {
			_ = b.DeleteRange(l.id.key(kind, 0), l.id.key(kind, l.mu.segments[0].base), nil)
		}
	})
	return n, nil
}

// maxClockJump is how far wall time may move against the monotonic clock
// between two retentions before time-based deletion sits one out: a wrong clock
// must not delete a log (reliability rule 10). NTP steps stay far below.
const maxClockJump = 10 * time.Minute

// retainClock remembers when retention ran last.
type retainClock struct{ last time.Time }

// jumped says whether wall time moved against monotonic time since the last call.
func (c *retainClock) jumped(now time.Time) bool {
	last := c.last
	c.last = now
	if last.IsZero() {
		return false
	}
	wall := now.Round(0).Sub(last.Round(0))
	drift := wall - now.Sub(last) // without a monotonic reading both are equal
	return drift > maxClockJump || drift < -maxClockJump || wall < -maxClockJump
}

// Retain deletes the segments that retention.ms and retention.bytes give up,
// and forgets idle producers. Only segments wholly below the high watermark go.
// It returns how many went. While the history is being gathered nothing is known
// to be old, and the answer is ErrRebuilding.
func (l *Log) Retain(now time.Time, highWatermark int64) (deleted int, err error) {
	if err := l.Ready(); err != nil {
		return 0, err
	}
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	c := l.mu.config
	jumped := l.lastRetain.jumped(now)
	if jumped {
		l.store.o.Logger.Warn("the clock jumped: deletion by time waits for the next round", "log", l.id.String())
	}
	if c.ProducerExpirationMs > 0 && !jumped {
		l.mu.Lock()
		l.mu.producers.Expire(now.UnixMilli() - c.ProducerExpirationMs)
		l.mu.Unlock()
	}
	over := int64(-1)
	if c.RetentionBytes >= 0 {
		over = l.mu.size - c.RetentionBytes
	}
	start := l.mu.start
	for _, s := range l.mu.segments {
		expired := c.RetentionMs >= 0 && !jumped && s.size > 0 && s.times.max != noTime && now.UnixMilli()-s.times.max > c.RetentionMs
		tooMuch := over >= 0 && s.size <= over && s != l.active()
		if s.end > highWatermark {
			break
		}
		if c.RetentionMs >= 0 && s.size > 0 && s.times.max == noTime && !tooMuch && s != l.active() {
			over -= s.size
			continue // nothing in it has a time, as when compaction took it all: it goes with the next that does
		}
		if !expired && !tooMuch && s.size > 0 {
			break
		}
		if s.size == 0 && s == l.active() {
			break
		}
		over -= s.size
		start = s.end
	}
	if start <= l.mu.start {
		return 0, nil
	}
	// The hole behind the last deleted segment is gone too.
	if i := findSegment(l.mu.segments, start); i+1 < len(l.mu.segments) && l.mu.segments[i].end <= start {
		start = min(l.mu.segments[i+1].base, highWatermark)
	}
	return l.advance(start)
}
