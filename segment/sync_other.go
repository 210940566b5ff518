//go:build !linux

package segment

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func fdatasync(f *os.File) error { return f.Sync() }

// startWriteback is a hint that only Linux takes.
func startWriteback(*os.File, int64, int64) {}
