package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cleanStopFile lies in a log directory from a clean stop to the next start, and
// says under which broker epoch its logs were closed. The controller compares that
// with the epoch that it knows: only then has the directory everything that it had
// when the broker was last heard of (reliability rule 8, KIP-966).
const cleanStopFile = "clean-stop"

// maxCleanStop bounds what is read of a file that may be anything.
const maxCleanStop = 64

// noCleanStop is the epoch of a start after which anything may be missing that no
// fsync has confirmed.
const noCleanStop int64 = -1

// takeCleanStop reads the mark of a directory and removes it for good: it must not
// outlive the first write of the start that took it. Without one, or with one that
// makes no sense, the answer is noCleanStop.
func takeCleanStop(dir string) (epoch int64, err error) {
	path := filepath.Join(dir, cleanStopFile)
	text, err := readStart(path, maxCleanStop)
	if errors.Is(err, fs.ErrNotExist) {
		return noCleanStop, nil
	}
	if err != nil {
		return noCleanStop, err
	}
	if err := os.Remove(path); err != nil {
		return noCleanStop, err
	}
	if err := syncDir(dir); err != nil {
		return noCleanStop, err
	}
	line, whole := strings.CutSuffix(text, "\n")
	epoch, err = strconv.ParseInt(strings.TrimPrefix(line, "epoch="), 10, 64)
	if err != nil || !whole || !strings.HasPrefix(line, "epoch=") || epoch < 0 {
		return noCleanStop, nil // torn, by a stop that was cut off
	}
	return epoch, nil
}

func readStart(path string, most int) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, most)
	n, err := f.Read(b)
	if err != nil && n == 0 {
		return "", nil // empty
	}
	return string(b[:n]), nil
}

// markCleanStop says that a directory's logs are closed and on disk.
func markCleanStop(dir string, epoch int64) error {
	return replaceFile(dir, cleanStopFile, fmt.Sprintf("epoch=%d\n", epoch))
}

// takeCleanStops answers the epoch of the last stop of this node, noCleanStop
// unless all directories that were in use agree. New ones have had no stop yet.
func (d *logDirs) takeCleanStops() (epoch int64, err error) {
	epoch, first := noCleanStop, true
	for _, dir := range d.dirs {
		e, err := takeCleanStop(dir.path)
		switch {
		case err != nil:
			return noCleanStop, fmt.Errorf("log directory %s: mark of the last stop: %w", dir.path, err)
		case dir.meta == nil:
		case first:
			epoch, first = e, false
		case e != epoch:
			epoch = noCleanStop
		}
	}
	if len(d.offline) > 0 {
		epoch = noCleanStop // whoever knows what they had is not here
	}
	return epoch, nil
}

// markCleanStops is the last thing that a clean stop writes.
func (d *logDirs) markCleanStops(epoch int64) error {
	var errs []error
	for _, dir := range d.dirs {
		errs = append(errs, markCleanStop(dir.path, epoch))
	}
	return errors.Join(errs...)
}
