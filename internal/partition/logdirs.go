package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-kafka/lockstep/segment"
)

// OfflineDir is a log directory that could not be opened at the start.
type OfflineDir struct {
	Path string
	Err  error
	// Removed says that it is not among the configured ones any more. It counts as
	// offline only while a partition is missing.
	Removed bool
}

// logDirs knows in which log directory each log is, and chooses one for a new
// log. Directories share nothing: each has its lock, index, watermarks and
// flusher, and fails alone.
//
// An empty log is never made where an older one may lie: a partition that
// existed before this start, and that no directory has, is offline while a
// directory is.
type logDirs struct {
	logger *slog.Logger
	dirs   []*logDir // in the order of log.dirs, those that never opened last

	mu struct {
		sync.Mutex
		// found are the logs on disk that no partition has taken, with their places;
		// what is left of them after the first image are strays.
		found map[segment.LogID][]*logDir
		// lost are logs that watermarks know and no directory has. They are opened
		// where they were, so that the log says what is missing.
		lost map[segment.LogID]*logDir
		// missing counts the partitions whose log may be in an offline directory.
		missing int
	}
}

// logDir is one log directory.
type logDir struct {
	path  string
	store *segment.Store // nil: it was offline at the start

	// Of a directory that was offline at the start.
	err     error
	removed bool

	logs    int    // on disk; guarded by logDirs.mu
	offline func() // once, takes the partitions in it offline
}

// failure is why the directory is offline, nil while it is not.
func (d *logDir) failure() error {
	if d.store == nil {
		return d.err
	}
	return d.store.Err()
}

func (d *logDir) String() string { return d.path }

func newLogDirs(o *Options) *logDirs {
	d := &logDirs{logger: o.Logger}
	d.mu.found = make(map[segment.LogID][]*logDir)
	d.mu.lost = make(map[segment.LogID]*logDir)
	for _, s := range o.Stores {
		dir := &logDir{path: s.Dir(), store: s}
		for _, id := range s.Logs() {
			d.mu.found[id] = append(d.mu.found[id], dir)
			dir.logs++
		}
		d.dirs = append(d.dirs, dir)
	}
	for _, dir := range d.dirs {
		d.settleMissing(dir)
	}
	for _, off := range o.OfflineDirs {
		d.dirs = append(d.dirs, &logDir{path: off.Path, err: off.Err, removed: off.Removed})
	}
	return d
}

// settleMissing forgets what a directory remembers of logs that were moved to
// another one by hand: should they come back some day, they must be taken for
// what they are then.
func (d *logDirs) settleMissing(dir *logDir) {
	for _, id := range dir.store.Missing() {
		if len(d.mu.found[id]) == 0 {
			d.mu.lost[id] = dir
			continue
		}
		if err := dir.store.Delete(id.Topic, id.Partition); err != nil {
			d.logger.Error("log was moved to another directory and cannot be forgotten here", "log", id.String(), "dir", dir.path, "err", err)
			continue
		}
		d.logger.Info("log was moved between log directories", "log", id.String(), "from", dir.path, "to", d.mu.found[id][0].path)
	}
}

// place finds the directory of a log, or chooses one for it: the one with the
// fewest logs, as Kafka does. old says that the partition existed before this
// start, so that its log must be somewhere.
func (d *logDirs) place(id segment.LogID, old bool) (*logDir, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.mu.found[id]; len(at) > 1 {
		paths := make([]string, len(at))
		for i, dir := range at {
			paths[i] = logPath(dir, id)
		}
		return nil, fmt.Errorf("the log is in %s: which one counts is not known; stop the server and move the other away",
			strings.Join(paths, " and in "))
	} else if len(at) == 1 {
		delete(d.mu.found, id)
		return at[0], nil
	}
	if dir := d.mu.lost[id]; dir != nil {
		delete(d.mu.lost, id)
		dir.logs++
		return dir, nil
	}
	var best *logDir
	for _, dir := range d.dirs {
		err := dir.failure()
		switch {
		case err == nil && (best == nil || dir.logs < best.logs):
			best = dir
		case err != nil && old:
			d.mu.missing++
			return nil, fmt.Errorf("%w: the log may be in %s: %w", ErrDirOffline, dir, err)
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: there is no other", ErrDirOffline)
	}
	best.logs++
	return best, nil
}

// holds says that a log was found on disk and is nobody's yet.
func (d *logDirs) holds(id segment.LogID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.found[id]) > 0
}

// remove deletes a log from its directory; without one, from wherever it lies
// in directories that are online.
func (d *logDirs) remove(id segment.LogID, dir *logDir) error {
	d.mu.Lock()
	at := []*logDir{dir}
	if dir == nil {
		at = d.mu.found[id]
		delete(d.mu.found, id)
	}
	for _, dir := range at {
		dir.logs--
	}
	d.mu.Unlock()
	var errs []error
	for _, dir := range at {
		errs = append(errs, dir.store.Delete(id.Topic, id.Partition))
	}
	return errors.Join(errs...)
}

// maxStrays is how many strays of a directory are named.
const maxStrays = 20

// reportStrays names the logs of topics that the first image does not know.
// They stay: missing metadata is never read as "delete it", and what was
// deleted while its directory was offline looks the same.
func (d *logDirs) reportStrays() {
	d.mu.Lock()
	strays := make(map[*logDir][]string)
	for id, at := range d.mu.found {
		for _, dir := range at {
			strays[dir] = append(strays[dir], logPath(dir, id))
		}
	}
	d.mu.Unlock()
	for _, dir := range d.dirs {
		paths := strays[dir]
		if len(paths) == 0 {
			continue
		}
		slices.Sort(paths)
		d.logger.Warn("logs of no known replica are left alone: delete or move them by hand while the server is stopped",
			"dir", dir.path, "logs", len(paths), "paths", paths[:min(len(paths), maxStrays)])
	}
}

func logPath(d *logDir, id segment.LogID) string { return filepath.Join(d.path, "logs", id.String()) }

// known are the directories that matter: one that the operator took out of the
// configuration, and of which no partition is missing, does not.
func (d *logDirs) known() []*logDir {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.missing > 0 {
		return d.dirs
	}
	out := make([]*logDir, 0, len(d.dirs))
	for _, dir := range d.dirs {
		if !dir.removed {
			out = append(out, dir)
		}
	}
	return out
}

// LogDir describes one log directory.
type LogDir struct {
	Path          string
	Err           error // why it is offline, nil while it is not
	Total, Usable int64 // of its file system in bytes; -1: not known
	Partitions    []*Partition
}

// LogDirs describes the log directories and which partitions are in them.
func (m *Manager) LogDirs() []LogDir {
	dirs := m.dirs.known()
	out := make([]LogDir, len(dirs))
	at := make(map[*logDir]*LogDir, len(out))
	for i, dir := range dirs {
		out[i] = LogDir{Path: dir.path, Err: dir.failure(), Total: -1, Usable: -1}
		if dir.store != nil {
			if total, usable, err := dir.store.Usage(); err == nil {
				out[i].Total, out[i].Usable = total, usable
			}
		}
		at[dir] = &out[i]
	}
	for _, p := range m.List() {
		if p.dir != nil {
			at[p.dir].Partitions = append(at[p.dir].Partitions, p)
		}
	}
	return out
}

// OfflineDirs lists the log directories that cannot be used, with the cause.
func (m *Manager) OfflineDirs() []OfflineDir {
	var out []OfflineDir
	for _, dir := range m.dirs.known() {
		if err := dir.failure(); err != nil {
			out = append(out, OfflineDir{Path: dir.path, Err: err, Removed: dir.removed})
		}
	}
	return out
}

// DirHealth follows the health of a log directory. Where one failed, all
// partitions in it go offline at once, and writes that wait for an
// acknowledgement are refused: nobody else might touch them again. Where one is
// full, retention does not wait for its time.
func (m *Manager) DirHealth(path string, h segment.Health) {
	switch h.State {
	case segment.Failed:
		for _, dir := range m.dirs.dirs {
			if dir.path == path {
				dir.checkFailed()
			}
		}
	case segment.Full:
		select {
		case m.retain <- struct{}{}:
		default:
		}
	}
}

func (d *logDir) checkFailed() {
	if d.failure() != nil {
		d.offline()
	}
}

// takeOffline answers everyone who waits for a partition in dir. None of them finds
// another one of it online then.
func (m *Manager) takeOffline(dir *logDir) {
	err := dir.failure()
	in := slices.DeleteFunc(m.List(), func(p *Partition) bool { return p.dir != dir })
	for _, p := range in {
		p.appendMu.Lock()
		p.setOfflineLocked(err)
		p.appendMu.Unlock()
	}
	for _, p := range in {
		p.goOffline(err)
	}
	m.o.Logger.Warn("log directory is offline, and the partitions in it", "dir", dir.path, "partitions", len(in), "err", err)
}
