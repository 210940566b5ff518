package segment

import (
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Dump calls fn for each batch of a segment file, with its position, until fn
// returns an error. It reads the file alone: no store, no index, no lock, so it
// can look at a running broker's files, and at Kafka's. The batch is valid
// during the call. Bytes that are no batch end it with a *DamageError; the CRC
// is fn's to check.
func Dump(path string, fn func(pos int64, b record.Batch) error) error {
	f, err := newDisk(nil).Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return dump(f, fi.Size(), path, fn)
}

func dump(f io.ReaderAt, size int64, path string, fn func(pos int64, b record.Batch) error) error {
	s := newScanner(f, 0, size)
	defer s.close()
	var buf []byte
	end := int64(0)
	for {
		h, pos, n, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if isBadBatch(err) {
				err = &DamageError{File: path, At: pos, Offset: end, Err: err}
			}
			return err
		}
		var b record.Batch
		if b, buf, err = s.body(buf, pos, n); err != nil {
			return fmt.Errorf("read %s at %d: %w", path, pos, err)
		}
		end = h.NextOffset()
		if err := fn(pos, b); err != nil {
			return err
		}
	}
}

// IsSegmentFile says whether a file name is that of a segment, and its base
// offset.
func IsSegmentFile(name string) (base int64, ok bool) { return parseFileName(name) }

// EachRecord calls fn for the records of a batch, decompressed where needed, to
// at most so many bytes; maxInflated always.
func EachRecord(b record.Batch, most int, fn func(record.Record) error) error {
	return eachRecord(b, min(most, maxInflated), fn)
}
