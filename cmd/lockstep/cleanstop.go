package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cleanStopFile lies in a log directory from a clean stop to the next start, and
// says under which broker epoch its logs were closed. The controller compares that
// with the epoch that it knows: only then has the directory everything that it had
// when the broker was last heard of (reliability rule 8, KIP-966). It also names all
// directories that were in use: where one of them is not there any more, and nobody says
// so since its line was taken out of meta.properties, its logs begin empty.
//
//	directories=<directory id>,…    not in a mark of an older version
//	epoch=<broker epoch>
const cleanStopFile = "clean-stop"

// maxCleanStop bounds what is read of a file that may be anything.
const maxCleanStop = 64 << 10

// noCleanStop is the epoch of a start after which anything may be missing that no
// fsync has confirmed.
const noCleanStop int64 = -1

// cleanStop is such a mark.
type cleanStop struct {
	epoch       int64
	directories []string // ids of all that were in use; nil: unknown
}

// takeCleanStop reads the mark of a directory and removes it for good: it must not
// outlive the first write of the start that took it. Without one, or with one that
// makes no sense, the epoch is noCleanStop.
func takeCleanStop(dir string) (cleanStop, error) {
	none := cleanStop{epoch: noCleanStop}
	path := filepath.Join(dir, cleanStopFile)
	text, err := readStart(path, maxCleanStop)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	if err := os.Remove(path); err != nil {
		return none, err
	}
	if err := syncDir(dir); err != nil {
		return none, err
	}
	stop, ok := parseCleanStop(text)
	if !ok {
		return none, nil // torn, by a stop that was cut off
	}
	return stop, nil
}

func parseCleanStop(text string) (stop cleanStop, ok bool) {
	if line, rest, more := strings.Cut(text, "\n"); more && strings.HasPrefix(line, "directories=") {
		if list := strings.TrimPrefix(line, "directories="); list != "" {
			stop.directories = strings.Split(list, ",")
		}
		text = rest
	}
	line, whole := strings.CutSuffix(text, "\n")
	epoch, err := strconv.ParseInt(strings.TrimPrefix(line, "epoch="), 10, 64)
	stop.epoch = epoch
	return stop, err == nil && whole && strings.HasPrefix(line, "epoch=") && epoch >= 0
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

// markCleanStop says that a directory's logs are closed and on disk, those of all the
// directories in use.
func markCleanStop(dir string, stop cleanStop) error {
	return replaceFile(dir, cleanStopFile, fmt.Sprintf("directories=%s\nepoch=%d\n", strings.Join(stop.directories, ","), stop.epoch))
}

// takeCleanStops answers the epoch of the last stop of this node, noCleanStop
// unless all directories that were in use agree, and are there. New ones have had no
// stop yet.
func (d *logDirs) takeCleanStops() (epoch int64, err error) {
	var stops []cleanStop
	here := map[string]bool{}
	for _, dir := range d.dirs {
		stop, err := takeCleanStop(dir.path)
		if err != nil {
			return noCleanStop, fmt.Errorf("log directory %s: mark of the last stop: %w", dir.path, err)
		}
		if dir.meta != nil {
			here[dir.meta.directoryID] = true
			stops = append(stops, stop)
		}
	}
	if len(d.offline) > 0 {
		return noCleanStop, nil // whoever knows what they had is not here
	}
	return agreedStop(stops, here), nil
}

// agreedStop is the epoch of which all stops are, noCleanStop if there is none, or if a
// directory that was in use then is not here.
func agreedStop(stops []cleanStop, here map[string]bool) int64 {
	epoch := noCleanStop
	for i, stop := range stops {
		if i > 0 && stop.epoch != epoch || slices.ContainsFunc(stop.directories, func(id string) bool { return !here[id] }) {
			return noCleanStop
		}
		epoch = stop.epoch
	}
	return epoch
}

// markCleanStops is the last thing that a clean stop writes.
func (d *logDirs) markCleanStops(epoch int64) error {
	stop := cleanStop{epoch: epoch}
	if d.main != nil {
		stop.directories = slices.Sorted(maps.Keys(d.main.logDirs))
	}
	var errs []error
	for _, dir := range d.dirs {
		errs = append(errs, markCleanStop(dir.path, stop))
	}
	return errors.Join(errs...)
}
