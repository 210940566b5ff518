package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
// The directory says which segments there are, and where each ends: where the
// next begins. The marks say where the log is durable, in offsets and in the
// file, and so where damage ends and a torn tail may begin:
//
//	bad batch below the durable end      *DamageError, nothing is touched
//	bad batch at or above it             the log is cut there
//	segment shorter than the index or the marks know, segment gone, log ends
//	below the durable end                *DamageError
//
// Everything above the durable end is walked here. What lies below it is the
// log's history: epochs, producers, times. The index knows it up to the last
// checkpoint or stop; the rest is walked here if it is little, and otherwise in the
// background (see history). Where there are no marks we may not have written the
// log at all, and everything is walked here.
//
// Recovering twice gives what recovering once gives.
type recovery struct {
	l     *Log
	mark  mark
	known bool // there was a mark
	clean bool // the store was closed: index and durable ends are complete

	summaries map[int64]*summary
	segments  []*segment
	sizes     []int64 // of the segments' files

	// What is known of the history: all segments before the one at index at, the
	// part of that one in walked, and the state behind it.
	at        int
	walked    walked
	epochs    epoch.Cache
	written   epoch.Cache // of the last segment so far; see Log
	producers *producer.Table

	later bool // the history is gathered in the background
	blind bool // positions of index and marks have proved wrong: walk from first bytes

	tail []entry // index entries of the last segment, if it was walked

	below  []*segment // wholly below the log start: their deletion was interrupted, or never begun
	told   int64      // number of the write that told the index of their producers
	cut    bool       // the last of segments is cut to its size, those behind it go
	behind []*segment
	lost   bool // the index knows, or may know, of what lay above the log's end
}

// recover makes the log what its files say. fresh means that the directory was
// made just now.
func (l *Log) recover(fresh bool) error {
	r := recovery{l: l, producers: producer.New(), clean: l.store.marks.clean}
	l.history.Store(nil) // of a recovery before this one
	r.mark, r.known = l.store.marks.get(l.id)
	if !r.known {
		// The generation of a new life must not be one of an earlier life of the same
		// topic id (a mirror topic deleted and mirrored again has the same id), whose
		// entries may still be in the index.
		life := l.store.marks.newLife(l.store.o.Clock.Now().UnixNano())
		r.mark = mark{generation: life, life: life, floor: math.MaxInt64, reset: -1}
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
		if err := r.keepProducers(); err != nil {
			return fmt.Errorf("recover %s: %w", l.id, err)
		}
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
			path := d.PathJoin(r.l.dir, name)
			size, _ := fileSize(d, path)
			if err := d.Remove(path); err != nil {
				return err
			}
			r.l.store.o.Logger.Info("unfinished file of an interrupted compaction, repair or cut was removed; what it was made from is still there", "log", r.l.id.String(), "file", path, "bytes", size)
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
	r.tellRemoval(slog.LevelWarn, "interrupted cut of the whole log is finished: its remaining files are removed", r.segments, "new_start", r.mark.reset)
	for _, s := range r.segments {
		if err := l.removeSegment(s); err != nil {
			return err
		}
		invariants.Fault("segment.restartRemoved")
	}
	// Durably, before the mark that says so: whoever syncs the marks next, for
	// another log say, makes that durable.
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return err
	}
	l.store.index.write(func(b *pebble.Batch) { _ = b.DeleteRange(l.id.prefix(), after(l.id.prefix()), nil) })
	r.segments = nil
	r.mark.start, r.mark.durable, r.mark.hw, r.mark.reset = r.mark.reset, r.mark.reset, r.mark.reset, -1
	if err := r.apply(); err != nil {
		return err
	}
	// Durably, before anything is acknowledged: the next recovery would finish the cut
	// once more, and remove that.
	return l.putMark(true, -1)
}

// read finds out what is in the segments, without changing any.
func (r *recovery) read() error {
	for _, s := range r.segments {
		fi, err := r.l.store.disk.Stat(s.path())
		if err != nil {
			return err
		}
		r.sizes = append(r.sizes, fi.Size())
	}
	r.loadSummaries()
	if err := r.missing(); err != nil {
		return err
	}
	all := r.segments
	err := r.walk()
	if errors.Is(err, errPlace) {
		r.l.store.o.Logger.Warn("positions of the index or the marks do not fit the file, it is read from its beginning", "log", r.l.id.String(), "err", err)
		r.segments, r.blind, r.later = all, true, false
		clear(r.summaries)
		err = r.walk()
	}
	return err
}

// walk reads what has to be read before the log can be used.
func (r *recovery) walk() error {
	r.begin()
	if len(r.segments) == 0 {
		return nil
	}
	for i := range r.at {
		r.adopt(i)
	}
	first, from := r.at, r.walked
	if k, w := r.durablePlace(); r.known && !r.blind && r.tooFar(k, w.size) {
		r.later = true
		if w.size > r.sizes[k] {
			return &DamageError{File: r.segments[k].path(), At: r.sizes[k], Offset: r.segments[k].base,
				Err: fmt.Errorf("file has %d bytes, %d were durable", r.sizes[k], w.size)}
		}
		for i := r.at; i < k; i++ {
			s := r.segments[i]
			s.size, s.end, s.trimmed = r.sizes[i], r.segments[i+1].base, true
		}
		first, from = k, w
	}
	if r.later && first > 0 {
		if err := r.follows(0); err != nil || r.cut {
			return err
		}
	}
	return r.walkFrom(first, from)
}

// adopt takes over what the index knows of a closed segment.
func (r *recovery) adopt(i int) {
	s, m := r.segments[i], r.summaries[r.segments[i].base]
	s.size, s.end, s.times, s.trimmed = m.size, m.end, m.times, true
	r.written = *epoch.New(m.epochs)
	for _, e := range m.epochs {
		r.epochs.Assign(e.Epoch, e.Start)
	}
}

// durablePlace is the segment in which the durable end lies, and a walk over it
// that has come there, as far as the marks know.
func (r *recovery) durablePlace() (i int, w walked) {
	m := &r.mark
	i = findSegment(r.segments, m.durable)
	if j, p := findSegment(r.segments, m.proof.base), m.proof; p.size > 0 && len(r.segments) > 0 && r.segments[j].base == p.base {
		w = newWalked(p.base)
		w.size, w.end, w.indexed, w.times.heads = p.size, m.durable, p.size, p.heads
		return j, w
	}
	if len(r.segments) > 0 {
		w = newWalked(r.segments[i].base)
	}
	return i, w
}

// tooFar says that what is known of the history ends too far before the durable
// place to be made up for while everybody waits.
func (r *recovery) tooFar(k int, pos int64) bool {
	if k < r.at || k == r.at && pos <= r.walked.size {
		return false // the index knows more than the marks: a segment without batches
	}
	missing := pos - r.walked.size
	for i := r.at; i < k; i++ {
		missing += r.sizes[i]
	}
	above := -pos
	for i := k; i < len(r.segments); i++ {
		above += r.sizes[i]
	}
	if r.l.store.o.inline < 0 {
		return missing > 0
	}
	return missing > max(r.l.store.o.inline, above)
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
func (r *recovery) missing() error {
	if invariants.Planted("indexTrustedOverDirectory") {
		return nil
	}
	at := make(map[int64]int64, len(r.sizes))
	for i, s := range r.segments {
		at[s.base] = r.sizes[i]
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

// begin finds how far the history is known: up to where the first segment that
// the index does not know wholly was at its last checkpoint, or else up to a
// segment for whose beginning there is a producer snapshot.
func (r *recovery) begin() {
	r.at, r.walked, r.epochs, r.written, r.producers = 0, walked{}, epoch.Cache{}, epoch.Cache{}, producer.New()
	n := len(r.segments)
	if n == 0 {
		return
	}
	r.walked = newWalked(r.segments[0].base)
	if r.known && r.segments[0].base > r.mark.start {
		// The file before this one may be gone, and then this one goes too (see
		// follows): its snapshot must not be where producers are gathered from.
		return
	}
	unknown := 0
	for unknown < n-1 {
		m := r.summaries[r.segments[unknown].base]
		if m == nil || m.size != r.sizes[unknown] && !invariants.Planted("indexTrustedOverDirectory") || r.known && m.end != r.segments[unknown+1].base {
			break
		}
		unknown++
	}
	s := r.segments[unknown]
	if m := r.summaries[s.base]; m != nil {
		if t, ok := r.l.snapshotAt(m.end); ok {
			r.at, r.producers = unknown, t
			r.walked = newWalked(s.base)
			r.walked.size, r.walked.end, r.walked.times, r.walked.indexed = m.size, m.end, m.times, m.size
			r.walked.epochs = *epoch.New(m.epochs)
			if n := len(m.epochs); n > 0 {
				r.walked.epoch = m.epochs[n-1].Epoch
			}
			return
		}
	}
	// Down to the first: its snapshot knows the producers of deleted segments.
	for i := unknown; i >= 0; i-- {
		if t, ok := r.l.snapshotAt(r.segments[i].base); ok {
			r.at, r.producers = i, t
			break
		}
	}
	r.walked = newWalked(r.segments[r.at].base)
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

// errPlace says that a walk could not go on where it was told to.
var errPlace = errors.New("segment: no batch where one should begin")

// walkFrom goes on with a walk over segment first, and walks those behind it.
func (r *recovery) walkFrom(first int, from walked) error {
	for i := first; i < len(r.segments); i++ {
		s, w := r.segments[i], from
		if i > first || from.size == 0 {
			w = newWalked(s.base)
			if err := r.follows(i); err != nil || r.cut {
				return err
			}
		}
		begun := w.size
		err := r.walkSegment(s, &w, r.sizes[i])
		if err != nil && (!isBadBatch(err) || errors.Is(err, errPlace)) {
			return fmt.Errorf("recover %s: %w", s.path(), err)
		}
		if err != nil && (w.end < r.durableAt(i) || errors.Is(err, errHeads) || invariants.Planted("tornTailAsDamage")) && !invariants.Planted("laterSegmentDeleted") {
			return &DamageError{File: s.path(), At: w.size, Offset: w.end, Err: err}
		}
		if errors.Is(err, errOffsetBack) && !r.aboveDurable(s, w.size) {
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
		if !r.later {
			r.written = w.epochs
			for _, e := range w.epochs.Entries() {
				r.epochs.Assign(e.Epoch, e.Start)
			}
			r.index(s, w, begun, i == len(r.segments)-1 || err != nil)
		}
		s.trimmed = s.trimmed || r.later
		if err != nil {
			r.l.store.o.Logger.Warn("torn tail is cut", "log", r.l.id.String(), "file", s.path(), "position", w.size, "offset", w.end, "bytes", r.sizes[i]-w.size, "err", err)
			r.cut, r.behind = true, r.segments[i+1:]
			r.segments = r.segments[:i+1]
			return nil
		}
	}
	return nil
}

// aboveDurable says that nothing at or behind a position of s, up to which a walk
// came, was durable, whatever offsets the batches before it claim: the marks' proof
// covers these.
func (r *recovery) aboveDurable(s *segment, pos int64) bool {
	p := r.mark.proof
	return s.base >= r.mark.durable || p.base == s.base && p.size > 0 && pos >= p.size
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

// walkSegment goes on with the walk w over s.
func (r *recovery) walkSegment(s *segment, w *walked, size int64) error {
	if w.size == size {
		return nil
	}
	f, err := r.l.store.disk.open(s.path(), false)
	if err != nil {
		return err
	}
	defer f.Close()
	o := walkOptions{interval: r.l.store.o.IndexInterval, verifyFrom: r.mark.durable}
	if !r.later {
		// Producer entries are gathered batch by batch in log order (L15). Batches
		// that turn out to be behind the cut are never given to Apply, since the walk
		// stops at the first bad one.
		o.each = func(b record.Batch) { r.producers.Apply(b) }
	}
	// The file may have grown since: a summary is of an earlier stop, and a newer one
	// was lost with the index' memory.
	if k := r.knownOf(s); k.size > w.size {
		o.known = k
	}
	from := *w
	err = w.on(f, size, o)
	if err == nil || !isBadBatch(err) || errors.Is(err, errHeads) || from.size == 0 || w.size > from.size {
		return err
	}
	// Not one good batch where batches were to go on. Before anything is cut for
	// it: is this a place between two batches at all?
	again, errAgain := walk(f, s.base, from.size, walkOptions{interval: math.MaxInt64, noCRC: true})
	if errAgain != nil && !isBadBatch(errAgain) {
		return errAgain
	}
	if errAgain != nil || again.end > from.end {
		return fmt.Errorf("%w: %s at position %d, offset %d: %w", errPlace, s.path(), from.size, from.end, err)
	}
	return err
}

// index notes what a walk found from position begun on, in place of whatever
// was there.
func (r *recovery) index(s *segment, w walked, begun int64, last bool) {
	x := r.l.store.index
	if s.trimmed = begun > 0; w.size == begun && begun == r.sizes[len(r.segments)-1] && last {
		return // it knows everything
	}
	if begun == 0 {
		x.write(func(b *pebble.Batch) { x.dropSegment(b, r.l.id, s.base) })
	} else {
		x.dropBehind(r.l.id, s.base, begun, r.walked.end)
	}
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
	m := summary{size: w.size, end: w.end, times: w.times, epochs: w.epochs.Entries()}
	x.write(func(b *pebble.Batch) { _ = b.Set(r.l.id.key(kindSummary, s.base), r.l.stamp(m.encode()), nil) })
}

// apply changes the files as far as they have to be, and publishes the log.
func (r *recovery) apply() error {
	l := r.l
	end := r.mark.start
	if n := len(r.segments); n > 0 {
		end = r.segments[n-1].end
	}
	if end < r.mark.durable && !invariants.Planted("damageAsTornTail") && !invariants.Planted("laterSegmentDeleted") {
		return &DamageError{File: l.dir, Offset: end, Err: fmt.Errorf("log ends at %d, offsets up to %d were durable", end, r.mark.durable)}
	}
	if err := r.cutFiles(); err != nil {
		return fmt.Errorf("recover %s: %w", l.id, err)
	}
	r.lost = r.cut || r.known && r.indexAhead(end)
	if r.lost {
		r.forget(end)
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
		s.synced, s.told = s.size, l.store.index.written.Load()
		l.mu.size += s.size
	}
	l.mu.start, l.mu.end = start, end
	if r.later {
		l.history.Store(newHistory(r)) // the epochs and producers are its own from here on
	} else {
		l.mu.epochs, l.mu.written, l.mu.producers = r.epochs, r.written, r.producers
		l.mu.epochs.TruncateStart(start)
		l.mu.producers.TruncateStart(start)
	}
	l.mu.tail = r.tail
	if created {
		l.mu.names++
	}
	if end <= r.mark.start {
		// Nothing of it was ever durable, and so maybe not its directory, whoever
		// made that: the first flush syncs both names.
		l.mu.newDir = true
		l.mu.names++
	}
	l.durable.Store(end)
	l.mu.proof = l.proofLocked()
	l.hw.Store(min(max(r.mark.hw, start), l.mu.end))
	l.mu.producers.Replicated(l.hw.Load())
	l.stored, l.checkpointed = 0, checkpointed{}
	if !r.later && !r.cut && r.walked.size > 0 && r.at == n-1 {
		l.checkpointed = checkpointed{size: r.walked.size, end: r.walked.end}
	}
	l.publishLocked()
	l.mu.Unlock()
	if len(r.tail) > 0 {
		l.indexed = r.tail[len(r.tail)-1].pos
	} else if a := l.active(); a.trimmed {
		l.indexed = a.size // unknown, but not behind it: the next entry comes 64 KiB on
	}
	if start < r.mark.start || l.hw.Load() < r.mark.hw {
		// A start or a high watermark that had been written down, and the records were
		// not: all of them are gone. The log is about to use those offsets again, and a
		// later recovery would take the old marks for theirs: it would hide what was
		// acknowledged, or call replicated what no other replica has.
		if err := l.putMark(true, -1); err != nil {
			return fmt.Errorf("recover %s: %w", l.id, err)
		}
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
	r.tellRemoval(slog.LevelWarn, "segments behind the torn tail are removed; nothing in them was known to be durable", r.behind, "durable", r.mark.durable)
	if err := l.removeSegments(r.behind); err != nil {
		return err
	}
	invariants.Fault("segment.recoverRemoved")
	if n := len(r.segments); n > 0 {
		s := r.segments[n-1]
		if err := l.store.disk.cut(s.path(), s.size); err != nil {
			return err
		}
		invariants.Fault("segment.recoverCut")
	}
	return nil
}

// indexAhead says that the index knows of batches at or above the log's end, and
// would be believed for it once the log has grown that far again. A power cut may
// leave what the index was told and take the batches, and nothing that looks torn.
func (r *recovery) indexAhead(end int64) (ahead bool) {
	l, x := r.l, r.l.store.index
	x.each(l.id.key(kindSummary), func(_, value []byte) {
		m, err := decodeSummaryStamped(l, value)
		ahead = ahead || err == nil && m.end > end
	})
	from := l.id.key(kindProducer, end+1)
	if len(r.segments) == 0 { // nor is it true of the log's start, then
		from = l.id.key(kindProducer, end)
	}
	x.eachFrom(from, l.id.key(kindProducer), func(key, value []byte) {
		_, ok := l.cached(value, decodeNumber(key))
		ahead = ahead || ok
	})
	return ahead
}

// forget begins a new generation, for which nothing is true that the index knows
// of what lay above the end. It may forget in a crash what it is told here.
func (r *recovery) forget(end int64) {
	l, last := r.l, int64(-1)
	l.mu.Lock()
	if n := len(r.segments); n > 0 {
		last = r.segments[n-1].base
		l.beginGenerationLocked(end, r.segments[0].base)
	} else {
		l.beginGenerationLocked(end, end)
		l.mu.life = l.mu.generation
	}
	l.mu.Unlock()
	l.store.index.write(func(b *pebble.Batch) {
		for _, kind := range []byte{kindOffset, kindTime, kindSummary} {
			l.store.index.drop(b, l.id.key(kind, last+1), l.id.key(kind))
		}
		l.store.index.drop(b, l.id.key(kindProducer, end+1), l.id.key(kindProducer))
	})
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
			invariants.Fault("segment.recoverSynced")
		}
		if err := r.l.store.disk.syncDir(r.l.dir); err != nil {
			return err
		}
		if r.mark.durable <= r.mark.start { // nor may the directory itself be
			return r.l.store.disk.syncDir(r.l.store.dir)
		}
	}
	return nil
}

// dropBelowStart deletes what lies below the log start, and writes the marks of
// a log that was changed or is new.
func (r *recovery) dropBelowStart() error {
	r.tellRemoval(slog.LevelInfo, "segments below the log start are removed, where a deletion was interrupted", r.below, "start", r.mark.start)
	if len(r.below) > 0 {
		r.l.waitTold(r.told, r.mark.start)
	}
	for _, s := range r.below {
		if err := r.l.removeSegment(s); err != nil {
			return fmt.Errorf("recover %s: %w", r.l.id, err)
		}
		invariants.Fault("segment.recoverDropped")
	}
	return r.l.putMark(r.lost, -1) // a new generation first, before anything is told to the index in it
}

// tellRemoval says which files will go, and why: none goes without a word.
func (r *recovery) tellRemoval(level slog.Level, why string, segments []*segment, args ...any) {
	n := len(segments)
	if n == 0 {
		return
	}
	bytes := int64(0)
	for _, s := range segments {
		size, _ := fileSize(r.l.store.disk, s.path())
		bytes += size
	}
	r.l.store.o.Logger.Log(context.Background(), level, why, append([]any{"log", r.l.id.String(), "from", segments[0].base,
		"files", n, "first", segments[0].path(), "last", segments[n-1].path(), "bytes", bytes}, args...)...)
}
