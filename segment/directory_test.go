package segment

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log whose directory went away is told as missing: opening it says what was
// lost, until it is forgotten.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	id := LogID{Topic: [16]byte{1}, Partition: 3}
	l, err := s.OpenLog(id.Topic, id.Partition, DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 1, 0)
	if len(s.Missing()) != 0 {
		t.Fatalf("missing %v", s.Missing())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, logsDir, id.String())); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.Missing(); len(got) != 1 || got[0] != id {
		t.Fatalf("missing %v, want %v", got, id)
	}
	if _, err := s.OpenLog(id.Topic, id.Partition, DefaultConfig()); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a lost log was opened: %v", err)
	}
	if err := s.Delete(id.Topic, id.Partition); err != nil {
		t.Fatal(err)
	}
	if got := s.Missing(); len(got) != 0 {
		t.Fatalf("missing %v after it was forgotten", got)
	}
	if total, usable, err := s.Usage(); err != nil || total <= 0 || usable < 0 || usable > total {
		t.Fatalf("usage %d of %d, %v", usable, total, err)
	}
}

// A log start above what was synced (durability=replicated) is no damage after
// a power cut that takes the records below it: the log begins at its end, empty.
func TestStartAboveDurableEnd(t *testing.T) {
	for percent := range 2 {
		fs := vfs.NewCrashableMem()
		s := mustOpen(t, testOptions(fs))
		l := mustLog(t, s, DefaultConfig())
		appendN(t, l, 2, 0)
		mustFlush(t, l)
		appendN(t, l, 2, 0)
		if err := l.SetStartOffset(9); err != nil {
			t.Fatal(err)
		}
		if err := l.SyncMarks(); err != nil {
			t.Fatal(err)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100 * percent, RNG: rand.New(rand.NewPCG(1, 2))})
		l = mustLog(t, mustOpen(t, testOptions(crashed)), DefaultConfig())
		if l.StartOffset() > l.EndOffset() || l.StartOffset() < 6 {
			t.Fatalf("%d %%: log [%d, %d)", percent*100, l.StartOffset(), l.EndOffset())
		}
		appendN(t, l, 1, 0)
	}
}
