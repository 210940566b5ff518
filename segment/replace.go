package segment

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// replacement is a new file that takes the place of closed segments which lie
// side by side: what compaction leaves of them, or their repaired form. It
// spans the same offsets: it begins at or behind the first one's base, and
// finish fills it up to the last one's end, so that segments still stand
// without a hole between them (recovery takes one for damage).
//
// The names it goes through, each step durable before the next:
//
//	<base>.log.cleaned     being written; recovery removes it
//	<base>-<end>.swap      complete: it counts, and what it replaces does not
//	<base>.log             the segments that it replaces are gone
//
// Recovery that finds a .swap goes on from there. Readers are not stopped: views
// hold the old files, and who looks up finds the new one.
//
// Its methods belong to one goroutine, which may append to the log's end
// meanwhile or let others do so: only swap takes the log's lock.
type replacement struct {
	l    *Log
	old  []*segment
	end  int64  // of the last of old
	cuts uint64 // of the time when the old segments were chosen

	file    dataFile
	seg     *segment
	entries []entry
	epochs  epoch.Cache // of what was written
	settled bool        // the old segments were durable when the marks were written last
	indexed int64
	buf     []byte
	written int64 // bytes of buf that are in the file already
}

const (
	cleanedSuffix = ".cleaned"
	swapSuffix    = ".swap"

	// replaceBuffer is how much is written at a time.
	replaceBuffer = 1 << 20
)

// errOvertaken says that a truncation, retention or another replacement came
// between: nothing was changed.
var errOvertaken = errors.New("segment: log changed meanwhile")

// replace begins the replacement of closed segments of the log, which lie side
// by side.
func (l *Log) replace(old []*segment, cuts uint64) (*replacement, error) {
	first, last := old[0], old[len(old)-1]
	r := &replacement{l: l, old: old, cuts: cuts, buf: make([]byte, 0, replaceBuffer+replaceBuffer/8), seg: &segment{log: l, base: first.base, end: first.base, times: unknownTimes, trimmed: true}}
	l.mu.RLock()
	r.end = last.end
	l.mu.RUnlock()
	f, err := l.store.disk.open(r.path(cleanedSuffix), true)
	if errors.Is(err, fs.ErrExist) { // one that failed before
		if err = l.store.disk.Remove(r.path(cleanedSuffix)); err == nil {
			f, err = l.store.disk.open(r.path(cleanedSuffix), true)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("replace %s: %w", first.path(), err)
	}
	r.file = f
	return r, nil
}

func (r *replacement) path(suffix string) string {
	if suffix == swapSuffix {
		return r.l.store.disk.PathJoin(r.l.dir, swapName(r.seg.base, r.end))
	}
	return r.seg.path() + suffix
}

// write adds one whole batch, whose offsets are not below what was written.
func (r *replacement) write(b record.Batch) error {
	if err := checkOrder(b, r.seg.end); err != nil {
		return invariants.Check(false, "replace %s: %v", r.seg.path(), err)
	}
	pos := r.seg.size
	if pos-r.indexed >= r.l.store.o.IndexInterval {
		r.entries = append(r.entries, entry{offset: b.BaseOffset(), pos: pos, time: r.seg.times.max})
		r.indexed = pos
	}
	r.seg.times.add(b)
	r.epochs.Assign(b.PartitionLeaderEpoch(), b.BaseOffset())
	r.seg.size, r.seg.end = pos+int64(len(b)), b.NextOffset()
	if r.buf = append(r.buf, b...); len(r.buf) < replaceBuffer {
		return nil
	}
	return r.flush()
}

func (r *replacement) flush() error {
	if err := r.l.store.space.spare(int64(len(r.buf))); err != nil {
		return fmt.Errorf("replace %s: %w", r.seg.path(), err)
	}
	if err := writeAt(r.file, r.buf, r.written, writePiece); err != nil {
		return fmt.Errorf("replace %s: %w", r.seg.path(), asFull(err))
	}
	if f, ok := r.file.(writebacker); ok {
		f.startWriteback(r.written, int64(len(r.buf)))
	}
	r.written += int64(len(r.buf))
	r.buf = r.buf[:0]
	return nil
}

// finish fills the file up to the end, and makes it durable under its first name.
func (r *replacement) finish() error {
	if hole := r.end - r.seg.end; hole > 0 {
		e, _ := r.l.EpochAt(r.end - 1)
		for rest := record.Hole(r.seg.end, r.end, e); len(rest) > 0; {
			b, next, err := record.Next(rest)
			if err != nil {
				return err
			}
			if err := r.write(b); err != nil {
				return err
			}
			rest = next
		}
	}
	if err := r.flush(); err != nil {
		return err
	}
	invariants.Fault("segment.replaceWritten")
	if invariants.Planted("swapWithoutSync") {
		return nil
	}
	if err := r.file.SyncData(); err != nil {
		return r.l.store.fail(fmt.Errorf("sync %s: %w", r.path(cleanedSuffix), err))
	}
	return nil
}

// swap puts the finished file in the place of the old segments. errOvertaken
// means that they are not the ones any more; the caller aborts.
func (r *replacement) swap() error {
	l := r.l
	// What the index knows of the old files must not outlive them: a position in
	// the old file is another batch in the new one, and a summary that is larger
	// than the file looks like damage. So it forgets first, durably.
	if err := l.forget(r.old); err != nil {
		return err
	}
	// So may a proof in the marks on disk: they lag behind those in memory.
	r.settled = l.durable.Load() >= r.end
	if err := l.putMark(true, -1); err != nil {
		l.store.failSync(err)
		return fmt.Errorf("replace %s: %w", r.seg.path(), err)
	}
	invariants.Fault("segment.replaceForgotten")
	// Removing a file that is open is quick; its blocks are freed when the last
	// handle goes, after the lock.
	var held []*handle
	defer func() {
		for _, h := range held {
			h.release()
		}
	}()
	for _, s := range r.old {
		h, err := l.store.files.acquire(s)
		if err != nil {
			return r.overtaken(err)
		}
		held = append(held, h)
	}
	l.wr.Lock()
	defer l.wr.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	i := findSegment(l.mu.segments, r.seg.base)
	if l.cuts.Load() != r.cuts || i+len(r.old) >= len(l.mu.segments) {
		return errOvertaken
	}
	for j, s := range r.old {
		if l.mu.segments[i+j] != s {
			return errOvertaken // retention took some
		}
	}
	if err := l.dropProof(r.seg.base, r.end); err != nil {
		return fmt.Errorf("replace %s: %w", r.seg.path(), err)
	}
	if err := l.store.disk.Rename(r.path(cleanedSuffix), r.path(swapSuffix)); err != nil {
		return fmt.Errorf("replace %s: %w", r.seg.path(), err)
	}
	if err := r.exchange(i); err != nil {
		return l.fail(fmt.Errorf("replace %s: %w", r.seg.path(), err))
	}
	return nil
}

// overtaken tells a file that was removed from a disk that cannot be read.
func (r *replacement) overtaken(err error) error {
	if errors.Is(err, ErrClosed) {
		return errOvertaken
	}
	return err
}

// dropProof forgets, durably, what is known of the bytes of segments in a range
// whose files get other ones.
func (l *Log) dropProof(base, end int64) error {
	l.mu.Lock()
	hit := l.mu.proof.size > 0 && l.mu.proof.base >= base && l.mu.proof.base < end
	if hit {
		l.mu.proof = proof{}
	}
	l.mu.Unlock()
	if !hit {
		return nil
	}
	if err := l.putMark(true, -1); err != nil {
		l.store.failSync(err)
		return err
	}
	return nil
}

// exchange is swap from where there is no way back.
func (r *replacement) exchange(i int) error {
	l, seg := r.l, r.seg
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return err
	}
	invariants.Fault("segment.replaceSwap")
	// Pinned while its name changes: it cannot be opened by path.
	seg.dirty.Store(true)
	h, err := l.store.files.adopt(seg, r.file)
	if err != nil {
		return err
	}
	h.release()
	r.file = nil
	l.mu.Lock()
	l.cuts.Add(1)
	if first := r.old[0]; first.size > 0 && first.synced == first.size {
		seg.synced = seg.size // durable it is anyhow, but a flush would stop here (see cutFile)
	}
	segments := append([]*segment(nil), l.mu.segments[:i]...)
	segments = append(segments, seg)
	l.mu.segments = append(segments, l.mu.segments[i+len(r.old):]...)
	l.mu.size += seg.size
	for _, s := range r.old {
		l.mu.size -= s.size
	}
	l.publishLocked()
	l.mu.Unlock()
	l.forgetHints()
	for j := len(r.old) - 1; j > 0; j-- {
		if err := l.removeSegment(r.old[j]); err != nil {
			return err
		}
		invariants.Fault("segment.replaceRemoved")
	}
	// The .swap says what to do until the others are gone for good: behind the
	// rename they would look like segments that do not follow each other.
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return err
	}
	l.store.files.drop(r.old[0], true)
	if err := l.store.disk.Rename(r.path(swapSuffix), seg.path()); err != nil {
		return err
	}
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return err
	}
	seg.dirty.Store(false)
	invariants.Fault("segment.replaceDone")
	l.store.index.putEntries(l.id, seg.base, r.entries)
	m := summary{size: seg.size, end: seg.end, times: seg.times, epochs: r.epochsKnown()}
	l.store.index.write(func(b *pebble.Batch) {
		_ = b.Set(l.id.key(kindSummary, seg.base), l.stamp(m.encode()), nil)
		_ = b.DeleteRange(l.id.key(kindProducer, seg.base+1), l.id.key(kindProducer, seg.end), nil)
	})
	l.store.flusher.indexGrew.Store(true)
	return nil
}

// epochsKnown are the epochs of the new file, and where the log knows that they began
// in batches that are not in it. Only of what was durable: else one recovery
// would walk the file and the next believe the index; and not where the log start lies,
// which the log's epochs are moved to.
func (r *replacement) epochsKnown() []epoch.Entry {
	list := r.epochs.Entries()
	if !r.settled {
		return list
	}
	for _, e := range r.l.mu.epochs.Entries() {
		if e.Start > r.l.mu.start && e.Start >= r.seg.base && e.Start < r.end {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b epoch.Entry) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Start, b.Start))
	})
	return epoch.New(list).Entries()
}

// forget makes the index know nothing of the segments' files, durably. The
// producer snapshots stay: what they say of the log is true of the new file too.
func (l *Log) forget(segments []*segment) error {
	if invariants.Planted("indexNotForgottenBeforeSwap") {
		return nil
	}
	x := l.store.index
	if x.broken.Load() {
		return fmt.Errorf("replace segments of %s: %w", l.id, errIndexBroken)
	}
	x.write(func(b *pebble.Batch) {
		for _, s := range segments {
			x.dropSegment(b, l.id, s.base)
		}
	})
	if err := x.do(func() error { return x.db.Flush() }); err != nil {
		return fmt.Errorf("replace segments of %s: %w", l.id, err)
	}
	return nil
}

// abort gives up a replacement, after any error. The log is as it was, but for
// lookups in the old segments, which walk.
func (r *replacement) abort() {
	if r.file == nil {
		return
	}
	_ = r.file.Close()
	r.file = nil
	if r.l.isClosed() {
		return // the directory may belong to another life of the log
	}
	if err := r.l.store.disk.Remove(r.path(cleanedSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.l.store.o.Logger.Error("abandoned file of a compaction or repair cannot be removed; the next start does it", "file", r.path(cleanedSuffix), "err", err)
	}
}

func swapName(base, end int64) string { return fmt.Sprintf("%020d-%020d%s", base, end, swapSuffix) }

func parseSwapName(name string) (base, end int64, ok bool) {
	s, ok := strings.CutSuffix(name, swapSuffix)
	if !ok || len(s) != 41 || s[20] != '-' {
		return 0, 0, false
	}
	base, err := strconv.ParseInt(s[:20], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if end, err = strconv.ParseInt(s[21:], 10, 64); err != nil {
		return 0, 0, false
	}
	return base, end, base >= 0 && base <= end && swapName(base, end) == name
}

// finishSwap is recovery's part: the file is complete, and replaces every
// segment that begins in its range. It is read to its end before anything is
// removed. Being interrupted leaves it to be done again.
func (r *recovery) finishSwap(name string, base, end int64) error {
	d, path := r.l.store.disk, r.l.store.disk.PathJoin(r.l.dir, name)
	fi, err := d.Stat(path)
	if err != nil {
		return err
	}
	f, err := d.open(path, false)
	if err != nil {
		return err
	}
	w, err := walk(f, base, fi.Size(), walkOptions{interval: 1 << 62})
	if errClose := f.Close(); err == nil && errClose != nil {
		return errClose
	}
	switch {
	case err != nil && !isBadBatch(err):
		return fmt.Errorf("recover %s: %w", path, err)
	case err != nil || w.end != end:
		if err == nil {
			err = fmt.Errorf("file ends at offset %d, its name says %d", w.end, end)
		}
		return &DamageError{File: path, At: w.size, Offset: w.end, Err: err}
	}
	kept, replaced := r.segments[:0], 0
	for _, s := range r.segments {
		if s.base < base || s.base >= end {
			kept = append(kept, s)
			continue
		}
		if s.base == base {
			continue // the rename takes its name
		}
		if err := d.Remove(s.path()); err != nil {
			return err
		}
		replaced++
		invariants.Fault("segment.recoverReplaced")
	}
	r.segments = append(kept, &segment{log: r.l, base: base, end: base, times: unknownTimes})
	if err := d.syncDir(r.l.dir); err != nil { // see exchange
		return err
	}
	if err := d.Rename(path, d.PathJoin(r.l.dir, fileName(base))); err != nil {
		return err
	}
	invariants.Fault("segment.recoverSwapped")
	r.l.store.o.Logger.Info("interrupted replacement of segments was finished", "log", r.l.id.String(), "from", base, "to", end,
		"file", d.PathJoin(r.l.dir, fileName(base)), "files_removed", replaced)
	return d.syncDir(r.l.dir)
}
