package segment

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// quarantine is where a store keeps what it took out of its logs and somebody
// may want back:
//
//	quarantine/<topic id>-<partition>/<base>.log.<time>   a damaged file, as it was
//	                                  <first>.cut.<time>  records that a mirror had to cut
//
// Both hold whole batches as segment files do, so that dump-log prints them.
// Nothing in here is ever read by a log. Each of the two kinds is bounded in
// bytes and in age, over all logs of the store.
type quarantine struct {
	store *Store
	dir   string

	// Files come and go one at a time; they are filled and synced without mu.
	mu struct {
		sync.Mutex
		filling map[string]struct{} // paths that are not to be let go yet
		made    map[string]struct{} // directories of logs whose names are on disk
		root    bool                // and so is dir's
		// bytes are what is kept of each kind, as of listed and with what came since.
		bytes  map[string]int64
		listed time.Time
	}
	dirs groupSync // of dir and of what it lies in
}

const (
	quarantineDir = "quarantine"
	damagedKind   = fileSuffix // ".log"
	cutKind       = ".cut"

	// quarantineTime is in the names, so that they sort by age within a log.
	quarantineTime = "20060102T150405.000Z"
)

var (
	quarantined        = obs.Counter("lockstep_log_quarantine_files_total")
	quarantinedDropped = obs.Counter("lockstep_log_quarantine_dropped_files_total")
)

func newQuarantine(s *Store) *quarantine {
	q := &quarantine{store: s, dir: s.disk.PathJoin(s.o.Dir, quarantineDir)}
	q.mu.filling, q.mu.made = make(map[string]struct{}), make(map[string]struct{})
	return q
}

// pathLocked makes the directory for what comes from a log, and names a new file in it.
func (q *quarantine) pathLocked(id LogID, base int64, kind string) (string, error) {
	d := q.store.disk
	dir := d.PathJoin(q.dir, id.String())
	if err := d.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for now := q.store.o.Clock.Now().UTC(); ; now = now.Add(time.Millisecond) {
		path := d.PathJoin(dir, fmt.Sprintf("%020d%s.%s", base, kind, now.Format(quarantineTime)))
		if _, err := d.Stat(path); err != nil {
			return path, nil
		}
	}
}

// syncName makes a file's name durable, and the directories on the way to it.
func (q *quarantine) syncName(path string) error {
	d := q.store.disk
	dir := d.PathDir(path)
	if err := d.syncDir(dir); err != nil {
		return err
	}
	q.mu.Lock()
	_, made := q.mu.made[dir]
	q.mu.Unlock()
	if made {
		return nil
	}
	return q.dirs.do(func() error {
		q.mu.Lock()
		making := slices.Collect(maps.Keys(q.mu.filling)) // their directories are there
		root := q.mu.root
		q.mu.Unlock()
		if err := d.syncDir(q.dir); err != nil {
			return err
		}
		if !root {
			if err := d.syncDir(q.store.o.Dir); err != nil {
				return err
			}
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.mu.root = true
		for _, path := range making {
			if _, still := q.mu.filling[path]; still { // else it may be gone, and its directory with it
				q.mu.made[d.PathDir(path)] = struct{}{}
			}
		}
		return nil
	})
}

// keepFile gives a damaged file a second name in the quarantine, durably, before
// a repaired one takes its first: no crash in between loses it. Where the file
// system has no links it is copied.
func (q *quarantine) keepFile(id LogID, base int64, file string) (string, error) {
	d := q.store.disk
	path, err := q.begin(id, base, damagedKind, func(path string) error { return vfs.LinkOrCopy(d.FS, file, path) })
	if err != nil {
		return "", fmt.Errorf("quarantine %s: %w", file, err)
	}
	defer q.end(path)
	invariants.Fault("segment.quarantineLink")
	if err := q.syncName(path); err != nil {
		return "", err
	}
	invariants.Fault("segment.quarantineLinked")
	quarantined.Inc()
	q.store.o.Logger.Warn("damaged file is kept in quarantine", "log", id.String(), "file", file, "quarantine", path)
	size, err := fileSize(d, path)
	if err != nil {
		size = math.MaxInt64 / 2 // have it looked at
	}
	q.came(damagedKind, size)
	return path, nil
}

// begin makes a file, with what make does at its path. Until end it is not let go.
func (q *quarantine) begin(id LogID, base int64, kind string, make func(path string) error) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	path, err := q.pathLocked(id, base, kind)
	if err != nil {
		return "", err
	}
	if err := make(path); err != nil {
		return "", err
	}
	q.mu.filling[path] = struct{}{}
	return path, nil
}

func (q *quarantine) end(path string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mu.filling, path)
}

// pruneEvery is after which time a file that comes has the others looked at for their
// age, even if there is room for it. To list them for each one would take hours where
// thousands of logs are cut.
const pruneEvery = time.Minute

// came counts a file that is whole, and makes room if that is too much.
func (q *quarantine) came(kind string, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, limit := q.limits(kind)
	if q.mu.bytes != nil {
		q.mu.bytes[kind] += bytes
	}
	if q.mu.bytes == nil || q.mu.bytes[kind] > limit || q.store.o.Clock.Now().Sub(q.mu.listed) >= pruneEvery {
		q.pruneLocked()
	}
}

// kept is one file in quarantine.
type kept struct {
	path string
	kind string
	at   time.Time
	size int64
}

// list finds all that is kept, the oldest first. Files that are not ours are
// left alone.
func (q *quarantine) list() []kept {
	d := q.store.disk
	logs, err := d.List(q.dir)
	if err != nil {
		return nil // nothing was ever kept
	}
	var all []kept
	for _, log := range logs {
		names, err := d.List(d.PathJoin(q.dir, log))
		if err != nil {
			continue
		}
		for _, name := range names {
			k, ok := parseKept(name)
			if !ok {
				continue
			}
			k.path = d.PathJoin(q.dir, log, name)
			if k.size, err = fileSize(d, k.path); err == nil {
				all = append(all, k)
			}
		}
	}
	slices.SortFunc(all, func(a, b kept) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.path, b.path)
	})
	return all
}

func parseKept(name string) (k kept, ok bool) {
	if len(name) < 20 {
		return k, false
	}
	for _, k.kind = range []string{damagedKind, cutKind} {
		if stamp, found := strings.CutPrefix(name[20:], k.kind+"."); found {
			at, err := time.Parse(quarantineTime, stamp)
			k.at = at
			return k, err == nil
		}
	}
	return k, false
}

// prune lets go of what is too old or too much.
func (q *quarantine) prune() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pruneLocked()
}

// pruneLocked keeps the files that are coming, and the newest of each kind whatever
// its size, until it is too old: a segment larger than the limit would be gone with
// the next pass, before anybody has looked at it.
func (q *quarantine) pruneLocked() {
	all := q.list()
	q.mu.bytes, q.mu.listed = make(map[string]int64), q.store.o.Clock.Now()
	for _, kind := range []string{damagedKind, cutKind} {
		age, limit := q.limits(kind)
		total, newest := int64(0), ""
		for _, k := range all {
			if k.kind == kind {
				total, newest = total+k.size, k.path
			}
		}
		for _, k := range all {
			old := q.store.o.Clock.Now().Sub(k.at) > age
			if _, filling := q.mu.filling[k.path]; k.kind != kind || filling || !old && (total <= limit || k.path == newest) {
				continue
			}
			if err := q.removeLocked(k); err != nil {
				q.store.o.Logger.Error("file in quarantine cannot be removed", "file", k.path, "err", err)
				continue
			}
			total -= k.size
			quarantinedDropped.Inc()
			q.store.o.Logger.Info("file in quarantine is let go", "file", k.path, "bytes", k.size, "too_old", old)
		}
		q.mu.bytes[kind] = total
	}
}

func (q *quarantine) limits(kind string) (age time.Duration, bytes int64) {
	o := &q.store.o
	if kind == cutKind {
		return o.KeepAge, o.KeepBytes
	}
	return o.QuarantineAge, o.QuarantineBytes
}

// removeLocked takes one file away, and the log's directory with the last one.
func (q *quarantine) removeLocked(k kept) error {
	d := q.store.disk
	if err := d.Remove(k.path); err != nil {
		return err
	}
	invariants.Fault("segment.quarantineRemoved")
	dir := d.PathDir(k.path)
	if names, err := d.List(dir); err == nil && len(names) == 0 {
		delete(q.mu.made, dir)
		_ = d.Remove(dir)
	}
	return nil
}

// Kept is what Keep copied.
type Kept struct {
	Path     string // empty: there was nothing to keep
	From, To int64  // offsets; To is below the log end if there was no room for all
	Bytes    int64
}

// Keep copies the batches from the one that holds offset on into a file in
// quarantine and makes it durable: before a mirror cuts records that were
// committed here, somebody may want to look at them (reliability rule 11). What
// goes beyond Options.KeepBytes is not copied, older copies make room first. A
// copy that fails, for want of room say, is an error with Options.KeepRequired,
// else an event.
func (l *Log) Keep(offset int64) (Kept, error) {
	if l.store.o.KeepBytes < 0 {
		return Kept{}, nil
	}
	end := l.EndOffset()
	offset = max(offset, l.StartOffset())
	if offset >= end {
		return Kept{}, nil
	}
	k, err := l.store.quarantine.keepRange(l, offset, end)
	if err != nil {
		err = fmt.Errorf("keep offsets %d to %d of %s: %w", offset, end, l.id, err)
		if l.store.o.KeepRequired {
			return Kept{}, err
		}
		l.store.o.Logger.Error("records cannot be kept and are cut all the same", "log", l.id.String(), "from", offset, "end", end, "err", err)
		return Kept{}, nil
	}
	l.store.o.Logger.Warn("records that will be cut are kept", "log", l.id.String(), "from", k.From, "to", k.To, "end", end, "bytes", k.Bytes, "file", k.Path)
	return k, nil
}

func (q *quarantine) keepRange(l *Log, offset, end int64) (k Kept, err error) {
	d := q.store.disk
	var f vfs.File
	path, err := q.begin(l.id, offset, cutKind, func(path string) (err error) {
		f, err = d.Create(path, vfs.WriteCategoryUnspecified)
		return err
	})
	if err != nil {
		return k, err
	}
	defer q.end(path)
	k = Kept{Path: path, From: offset, To: offset}
	if err = q.copyRange(l, f, &k, end); err == nil {
		invariants.Fault("segment.keepWritten")
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = q.syncName(path)
	}
	if err != nil {
		_ = d.Remove(path)
		return Kept{}, err
	}
	invariants.Fault("segment.keptBeforeCut")
	quarantined.Inc()
	q.came(cutKind, k.Bytes)
	return k, nil
}

// copyRange goes the way of every reader, so that damage is met here as well.
func (q *quarantine) copyRange(l *Log, to io.Writer, k *Kept, end int64) error {
	var buf []byte
	for k.To < end && k.Bytes < q.store.o.KeepBytes {
		left := q.store.o.KeepBytes - k.Bytes
		v, err := l.Read(k.To, int(min(replaceBuffer, left)), end, true)
		if err != nil {
			return err
		}
		if v.N == 0 || k.Bytes > 0 && int64(v.N) > left {
			v.Release()
			return nil // a hole up to the end, or no room for the next batch
		}
		if cap(buf) < v.N {
			buf = make([]byte, v.N)
		}
		_, err = v.ReadAt(buf[:v.N], 0)
		v.Release()
		if err == nil {
			err = q.store.space.spare(int64(v.N))
		}
		if err == nil {
			_, err = to.Write(buf[:v.N])
		}
		if err != nil {
			return asFull(err)
		}
		k.Bytes, k.To = k.Bytes+int64(v.N), v.End
	}
	return nil
}
