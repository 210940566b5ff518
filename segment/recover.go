package segment

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// recovery opens one log: it reads everything first, and changes files only
// after that.
//
// The directory says which segments there are. The index says what is in the
// closed ones; where it is silent, or its word is from before a truncation or
// above the durable end, the segment is walked. The marks say where damage ends
// and a torn tail may begin:
//
//	bad batch below the durable end      *DamageError, nothing is touched
//	bad batch at or above it             the log is cut there
//	segment shorter than the index knows, segment gone, log ends below the
//	durable end                          *DamageError
//
// Recovering twice gives what recovering once gives.
type recovery struct {
	l     *Log
	mark  mark
	known bool // there was a mark
	clean bool // the store was closed: index and durable ends are complete

	summaries map[int64]*summary
	segments  []*segment
	epochs    epoch.Cache
	producers *producer.Table

	tail []entry // index entries of the last segment, if it was walked

	below  []*segment // wholly below the log start: their deletion was interrupted
	cut    bool       // the last of segments is cut to its size, those behind it go
	behind []*segment
}

// recover makes the log what its files say. fresh means that the directory was
// made just now.
func (l *Log) recover(fresh bool) error {
	r := recovery{l: l, producers: producer.New(), clean: l.store.marks.clean}
	r.mark, r.known = l.store.marks.get(l.id)
	if !r.known {
		// The generation of a new life must not be one of an earlier life of the same
		// topic id (a mirror topic deleted and mirrored again has the same id), whose
		// entries may still be in the index.
		now := l.store.o.Clock.Now().UnixNano()
		r.mark = mark{generation: now, life: now, floor: math.MaxInt64, reset: -1}
	}
	if fresh && r.known && (r.mark.durable > r.mark.start) && r.mark.reset < 0 {
		return &DamageError{File: l.dir, Offset: r.mark.start,
			Err: fmt.Errorf("directory is missing, offsets %d to %d were durable", r.mark.start, r.mark.durable)}
	}
	l.mu.generation, l.mu.floor, l.mu.life = r.mark.generation, r.mark.floor, r.mark.life
	if err := r.list(); err != nil {
		return err
	}
	if r.mark.reset >= 0 {
		return r.finishReset()
	}
	if err := r.checkNoted(); err != nil {
		return err
	}
	if r.known {
		n := findSegment(r.segments, r.mark.start)
		r.below, r.segments = r.segments[:n:n], r.segments[n:]
	}
	if err := r.read(); err != nil {
		return err
	}
	return r.apply()
}

// list finds the segment files and removes what was left half-made.
func (r *recovery) list() error {
	d := r.l.store.disk
	names, err := d.List(r.l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) || strings.HasSuffix(name, cleanedSuffix) {
			if err := d.Remove(d.PathJoin(r.l.dir, name)); err != nil {
				return err
			}
		}
		if base, ok := parseFileName(name); ok {
			r.segments = append(r.segments, &segment{log: r.l, base: base, end: base, times: unknownTimes})
		}
	}
	for _, name := range names {
		if base, end, ok := parseSwapName(name); ok {
			if err := r.finishSwap(name, base, end); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(r.segments, func(a, b *segment) int { return int(min(max(a.base-b.base, -1), 1)) })
	return nil
}

// finishReset goes on where a TruncateFully was interrupted.
func (r *recovery) finishReset() error {
	l := r.l
	for _, s := range r.segments {
		if err := l.removeSegment(s); err != nil {
			return err
		}
	}
	l.store.index.write(func(b *pebble.Batch) { _ = b.DeleteRange(l.id.prefix(), after(l.id.prefix()), nil) })
	r.segments = nil
	r.mark.start, r.mark.durable, r.mark.hw, r.mark.reset = r.mark.reset, r.mark.reset, r.mark.reset, -1
	return r.apply()
}

// read finds out what is in the segments, without changing any.
func (r *recovery) read() error {
	r.loadSummaries()
	sizes := make([]int64, len(r.segments))
	for i, s := range r.segments {
		fi, err := r.l.store.disk.Stat(s.path())
		if err != nil {
			return err
		}
		sizes[i] = fi.Size()
	}
	if err := r.missing(sizes); err != nil {
		return err
	}
	first := r.firstToWalk(sizes)
	for i := range first {
		s, m := r.segments[i], r.summaries[r.segments[i].base]
		s.size, s.end, s.times, s.trimmed = m.size, m.end, m.times, true
		for _, e := range m.epochs {
			r.epochs.Assign(e.Epoch, e.Start)
		}
	}
	return r.walkFrom(first, sizes)
}

// loadSummaries reads what the index knows about this log's segments and may be
// believed: of a generation whose bytes are still there, and durable.
func (r *recovery) loadSummaries() {
	r.summaries = make(map[int64]*summary)
	if !r.known {
		return
	}
	r.l.store.index.each(r.l.id.key(kindSummary), func(key, value []byte) {
		m, err := decodeSummaryStamped(r.l, value)
		if err == nil && m.end <= r.mark.durable {
			r.summaries[decodeNumber(key)] = m
		}
	})
}

func decodeSummaryStamped(l *Log, value []byte) (*summary, error) {
	// The end is inside the value, so look before judging.
	body, _ := l.cached(value, math.MaxInt64)
	m, err := decodeSummary(body)
	if err != nil {
		return nil, err
	}
	if _, ok := l.cached(value, m.end); !ok {
		return nil, errSummary
	}
	return m, nil
}

// missing compares the directory with what the index knows to be durable.
func (r *recovery) missing(sizes []int64) error {
	if invariants.Planted("indexTrustedOverDirectory") {
		return nil
	}
	at := make(map[int64]int64, len(sizes))
	for i, s := range r.segments {
		at[s.base] = sizes[i]
	}
	for base, m := range r.summaries {
		size, there := at[base]
		path := r.l.store.disk.PathJoin(r.l.dir, fileName(base))
		switch {
		case m.end <= r.mark.start || m.size == 0: // may go at any time
		case !there:
			return &DamageError{File: path, Offset: base, Err: fmt.Errorf("file is missing, offsets %d to %d were durable", base, m.end)}
		case size < m.size:
			return &DamageError{File: path, At: size, Offset: base, Err: fmt.Errorf("file has %d bytes, %d were durable", size, m.size)}
		}
	}
	return nil
}

// firstToWalk is the first segment that has to be walked: because the index
// does not know it, or because producer state has to be gathered from there.
// It loads the producer state that the walk begins with.
func (r *recovery) firstToWalk(sizes []int64) int {
	unknown := len(r.segments)
	for i, s := range r.segments {
		// The file before this one may be gone, and then this one goes too (see
		// follows): its snapshot must not be where producers are gathered from.
		if i == 0 && r.known && s.base > r.mark.start {
			return 0
		}
		if i > 0 && r.known && s.base != r.summaries[r.segments[i-1].base].end {
			unknown = i - 1
			break
		}
		if m := r.summaries[s.base]; m == nil || m.size != sizes[i] && !invariants.Planted("indexTrustedOverDirectory") {
			unknown = i
			break
		}
	}
	if unknown == len(r.segments) && r.clean && unknown > 0 {
		last := r.segments[unknown-1]
		if t, ok := r.l.snapshotAt(max(r.summaries[last.base].end, r.mark.durable)); ok {
			r.producers = t
			return unknown
		}
	}
	// Down to the first: its snapshot knows the producers of deleted segments.
	for i := min(unknown, len(r.segments)-1); i >= 0; i-- {
		if t, ok := r.l.snapshotAt(r.segments[i].base); ok {
			r.producers = t
			return i
		}
	}
	return 0
}

// durableAt is up to where segment i must be good.
func (r *recovery) durableAt(i int) int64 {
	if invariants.Planted("damageAsTornTail") {
		return 0
	}
	if !r.known && i < len(r.segments)-1 {
		return math.MaxInt64 // no marks: what was closed counts as durable
	}
	return r.mark.durable
}

// walkFrom walks the segments from index first on.
func (r *recovery) walkFrom(first int, sizes []int64) error {
	for i := first; i < len(r.segments); i++ {
		s := r.segments[i]
		if err := r.follows(i); err != nil || r.cut {
			return err
		}
		w, err := r.walkSegment(s, sizes[i])
		if err != nil && !isBadBatch(err) {
			return fmt.Errorf("recover %s: %w", s.path(), err)
		}
		if err != nil && (w.end < r.durableAt(i) || errors.Is(err, errHeads) || invariants.Planted("tornTailAsDamage")) && !invariants.Planted("laterSegmentDeleted") {
			return &DamageError{File: s.path(), At: w.size, Offset: w.end, Err: err}
		}
		if errors.Is(err, errOffsetBack) {
			// A batch that claims to be far ahead puts the end above what was durable, and
			// durable batches behind it.
			if err := r.checkWhole(i, known{}); err != nil {
				return err
			}
		}
		if r.clean && r.known && w.end > r.mark.durable {
			// Kept: a log that was not opened in the run that stopped cleanly may have
			// them from a kill before it.
			r.l.store.o.Logger.Warn("log goes on above its durable end although the store was stopped cleanly", "log", r.l.id.String(),
				"file", s.path(), "durable", r.mark.durable, "end", w.end)
		}
		s.size, s.end, s.times = w.size, w.end, w.times
		for _, e := range w.epochs.Entries() {
			r.epochs.Assign(e.Epoch, e.Start)
		}
		r.index(s, w, i == len(r.segments)-1 || err != nil)
		if err != nil {
			r.l.store.o.Logger.Warn("torn tail is cut", "log", r.l.id.String(), "file", s.path(), "position", w.size, "offset", w.end, "bytes", sizes[i]-w.size, "err", err)
			r.cut, r.behind = true, r.segments[i+1:]
			r.segments = r.segments[:i+1]
			return nil
		}
	}
	return nil
}

// follows checks that segment i begins where the one before it ends, and the
// first at or below the log start. A log of ours has no holes between segments
// (only between the batches of one), so a hole means that the end of the earlier
// file is gone: damage below the durable end, above it a power cut that took it
// but not the later file. Without marks we may not have written the log at all,
// and take holes as they are.
func (r *recovery) follows(i int) error {
	s, end := r.segments[i], r.mark.start
	if i > 0 {
		end = r.segments[i-1].end
	}
	if s.base == end || i == 0 && s.base < end || !r.known && s.base > end {
		return nil
	}
	err := fmt.Errorf("segment begins at %d, what is before it ends at %d", s.base, end)
	if !r.known || end < r.mark.durable {
		d := &DamageError{File: s.path(), Offset: min(end, s.base), Err: err}
		if i > 0 && s.base > end {
			d.File, d.At = r.segments[i-1].path(), r.segments[i-1].size
		}
		return d
	}
	r.l.store.o.Logger.Warn("torn tail is cut", "log", r.l.id.String(), "file", s.path(), "offset", end, "err", err)
	r.cut, r.behind = true, r.segments[i:]
	r.segments = r.segments[:i]
	return nil
}

func (r *recovery) walkSegment(s *segment, size int64) (walked, error) {
	f, err := r.l.store.disk.open(s.path(), false)
	if err != nil {
		return walked{}, err
	}
	defer f.Close()
	// Producer entries are gathered batch by batch in log order (L15). Batches that
	// turn out to be behind the cut are never given to Apply, since the walk stops
	// at the first bad one.
	o := walkOptions{interval: r.l.store.o.IndexInterval, verifyFrom: r.mark.durable, each: func(b record.Batch) { r.producers.Apply(b) }}
	// The file may have grown since: a summary is of an earlier stop, and a newer one
	// was lost with the index' memory.
	o.known = r.knownOf(s)
	return walk(f, s.base, size, o)
}

// index notes what a walk found, in place of whatever was there.
func (r *recovery) index(s *segment, w walked, last bool) {
	x := r.l.store.index
	x.write(func(b *pebble.Batch) { x.dropSegment(b, r.l.id, s.base) })
	if last {
		r.tail = w.entries
		if n := len(w.entries) - r.l.store.o.tail/2; n > 0 {
			x.putEntries(r.l.id, s.base, w.entries[:n])
			r.tail, s.trimmed = w.entries[n:], true
		}
		return
	}
	s.trimmed = true
	x.putEntries(r.l.id, s.base, w.entries)
	m := summary{size: w.size, end: w.end, times: w.times, epochs: epochsIn(&r.epochs, s.base, w.end)}
	x.write(func(b *pebble.Batch) { _ = b.Set(r.l.id.key(kindSummary, s.base), r.l.stamp(m.encode()), nil) })
}

// apply changes the files as far as they have to be, and publishes the log.
func (r *recovery) apply() error {
	l := r.l
	end := r.mark.start
	if n := len(r.segments); n > 0 {
		end = r.segments[n-1].end
	}
	if end < r.mark.durable && !invariants.Planted("damageAsTornTail") {
		return &DamageError{File: l.dir, Offset: end, Err: fmt.Errorf("log ends at %d, offsets up to %d were durable", end, r.mark.durable)}
	}
	if err := r.cutFiles(); err != nil {
		return fmt.Errorf("recover %s: %w", l.id, err)
	}
	if err := r.syncFiles(end); err != nil {
		l.store.failSync(err)
		return fmt.Errorf("recover %s: %w", l.id, err)
	}
	n := len(r.segments)
	created := n == 0
	if created {
		seg, err := l.createSegment(end)
		if err != nil {
			return fmt.Errorf("recover %s: %w", l.id, err)
		}
		r.segments, r.tail = append(r.segments, seg), nil
	}
	start := min(r.mark.start, end)
	if first := r.segments[0].base; first > start {
		// No marks, or old ones.
		l.store.o.Logger.Error("log begins above its start, the first segments are missing", "log", l.id.String(), "start", start, "first", first)
		start = first
	}
	l.mu.Lock()
	l.mu.segments, l.mu.size = r.segments, 0
	for _, s := range r.segments {
		s.synced = s.size
		l.mu.size += s.size
	}
	l.mu.start, l.mu.end = start, end
	l.mu.epochs, l.mu.producers = r.epochs, r.producers
	l.mu.epochs.TruncateStart(start)
	l.mu.producers.TruncateStart(start)
	l.mu.tail = r.tail
	if created {
		l.mu.names++
	}
	l.durable.Store(l.mu.end)
	l.mu.proof = l.proofLocked()
	l.hw.Store(min(max(r.mark.hw, start), l.mu.end))
	l.mu.producers.Replicated(l.hw.Load())
	l.publishLocked()
	l.mu.Unlock()
	if len(r.tail) > 0 {
		l.indexed = r.tail[len(r.tail)-1].pos
	} else if a := l.active(); a.trimmed {
		l.indexed = a.size // unknown, but not behind it: the next entry comes 64 KiB on
	}
	return r.dropBelowStart()
}

// cutFiles cuts the torn tail: the segments behind it, the newest first, then
// the file itself.
func (r *recovery) cutFiles() error {
	if !r.cut {
		return nil
	}
	l := r.l
	if err := l.removeSegments(r.behind); err != nil {
		return err
	}
	invariants.Fault("segment.recoverRemoved")
	end := r.mark.start
	if n := len(r.segments); n > 0 {
		s := r.segments[n-1]
		if err := l.store.disk.cut(s.path(), s.size); err != nil {
			return err
		}
		end = s.end
	}
	// The index may know more of what was cut than it should.
	l.mu.generation++
	l.mu.floor = min(l.mu.floor, end)
	l.store.index.write(func(b *pebble.Batch) {
		for _, s := range r.behind {
			l.store.index.dropSegment(b, l.id, s.base)
		}
		_ = b.DeleteRange(l.id.key(kindProducer, end+1), after(l.id.key(kindProducer)), nil)
	})
	return nil
}

// syncFiles makes what was found durable: after a kill it is in the page cache
// only, and from here on it counts.
func (r *recovery) syncFiles(end int64) error {
	if end > r.mark.durable {
		for _, s := range r.segments {
			if s.end <= r.mark.durable || s.size == 0 {
				continue
			}
			f, err := r.l.store.disk.open(s.path(), false)
			if err != nil {
				return err
			}
			if err := errors.Join(f.SyncData(), f.Close()); err != nil {
				return err
			}
		}
		if err := r.l.store.disk.syncDir(r.l.dir); err != nil {
			return err
		}
	}
	return nil
}

// dropBelowStart deletes what lies below the log start, and writes the marks of
// a log that was changed or is new.
func (r *recovery) dropBelowStart() error {
	for _, s := range r.below {
		if err := r.l.removeSegment(s); err != nil {
			return fmt.Errorf("recover %s: %w", r.l.id, err)
		}
	}
	return r.l.putMark(r.cut, -1)
}
