package segment

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

var (
	flushSeconds = obs.Histogram("lockstep_log_flush_seconds")
	flushErrors  = obs.Counter("lockstep_log_flush_errors_total")
)

// flushers is how many logs are synced at once, for those who wait and, beside
// them, for the timer. A journalling file system commits syncs that overlap
// together, so a few are cheaper than one after the other; more gain nothing on one
// disk.
const flushers = 8

// flusher syncs logs. All flushes of a log that were asked for while it was being
// synced are one sync; logs do not wait for each other, but for one of the workers,
// which are there while somebody waits. On its timer the flusher's goroutine syncs
// what nobody asked for, and writes the marks down.
type flusher struct {
	store *Store
	stop  chan struct{}
	done  chan struct{}

	// whole makes all of the named files and directories durable, and perhaps others;
	// nil: there is no such call here. See flushtogether.go.
	whole   func(names []string) error
	wholeFD *os.File     // what it needs; nil: nothing
	dirty   func() int64 // bytes that may have to be written by it; nil: nobody else's

	// indexGrew says that summaries wait in the index' memory. A checkpoint then
	// flushes it, so that recovery has little to walk.
	indexGrew atomic.Bool

	mu struct {
		sync.Mutex
		ready   []*Log // logs that somebody waits for and no worker has
		workers int
		dirty   []*Log // logs with unsynced bytes
		marks   []*Log // logs with unwritten marks
		closed  bool
		took    weights
		sharing bool      // a sync of all is under way
		looked  time.Time // when unwritten was found out
		// unwritten is how many bytes this machine has still to write.
		unwritten int64
	}
	workers sync.WaitGroup
}

// flushes is a log's part of it, guarded by the flusher's mu.
type flushes struct {
	waiting []func(error)
	spare   []func(error) // the other of two buffers
	taken   bool          // it is ready, or a worker has it
}

func newFlusher(s *Store) *flusher {
	f := &flusher{store: s, stop: make(chan struct{}), done: make(chan struct{})}
	if !s.disk.real {
		f.whole = s.disk.syncNamed
	} else if fd := wholeFS(s.o.Dir); fd != nil {
		f.wholeFD, f.dirty = fd, unwritten
		f.whole = func([]string) error {
			defer s.disk.stalls.begin(syncHint).end()
			return syncWhole(fd)
		}
	}
	return f
}

// Flush makes everything appended before the call durable, and then calls done
// on a goroutine of the store, one after the other for one log: done must not block.
// After an error nothing is ever flushed again (ErrFailed).
func (l *Log) Flush(done func(error)) { l.store.flusher.request(l, done) }

func (f *flusher) request(l *Log, done func(error)) {
	f.mu.Lock()
	if f.mu.closed {
		f.mu.Unlock()
		done(fmt.Errorf("%w: flush %s", ErrClosed, l.id))
		return
	}
	l.flushes.waiting = append(l.flushes.waiting, done)
	if l.flushes.taken {
		f.mu.Unlock()
		return
	}
	l.flushes.taken = true
	f.mu.ready = append(f.mu.ready, l)
	hire := f.mu.workers < flushers
	if hire {
		f.mu.workers++
		f.workers.Add(1)
	}
	f.mu.Unlock()
	if hire {
		go f.work()
	}
}

// work syncs logs until none is ready.
func (f *flusher) work() {
	defer f.workers.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.mu.ready) > 0 {
		if f.togetherLocked() {
			if f.mu.sharing {
				break // who has begun it takes them along with the next
			}
			f.workTogether()
			continue
		}
		l := f.mu.ready[0]
		f.mu.ready = slices.Delete(f.mu.ready, 0, 1)
		waiting := l.flushes.waiting
		l.flushes.waiting, l.flushes.spare = l.flushes.spare, nil
		f.mu.Unlock()
		began := f.store.o.Clock.Now()
		err := l.sync()
		took := f.store.o.Clock.Now().Sub(began)
		answer(waiting, err)
		f.mu.Lock()
		recent(&f.mu.took.one, took)
		f.answeredLocked(l, waiting)
	}
	f.mu.workers--
}

// togetherLocked tells whether those who are ready are synced together.
func (f *flusher) togetherLocked() bool {
	n := len(f.mu.ready)
	if f.whole == nil || n < f.store.o.together {
		return false
	}
	unwritten := f.unwrittenLocked()
	return unwritten <= togetherDirty && f.mu.took.together(n, unwritten)
}

// unwrittenLocked is what a look says that may be lookEvery old: it is a file of the
// kernel's that is read, and all who wait for a sync come by here.
func (f *flusher) unwrittenLocked() int64 {
	if f.dirty == nil {
		return 0
	}
	if now := f.store.o.Clock.Now(); now.Sub(f.mu.looked) >= lookEvery {
		f.mu.looked, f.mu.unwritten = now, f.dirty()
	}
	return f.mu.unwritten
}

// workTogether syncs all logs that are ready. The flusher's mu is held, but not while it
// works.
func (f *flusher) workTogether() {
	logs, unwritten := f.mu.ready, f.mu.unwritten
	f.mu.ready, f.mu.sharing = nil, true
	waiting := make([][]func(error), len(logs))
	for i, l := range logs {
		waiting[i] = l.flushes.waiting
		l.flushes.waiting, l.flushes.spare = l.flushes.spare, nil
	}
	f.mu.Unlock()
	errs, alone, took := f.syncTogether(logs)
	f.mu.Lock()
	f.mu.sharing = false
	f.mu.Unlock()
	for i := range logs {
		if !alone[i] {
			answer(waiting[i], errs[i])
		}
	}
	for i, l := range logs {
		if alone[i] {
			answer(waiting[i], l.sync())
		}
	}
	f.mu.Lock()
	if took > 0 {
		recent(&f.mu.took.whole, max(took-toWrite(unwritten), took/8))
	}
	for i, l := range logs {
		f.answeredLocked(l, waiting[i])
	}
}

func answer(waiting []func(error), err error) {
	for _, done := range waiting {
		done(err)
	}
	clear(waiting)
}

// answeredLocked takes back a log whose flush was answered; who came meanwhile is next.
func (f *flusher) answeredLocked(l *Log, buffer []func(error)) {
	l.flushes.spare = buffer[:0]
	if l.flushes.taken = len(l.flushes.waiting) > 0; l.flushes.taken {
		f.mu.ready = append(f.mu.ready, l)
	}
}

func (f *flusher) addDirty(l *Log) {
	f.mu.Lock()
	f.mu.dirty = append(f.mu.dirty, l)
	f.mu.Unlock()
}

func (f *flusher) addMark(l *Log) {
	f.mu.Lock()
	f.mu.marks = append(f.mu.marks, l)
	f.mu.Unlock()
}

// run is the goroutine; close ends it after a last round.
func (f *flusher) run() {
	defer close(f.done)
	o := &f.store.o
	tick := o.CheckpointInterval
	if o.FlushInterval > 0 {
		tick = min(tick, o.FlushInterval)
	}
	timer := o.Clock.NewTimer(tick)
	defer timer.Stop()
	last := o.Clock.Now()
	for {
		select {
		case <-timer.C():
			now := o.Clock.Now()
			due := now.Sub(last) >= o.CheckpointInterval
			var points []checkpoint
			if due {
				points = f.takeCheckpoints() // before the flush, so that they are of durable bytes after it
			}
			if o.FlushInterval > 0 {
				f.background()
			}
			if due {
				f.writeMarks(points)
				last = now
			}
			timer.Reset(tick)
		case <-f.stop:
			f.workers.Wait() // none comes after closed
			f.background()
			f.writeMarks(nil) // the index is told when the logs are closed
			return
		}
	}
}

func (f *flusher) close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	close(f.stop)
	<-f.done
	if f.wholeFD != nil {
		_ = f.wholeFD.Close() // nothing was written to it
	}
}

// syncAll syncs logs a few at a time.
func syncAll(logs []*Log) []error {
	errs := make([]error, len(logs))
	if len(logs) == 1 {
		errs[0] = logs[0].sync()
		return errs
	}
	var g errgroup.Group
	g.SetLimit(flushers)
	for i, l := range logs {
		g.Go(func() error { errs[i] = l.sync(); return nil })
	}
	_ = g.Wait()
	return errs
}

// background syncs the logs that were appended to since the last time.
func (f *flusher) background() {
	f.mu.Lock()
	logs := f.mu.dirty
	f.mu.dirty = nil
	f.mu.Unlock()
	for _, l := range logs {
		l.queued.Store(false) // before syncing: what is appended meanwhile queues it again
	}
	for _, err := range syncAll(logs) {
		if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFailed) {
			f.store.o.Logger.Error("background flush", "err", err)
		}
	}
}

// takeCheckpoints takes checkpoints of the logs that were appended to.
func (f *flusher) takeCheckpoints() []checkpoint {
	f.mu.Lock()
	logs := append(slices.Clone(f.mu.dirty), f.mu.marks...)
	f.mu.Unlock()
	var points []checkpoint
	seen := make(map[*Log]struct{}, len(logs))
	for _, l := range logs {
		if _, twice := seen[l]; twice {
			continue
		}
		seen[l] = struct{}{}
		if n, ok := l.takeCheckpoint(); ok {
			points = append(points, n)
		}
	}
	return points
}

// checkpoint is a checkpoint of what is durable already.
func (f *flusher) checkpoint() { f.writeMarks(f.takeCheckpoints()) }

// writeMarks writes down the marks that changed, and the checkpoints of what is durable
// by now.
func (f *flusher) writeMarks(points []checkpoint) {
	f.mu.Lock()
	logs := f.mu.marks
	f.mu.marks = nil
	f.mu.Unlock()
	if f.store.failure() != nil {
		return
	}
	for _, l := range logs {
		l.marked.Store(false)
		l.mu.RLock()
		closed := l.mu.closed
		l.mu.RUnlock()
		if closed {
			continue
		}
		if err := l.putMark(false, -1); err != nil {
			f.store.o.Logger.Error("checkpoint", "log", l.id.String(), "err", err)
			l.noteMark() // the disk is full, say: with the next round
		}
	}
	if len(logs) > 0 {
		f.store.failSync(f.store.marks.sync())
	}
	for i := range points {
		points[i].keep()
	}
	if f.indexGrew.Swap(false) {
		f.store.index.flushSoon()
	}
}

// sync makes the log durable up to its end as it is now.
func (l *Log) sync() error {
	// The flusher and an append that pays for itself may meet here.
	l.syncing.Lock()
	defer l.syncing.Unlock()
	for {
		if err := l.usable(); err != nil {
			return err
		}
		again, err := l.syncOnce()
		switch {
		case err != nil && !errors.Is(err, errSync):
			return err // a file could not be opened, say: nothing was asked of the disk, nothing is lost
		case err != nil:
			// Not asked twice: after an error the kernel may have dropped the pages and
			// a second fsync would succeed over the hole (reliability rule 6).
			flushErrors.Inc()
			return l.store.fail(fmt.Errorf("sync %s: %w", l.id, err))
		case !again:
			return nil
		}
	}
}

// syncOnce syncs what is unsynced. again means that a truncation came between
// and nothing is known.
func (l *Log) syncOnce() (again bool, err error) {
	u := l.unsynced()
	if !u.any() {
		return false, nil
	}
	began := l.store.o.Clock.Now()
	if u.newDir {
		if err := l.store.disk.syncDir(l.store.disk.PathDir(l.dir)); err != nil {
			return false, err
		}
	}
	if u.dirNames > 0 {
		if err := l.store.disk.syncDir(l.dir); err != nil {
			return false, err
		}
	}
	invariants.Fault("segment.beforeSync")
	for i := len(u.parts) - 1; i >= 0; i-- { // oldest first
		h, err := l.store.files.acquire(u.parts[i].seg)
		if errors.Is(err, ErrClosed) {
			continue // deleted meanwhile: nothing of it has to be kept
		}
		if err != nil {
			return false, err
		}
		if !invariants.Planted("answerBeforeFsync") {
			err = h.SyncData()
		}
		if err != nil && invariants.Planted("retryFsync") {
			err = nil
		}
		h.release()
		if err != nil {
			return false, err
		}
	}
	invariants.Fault("segment.afterSync")
	flushSeconds.Update(l.store.o.Clock.Now().Sub(began).Seconds())
	return l.synced(u), nil
}

// pending is what of a log is not durable at one moment. Its syncing is held from then
// on until it was said to be synced.
type pending struct {
	cuts     uint64
	dirNames uint64 // in the log's directory
	newDir   bool   // the log's directory is itself a new name
	end      int64
	durable  int64
	proof    proof
	few      [4]pendingPart
	parts    []pendingPart // newest first
}

type pendingPart struct {
	seg  *segment
	size int64
}

func (l *Log) unsynced() *pending {
	u := &pending{}
	u.parts = u.few[:0]
	l.mu.RLock()
	defer l.mu.RUnlock()
	u.cuts, u.dirNames, u.end, u.newDir, u.proof = l.cuts.Load(), l.mu.names, l.mu.end, l.mu.newDir, l.proofLocked()
	for i := len(l.mu.segments) - 1; i >= 0; i-- {
		s := l.mu.segments[i]
		if s.synced < s.size {
			u.parts = append(u.parts, pendingPart{s, s.size})
		} else if s.size > 0 {
			break // all before it were synced with it
		}
	}
	u.durable = l.durable.Load()
	return u
}

// any tells whether there is something to sync.
func (u *pending) any() bool { return len(u.parts) > 0 || u.dirNames > 0 || u.end > u.durable }

// synced notes that it is durable. again means that a truncation came between and
// nothing is known.
func (l *Log) synced(u *pending) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cuts.Load() != u.cuts {
		return !l.mu.closed
	}
	for _, p := range u.parts {
		p.seg.synced = max(p.seg.synced, p.size)
		if p.seg.synced == p.seg.size {
			p.seg.dirty.Store(false)
		}
	}
	l.mu.names -= u.dirNames
	if u.newDir {
		l.mu.newDir = false
	}
	if durable := l.durable.Load(); u.end >= durable {
		l.durable.Store(u.end)
		l.mu.proof = u.proof
		if u.end > durable {
			l.noteMark()
		}
	}
	return false
}
