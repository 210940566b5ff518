//go:build !torture

package main

import (
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFS is the file system of a log directory: nil, the real one. Only builds
// with the tag "torture" know another.
func logFS(string, *slog.Logger) (vfs.FS, error) { return nil, nil }
