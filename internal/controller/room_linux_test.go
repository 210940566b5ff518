package controller

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The metadata store's file gets blocks ahead, and stays what it is.
func TestKeepRoom(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := keepRoom(dir); err == nil {
		t.Error("a missing file got room")
	}
	if err := os.WriteFile(path, []byte("pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil { // as bbolt grows it: a hole
		t.Fatal(err)
	}
	for range 2 {
		if err := keepRoom(dir); err != nil {
			t.Fatal(err)
		}
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Size() != 1<<20 {
		t.Fatalf("%v %v", fi.Size(), err)
	}
	if blocks := fi.Sys().(*syscall.Stat_t).Blocks * 512; blocks < 1<<20+dbRoom {
		t.Errorf("%d bytes of blocks", blocks)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b[:5]) != "pages" {
		t.Errorf("content changed: %v", err)
	}
}
