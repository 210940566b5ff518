//go:build !linux

package segment

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func fdatasync(f *os.File) error { return f.Sync() }
