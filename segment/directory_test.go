package segment

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
