package segment

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A metadata directory on a disk of its own: its ballast is given up at a quarter of the
// reserve, comes back by itself when the start is over, and is there at the next start.
func TestKeepReserve(t *testing.T) {
	const kb = 1 << 10
	disk := newFaultDisk()
	disk.usage = vfs.DiskUsage{AvailBytes: 2000 * kb, TotalBytes: 4000 * kb}
	if err := disk.MkdirAll("meta", 0o755); err != nil {
		t.Fatal(err)
	}
	o := testOptions(disk)
	o.Dir, o.ReserveBytes = "meta", 800*kb
	r := KeepReserve(o)
	size := func() int64 {
		fi, err := disk.Stat("meta/" + ballastFile)
		if err != nil {
			return 0
		}
		return fi.Size() / kb
	}
	if got := size(); got != 200 {
		t.Fatalf("ballast has %d KiB", got)
	}
	for _, step := range []struct {
		free  uint64 // KiB
		later bool   // the start is over
		want  int64  // KiB
	}{
		{free: 201, want: 200},
		{free: 199, want: 0},
		{free: 0, want: 0},
		{free: 600, want: 0}, // the metadata store may be making room for itself
		{free: 599, later: true, want: 0},
		{free: 600, later: true, want: 200},
	} {
		disk.free(step.free * kb)
		if step.later {
			r.scarce = time.Time{}
		}
		r.look()
		if got := size(); got != step.want {
			t.Fatalf("%+v: ballast has %d KiB", step, got)
		}
	}
	r.Close()
	if got := size(); got != 200 {
		t.Fatalf("after a stop the ballast has %d KiB", got)
	}
	disk.free(0)
	r = KeepReserve(o)
	defer r.Close()
	if got := size(); got != 0 {
		t.Fatalf("a start on a full disk leaves %d KiB", got)
	}
}
