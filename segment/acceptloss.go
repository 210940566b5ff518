package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

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
