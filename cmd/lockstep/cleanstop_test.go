package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// A mark counts once: the next start without a clean stop before it finds none.
func TestCleanStop(t *testing.T) {
	dir := t.TempDir()
	take := func() int64 {
		t.Helper()
		stop, err := takeCleanStop(dir)
		if err != nil {
			t.Fatal(err)
		}
		return stop.epoch
	}
	if e := take(); e != noCleanStop {
		t.Errorf("first start: %d", e)
	}
	if err := markCleanStop(dir, cleanStop{epoch: 42, directories: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	if e := take(); e != 42 {
		t.Errorf("after a clean stop: %d", e)
	}
	if e := take(); e != noCleanStop {
		t.Errorf("taken twice: %d", e)
	}
	for _, bad := range []string{"", "epoch=", "epoch=1", "epoch=-1\n", "epoch=1 \n", "1\n", "directories=a\n", "directories=a\nepoch=1", "epoch=99999999999999999999\n", string(make([]byte, 1000))} {
		if err := os.WriteFile(filepath.Join(dir, cleanStopFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if e := take(); e != noCleanStop {
			t.Errorf("%q: %d", bad, e)
		}
	}
	if stop, ok := parseCleanStop("epoch=7\n"); !ok || stop.epoch != 7 || stop.directories != nil {
		t.Errorf("a mark of an older version: %v %v", stop, ok)
	}
}

// A disk was lost, its line taken out of meta.properties, and the broker started as
// after a clean stop: in a cluster it could be elected with logs that began empty. The
// marks of the other directories say that there was one more.
func TestCleanStopWithoutALostDirectory(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	start := func() *logDirs {
		t.Helper()
		d, err := openLogDirs([]string{a, b}, a, 1, slog.New(slog.DiscardHandler), func(string, segment.Health) {}, segment.Options{ReserveBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	took := func(d *logDirs) int64 {
		t.Helper()
		epoch, err := d.takeCleanStops()
		if err == nil {
			err = d.claim("cluster")
		}
		if err != nil {
			t.Fatal(err)
		}
		return epoch
	}
	stop := func(d *logDirs, epoch int64) {
		t.Helper()
		if err := errors.Join(d.close(), d.markCleanStops(epoch)); err != nil {
			t.Fatal(err)
		}
	}
	d := start()
	took(d)
	stop(d, 3)
	d = start()
	if e := took(d); e != 3 {
		t.Fatalf("with both directories: %d", e)
	}
	lost := d.dirs[1].meta.directoryID
	stop(d, 4)

	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(a, metaPropertiesFile))
	if err != nil {
		t.Fatal(err)
	}
	line := logDirPrefix + lost + "=" + b + "\n"
	if !strings.Contains(string(text), line) {
		t.Fatalf("%q has no line %q", text, line)
	}
	if err := os.WriteFile(filepath.Join(a, metaPropertiesFile), []byte(strings.Replace(string(text), line, "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	d = start()
	if len(d.offline) > 0 {
		t.Fatalf("offline: %v", d.offline)
	}
	if e := took(d); e != noCleanStop {
		t.Errorf("without the lost one: %d", e)
	}
	stop(d, 5)
	d = start()
	if e := took(d); e != 5 {
		t.Errorf("with a new one in its place: %d", e)
	}
	stop(d, 6)
}

// One directory that was not closed, or is not there, makes the whole stop unclean;
// a new one does not.
func TestCleanStopOfSeveralDirectories(t *testing.T) {
	used := &metaProperties{clusterID: "c", directoryID: "d"}
	for name, tc := range map[string]struct {
		marks   []int64 // per directory; noCleanStop: none
		fresh   int     // directories beside them that were never used
		offline bool
		want    int64
	}{
		"all":                   {marks: []int64{7, 7}, want: 7},
		"one without":           {marks: []int64{7, noCleanStop}, want: noCleanStop},
		"first without":         {marks: []int64{noCleanStop, 7}, want: noCleanStop},
		"of another stop":       {marks: []int64{7, 6}, want: noCleanStop},
		"and back again":        {marks: []int64{7, 6, noCleanStop}, want: noCleanStop},
		"a new one":             {marks: []int64{7}, fresh: 1, want: 7},
		"only new ones":         {fresh: 2, want: noCleanStop},
		"one that is not there": {marks: []int64{7}, offline: true, want: noCleanStop},
	} {
		d := &logDirs{}
		for _, mark := range tc.marks {
			dir := t.TempDir()
			if mark != noCleanStop {
				if err := markCleanStop(dir, cleanStop{epoch: mark}); err != nil {
					t.Fatal(err)
				}
			}
			d.dirs = append(d.dirs, &logDir{path: dir, meta: used})
		}
		for range tc.fresh {
			d.dirs = append(d.dirs, &logDir{path: t.TempDir()})
		}
		if tc.offline {
			d.offline = append(d.offline, partition.OfflineDir{Path: "/gone"})
		}
		if got, err := d.takeCleanStops(); err != nil || got != tc.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, tc.want)
		}
	}
}
