package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/magiconair/properties"
)

// dataFormat is the version of the data directory as a whole; it only rises.
const dataFormat = 1

// metaProperties says whose data a directory holds. Kafka keeps a file of the
// same name for the same reason: a disk put into the wrong machine must not be
// taken for an empty or an own one.
type metaProperties struct {
	clusterID   string
	nodeID      int32
	directoryID string // Kafka's (KIP-858); empty in a file of an older version

	// logDirs are the log directories that this server has used, by id. Only the
	// metadata directory's file has them: a disk that is not mounted looks like
	// an empty directory, and this tells the two apart.
	logDirs map[string]string
}

const metaPropertiesFile = "meta.properties"

// errMetaFormat marks a file that can be read and makes no sense.
var errMetaFormat = errors.New("not a meta.properties file of this version")

// readMetaProperties returns nil for a directory that was never used.
func readMetaProperties(dir string) (*metaProperties, error) {
	path := filepath.Join(dir, metaPropertiesFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := parseMetaProperties(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, errMetaFormat, err)
	}
	return m, nil
}

const logDirPrefix = "log.directory."

func parseMetaProperties(text []byte) (*metaProperties, error) {
	l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := l.LoadBytes(text)
	if err != nil {
		return nil, err
	}
	version, err := strconv.Atoi(p.GetString("version", ""))
	if err != nil || version != dataFormat {
		return nil, fmt.Errorf("data format %q, this version reads %d", p.GetString("version", ""), dataFormat)
	}
	id, err := strconv.ParseInt(p.GetString("node.id", ""), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("node.id: %w", err)
	}
	m := &metaProperties{
		clusterID: p.GetString("cluster.id", ""), nodeID: int32(id),
		directoryID: p.GetString("directory.id", ""), logDirs: map[string]string{},
	}
	if m.clusterID == "" {
		return nil, errors.New("cluster.id is missing")
	}
	for _, key := range p.Keys() {
		if id, ok := strings.CutPrefix(key, logDirPrefix); ok {
			m.logDirs[id] = p.GetString(key, "")
		}
	}
	return m, nil
}

func (m *metaProperties) encode() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version=%d\ncluster.id=%s\nnode.id=%d\n", dataFormat, m.clusterID, m.nodeID)
	if m.directoryID != "" {
		fmt.Fprintf(&b, "directory.id=%s\n", m.directoryID)
	}
	for _, id := range slices.Sorted(maps.Keys(m.logDirs)) {
		// Backslashes are escapes in this format.
		fmt.Fprintf(&b, "%s%s=%s\n", logDirPrefix, id, strings.ReplaceAll(m.logDirs[id], `\`, `\\`))
	}
	return b.String()
}

// newDirectoryID is a random id in Kafka's form. Kafka avoids a leading dash,
// which tools take for an option.
func newDirectoryID() string {
	for {
		var id [16]byte
		rand.Read(id[:])
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // UUID version 4
		if s := base64.RawURLEncoding.EncodeToString(id[:]); s[0] != '-' {
			return s
		}
	}
}

// writeMetaProperties replaces the file whole.
func writeMetaProperties(dir string, m *metaProperties) error {
	return replaceFile(dir, metaPropertiesFile, m.encode())
}

// replaceFile writes a small file whole or not at all: written beside, synced,
// renamed.
func replaceFile(dir, name, text string) error {
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.WriteString(f, text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes what was done to a directory's entries durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
