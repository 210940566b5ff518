package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/obs"
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
