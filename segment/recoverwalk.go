package segment

import (
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

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
