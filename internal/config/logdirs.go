package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// LogDirs are the log directories, in the order given.
func (c *Config) LogDirs() []string {
	var dirs []string
	for dir := range strings.SplitSeq(c.String("log.dirs"), ",") {
		if dir = strings.TrimSpace(dir); dir != "" {
			dirs = append(dirs, filepath.Clean(dir))
		}
	}
	return dirs
}

// MetadataDir is the directory of the cluster's metadata; it may be one of
// LogDirs.
func (c *Config) MetadataDir() string {
	if dir := c.String("metadata.log.dir"); dir != "" {
		return filepath.Clean(dir)
	}
	return c.LogDirs()[0]
}

func (c *Config) checkLogDirs() error {
	dirs := c.LogDirs()
	if len(dirs) == 0 {
		return errors.New("log.dirs: no directory is named")
	}
	slices.Sort(dirs)
	for i := 1; i < len(dirs); i++ {
		if dirs[i] == dirs[i-1] {
			return fmt.Errorf("log.dirs: %s is named twice", dirs[i])
		}
	}
	return nil
}
