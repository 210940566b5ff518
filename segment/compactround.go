package segment

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// round is one round of compaction: gather fills the map from the dirty part,
// then rewrite goes over all groups of segments from the log start on. Oldest
// first, so that whatever ends it early leaves no record that a tombstone or a
// marker had ended, without it.
type round struct {
	cleanable
	l   *Log
	ctx context.Context
	now int64
	o   CompactOptions

	keys   *offsetMap
	mapped int64 // keys below it are in the map; what begins at or above it is copied as it is
	txns   transactions
	oldest oldestSnapshot
	read   batchReader
	filter filter
	stats  CompactStats

	// epoch is that of the last batch seen.
	epoch int32
	// blind says that records were met that cannot be read. A tombstone behind them
	// could be all that hides one of them, so it stays.
	blind bool
}

func newRound(ctx context.Context, l *Log, now int64, c cleanable, o CompactOptions) *round {
	r := &round{cleanable: c, l: l, ctx: ctx, now: now, o: o, epoch: -1}
	r.from = min(r.from, r.end) // nothing is dirty: the round removes what has had its time
	r.mapped = r.from
	r.read = batchReader{ctx: ctx, throttle: o.Throttle}
	r.filter.inflater.max = o.MaxBatchBytes
	records := int64(0)
	for _, p := range c.parts {
		if p.end > r.from {
			records += p.end - max(p.base, r.from)
		}
	}
	r.keys = newOffsetMap(o.mapMemory(), records)
	return r
}

func (r *round) close() {
	r.filter.close()
	r.keys.free()
}

func (r *round) run() error {
	if len(r.parts) == 0 {
		return nil
	}
	r.txns = r.l.transactions(r.end)
	r.oldest = r.l.oldestFrom(r.parts[0].base)
	if err := r.gather(); err != nil {
		return err
	}
	invariants.Fault("segment.compactGathered")
	for parts := r.below(r.mapped); len(parts) > 0; {
		n := r.group(parts)
		if err := r.rewrite(parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
		invariants.Fault("segment.compactGroup")
	}
	r.l.setCleaned(r.mapped, r.generation)
	invariants.Fault("segment.compactDone")
	return nil
}

func (r *round) result() CompactStats {
	s := r.stats
	s.From, s.End = r.from, r.mapped
	s.BytesRead = r.read.read
	s.MapKeys, s.MapUtilisation = r.keys.n, r.keys.utilisation()
	if r.mapped < r.end && r.mapped > r.from {
		s.RoundsLeft = int((r.end - r.mapped + r.mapped - r.from - 1) / (r.mapped - r.from))
	}
	return s
}

// below are the parts that begin below an offset.
func (r *round) below(offset int64) []part {
	n := 0
	for n < len(r.parts) && r.parts[n].base < offset {
		n++
	}
	return r.parts[:n]
}

// each calls fn with every batch of a part, from its beginning.
func (r *round) each(p part, fn func(record.Batch) error) error {
	if p.size == 0 {
		return nil
	}
	h, err := r.l.store.files.acquire(p.seg)
	if err != nil {
		return r.overtaken(err)
	}
	defer h.release()
	r.read.open(h, p.size)
	end, seen := p.base, unknownTimes
	for {
		b, err := r.read.next()
		switch {
		case err == nil:
			seen.add(b)
			err = checkOrder(b, end)
		case errors.Is(err, io.EOF) && seen.heads == p.times.heads:
			return nil
		case errors.Is(err, io.EOF):
			err = errHeads
		}
		switch {
		case err != nil && r.ctx.Err() != nil:
			return r.ctx.Err()
		case err != nil:
			if r.changed() {
				return errOvertaken // a file that was cut
			}
			pos := r.read.pos
			if err = r.l.damage(p.seg, pos, end, err); errors.Is(err, ErrCorrupt) {
				r.l.noteDamage(p.seg, err)
			}
			return err
		}
		end = b.NextOffset()
		if err := fn(b); err != nil {
			return err
		}
	}
}

// changed says that the log was truncated since the round began.
func (r *round) changed() bool {
	r.l.mu.RLock()
	defer r.l.mu.RUnlock()
	return r.l.mu.closed || r.l.mu.generation != r.generation
}

func (r *round) overtaken(err error) error {
	if errors.Is(err, ErrClosed) && !r.l.isClosed() {
		return errOvertaken // retention or a repair removed the file
	}
	return err
}

var errMapFull = errors.New("segment: offset map is full")

// gather fills the map with the keys of the dirty part, as far as they fit, and
// finds the last batch of each producer below that.
func (r *round) gather() error {
	for _, p := range r.parts {
		if p.end <= r.from {
			continue
		}
		err := r.each(p, func(b record.Batch) error {
			if b.NextOffset() <= r.from {
				return nil
			}
			if err := r.gatherBatch(b); err != nil {
				return err
			}
			r.mapped = b.NextOffset()
			return nil
		})
		if errors.Is(err, errMapFull) {
			break
		}
		if err != nil {
			return err
		}
		r.mapped = p.end
	}
	return r.gatherProducers()
}

func (r *round) gatherBatch(b record.Batch) error {
	r.txns.saw(b)
	if b.IsControl() || b.NumRecords() == 0 || r.txns.aborted(b) != nil {
		return nil
	}
	plain, err := r.filter.records(b)
	if err != nil {
		return nil // its keys are not known: what they have made obsolete stays
	}
	err = b.RawRecords(plain, func(rec *record.Raw) error {
		offset := b.BaseOffset() + int64(rec.OffsetDelta)
		if rec.Key == nil || offset < r.from {
			return nil
		}
		if !r.keys.put(rec.Key, offset) {
			r.mapped = max(offset, r.from)
			return errMapFull
		}
		return nil
	})
	if errors.Is(err, errMapFull) {
		return err
	}
	return nil
}

// gatherProducers looks for the last batches of producers in the clean part, by
// headers, where the dirty part had none.
func (r *round) gatherProducers() error {
	if !r.txns.missing() {
		return nil
	}
	for i := len(r.parts) - 1; i >= 0; i-- {
		p := r.parts[i]
		if p.base >= r.from || p.size == 0 {
			continue
		}
		h, err := r.l.store.files.acquire(p.seg)
		if err != nil {
			return r.overtaken(err)
		}
		s := newScanner(h, 0, p.size)
		for err == nil {
			var b record.Batch
			if b, _, _, err = s.next(); err == nil && b.NextOffset() <= r.from {
				r.txns.sawBefore(b, p.base)
			}
			if err == nil {
				err = r.ctx.Err()
			}
		}
		s.close()
		h.release()
		if !errors.Is(err, io.EOF) {
			if r.changed() {
				return errOvertaken
			}
			return r.l.damage(p.seg, s.pos, p.base, err)
		}
	}
	return nil
}

// group is how many parts become one file: as many as fit into segment.bytes,
// and into 32 bits of offsets.
func (r *round) group(parts []part) int {
	n, size := 1, parts[0].size
	for n < len(parts) {
		p := parts[n]
		if size += p.size; size > r.config.SegmentBytes || p.end-1-parts[0].base > math.MaxInt32 {
			break
		}
		n++
	}
	return n
}

// rewrite makes one file of a group and puts it in the group's place.
func (r *round) rewrite(group []part) error {
	old, cuts, err := r.stillThere(group)
	if err != nil {
		return err
	}
	out, err := r.l.replace(old, cuts)
	if err != nil {
		return err
	}
	defer out.abort()
	w := groupWriter{round: r, out: out, first: true}
	before := int64(0)
	for _, p := range group {
		before += p.size
		w.left += p.size
	}
	for _, p := range group {
		if err := r.each(p, w.batch); err != nil {
			return err
		}
	}
	r.stats.SegmentsBefore += len(group)
	r.stats.SizeBefore += before
	r.stats.SegmentsAfter++
	if len(w.over) > 0 {
		r.l.forgetAborted(w.over)
	}
	if w.gone > 0 {
		if err := r.forgetProducers(w.gone); err != nil {
			return err
		}
	}
	if len(group) == 1 && !w.changed {
		r.stats.SizeAfter += before
		return nil
	}
	if err := out.finish(); err != nil {
		return err
	}
	if err := w.account(); err != nil {
		return err
	}
	r.stats.SizeAfter += out.seg.size
	invariants.Fault("segment.compactWritten")
	return out.swap()
}

// stillThere checks that the group's segments are what they were when the round
// began.
func (r *round) stillThere(group []part) (old []*segment, cuts uint64, err error) {
	r.l.mu.RLock()
	defer r.l.mu.RUnlock()
	if r.l.mu.generation != r.generation {
		return nil, 0, errOvertaken
	}
	i := findSegment(r.l.mu.segments, group[0].base)
	for j, p := range group {
		if i+j >= len(r.l.mu.segments) || r.l.mu.segments[i+j] != p.seg {
			return nil, 0, errOvertaken
		}
		old = append(old, p.seg)
	}
	return old, r.l.cuts.Load(), nil
}

// groupWriter decides batch by batch what goes into a group's file.
type groupWriter struct {
	*round
	out     *replacement
	first   bool // no batch was met yet
	changed bool // the file is not the old one byte for byte
	left    int64
	told    int64          // bytes that the throttle was told of
	over    map[int64]bool // abort markers of transactions that left nothing
	gone    int64          // end of the last marker or producer reset that goes, 0 without one
}

func (w *groupWriter) batch(b record.Batch) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	// Rebuilding the index from the files has to find each epoch where it began,
	// and what a file begins with.
	structural := w.first || b.PartitionLeaderEpoch() > w.epoch
	if invariants.Planted("compactDropsEpochStart") {
		structural = false
	}
	w.first, w.epoch = false, max(w.epoch, b.PartitionLeaderEpoch())
	kept, err := w.decide(b)
	if err != nil {
		return err
	}
	switch {
	case kept != nil:
	case structural:
		kept = record.Hole(b.BaseOffset(), b.NextOffset(), b.PartitionLeaderEpoch())
	}
	w.left -= int64(len(b))
	if len(kept) != len(b) || &kept[0] != &b[0] {
		w.changed = w.changed || string(kept) != string(b)
	}
	if kept == nil {
		return nil
	}
	if err := w.out.write(kept); err != nil {
		return err
	}
	if w.out.seg.size-w.told < compactChunk {
		return nil
	}
	return w.account()
}

// account tells the throttle what was written.
func (w *groupWriter) account() error {
	n := w.out.seg.size - w.told
	w.told = w.out.seg.size
	w.stats.BytesWritten += n
	if w.o.Throttle == nil {
		return nil
	}
	return w.o.Throttle(w.ctx, int(n))
}

// decide returns what stays of a batch: itself, another, or nil.
func (w *groupWriter) decide(b record.Batch) (record.Batch, error) {
	if b.BaseOffset() >= w.mapped {
		return b, nil // the next round's
	}
	w.stats.RecordsRead += int64(b.NumRecords())
	if b.IsControl() {
		return w.control(b)
	}
	abort := w.txns.pass(b)
	switch {
	case abort != nil && abort.Marker >= w.end:
		// The marker is not ours to rely on yet, and its records are nobody's.
		w.stats.RecordsKept += int64(b.NumRecords())
		return b, nil
	case abort != nil:
		w.stats.Aborted += int64(b.NumRecords())
		return w.empty(b), nil
	case b.NumRecords() == 0:
		return w.empty(b), nil
	}
	return w.records(b)
}

// empty is what stays of a batch without records: its header, if its producer
// would be forgotten without it.
func (w *groupWriter) empty(b record.Batch) record.Batch {
	switch {
	case !w.txns.lastOf(b):
		return nil
	case b.NumRecords() == 0 && len(b) == record.HeaderSize:
		return b
	}
	return record.EmptyOf(b)
}

// records keeps the records of a batch that are the newest of their key.
func (w *groupWriter) records(b record.Batch) (record.Batch, error) {
	f := &w.filter
	plain, err := f.records(b)
	if err == nil {
		err = w.choose(b, plain)
	}
	if err != nil {
		w.stats.Unreadable++
		w.blind = true
		return w.keep(b), nil
	}
	w.stats.RecordsKept += int64(f.kept)
	w.stats.Tombstones += int64(f.tombstones)
	w.stats.Keyless += int64(f.keyless)
	stamp := f.living && !b.HasDeleteHorizon()
	switch {
	case f.kept == len(f.keep) && !stamp:
		return b, nil
	case f.kept == 0:
		return w.empty(b), nil
	}
	return w.rebuild(b, plain, stamp)
}

// choose marks in filter.keep which records of a batch stay.
func (w *groupWriter) choose(b record.Batch, plain []byte) error {
	f := &w.filter
	f.keep, f.kept, f.tombstones, f.keyless, f.living = f.keep[:0], 0, 0, 0, false
	passed := b.HasDeleteHorizon() && b.BaseTimestamp() <= w.now && !w.blind
	if invariants.Planted("tombstoneDroppedEarly") {
		passed = true
	}
	return b.RawRecords(plain, func(rec *record.Raw) error {
		offset := b.BaseOffset() + int64(rec.OffsetDelta)
		stays := true
		switch {
		case offset >= w.mapped:
		case rec.Key == nil:
			f.keyless++
			stays = false
		case offset < w.keys.newest(rec.Key):
			stays = false
		case rec.Tombstone && passed:
			f.tombstones++
			stays = false
		case rec.Tombstone:
			f.living = true
		}
		if stays {
			f.kept++
		}
		f.keep = append(f.keep, stays)
		return nil
	})
}

// rebuild makes a batch of the records that stay.
func (w *groupWriter) rebuild(b record.Batch, plain []byte, stamp bool) (record.Batch, error) {
	n, err := w.filter.rebuild(b, plain, stamp, w.horizon())
	if err != nil {
		return nil, err
	}
	if w.out.seg.size+int64(len(n))+w.left-int64(len(b)) > math.MaxInt32 && len(n) > len(b) {
		// Kafka's positions have 32 bits, and a horizon makes a batch longer.
		return b, nil
	}
	return n, nil
}
