package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// View is a range of whole batches in one segment file. It keeps the file
// readable, also when the segment is deleted meanwhile, until Release; release
// each view that Read returned exactly once (copies of a View are the same
// view).
//
// A position of a segment file never gets other bytes, so a view never shows
// bytes of another time. One thing can happen to it: when the log is truncated
// below the view's end, the file ends earlier, and reading past that gives
// io.ErrUnexpectedEOF (the kernel's file-to-socket copy: 0 bytes). Who has
// promised the bytes to a peer then closes the connection; the records were
// never behind the truncation's high watermark.
type View struct {
	// Base is the base offset of the batch that holds the offset asked for, or the
	// offset asked for where that was known to lie at a batch boundary.
	Base int64
	End  int64 // where to read on
	N    int   // bytes

	h   *handle
	pos int64
	mem []byte // instead of a file
}

// ViewOf is a view of batches in memory, for logs that have no files.
func ViewOf(base, end int64, batches []byte) View {
	return View{Base: base, End: end, N: len(batches), mem: batches}
}

// File is the file to send from, with ok = false where the file system has no
// descriptors. Its own position must not be used: it is shared.
func (v View) File() (f *os.File, ok bool) {
	if v.h == nil {
		return nil, false
	}
	return v.h.os()
}

// Offset is the position of the first byte in the file.
func (v View) Offset() int64 { return v.pos }

// Len is the number of bytes.
func (v View) Len() int { return v.N }

// ReadAt reads from the view; off counts from its first byte. It ends with
// io.EOF at the view's end.
func (v View) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("segment: negative offset %d in view", off)
	}
	left := int64(v.N) - off
	if left <= 0 {
		return 0, io.EOF
	}
	short := int64(len(p)) > left
	if short {
		p = p[:left]
	}
	if v.mem != nil {
		n := copy(p, v.mem[off:])
		if short {
			return n, io.EOF
		}
		return n, nil
	}
	n, err := readFull(v.h, p, v.pos+off)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// Release lets go of the file.
func (v *View) Release() {
	if v.h != nil {
		v.h.release()
		v.h = nil
	}
}

// hint is where a reader stopped: the batches from offset on begin at pos.
type hint struct {
	offset, pos int64
	seg         *segment
}

// Read finds the batches from the one that holds offset on: whole batches of
// one segment, at most maxBytes, none that reaches above end. With atLeastOne
// the first batch is given even if it is larger than maxBytes. An empty view
// means that there is nothing below end, or nothing that fits.
//
// A reader that goes on where the last view ended costs no index lookup, and
// at the log end no read at all.
func (l *Log) Read(offset int64, maxBytes int, end int64, atLeastOne bool) (View, error) {
	for try := 0; ; try++ {
		cuts := l.cuts.Load()
		v, err := l.read(offset, maxBytes, end, atLeastOne)
		if err != nil && try < 4 && l.overtaken(err, cuts) {
			continue
		}
		return v, err
	}
}

// overtaken says that an error comes from a segment that was removed or cut
// after it had been chosen: choose again.
func (l *Log) overtaken(err error, cuts uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return !l.mu.closed && (errors.Is(err, ErrClosed) || l.cuts.Load() != cuts)
}

// place is a segment as it was when a reader looked.
type place struct {
	seg       *segment
	size, end int64
	active    bool
	pos       int64 // a batch begins here, none before it reaches offset
	exact     bool  // offset's batch is the one at pos
	inMemory  bool  // pos is the best that is known: the index need not be asked
	cuts      uint64
}

func (l *Log) read(offset int64, maxBytes int, end int64, atLeastOne bool) (View, error) {
	empty := View{Base: offset, End: offset}
	p, end, err := l.locate(offset, end)
	if err != nil || p.seg == nil {
		return empty, err
	}
	h, err := l.store.files.acquire(p.seg)
	if err != nil {
		return empty, fmt.Errorf("read %s at %d: %w", l.id, offset, err)
	}
	v := View{Base: offset, End: offset, h: h, pos: p.pos}
	if !p.exact {
		if v.pos, v.Base, err = l.seek(h, p, offset); err != nil {
			h.release()
			return empty, err
		}
	}
	if end >= p.end && v.pos+int64(maxBytes) >= p.size {
		v.N, v.End = int(p.size-v.pos), p.end // all that is left of the segment
	} else if err = l.limit(&v, p, maxBytes, end, atLeastOne); err != nil {
		h.release()
		return empty, err
	}
	if v.N == 0 {
		h.release()
		return empty, nil
	}
	if next := v.pos + int64(v.N); next < p.size || p.active {
		l.remember(hint{offset: v.End, pos: next, seg: p.seg})
	}
	return v, nil
}

// locate chooses the segment for offset, and how much is known about the
// position without the index. A place without segment means nothing to read.
func (l *Log) locate(offset, end int64) (p place, limit int64, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed {
		return p, 0, fmt.Errorf("%w: read %s", ErrClosed, l.id)
	}
	if d := l.damaged.Load(); d != nil && !invariants.Planted("damageServed") {
		return p, 0, d
	}
	if offset < l.mu.start || offset > l.mu.end {
		return p, 0, fmt.Errorf("%w: %s has %d to %d, asked for %d", ErrOutOfRange, l.id, l.mu.start, l.mu.end, offset)
	}
	end = min(end, l.mu.end)
	if offset >= end {
		return p, end, nil
	}
	i := findSegment(l.mu.segments, offset)
	for i < len(l.mu.segments) && (l.mu.segments[i].end <= offset || l.mu.segments[i].size == 0) {
		i++ // offset is in the hole behind a segment, or before an empty one
	}
	if i == len(l.mu.segments) || l.mu.segments[i].base >= end {
		return p, end, nil
	}
	s := l.mu.segments[i]
	p = place{seg: s, size: s.size, end: s.end, active: i == len(l.mu.segments)-1, cuts: l.cuts.Load()}
	if offset <= s.base {
		p.exact = true
		return p, end, nil
	}
	if pos, ok := l.recall(s, offset); ok && pos < p.size {
		p.pos, p.exact = pos, true
		return p, end, nil
	}
	if p.active {
		j := sort.Search(len(l.mu.tail), func(j int) bool { return l.mu.tail[j].offset > offset })
		if j > 0 {
			p.pos, p.inMemory = l.mu.tail[j-1].pos, true
		}
	}
	p.inMemory = p.inMemory || !s.trimmed
	return p, end, nil
}

// seek finds the position of the batch that holds offset, or of the first
// behind it, and that batch's base offset.
func (l *Log) seek(h *handle, p place, offset int64) (pos, base int64, err error) {
	from, want := p.pos, int64(-1)
	if !p.inMemory {
		if from, want = l.store.index.position(l.id, p.seg.base, offset); from >= p.size {
			from, want = 0, -1 // an entry from before a truncation
		}
		if l.cuts.Load() != p.cuts {
			// The entry may be of the file that replaced this one.
			return 0, 0, fmt.Errorf("%w: %s was replaced", ErrClosed, p.seg.path())
		}
	}
	for {
		pos, base, err = seekFrom(h, from, p.size, offset, want)
		if err == nil && (from == 0 || base <= offset || pos > from) {
			return pos, base, nil
		}
		if from == 0 || err != nil && !isBadBatch(err) && !errors.Is(err, io.EOF) {
			return 0, 0, l.damage(p.seg, pos, offset, err)
		}
		// The index pointed into the middle of a batch, or too far: it does not know
		// better, the file does.
		from, want = 0, -1
	}
}

// errEntry is an index entry that speaks of other bytes than the file has.
var errEntry = &record.CorruptError{Reason: "the index promised another batch here"}

// seekFrom walks from a position on. want, if not -1, is the base offset that
// the index says the first batch has: a position inside of a record that looks
// like a batch must not be taken for one.
func seekFrom(h *handle, from, size, offset, want int64) (pos, base int64, err error) {
	s := newScanner(h, from, size)
	defer s.close()
	for {
		b, pos, _, err := s.next()
		if err == nil && want >= 0 && b.BaseOffset() != want && !invariants.Planted("staleIndexEntryBelieved") {
			err = errEntry
		}
		if err != nil {
			return pos, 0, err
		}
		want = -1
		if b.NextOffset() > offset {
			return pos, b.BaseOffset(), nil
		}
	}
}

// limit sets the view's end where it is not the segment's: after the last batch
// that ends at or below end and fits.
func (l *Log) limit(v *View, p place, maxBytes int, end int64, atLeastOne bool) error {
	limit := v.pos + int64(maxBytes)
	from, next := v.pos, v.Base
	if p.active {
		if e, ok := l.boundary(p.seg, v.pos, min(limit, p.size), end); ok {
			from, next = e.pos, e.offset
		}
	}
	s := newScanner(v.h, from, p.size)
	defer s.close()
	for {
		b, pos, size, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return l.damage(p.seg, pos, next, err)
		}
		first := pos == v.pos
		if first {
			v.Base = b.BaseOffset()
		}
		if b.NextOffset() > end || pos+int64(size) > limit && !(first && atLeastOne) {
			break
		}
		from, next = pos+int64(size), b.NextOffset()
		if from >= limit {
			break
		}
	}
	v.N = int(from - v.pos)
	if v.N > 0 {
		v.End = next
	}
	return nil
}

// boundary is the last index entry in memory behind pos, at or before limit and
// with everything before it below end.
func (l *Log) boundary(seg *segment, pos, limit, end int64) (entry, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.active() != seg {
		return entry{}, false
	}
	i := sort.Search(len(l.mu.tail), func(i int) bool { return l.mu.tail[i].pos > limit || l.mu.tail[i].offset > end })
	if i == 0 || l.mu.tail[i-1].pos <= pos {
		return entry{}, false
	}
	return l.mu.tail[i-1], true
}

// damage is an error that names the file and the offset; the scrubber then looks
// at the whole file. A disk that cannot be read is not damage.
func (l *Log) damage(seg *segment, pos, offset int64, err error) error {
	if errors.Is(err, io.EOF) {
		err = record.ErrShort
	}
	if !isBadBatch(err) {
		return fmt.Errorf("read %s at %d: %w", l.id, offset, err)
	}
	l.store.scrubber.suspect(seg)
	return &DamageError{File: seg.path(), At: pos, Offset: offset, Err: err, Dir: l.store.o.Dir, Log: l.id}
}

func (l *Log) recall(seg *segment, offset int64) (pos int64, ok bool) {
	l.hints.Lock()
	defer l.hints.Unlock()
	for _, h := range l.hints.ring {
		if h.offset == offset && h.seg == seg {
			return h.pos, true
		}
	}
	return 0, false
}

func (l *Log) remember(h hint) {
	l.hints.Lock()
	defer l.hints.Unlock()
	for i := range l.hints.ring {
		if l.hints.ring[i] == h {
			return
		}
	}
	l.hints.ring[l.hints.next] = h
	l.hints.next = (l.hints.next + 1) % len(l.hints.ring)
}
