package segment

// Dir is the log directory that the store was opened with.
func (s *Store) Dir() string { return s.o.Dir }

// Missing lists the logs that the watermarks know and whose directory is not
// there: moved to another log directory by hand while nothing ran, or lost.
// Delete forgets one; OpenLog answers what was lost.
func (s *Store) Missing() []LogID {
	there := make(map[LogID]struct{})
	for _, id := range s.Logs() {
		there[id] = struct{}{}
	}
	var ids []LogID
	for _, id := range s.marks.logs() {
		if _, ok := there[id]; !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// Usage is the size of the file system that the directory is on, and what of it
// can still be written.
func (s *Store) Usage() (total, usable int64, err error) {
	u, err := s.disk.GetDiskUsage(s.o.Dir)
	if err != nil {
		return 0, 0, err
	}
	return int64(u.TotalBytes), int64(u.AvailBytes), nil
}

// SyncMarks makes a log start that was moved before the call durable.
func (l *Log) SyncMarks() error {
	err := l.store.marks.sync()
	l.store.failSync(err)
	return err
}

func (w *watermarks) logs() []LogID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]LogID, 0, len(w.mu.marks))
	for id := range w.mu.marks {
		ids = append(ids, id)
	}
	return ids
}
