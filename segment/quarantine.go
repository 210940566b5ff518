package segment

import (
	"errors"
	"fmt"
	"io"
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

	mu sync.Mutex // one file comes or goes at a time
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
	return &quarantine{store: s, dir: s.disk.PathJoin(s.o.Dir, quarantineDir)}
}

// path makes the directory for what comes from a log, durably, and names a new
// file in it.
func (q *quarantine) path(id LogID, base int64, kind string) (string, error) {
	d := q.store.disk
	dir := d.PathJoin(q.dir, id.String())
	if err := d.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, parent := range []string{q.store.o.Dir, q.dir} {
		if err := d.syncDir(parent); err != nil {
			return "", err
		}
	}
	for now := q.store.o.Clock.Now().UTC(); ; now = now.Add(time.Millisecond) {
		path := d.PathJoin(dir, fmt.Sprintf("%020d%s.%s", base, kind, now.Format(quarantineTime)))
		if _, err := d.Stat(path); err != nil {
			return path, nil
		}
	}
}

// keepFile gives a damaged file a second name in the quarantine, durably, before
// a repaired one takes its first: no crash in between loses it. Where the file
// system has no links it is copied.
func (q *quarantine) keepFile(id LogID, base int64, file string) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.store.disk
	path, err := q.path(id, base, damagedKind)
	if err != nil {
		return "", fmt.Errorf("quarantine %s: %w", file, err)
	}
	if err := vfs.LinkOrCopy(d.FS, file, path); err != nil {
		return "", fmt.Errorf("quarantine %s: %w", file, err)
	}
	invariants.Fault("segment.quarantineLink")
	if err := d.syncDir(d.PathDir(path)); err != nil {
		return "", err
	}
	invariants.Fault("segment.quarantineLinked")
	quarantined.Inc()
	q.store.o.Logger.Warn("damaged file is kept in quarantine", "log", id.String(), "file", file, "quarantine", path)
	q.pruneLocked(path)
	return path, nil
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
	q.pruneLocked("")
}

// pruneLocked keeps the file that just came, and the newest of each kind whatever
// its size, until it is too old: a segment larger than the limit would be gone with
// the next pass, before anybody has looked at it.
func (q *quarantine) pruneLocked(keep string) {
	all := q.list()
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
			if k.kind != kind || k.path == keep || !old && (total <= limit || k.path == newest) {
				continue
			}
			if err := q.remove(k); err != nil {
				q.store.o.Logger.Error("file in quarantine cannot be removed", "file", k.path, "err", err)
				continue
			}
			total -= k.size
			quarantinedDropped.Inc()
			q.store.o.Logger.Info("file in quarantine is let go", "file", k.path, "bytes", k.size, "too_old", old)
		}
	}
}

func (q *quarantine) limits(kind string) (age time.Duration, bytes int64) {
	o := &q.store.o
	if kind == cutKind {
		return o.KeepAge, o.KeepBytes
	}
	return o.QuarantineAge, o.QuarantineBytes
}

// remove takes one file away, and the log's directory with the last one.
func (q *quarantine) remove(k kept) error {
	d := q.store.disk
	if err := d.Remove(k.path); err != nil {
		return err
	}
	invariants.Fault("segment.quarantineRemoved")
	dir := d.PathDir(k.path)
	if names, err := d.List(dir); err == nil && len(names) == 0 {
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
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.store.disk
	path, err := q.path(l.id, offset, cutKind)
	if err != nil {
		return k, err
	}
	f, err := d.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return k, err
	}
	k = Kept{Path: path, From: offset, To: offset}
	if err = q.copyRange(l, f, &k, end); err == nil {
		invariants.Fault("segment.keepWritten")
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.syncDir(d.PathDir(path))
	}
	if err != nil {
		_ = d.Remove(path)
		return Kept{}, err
	}
	invariants.Fault("segment.keptBeforeCut")
	quarantined.Inc()
	q.pruneLocked(path)
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
