package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// logDirs are the directories of this server as they were found at the start.
//
// The metadata directory must be usable, and at least one log directory. Others
// that are not are offline with the logs in them. What says that a directory is
// the wrong one (another cluster's, another node's, another process's) ends the
// start: nobody should serve from a wrong set of disks.
type logDirs struct {
	nodeID   int32
	logger   *slog.Logger
	metadata string          // absolute path
	main     *metaProperties // of the metadata directory; nil: never used
	wanted   bool            // some log directory is

	dirs    []*logDir
	offline []partition.OfflineDir
	removed map[string]string // id to path of those that are not configured any more
	locked  io.Closer         // the metadata directory's lock, where no store holds it
	reserve *segment.Reserve  // and its ballast
}

// logDir is one log directory that can be read.
type logDir struct {
	path  string // absolute
	meta  *metaProperties
	store *segment.Store
}

// openLogDirs finds out what the directories are, and opens a store in each
// that is well.
func openLogDirs(paths []string, metadata string, nodeID int32, logger *slog.Logger,
	onHealth func(dir string, h segment.Health), o segment.Options) (_ *logDirs, err error) {
	d := &logDirs{nodeID: nodeID, logger: logger, wanted: len(paths) > 0}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.metadata, err = filepath.Abs(metadata); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.metadata, 0o755); err != nil {
		return nil, fmt.Errorf("metadata directory: %w", err)
	}
	if d.main, err = readMetaProperties(d.metadata); err != nil {
		return nil, err
	}
	if err := d.checkOwner(d.metadata, d.main); err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := d.look(path); err != nil {
			return nil, err
		}
	}
	if err := d.checkDistinct(); err != nil {
		return nil, err
	}
	d.noteRemoved()
	if err := d.openStores(o, onHealth); err != nil {
		return nil, err
	}
	for _, off := range d.offline {
		if !off.Removed {
			logger.Error("log directory is offline, the server starts without it", "dir", off.Path, "err", off.Err)
		}
	}
	return d, nil
}

// look reads whose directory it is.
func (d *logDirs) look(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	was := d.idOf(path)
	if was != "" {
		_, err = os.Stat(path) // a used one is not made again
	} else {
		err = os.MkdirAll(path, 0o755)
	}
	var meta *metaProperties
	if err == nil {
		meta, err = readMetaProperties(path)
	}
	switch {
	case errors.Is(err, errMetaFormat):
		return err
	case err != nil:
		d.offline = append(d.offline, partition.OfflineDir{Path: path, Err: err})
		return nil
	case meta == nil && was != "":
		d.offline = append(d.offline, partition.OfflineDir{Path: path, Err: fmt.Errorf("it held directory %s and is empty now; %s", was, d.advice(was))})
		return nil
	}
	if err := d.checkOwner(path, meta); err != nil {
		return err
	}
	d.dirs = append(d.dirs, &logDir{path: path, meta: meta})
	return nil
}

// idOf is the id of the log directory that was last used at path.
func (d *logDirs) idOf(path string) string {
	if d.main != nil {
		for id, at := range d.main.logDirs {
			if at == path {
				return id
			}
		}
	}
	return ""
}

func (d *logDirs) advice(id string) string {
	return fmt.Sprintf("mount its disk, or, if that is lost for good, remove the line %s%s from %s: its partitions then begin empty",
		logDirPrefix, id, filepath.Join(d.metadata, metaPropertiesFile))
}

// checkOwner refuses a directory that is not this node's.
func (d *logDirs) checkOwner(path string, m *metaProperties) error {
	file := filepath.Join(path, metaPropertiesFile)
	switch {
	case m == nil:
		return nil
	case m.nodeID != d.nodeID:
		return fmt.Errorf("node.id is %d, but %s belongs to node %d", d.nodeID, file, m.nodeID)
	case d.main == nil:
		return fmt.Errorf("%s belongs to cluster %s, but the metadata directory %s was never used: is metadata.log.dir, or the first of log.dirs, another one than before?",
			file, m.clusterID, d.metadata)
	case m.clusterID != d.main.clusterID:
		return fmt.Errorf("%s belongs to cluster %s, but the metadata in %s to %s", file, m.clusterID, d.metadata, d.main.clusterID)
	}
	return nil
}

// checkDistinct refuses one directory by two names, and the copy of one.
func (d *logDirs) checkDistinct() error {
	for i, a := range d.dirs {
		for _, b := range d.dirs[:i] {
			fa, errA := os.Stat(a.path)
			fb, errB := os.Stat(b.path)
			if errA == nil && errB == nil && os.SameFile(fa, fb) {
				return fmt.Errorf("log.dirs: %s and %s are the same directory", b.path, a.path)
			}
			if a.meta != nil && b.meta != nil && a.meta.directoryID != "" && a.meta.directoryID == b.meta.directoryID {
				return fmt.Errorf("log.dirs: %s and %s both have directory.id %s: one is a copy of the other", b.path, a.path, a.meta.directoryID)
			}
		}
	}
	return nil
}

// noteRemoved finds the directories that were used and are not among the
// configured ones any more. Whether that matters shows when every partition
// looks for its log.
func (d *logDirs) noteRemoved() {
	if d.main == nil {
		return
	}
	d.removed = maps.Clone(d.main.logDirs)
	for _, dir := range d.dirs {
		if dir.meta != nil {
			delete(d.removed, dir.meta.directoryID)
		}
	}
	for _, off := range d.offline {
		delete(d.removed, d.idOf(off.Path))
	}
	for id, path := range d.removed {
		d.offline = append(d.offline, partition.OfflineDir{
			Path: path, Removed: true, Err: fmt.Errorf("directory %s is not in log.dirs any more; %s", id, d.advice(id)),
		})
	}
}

func (d *logDirs) openStores(o segment.Options, onHealth func(dir string, h segment.Health)) error {
	var errs []error
	usable := d.dirs[:0]
	for _, dir := range d.dirs {
		var err error
		o.Dir = dir.path
		o.OnHealth = func(h segment.Health) { onHealth(dir.path, h) }
		if o.FS, err = logFS(dir.path, d.logger); err != nil {
			return err
		}
		dir.store, err = segment.Open(o)
		switch {
		case errors.Is(err, segment.ErrLocked):
			d.dirs = usable
			return err
		case err != nil:
			d.offline = append(d.offline, partition.OfflineDir{Path: dir.path, Err: err})
		default:
			usable = append(usable, dir)
		}
	}
	d.dirs = usable
	if len(usable) == 0 && d.wanted { // without the role of a broker there are none
		for _, off := range d.offline {
			errs = append(errs, fmt.Errorf("log directory %s: %w", off.Path, off.Err))
		}
		return fmt.Errorf("no log directory can be used: %w", errors.Join(errs...))
	}
	for _, dir := range usable {
		if dir.path == d.metadata {
			return nil // its store has locked it
		}
	}
	var err error
	if d.locked, err = vfs.Default.Lock(filepath.Join(d.metadata, "LOCK")); err != nil {
		return fmt.Errorf("metadata directory %s: locked by another process: %w", d.metadata, err)
	}
	o.Dir, o.FS, o.OnHealth = d.metadata, nil, nil
	d.reserve = segment.KeepReserve(o)
	return nil
}

func (d *logDirs) clusterID() string {
	if d.main == nil {
		return ""
	}
	return d.main.clusterID
}

func (d *logDirs) stores() []*segment.Store {
	out := make([]*segment.Store, len(d.dirs))
	for i, dir := range d.dirs {
		out[i] = dir.store
	}
	return out
}

// claim writes this cluster's name into every directory that has none. The
// metadata directory comes first: one that has a name while it has none would
// be refused. The list of log directories comes last: it must not name one that
// looks unused.
func (d *logDirs) claim(clusterID string) error {
	if d.main == nil {
		d.main = &metaProperties{clusterID: clusterID, nodeID: d.nodeID, directoryID: newDirectoryID(), logDirs: map[string]string{}}
		if err := writeMetaProperties(d.metadata, d.main); err != nil {
			return err
		}
	}
	before := d.main.encode()
	if d.main.directoryID == "" {
		d.main.directoryID = newDirectoryID()
	}
	for _, dir := range d.dirs {
		if dir.path == d.metadata {
			dir.meta = d.main
		}
		if dir.meta == nil || dir.meta.directoryID == "" {
			dir.meta = &metaProperties{clusterID: clusterID, nodeID: d.nodeID, directoryID: newDirectoryID()}
			if err := writeMetaProperties(dir.path, dir.meta); err != nil {
				return err
			}
		}
	}
	for _, dir := range d.dirs {
		d.main.logDirs[dir.meta.directoryID] = dir.path
	}
	if d.main.encode() == before {
		return nil
	}
	return writeMetaProperties(d.metadata, d.main)
}

// settle drops removed directories from the list once no partition was found
// to be missing: offline are those that still matter.
func (d *logDirs) settle(offline []partition.OfflineDir) error {
	matters := map[string]bool{}
	for _, off := range offline {
		matters[off.Path] = matters[off.Path] || off.Removed
	}
	changed := false
	for id, path := range d.removed {
		if !matters[path] {
			delete(d.main.logDirs, id)
			d.logger.Info("log directory is not used any more, no partition misses it", "dir", path, "directory_id", id)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return writeMetaProperties(d.metadata, d.main)
}

func (d *logDirs) close() error {
	var errs []error
	for _, dir := range d.dirs {
		if dir.store != nil {
			errs = append(errs, dir.store.Close())
		}
	}
	if d.reserve != nil {
		d.reserve.Close()
	}
	if d.locked != nil {
		errs = append(errs, d.locked.Close())
	}
	return errors.Join(errs...)
}
