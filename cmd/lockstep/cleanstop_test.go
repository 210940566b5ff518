package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// A mark counts once: the next start without a clean stop before it finds none.
func TestCleanStop(t *testing.T) {
	dir := t.TempDir()
	take := func() int64 {
		t.Helper()
		epoch, err := takeCleanStop(dir)
		if err != nil {
			t.Fatal(err)
		}
		return epoch
	}
	if e := take(); e != noCleanStop {
		t.Errorf("first start: %d", e)
	}
	if err := markCleanStop(dir, 42); err != nil {
		t.Fatal(err)
	}
	if e := take(); e != 42 {
		t.Errorf("after a clean stop: %d", e)
	}
	if e := take(); e != noCleanStop {
		t.Errorf("taken twice: %d", e)
	}
	for _, bad := range []string{"", "epoch=", "epoch=1", "epoch=-1\n", "epoch=1 \n", "1\n", "epoch=99999999999999999999\n", string(make([]byte, 1000))} {
		if err := os.WriteFile(filepath.Join(dir, cleanStopFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if e := take(); e != noCleanStop {
			t.Errorf("%q: %d", bad, e)
		}
	}
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
				if err := markCleanStop(dir, mark); err != nil {
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
