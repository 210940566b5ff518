package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/magiconair/properties"
)

// dataFormat is the version of the data directory as a whole; it only rises.
const dataFormat = 1

// metaProperties says whose data a directory holds. Kafka keeps a file of the
// same name for the same reason: a disk put into the wrong machine must not be
// taken for an empty or an own one.
type metaProperties struct {
	clusterID string
	nodeID    int32
}

// readMetaProperties returns nil for a directory that was never used.
func readMetaProperties(dir string) (*metaProperties, error) {
	path := filepath.Join(dir, "meta.properties")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := l.LoadBytes(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	version, err := strconv.Atoi(p.GetString("version", ""))
	if err != nil || version != dataFormat {
		return nil, fmt.Errorf("%s: data format %q, this version reads %d", path, p.GetString("version", ""), dataFormat)
	}
	id, err := strconv.ParseInt(p.GetString("node.id", ""), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%s: node.id: %w", path, err)
	}
	m := &metaProperties{clusterID: p.GetString("cluster.id", ""), nodeID: int32(id)}
	if m.clusterID == "" {
		return nil, fmt.Errorf("%s: cluster.id is missing", path)
	}
	return m, nil
}

// writeMetaProperties replaces the file whole: written beside, synced, renamed.
func writeMetaProperties(dir string, m metaProperties) error {
	path := filepath.Join(dir, "meta.properties")
	f, err := os.CreateTemp(dir, "meta.properties.*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f, "version=%d\ncluster.id=%s\nnode.id=%d\n", dataFormat, m.clusterID, m.nodeID)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
