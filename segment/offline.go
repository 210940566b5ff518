package segment

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// offlineLog walks the batches of a directory of segment files in order, of ours
// or of Apache Kafka's, without a store. It holds one file and one batch.
type offlineLog struct {
	disk  disk
	dir   string
	files []string // not opened yet, by base offset

	path string
	f    vfs.File // nil: the next of files
	scan *scanner
	buf  []byte
	end  int64 // end of the last batch, or the base of the file
}

func openOffline(dir string) (*offlineLog, error) {
	o := &offlineLog{disk: newDisk(nil), dir: dir}
	names, err := o.disk.List(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := parseFileName(name); ok {
			o.files = append(o.files, name)
		}
	}
	slices.Sort(o.files) // 20 digits: the order of names is that of offsets
	return o, nil
}

func (o *offlineLog) close() {
	if o.f != nil {
		o.scan.close()
		_ = o.f.Close()
		o.f = nil
	}
}

// next returns a batch, valid until the call after, with its place. After a
// *DamageError the walk goes on with the next file; io.EOF ends it.
func (o *offlineLog) next() (b record.Batch, pos int64, err error) {
	for {
		if o.f == nil {
			if err := o.open(); err != nil {
				return nil, 0, err
			}
		}
		_, pos, n, err := o.scan.next()
		if errors.Is(err, io.EOF) {
			o.close()
			continue
		}
		if err == nil {
			if b, o.buf, err = o.scan.body(o.buf, pos, n); err == nil {
				o.end = b.NextOffset()
				return b, pos, nil
			}
		} else if isBadBatch(err) {
			err = &DamageError{File: o.path, At: pos, Offset: o.end, Err: err}
		}
		o.close()
		return nil, pos, err
	}
}

func (o *offlineLog) open() error {
	if len(o.files) == 0 {
		return io.EOF
	}
	o.path = o.disk.PathJoin(o.dir, o.files[0])
	base, _ := parseFileName(o.files[0])
	o.files = o.files[1:]
	f, err := o.disk.Open(o.path)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	o.f, o.scan, o.end = f, newScanner(f, 0, fi.Size()), max(o.end, base)
	return nil
}

// FoundLog is the directory of one partition, ours or Apache Kafka's.
type FoundLog struct {
	Dir       string
	Name      string   // of the directory
	Topic     string   // empty where the directory has the topic's id in place of its name
	ID        [16]byte // of the topic; zero where nothing tells it
	Partition int32
}

// FindLogs lists the partitions in a log directory: dir itself if there are
// segments in it, else the directories in dir/logs if there is one (ours), else
// those in dir.
func FindLogs(dir string) ([]FoundLog, error) {
	d := newDisk(nil)
	names, err := d.List(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := parseFileName(name); ok {
			abs, err := filepath.Abs(dir)
			if err != nil {
				return nil, err
			}
			l, _, err := foundLog(d, dir, filepath.Base(abs))
			return []FoundLog{l}, err
		}
	}
	if slices.Contains(names, logsDir) {
		dir = d.PathJoin(dir, logsDir)
		if names, err = d.List(dir); err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	var logs []FoundLog
	for _, name := range names {
		path := d.PathJoin(dir, name)
		if fi, err := d.Stat(path); err != nil || !fi.IsDir() {
			continue // a file, or gone since
		}
		l, ok, err := foundLog(d, path, name)
		if err != nil {
			return nil, err
		}
		if ok {
			logs = append(logs, l)
		}
	}
	return logs, nil
}

// partitionMetadata is the file that Kafka keeps beside its segments.
const partitionMetadata = "partition.metadata"

// foundLog reads what a directory's name and Kafka's partition.metadata tell. ok
// is false for a name that is not that of a partition (one that is being deleted
// or moved has a suffix).
func foundLog(d disk, dir, name string) (l FoundLog, ok bool, err error) {
	l = FoundLog{Dir: dir, Name: name, Partition: -1}
	if id, ours := ParseLogID(name); ours {
		l.ID, l.Partition = id.Topic, id.Partition
		return l, true, nil
	}
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if p, err := strconv.ParseInt(name[i+1:], 10, 32); err == nil && p >= 0 {
			l.Topic, l.Partition, ok = name[:i], int32(p), true
		}
	}
	path := d.PathJoin(dir, partitionMetadata)
	text, err := readFile(d, path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, ok, nil
	}
	if err != nil {
		return l, ok, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.TrimSpace(key) != "topic_id" {
			continue
		}
		id, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(value))
		if err != nil || len(id) != 16 {
			return l, ok, fmt.Errorf("%s: topic_id %q is not an id", path, strings.TrimSpace(value))
		}
		l.ID = [16]byte(id)
	}
	return l, ok, nil
}
