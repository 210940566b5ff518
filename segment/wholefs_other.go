//go:build !linux

package segment

import (
	"errors"
	"os"
)

func wholeFS(string) *os.File { return nil }

func unwritten() int64 { return 0 }

func syncWhole(*os.File) error { return errors.ErrUnsupported }
