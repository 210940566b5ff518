package segment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// OffsetForTime finds the first record that is not earlier than ts: its offset,
// its timestamp, and its leader epoch. ok is false if there is none. This is
// the one place where a batch is decompressed here, one per call and bounded
// (maxInflated); a batch beyond the bound is answered with its base offset.
//
// While the history is being gathered the answer is ErrRebuilding.
func (l *Log) OffsetForTime(ts int64) (offset, timestamp int64, leaderEpoch int32, ok bool, err error) {
	if err := l.Ready(); err != nil {
		return -1, -1, epoch.Undefined, false, err
	}
	for from := int64(math.MinInt64); ; {
		cuts := l.cuts.Load()
		p, start, entryPos := l.locateTime(ts, from)
		if d := l.damaged.Load(); d != nil {
			return -1, -1, epoch.Undefined, false, d
		}
		if p.seg == nil {
			return -1, -1, epoch.Undefined, false, nil
		}
		o, t, e, found, err := l.searchTime(p, entryPos, start, ts)
		if err != nil && l.overtaken(err, cuts) {
			continue
		}
		if err != nil || found {
			return o, t, e, found, err
		}
		// The segment's newest timestamp lies below the log start.
		from = p.end
	}
}

// locateTime chooses the first segment at or behind from that has a timestamp
// not below ts, and what the memory knows of the position.
func (l *Log) locateTime(ts, from int64) (p place, start, pos int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed {
		return p, 0, 0
	}
	for i, s := range l.mu.segments {
		if s.size == 0 || s.end <= from || s.end <= l.mu.start || s.times.max < ts {
			continue
		}
		p = place{seg: s, size: s.size, end: s.end, active: i == len(l.mu.segments)-1, cuts: l.cuts.Load()}
		p.inMemory = !s.trimmed
		if p.active {
			j := sort.Search(len(l.mu.tail), func(j int) bool { return l.mu.tail[j].time >= ts })
			if j > 0 {
				p.inMemory, pos = true, l.mu.tail[j-1].pos
			}
		}
		return p, l.mu.start, pos
	}
	return p, 0, 0
}

func (l *Log) searchTime(p place, from, start, ts int64) (offset, timestamp int64, e int32, ok bool, err error) {
	h, err := l.store.files.acquire(p.seg)
	if err != nil {
		return -1, -1, epoch.Undefined, false, fmt.Errorf("look up time in %s: %w", l.id, err)
	}
	defer h.release()
	if !p.inMemory {
		if from = l.store.index.timePosition(l.id, p.seg.base, ts); from >= p.size {
			from = 0
		}
		if l.cuts.Load() != p.cuts { // see seek
			return -1, -1, epoch.Undefined, false, fmt.Errorf("%w: %s was replaced", ErrClosed, p.seg.path())
		}
	}
	s := newScanner(h, from, p.size)
	defer func() { s.close() }()
	for {
		b, pos, size, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return -1, -1, epoch.Undefined, false, nil
		case err != nil && from > 0 && isBadBatch(err):
			s.close() // a stale index entry: the file knows better
			from = 0
			s = newScanner(h, 0, p.size)
			continue
		case err != nil:
			return -1, -1, epoch.Undefined, false, l.damage(p.seg, pos, p.seg.base, err)
		}
		if b.MaxTimestamp() < ts || b.NextOffset() <= start || b.NumRecords() == 0 {
			continue // an empty batch stays behind when compaction took its records
		}
		e := b.PartitionLeaderEpoch()
		whole, _, err := s.body(nil, pos, size)
		if err != nil {
			return -1, -1, epoch.Undefined, false, l.damage(p.seg, pos, b.BaseOffset(), err)
		}
		if o, t, ok := firstInBatch(whole, start, ts); ok {
			return o, t, e, true, nil
		}
	}
}

// firstInBatch finds the first record of the batch at or behind start and not
// earlier than ts.
func firstInBatch(b record.Batch, start, ts int64) (offset, timestamp int64, ok bool) {
	if b.TimestampType() == record.LogAppendTime {
		return max(b.BaseOffset(), start), b.MaxTimestamp(), true
	}
	errFound := errors.New("found")
	err := eachRecord(b, maxInflated, func(r record.Record) error {
		o, t := b.BaseOffset()+int64(r.OffsetDelta), b.BaseTimestamp()+r.TimestampDelta
		if t >= ts && o >= start {
			offset, timestamp = o, t
			return errFound
		}
		return nil
	})
	switch err {
	case errFound:
		return offset, timestamp, true
	case nil:
		return 0, 0, false
	}
	// Records that cannot be seen: too large, or a producer's broken compression
	// (the CRC was right). The batch is the best that can be said.
	return max(b.BaseOffset(), start), b.MaxTimestamp(), true
}

// MaxTimestamp is the record with the greatest timestamp, the first of several
// (KIP-734). ok is false if no record has one. It means nothing before Ready.
func (l *Log) MaxTimestamp() (offset, ts int64, leaderEpoch int32, ok bool) {
	for try := 0; ; try++ {
		cuts := l.cuts.Load()
		newest := l.newestTime()
		if newest == noTime {
			return -1, noTime, epoch.Undefined, false
		}
		o, at, e, found, err := l.OffsetForTime(newest)
		if found && err == nil {
			return o, at, e, true
		}
		if try < 4 && (err == nil || l.overtaken(err, cuts)) {
			continue // cut or deleted between the two looks
		}
		return -1, noTime, epoch.Undefined, false
	}
}

// newestTime is the greatest timestamp at or above the log start.
func (l *Log) newestTime() int64 {
	l.mu.RLock()
	newest, upTo, start := int64(noTime), int64(noTime), l.mu.start
	var p place // the segment in which the log starts
	for _, s := range l.mu.segments {
		switch {
		case s.end <= start || s.size == 0:
		case s.base < start:
			p, upTo = place{seg: s, size: s.size}, s.times.max
		default:
			newest = max(newest, s.times.max)
		}
	}
	l.mu.RUnlock()
	if p.seg == nil || upTo <= newest {
		return newest
	}
	// What the segment knows includes batches below the log start: look.
	h, err := l.store.files.acquire(p.seg)
	if err != nil {
		return newest
	}
	defer h.release()
	s := newScanner(h, 0, p.size)
	defer s.close()
	for {
		b, pos, size, err := s.next()
		switch {
		case err != nil:
			return newest
		case b.NextOffset() <= start || b.MaxTimestamp() <= newest || b.NumRecords() == 0:
		case b.BaseOffset() >= start:
			newest = b.MaxTimestamp()
		default:
			if whole, _, err := s.body(nil, pos, size); err == nil {
				newest = max(newest, newestInBatch(whole, start))
			}
		}
	}
}

// newestInBatch is the greatest timestamp of the batch's records from start on.
func newestInBatch(b record.Batch, start int64) int64 {
	if b.TimestampType() == record.LogAppendTime {
		return b.MaxTimestamp()
	}
	newest := int64(noTime)
	err := eachRecord(b, maxInflated, func(r record.Record) error {
		if b.BaseOffset()+int64(r.OffsetDelta) >= start {
			newest = max(newest, b.BaseTimestamp()+r.TimestampDelta)
		}
		return nil
	})
	if err != nil {
		return b.MaxTimestamp() // records that cannot be seen, see firstInBatch
	}
	return newest
}
