package segment

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

// LogID names one log of a store.
type LogID struct {
	Topic     [16]byte
	Partition int32
}

// String is the name of the log's directory: the topic id as Kafka prints it,
// and the partition.
func (id LogID) String() string {
	return base64.RawURLEncoding.EncodeToString(id.Topic[:]) + "-" + strconv.Itoa(int(id.Partition))
}

// ParseLogID reads a directory name back.
func ParseLogID(name string) (LogID, bool) {
	const n = 22 // 16 bytes in base64 without padding
	if len(name) < n+2 || name[n] != '-' {
		return LogID{}, false
	}
	topic, err := base64.RawURLEncoding.Strict().DecodeString(name[:n])
	if err != nil {
		return LogID{}, false
	}
	p, err := strconv.ParseInt(name[n+1:], 10, 32)
	id := LogID{Topic: [16]byte(topic), Partition: int32(p)}
	return id, err == nil && p >= 0 && id.String() == name
}

// Names in a log directory.
const (
	logsDir      = "logs"
	indexDir     = "index"
	lockFile     = "LOCK"
	deleteSuffix = "-delete" // as Kafka marks a directory that is going
)

// Store is one log directory, and all that its logs share: the index, the
// watermarks, the open files, and one goroutine that flushes. Safe for use by
// several goroutines.
type Store struct {
	o         Options
	disk      disk
	dir       string // of the logs
	lock      io.Closer
	index     *index
	marks     *watermarks
	files     fileCache
	flusher   *flusher
	writeback *writeback
	health    *health
	space     *space
	pieces    pieces
	gather    historian

	quarantine *quarantine
	scrubber   *scrubber

	// partial says that this is not a server's run: it opens some logs only, and
	// must not call a directory clean that was not.
	partial bool

	failed     atomic.Pointer[error]
	quietUntil atomic.Int64 // see seldom

	mu struct {
		sync.Mutex // not held while a log is recovered or removed
		logs       map[LogID]*Log
		closed     bool
	}
}

// Open opens a log directory, or makes one. Logs are recovered one by one by
// OpenLog.
func Open(o Options) (*Store, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{o: o, disk: newDisk(o.FS), pieces: pieces{clock: o.Clock}}
	s.disk.stalls, s.disk.wrap = newStalls(o.Clock.Now()), o.wrap
	s.dir = s.disk.PathJoin(o.Dir, logsDir)
	s.files.disk, s.files.max = s.disk, o.MaxOpenFiles
	s.mu.logs = make(map[LogID]*Log)
	s.health, s.space = newHealth(s), newSpace(s)
	s.quarantine = newQuarantine(s)
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open log directory %s: %w", o.Dir, err)
	}
	s.health.register()
	go s.flusher.run()
	go s.writeback.run()
	go s.health.run()
	go s.scrubber.run()
	return s, nil
}

func (s *Store) open() (err error) {
	if err := s.disk.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if s.lock, err = s.disk.Lock(s.disk.PathJoin(s.o.Dir, lockFile)); err != nil {
		var file *fs.PathError
		if errors.As(err, &file) {
			return err // the disk, not a lock
		}
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	defer func() {
		if err != nil {
			_ = s.lock.Close()
		}
	}()
	s.space.open()
	for _, dir := range []string{s.disk.PathDir(s.o.Dir), s.o.Dir} { // both may be new
		if err := s.disk.syncDir(dir); err != nil {
			return err
		}
	}
	if s.marks, err = openWatermarks(s.disk, s.o.Dir, s.o.Logger); err != nil {
		return err
	}
	if err := s.finishDeletes(); err != nil {
		return errors.Join(err, s.marks.close(false))
	}
	if s.index, err = openIndex(s.disk, s.disk.PathJoin(s.o.Dir, indexDir), s.o.IndexMemory, s.o.Logger); err != nil {
		return errors.Join(err, s.marks.close(false))
	}
	s.flusher, s.writeback = newFlusher(s), newWriteback(s)
	s.gather.init(s)
	s.scrubber = newScrubber(s)
	return nil
}

// finishDeletes removes the directories whose deletion was interrupted.
func (s *Store) finishDeletes() error {
	names, err := s.disk.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		base, ok := strings.CutSuffix(name, deleteSuffix)
		if !ok {
			continue
		}
		if id, ok := ParseLogID(base); ok && !slices.Contains(names, base) {
			if err := s.marks.put(true, change{id: id, delete: true}); err != nil {
				return err
			}
		}
		invariants.Fault("segment.deleteFound")
		path := s.disk.PathJoin(s.dir, name)
		if err := s.disk.RemoveAll(path); err != nil {
			return err
		}
		s.o.Logger.Info("log whose deletion was interrupted is removed", "log", base, "dir", path)
	}
	return nil
}

// fail takes the store out of use: an fsync failed.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	if s.failed.CompareAndSwap(nil, &err) {
		s.health.note(func() {}) // the watcher says it
	}
	return s.failure()
}

// failSync takes the store out of use if the error is one of an fsync.
func (s *Store) failSync(err error) {
	if errors.Is(err, errSync) {
		s.fail(err)
	}
}

func (s *Store) failure() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// OpenLog creates the log, or recovers it from its files. A log that is open
// already is returned as it is, with the new config. Different logs can be
// opened at the same time.
//
// With a *DamageError comes a log as well: it refuses everything until Repair
// has made it whole. Opening it again looks at its files anew.
func (s *Store) OpenLog(id [16]byte, partition int32, c Config) (*Log, error) {
	var l *Log
	for {
		var mine bool
		var err error
		if l, mine, err = s.claim(LogID{id, partition}); err != nil {
			return nil, err
		}
		if mine {
			break
		}
		<-l.ready
		if !l.isClosed() {
			l.SetConfig(c)
			return l, l.lookAgain()
		}
		// It was being deleted, or could not be opened by another caller: try.
	}
	l.mu.config = c.withDefaults()
	err := l.open()
	var damage *DamageError
	switch {
	case errors.As(err, &damage):
		l.keepUnread(damage)
		err = fmt.Errorf("open log %s: %w", l.id, err)
		close(l.ready)
		return l, err
	case err != nil:
		l.mu.Lock()
		l.mu.closed = true
		l.mu.Unlock()
		s.unclaim(l)
		s.failSync(err)
		err = fmt.Errorf("open log %s: %w", l.id, err)
	}
	close(l.ready)
	if err != nil {
		return nil, err
	}
	if h := l.history.Load(); h != nil {
		s.gather.add(h)
	}
	return l, nil
}

// claim finds an open log or reserves its place.
func (s *Store) claim(id LogID) (l *Log, mine bool, err error) {
	if id.Partition < 0 {
		return nil, false, fmt.Errorf("open log %s: negative partition", id)
	}
	if err := s.failure(); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, false, fmt.Errorf("%w: store %s", ErrClosed, s.o.Dir)
	}
	if l := s.mu.logs[id]; l != nil {
		return l, false, nil
	}
	l = s.newLog(id)
	s.mu.logs[id] = l
	return l, true, nil
}

// unclaim frees a place; who waits for it may claim it.
func (s *Store) unclaim(l *Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.logs[l.id] == l {
		delete(s.mu.logs, l.id)
	}
}

func (s *Store) newLog(id LogID) *Log {
	l := &Log{
		store: s, id: id, dir: s.disk.PathJoin(s.dir, id.String()), ready: make(chan struct{}),
		hint: binary.LittleEndian.Uint32(id.Topic[:]) + uint32(id.Partition),
	}
	l.mu.producers = producer.New()
	return l
}

// open makes or recovers the log's directory.
func (l *Log) open() error {
	l.wr.Lock()
	defer l.wr.Unlock()
	d := l.store.disk
	fresh := false
	if _, err := d.Stat(l.dir); err != nil {
		fresh = true
		if err := d.MkdirAll(l.dir, 0o755); err != nil {
			return err
		}
		invariants.Fault("segment.directoryMade")
		l.mu.newDir = true
	}
	err := l.recover(fresh)
	if err != nil && fresh {
		_ = d.Remove(l.dir) // say the same next time
	}
	return err
}

// Logs lists the logs in the directory, opened or not, in no order.
func (s *Store) Logs() []LogID {
	names, err := s.disk.List(s.dir)
	if err != nil {
		s.o.Logger.Error("list logs", "dir", s.dir, "err", err)
		return nil
	}
	var ids []LogID
	for _, name := range names {
		if id, ok := ParseLogID(name); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// Delete removes a log, opened or not. Views of it stay readable; everything
// else on it answers ErrClosed. Deleting what is not there is no error. A crash
// leaves the log whole, or a directory that the next Open removes.
func (s *Store) Delete(id [16]byte, partition int32) error {
	logID := LogID{id, partition}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return fmt.Errorf("%w: delete log %s", ErrClosed, logID)
	}
	l := s.mu.logs[logID]
	place := s.newLog(logID) // holds off an OpenLog until the files are gone
	place.mu.closed = true
	s.mu.logs[logID] = place
	s.mu.Unlock()
	defer close(place.ready)
	defer s.unclaim(place)
	if l != nil {
		<-l.ready
		l.wr.Lock()
		defer l.wr.Unlock()
		for _, seg := range l.shut() {
			s.files.drop(seg, true)
		}
	}
	if err := s.delete(logID); err != nil {
		s.failSync(err)
		return fmt.Errorf("delete log %s: %w", logID, err)
	}
	return nil
}

func (s *Store) delete(id LogID) error {
	dir := s.disk.PathJoin(s.dir, id.String())
	gone := dir + deleteSuffix
	if _, err := s.disk.Stat(dir); err == nil {
		if err := s.disk.RemoveAll(gone); err != nil {
			return err
		}
		if err := s.disk.Rename(dir, gone); err != nil {
			return err
		}
		if err := s.disk.syncDir(s.dir); err != nil {
			return err
		}
	}
	invariants.Fault("segment.deleteRenamed")
	if err := s.marks.put(true, change{id: id, delete: true}); err != nil {
		return err
	}
	invariants.Fault("segment.deleteMarked")
	s.index.write(func(b *pebble.Batch) { _ = b.DeleteRange(id.prefix(), after(id.prefix()), nil) })
	return s.disk.RemoveAll(gone)
}

// shut takes the log out of use for everybody, and returns its segments. For holders of
// wr.
func (l *Log) shut() []*segment {
	l.mu.Lock()
	l.mu.closed = true
	l.cuts.Add(1)
	segments := l.mu.segments
	l.mu.Unlock()
	// A checkpoint that saw the log open has written its marks before anybody
	// goes on from here.
	l.markMu.Lock()
	l.markMu.Unlock() //nolint:staticcheck // a barrier
	return segments
}

// Close flushes all logs, tells the index what it has to know, and leaves the
// mark of a clean stop. The first error is returned; then the next Open recovers.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	logs := s.mu.logs
	s.mu.logs = nil
	s.mu.Unlock()
	for _, l := range logs {
		<-l.ready
	}
	s.scrubber.close()
	s.gather.close()
	s.writeback.close()
	s.flusher.close()
	invariants.Fault("segment.stopFlushed")
	clean := s.failure() == nil && (s.marks.clean || !s.partial)
	var finish errgroup.Group
	finish.SetLimit(flushers)
	for _, l := range logs {
		finish.Go(l.finish)
	}
	if err := finish.Wait(); err != nil {
		clean = false
	}
	s.health.close()
	s.health.unregister()
	err := s.failure()
	if errIndex := s.index.close(); errIndex != nil {
		clean = false // recovery then looks for itself
	}
	invariants.Fault("segment.stopIndexed")
	err = errors.Join(err, s.marks.close(clean), s.lock.Close())
	if err != nil {
		return fmt.Errorf("close log directory %s: %w", s.o.Dir, err)
	}
	return nil
}

// finish is the log's part of Close.
func (l *Log) finish() error {
	l.wr.Lock()
	defer l.wr.Unlock()
	if l.isClosed() {
		return nil
	}
	err := l.usable()
	// A log without a byte has nothing to lose: where a power cut takes the names of
	// its files, recovery makes them again from the marks.
	if err == nil && (len(l.mu.segments) != 1 || l.mu.segments[0].size > 0) {
		err = l.sync()
	}
	l.mu.RLock()
	if l.mu.unread {
		err = nil // nothing was changed, and the next start finds the damage again
	}
	l.mu.RUnlock()
	if err == nil && l.damaged.Load() == nil {
		seg := l.active()
		told := l.checkpointed.size == seg.size && l.checkpointed.end == l.mu.end
		if (seg.size > 0 || len(l.mu.segments) > 1) && !told {
			l.close(seg, &l.mu.written, l.mu.tail, l.mu.end)
		}
		err = l.putMark(false, -1)
	}
	for _, seg := range l.shut() {
		l.store.files.drop(seg, false)
	}
	return err
}

func (l *Log) isClosed() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.closed
}
