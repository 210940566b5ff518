package segment

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
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
	r.l.keptAt = nil
	for _, name := range names {
		if strings.HasSuffix(name, tmpSuffix) || strings.HasSuffix(name, cleanedSuffix) {
			path := d.PathJoin(r.l.dir, name)
			size, _ := fileSize(d, path)
			if err := d.Remove(path); err != nil {
				return err
			}
			r.l.store.o.Logger.Info("unfinished file of an interrupted compaction, repair or cut was removed; what it was made from is still there", "log", r.l.id.String(), "file", path, "bytes", size)
		}
		if base, ok := parseProducersFile(name); ok {
			r.l.keptAt = append(r.l.keptAt, base)
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
