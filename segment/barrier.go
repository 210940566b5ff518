package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// barrierNote is the file that names the last truncation barrier that was applied
// to a log: one decimal number. Few logs ever have one.
const barrierNote = "barrier"

// Barrier is the number of the last truncation barrier (spec O4) that this log has
// behind it, 0 if there never was one.
func (l *Log) Barrier() (int32, error) {
	b, err := readFile(l.store.disk, l.store.disk.PathJoin(l.dir, barrierNote))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("barrier of %s: %w", l.id, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || n < 0 {
		return 0, nil // cutting once more than needed costs a copy, once less the equality of two logs
	}
	return int32(n), nil
}

// SetBarrier remembers, durably, that a barrier is behind this log. The cut that
// belongs to it must be durable before, as those of Truncate and TruncateFully are.
func (l *Log) SetBarrier(number int32) error {
	l.noteMu.Lock()
	defer l.noteMu.Unlock()
	path := l.store.disk.PathJoin(l.dir, barrierNote)
	if err := l.store.disk.replace(path, strings.NewReader(strconv.Itoa(int(number))+"\n")); err != nil {
		return fmt.Errorf("barrier of %s: %w", l.id, err)
	}
	return nil
}
