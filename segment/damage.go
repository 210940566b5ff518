package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// A damaged log is one of which some durable bytes cannot be read as what was
// written. It answers every read and every change with the *DamageError that
// names the place, so that nobody is given the bytes, and nobody goes on behind
// them as if they were there; its neighbours go on. It stays so, over restarts,
// until Repair has put true bytes, or a confessed hole, in their place.
//
//	whole ──▶ damaged ──▶ whole
//	   OpenLog,    Repair; OpenLog, if the file was
//	   scrubber    put back by hand
//
// What a log in this state must not forget is which files to look at: damage
// inside of a batch is not seen when a log is opened, because what was durable
// is not read then. So the bases of the files are noted in the log's directory,
// and opening reads the noted files from end to end.

// damageNote is the name of that note: one line per file, with the base offset,
// and size and checksum of heads (see times) where they are known.
const damageNote = "damaged"

// noted is one line of it.
type noted struct {
	base  int64
	known known
}

var damageFound = obs.Counter("lockstep_log_damage_total")

// Damage is why the log is out of use; nil while it is whole.
func (l *Log) Damage() *DamageError { return l.damaged.Load() }

// setDamaged takes the log out of use. It says whether it was whole until now.
func (l *Log) setDamaged(d *DamageError) (first bool) {
	d.Dir, d.Log = l.store.o.Dir, l.id
	if !l.damaged.CompareAndSwap(nil, d) {
		return false
	}
	damageFound.Inc()
	l.store.o.Logger.Error("log is damaged and out of use until it is repaired", "log", l.id.String(), "file", d.File, "position", d.At, "offset", d.Offset, "err", d.Err,
		"if_no_source_has_it", d.command())
	return true
}

// condemn is setDamaged for a log that was in use: it notes the file, and what
// is known to be durable, because from now on only files and marks count.
func (l *Log) condemn(d *DamageError, n noted) (first bool) {
	if !l.setDamaged(d) {
		return false
	}
	if err := l.note(false, n); err != nil {
		l.store.o.Logger.Error("damage could not be noted; a restart before the repair would forget it until the next pass of the scrubber", "log", l.id.String(), "file", d.File, "err", err)
	}
	if err := l.putMark(true, -1); err != nil {
		l.store.failSync(err)
	}
	return true
}

// note remembers that files have to be read from end to end before the log is
// opened again. With anew, what was known of them before does not count.
func (l *Log) note(anew bool, files ...noted) error {
	l.noteMu.Lock()
	defer l.noteMu.Unlock()
	all, err := l.noted()
	if err != nil {
		return err
	}
	for _, f := range files {
		switch i := slices.IndexFunc(all, func(n noted) bool { return n.base == f.base }); {
		case i < 0:
			all = append(all, f)
		case anew:
			all[i] = f
		}
	}
	var text strings.Builder
	for _, f := range all {
		fmt.Fprintln(&text, f.base, f.known.size, f.known.heads)
	}
	return l.store.disk.replace(l.notePath(), strings.NewReader(text.String()))
}

func (l *Log) notePath() string { return l.store.disk.PathJoin(l.dir, damageNote) }

// noted reads the note; there is nothing in it without one. A line that cannot
// be read is ignored: the scrubber will find the damage again.
func (l *Log) noted() ([]noted, error) {
	b, err := readFile(l.store.disk, l.notePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", l.notePath(), err)
	}
	var all []noted
	for line := range strings.Lines(string(b)) {
		var n noted
		if _, err := fmt.Sscan(line, &n.base, &n.known.size, &n.known.heads); err == nil && n.base >= 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// checkNoted reads the noted files. If all are good now, the note goes.
func (r *recovery) checkNoted() error {
	all, err := r.l.noted()
	if err != nil || len(all) == 0 {
		return err
	}
	for i, s := range r.segments {
		n := slices.IndexFunc(all, func(n noted) bool { return n.base == s.base })
		if n < 0 {
			continue
		}
		if err := r.checkWhole(i, all[n].known); err != nil {
			return err
		}
	}
	return r.l.forgetNote()
}

// checkWhole reads one segment file from end to end.
func (r *recovery) checkWhole(i int, k known) error {
	limit := int64(-1)
	if i+1 < len(r.segments) {
		limit = r.segments[i+1].base
	}
	f, _, err := r.look(r.segments[i], limit, r.durableAt(i), k)
	if err != nil {
		return err
	}
	for _, p := range f.pieces {
		if p.bad != nil {
			return &DamageError{File: f.path, At: p.pos, Offset: p.from, Err: p.bad}
		}
	}
	return nil
}

func (l *Log) forgetNote() error {
	if err := l.store.disk.Remove(l.notePath()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	invariants.Fault("segment.noteRemoved")
	return l.store.disk.syncDir(l.dir)
}

func fileSize(d disk, path string) (int64, error) {
	fi, err := d.Stat(path)
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
