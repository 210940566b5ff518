package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

// What deleted segments said of producers is in no segment any more, so it is in a
// file of its own beside the first one that is left, and named after it: the files are
// the truth, the index a cache of them (D10). There is one as soon as retention,
// DeleteRecords or a recovery deletes a segment of a log that somebody wrote to with a
// producer id:
//
//	00000000000000004711.producers
//	    4 bytes  CRC-32C of the rest
//	    varint   generation of the log, as before every value of the index
//	             producer.Table as Encode writes it
//
// A file whose name is no first segment's is a leftover: of a deletion that did not
// come to its mark, or that did and was interrupted.
const producersSuffix = ".producers"

func producersFile(base int64) string { return fmt.Sprintf("%020d%s", base, producersSuffix) }

func parseProducersFile(name string) (base int64, ok bool) {
	digits, ok := strings.CutSuffix(name, producersSuffix)
	if !ok {
		return 0, false
	}
	return parseFileName(digits + fileSuffix)
}

// writeProducers makes t the producer state at the offset where the first segment
// begins, or will begin, durably. For holders of wr.
func (l *Log) writeProducers(base int64, t *producer.Table) error {
	return l.putProducersFile(base, l.stamp(t.Encode(nil)))
}

func (l *Log) putProducersFile(base int64, stamped []byte) error {
	content := binary.BigEndian.AppendUint32(nil, crc32.Checksum(stamped, castagnoli))
	content = append(content, stamped...)
	path := l.store.disk.PathJoin(l.dir, producersFile(base))
	if err := l.store.disk.replace(path, bytes.NewReader(content)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if !l.hasProducersFile(base) {
		l.keptAt = append(l.keptAt, base)
	}
	invariants.Fault("segment.producersWritten")
	return nil
}

// readProducers is the value in the file of the segment that begins at base, with its
// generation, and nil where there is none. A damaged one is told once per read, and
// read as none: the index mostly has a copy.
func (l *Log) readProducers(base int64) []byte {
	if !l.hasProducersFile(base) {
		return nil
	}
	path := l.store.disk.PathJoin(l.dir, producersFile(base))
	content, err := readFile(l.store.disk, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && (len(content) < 4 || crc32.Checksum(content[4:], castagnoli) != binary.BigEndian.Uint32(content)):
		err = errors.New("checksum does not match")
	}
	if err != nil {
		damageFound.Inc()
		l.store.o.Logger.Error("file of the producers of deleted segments cannot be read: where the index has no copy, their duplicates are not recognised", "log", l.id.String(), "file", path, "err", err)
		return nil
	}
	return content[4:]
}

func (l *Log) hasProducersFile(base int64) bool {
	return slices.Contains(l.keptAt, base)
}

// dropProducers removes the files but for that of the segment that begins at first, of
// which -1 is none. Not durably: a leftover is not believed, and removed again.
func (l *Log) dropProducers(first int64) error {
	var errs error
	l.keptAt = slices.DeleteFunc(l.keptAt, func(base int64) bool {
		if base == first {
			return false
		}
		if err := l.store.disk.Remove(l.store.disk.PathJoin(l.dir, producersFile(base))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, err)
			return false
		}
		invariants.Fault("segment.producersRemoved")
		return true
	})
	return errs
}
