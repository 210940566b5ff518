package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

var repairsDone = obs.Counter("lockstep_log_repairs_total")

// Fetch gives the true batches of a range of offsets, in order, from somebody
// who has them: next says that everything in [from, next) is among batches, or
// not in that log at all any more (compaction took it). The bytes are used
// until the next call. Who does not have the range answers an error, never
// emptiness.
type Fetch func(ctx context.Context, from, to int64) (batches []byte, next int64, err error)

// Repaired is what a repair did.
type Repaired struct {
	Ranges     []Damage // what was damaged
	Quarantine []string // the damaged files as they were
	Lost       int64    // with AcceptLoss: offsets that are holes now
	Bytes      int64    // fetched
}

// ErrNotWhole: what a repair was given does not fit into the log. Nothing was
// changed.
var ErrNotWhole = errors.New("segment: repair does not fit")

// maxRepairs bounds how often one Repair begins again: each time what it put
// right has shown another damage behind it.
const maxRepairs = 64

// Repair makes a damaged log whole with batches from fetch, and takes it into
// use again. It does nothing for a log that is whole. Good batches of damaged
// files stay; what fetch gives is checked (CRC, offsets that fill exactly the
// hole, leader epochs that fit between the neighbours and are those the log
// remembers). The order, each step before the next:
//
//  1. read the files that are doubtful;
//  2. write each damaged one anew under the name .cleaned, and make it durable;
//  3. the index forgets the old files, durably;
//  4. link the damaged file into quarantine;
//  5. rename: .cleaned, .swap, .log (see replacement, whose recovery this is too);
//  6. recover the log from its files as when it is opened.
//
// A crash before the renaming leaves the log damaged as before, one after it
// repaired; files that come later in the log are never touched. fetch is
// called without any lock of the log but the one that keeps a second Repair away.
func (l *Log) Repair(ctx context.Context, fetch Fetch) (Repaired, error) {
	return l.repair(ctx, fetch, false)
}

func (l *Log) repair(ctx context.Context, fetch Fetch, fill bool) (done Repaired, err error) {
	l.repairMu.Lock()
	defer l.repairMu.Unlock()
	l.wr.Lock()   // what changes the log has ended by now, or will see that it is damaged
	l.wr.Unlock() //nolint:staticcheck // a barrier
	for range maxRepairs {
		if l.damaged.Load() == nil {
			return done, nil
		}
		if err = l.repairOnce(ctx, fetch, fill, &done); err != nil {
			return done, fmt.Errorf("repair log %s: %w", l.id, err)
		}
	}
	return done, fmt.Errorf("repair log %s: %w", l.id, l.damaged.Load())
}

// repairOnce repairs what one look at the log shows.
func (l *Log) repairOnce(ctx context.Context, fetch Fetch, fill bool, done *Repaired) error {
	v, err := l.survey()
	if err != nil {
		return err
	}
	var made []*rebuilt
	defer func() {
		for _, b := range made {
			b.abort()
		}
	}()
	for i := range v.files {
		if f := &v.files[i]; f.damaged {
			b, err := l.rebuild(ctx, f, fetch, fill, done)
			if b != nil {
				made = append(made, b)
			}
			if err != nil {
				return err
			}
		}
	}
	done.Ranges = append(done.Ranges, v.Damages...)
	return l.putRight(v, made, done)
}

// survey looks at a damaged log: at every file that is noted, or that the index
// does not vouch for.
func (l *Log) survey() (*Survey, error) {
	d := l.damaged.Load()
	if err := l.putMark(true, -1); err != nil { // a no-op where only the marks are known
		return nil, err
	}
	if err := l.store.disk.MkdirAll(l.dir, 0o755); err != nil { // it may be what is missing
		return nil, err
	}
	if err := l.store.disk.syncDir(l.store.dir); err != nil {
		l.store.failSync(err)
		return nil, err
	}
	r := recovery{l: l}
	r.mark, r.known = l.store.marks.get(l.id)
	if l.mu.unread && r.known {
		l.mu.generation, l.mu.floor, l.mu.life = r.mark.generation, r.mark.floor, r.mark.life
	}
	if err := l.listForRepair(&r); err != nil {
		return nil, err
	}
	r.loadSummaries()
	return r.survey(func(s *segment) bool { return s.path() == d.File })
}

// listForRepair finds the files. An interrupted replacement whose file is damaged
// is taken out of the way: what it replaced is there still, or is missing.
func (l *Log) listForRepair(r *recovery) error {
	err := r.list()
	var d *DamageError
	if !errors.As(err, &d) {
		return err
	}
	base, _, _ := parseSwapName(l.store.disk.PathBase(d.File))
	if _, err := l.store.quarantine.keepFile(l.id, base, d.File); err != nil {
		return err
	}
	if err := l.store.disk.Remove(d.File); err != nil {
		return err
	}
	invariants.Fault("segment.repairSwapRemoved")
	r.segments = nil
	return r.list()
}

// rebuilt is a file that will take the place of a damaged or missing one.
type rebuilt struct {
	*replacement
	from *surveyed
	last int32 // leader epoch of the last batch written, -1 without one
}

// rebuild writes one file anew.
func (l *Log) rebuild(ctx context.Context, f *surveyed, fetch Fetch, fill bool, done *Repaired) (*rebuilt, error) {
	seg := &segment{log: l, base: f.base, end: f.base}
	r, err := l.replace([]*segment{seg}, l.cuts.Load())
	if err != nil {
		return nil, err
	}
	b := &rebuilt{replacement: r, from: f, last: f.epoch}
	r.end = f.end
	for i, p := range f.pieces {
		if p.bad == nil {
			err = b.copy(p)
		} else {
			before := b.written + int64(len(b.buf))
			next := f.next
			if i+1 < len(f.pieces) {
				next = f.pieces[i+1].first
			}
			if invariants.Planted("corruptRefetchedFromItself") {
				fetch = b.ownBytes(p)
			}
			if err = b.refill(ctx, p, next, fetch); err == nil && (fill || i+1 == len(f.pieces)) {
				err = b.hole(p.to, next, done)
			}
			done.Bytes += b.written + int64(len(b.buf)) - before
		}
		if err != nil {
			return b, err
		}
	}
	return b, b.finish()
}

// copy takes over good batches, checking them once more.
func (b *rebuilt) copy(p piece) error {
	file, err := b.l.store.disk.open(b.from.path, false)
	if err != nil {
		return err
	}
	defer file.Close()
	s := newScanner(file, p.pos, p.pos+p.size)
	defer s.close()
	var buf []byte
	for left := p.batches; left > 0; left-- {
		_, pos, n, err := s.next()
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", b.from.path, s.pos, err)
		}
		var batch record.Batch
		if batch, buf, err = s.body(buf, pos, n); err != nil {
			return err
		}
		if err := batch.VerifyCRC(); err != nil {
			return fmt.Errorf("read %s at %d: %w", b.from.path, pos, err)
		}
		if err := b.put(batch); err != nil {
			return err
		}
	}
	return nil
}

// refill asks for what is missing and takes nothing that does not fit.
func (b *rebuilt) refill(ctx context.Context, p piece, nextEpoch int32, fetch Fetch) error {
	for from := p.from; from < p.to; {
		batches, next, err := fetch(ctx, from, p.to)
		if err != nil {
			return err
		}
		if next <= from || next > p.to {
			return fmt.Errorf("%w: asked for %d to %d, the answer reaches to %d", ErrNotWhole, from, p.to, next)
		}
		for rest := batches; len(rest) > 0; {
			var batch record.Batch
			if batch, rest, err = record.Next(rest); err != nil {
				return fmt.Errorf("%w: %w", ErrNotWhole, err)
			}
			if err := b.fits(batch, from, next, nextEpoch); err != nil {
				return err
			}
			if err := b.put(batch); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

// ownBytes is a planted bug: the damaged bytes are asked of the damaged log.
func (b *rebuilt) ownBytes(p piece) Fetch {
	return func(context.Context, int64, int64) ([]byte, int64, error) {
		f, err := b.l.store.disk.open(b.from.path, false)
		if err != nil {
			return nil, 0, err
		}
		defer f.Close()
		batches := make([]byte, p.size)
		_, err = readFull(f, batches, p.pos)
		return batches, p.to, err
	}
}

// fits checks one batch of the answer for [from, to).
func (b *rebuilt) fits(batch record.Batch, from, to int64, nextEpoch int32) error {
	if err := batch.VerifyCRC(); err != nil && !invariants.Planted("corruptRefetchedFromItself") {
		return fmt.Errorf("%w: %w", ErrNotWhole, err)
	}
	base, e := batch.BaseOffset(), batch.PartitionLeaderEpoch()
	if base < max(from, b.seg.end) || batch.NextOffset() > to {
		return fmt.Errorf("%w: batch %d to %d is not between its neighbours, which leave %d to %d", ErrNotWhole, base, batch.NextOffset(), max(from, b.seg.end), to)
	}
	if e < b.last || nextEpoch >= 0 && e > nextEpoch {
		return fmt.Errorf("%w: batch at %d has leader epoch %d, its neighbours have %d and %d", ErrNotWhole, base, e, b.last, nextEpoch)
	}
	if !b.l.mu.unread {
		if known, ok := b.l.EpochAt(base); ok && base >= b.l.StartOffset() && known != e {
			return fmt.Errorf("%w: batch at %d has leader epoch %d, the log remembers %d", ErrNotWhole, base, e, known)
		}
	}
	return nil
}

func (b *rebuilt) put(batch record.Batch) error {
	b.last = batch.PartitionLeaderEpoch()
	return b.write(batch)
}

// hole puts batches without records where nothing is known up to to.
func (b *rebuilt) hole(to int64, nextEpoch int32, done *Repaired) error {
	e := max(b.last, 0)
	if b.last < 0 && nextEpoch >= 0 {
		e = nextEpoch
	}
	done.Lost += max(to-b.seg.end, 0)
	for rest := record.Hole(b.seg.end, to, e); len(rest) > 0; {
		batch, r, err := record.Next(rest)
		if err != nil {
			return err
		}
		if err := b.put(batch); err != nil {
			return err
		}
		rest = r
	}
	return nil
}

// putRight gives the new files their names, and recovers the log.
func (l *Log) putRight(v *Survey, made []*rebuilt, done *Repaired) error {
	l.wr.Lock()
	defer l.wr.Unlock()
	if l.isClosed() {
		return fmt.Errorf("%w: %s", ErrClosed, l.id)
	}
	if err := l.store.failure(); err != nil {
		return err
	}
	if err := l.forgetFiles(v); err != nil {
		return err
	}
	invariants.Fault("segment.repairForgotten")
	l.mu.RLock()
	for _, s := range l.mu.segments {
		l.store.files.drop(s, true)
	}
	l.mu.RUnlock()
	if err := l.promise(v, made); err != nil {
		return err
	}
	invariants.Fault("segment.repairPromised")
	for _, b := range made {
		path, err := b.takeName()
		if path != "" {
			done.Quarantine = append(done.Quarantine, path)
		}
		if err != nil {
			l.store.failSync(err)
			return err
		}
	}
	l.mu.Lock()
	l.cuts.Add(1)
	l.mu.Unlock()
	l.forgetHints()
	return l.comeBack(len(made))
}

// promise notes what the new files are, for recovery to read them once more, and
// takes back what was known of those that are no longer what they were.
func (l *Log) promise(v *Survey, made []*rebuilt) error {
	var files []noted
	for _, f := range v.files {
		if f.read && !f.damaged { // good, but it may be shorter than it was
			files = append(files, noted{base: f.base})
		}
	}
	for _, b := range made {
		files = append(files, noted{base: b.seg.base, known: known{size: b.seg.size, heads: b.seg.times.heads}})
	}
	if len(made) == 0 {
		return nil
	}
	if err := l.note(true, files...); err != nil {
		return err
	}
	m, ok := l.store.marks.get(l.id)
	if !ok || !slices.ContainsFunc(files, func(n noted) bool { return n.base == m.proof.base }) {
		return nil
	}
	l.mu.Lock()
	l.mu.proof = proof{}
	l.mu.Unlock()
	m.proof = proof{}
	return l.store.marks.put(true, change{id: l.id, mark: m})
}

// forgetFiles makes the index forget, durably, what it knew of the files that
// were not as it knew them, and of those that were once between.
func (l *Log) forgetFiles(v *Survey) error {
	x := l.store.index
	if x.broken.Load() {
		return nil // the next start makes a new one
	}
	x.write(func(b *pebble.Batch) {
		for _, f := range v.files {
			if !f.damaged && !f.read {
				continue
			}
			x.dropSegment(b, l.id, f.base)
			for _, kind := range []byte{kindOffset, kindTime, kindSummary} {
				_ = b.DeleteRange(l.id.key(kind, f.base), l.id.key(kind, max(f.end, f.base)), nil)
			}
			if f.damaged {
				// What a snapshot behind it says may come from what was damaged. A start
				// that finishes the repair must not know it any more.
				_ = b.DeleteRange(l.id.key(kindProducer, f.base+1), after(l.id.key(kindProducer)), nil)
			}
		}
	})
	if err := x.do(func() error { return x.db.Flush() }); err != nil {
		return fmt.Errorf("forget damaged segments of %s: %w", l.id, err)
	}
	return nil
}

// takeName brings the new file from .cleaned to its name, after the old one has
// a second name in quarantine.
func (b *rebuilt) takeName() (quarantined string, err error) {
	l, d := b.l, b.l.store.disk
	if size, err := fileSize(d, b.seg.path()); err == nil && size > 0 {
		if quarantined, err = l.store.quarantine.keepFile(l.id, b.seg.base, b.seg.path()); err != nil {
			return "", err
		}
	}
	f := b.file
	b.file = nil
	if err := f.Close(); err != nil {
		return quarantined, err
	}
	if err := d.Rename(b.path(cleanedSuffix), b.path(swapSuffix)); err != nil {
		return quarantined, err
	}
	if err := d.syncDir(l.dir); err != nil {
		return quarantined, err
	}
	invariants.Fault("segment.repairSwap")
	if err := d.Rename(b.path(swapSuffix), b.seg.path()); err != nil {
		return quarantined, err
	}
	if err := d.syncDir(l.dir); err != nil {
		return quarantined, err
	}
	invariants.Fault("segment.repairNamed")
	x := l.store.index
	x.putEntries(l.id, b.seg.base, b.entries)
	m := summary{size: b.seg.size, end: b.seg.end, times: b.seg.times, epochs: b.epochs.Entries()}
	x.write(func(p *pebble.Batch) {
		_ = p.Set(l.id.key(kindSummary, b.seg.base), l.stamp(m.encode()), nil)
	})
	return quarantined, nil
}

// comeBack recovers the log from its files. Damage that only shows now is the
// caller's to repair next.
func (l *Log) comeBack(files int) error {
	err := l.recover(false)
	var d *DamageError
	if errors.As(err, &d) {
		d.Dir, d.Log = l.store.o.Dir, l.id
		if old := l.damaged.Swap(d); old != nil && files == 0 && old.File == d.File && old.Offset == d.Offset {
			return d // looking again changes nothing
		}
		return nil
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.mu.unread = false
	l.mu.Unlock()
	// Its marks say so from here on.
	if err := l.putMark(true, -1); err != nil {
		return err
	}
	l.damaged.Store(nil)
	if h := l.history.Load(); h != nil {
		l.store.gather.add(h)
	}
	repairsDone.Inc()
	l.store.o.Logger.Warn("log is whole again and in use", "log", l.id.String(), "start", l.StartOffset(), "end", l.EndOffset(), "files", files)
	return nil
}

// keepUnread makes a log of which only the marks are known.
func (l *Log) keepUnread(d *DamageError) {
	l.wr.Lock()
	defer l.wr.Unlock()
	m, _ := l.store.marks.get(l.id)
	l.mu.Lock()
	l.mu.unread = true
	l.mu.start, l.mu.end = m.start, max(m.start, m.durable)
	l.start.Store(l.mu.start)
	l.end.Store(l.mu.end)
	l.durable.Store(l.mu.end)
	l.hw.Store(min(max(m.hw, m.start), l.mu.end))
	l.mu.Unlock()
	l.setDamaged(d)
	if errors.Is(d.Err, errHeads) {
		// Only the index shows this damage, and it is a cache.
		r := recovery{l: l, mark: m, known: true}
		r.loadSummaries()
		if base, ok := parseFileName(l.store.disk.PathBase(d.File)); ok && m.proof.base != base {
			if err := l.note(false, noted{base: base, known: r.knownOf(&segment{base: base})}); err != nil {
				l.store.o.Logger.Error("damage could not be noted", "log", l.id.String(), "file", d.File, "err", err)
			}
		}
	}
}

// lookAgain opens a damaged log again, in case its files were put back by hand.
func (l *Log) lookAgain() error {
	l.repairMu.Lock()
	defer l.repairMu.Unlock()
	if l.damaged.Load() == nil {
		return nil
	}
	err := l.putRight(&Survey{}, nil, &Repaired{})
	if d := l.damaged.Load(); err == nil && d != nil {
		err = d
	}
	if err != nil {
		err = fmt.Errorf("open log %s: %w", l.id, err)
	}
	return err
}

// Inspect reads every byte of the logs in a directory, or of those named, and
// says what is damaged. It changes nothing but takes the directory's lock, so no
// server may be running there.
func Inspect(o Options, only []LogID) ([]*Survey, error) {
	o.EnsureDefaults()
	s := &Store{o: o, disk: newDisk(o.FS)}
	s.dir = s.disk.PathJoin(o.Dir, logsDir)
	if _, err := s.disk.Stat(s.dir); err != nil {
		return nil, fmt.Errorf("no logs in %s: %w", o.Dir, err)
	}
	lock, err := s.disk.Lock(s.disk.PathJoin(o.Dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("%s is in use by another process, stop the server first: %w", o.Dir, err)
	}
	defer lock.Close()
	if s.marks, err = readWatermarks(s.disk, o.Dir, o.Logger); err != nil {
		return nil, err
	}
	ids := only
	if len(ids) == 0 {
		ids = s.known()
	}
	var found []*Survey
	for _, id := range ids {
		v, err := s.newLog(id).inspect()
		if err != nil {
			return found, fmt.Errorf("inspect log %s: %w", id, err)
		}
		_, err = s.disk.Stat(v.Dir)
		v.Elsewhere = err != nil && len(only) == 0
		found = append(found, v)
	}
	return found, nil
}

// known are the logs of which there is a directory or a mark that says that
// there must be one.
func (s *Store) known() []LogID {
	ids := s.Logs()
	for id, m := range s.marks.all() {
		if m.durable > m.start && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b LogID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}

// inspect is a survey that trusts nothing and finishes nothing.
func (l *Log) inspect() (*Survey, error) {
	r := recovery{l: l}
	r.mark, r.known = l.store.marks.get(l.id)
	if r.mark.reset >= 0 && r.known {
		return &Survey{Log: l.id, Dir: l.dir}, nil // it is being emptied: there is nothing to lose
	}
	names, err := l.store.disk.List(l.dir)
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && r.known) {
		return nil, err
	}
	for _, name := range names {
		if base, ok := parseFileName(name); ok {
			r.segments = append(r.segments, &segment{log: l, base: base, end: base})
		} else if _, _, ok := parseSwapName(name); ok {
			return nil, fmt.Errorf("%s: a replacement of segments was interrupted; a start of the server or --accept-loss finishes it", l.store.disk.PathJoin(l.dir, name))
		}
	}
	slices.SortFunc(r.segments, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	return r.survey(func(*segment) bool { return true })
}

// AcceptLoss puts batches without records where the surveys name damage, keeps
// the damaged files in quarantine, and leaves logs that open. Nobody has the
// bytes, says who calls it. What is done stays done when it is interrupted, and
// doing it again goes on.
func AcceptLoss(ctx context.Context, o Options, found []*Survey) ([]Repaired, error) {
	s, err := Open(o)
	if err != nil {
		return nil, err
	}
	s.partial = true
	done := make([]Repaired, len(found))
	for i, v := range found {
		if len(v.Damages) == 0 || v.Elsewhere {
			continue
		}
		if done[i], err = s.acceptLoss(ctx, v); err != nil {
			break
		}
	}
	return done, errors.Join(err, s.Close())
}

func (s *Store) acceptLoss(ctx context.Context, v *Survey) (Repaired, error) {
	// The note makes opening look at all of the damage, and at it again if this is
	// interrupted.
	l := s.newLog(v.Log)
	if err := s.disk.MkdirAll(l.dir, 0o755); err != nil {
		return Repaired{}, err
	}
	if err := s.disk.syncDir(s.dir); err != nil {
		return Repaired{}, err
	}
	var files []noted
	for _, d := range v.Damages {
		files = append(files, noted{base: d.base})
	}
	if err := l.note(false, files...); err != nil {
		return Repaired{}, err
	}
	l, err := s.OpenLog(v.Log.Topic, v.Log.Partition, DefaultConfig())
	if err == nil {
		return Repaired{}, nil // it was the interrupted end of a repair
	}
	if l == nil {
		return Repaired{}, err
	}
	return l.repair(ctx, func(_ context.Context, _, to int64) ([]byte, int64, error) { return nil, to, nil }, true)
}
