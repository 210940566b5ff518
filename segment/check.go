package segment

import (
	"fmt"
	"path/filepath"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Checker holds batches against what recovery asks of them, without a store: CRC,
// rising offsets in a file and from file to file of a directory, leader epochs
// that do not fall, and with Deep the records inside. A hole between segments is
// no fault: Apache Kafka's compaction makes them.
type Checker struct {
	Deep  bool
	Fault func(file string, pos int64, reason string)

	dir   string
	file  string
	end   int64 // end of the last batch of the directory
	epoch int32 // of it
}

// File begins a file; files of a directory come in order of their names.
func (c *Checker) File(path string) {
	if dir := filepath.Dir(path); dir != c.dir || c.file == "" {
		c.dir, c.end, c.epoch = dir, 0, -1
	}
	c.file = path
	base, named := parseFileName(filepath.Base(path))
	if !named {
		return
	}
	if base < c.end {
		c.Fault(path, 0, fmt.Sprintf("segment begins at offset %d, what is before it ends at %d", base, c.end))
	}
	c.end = max(c.end, base)
}

// Batch checks the next batch of the file.
func (c *Checker) Batch(pos int64, b record.Batch) {
	fault := func(format string, args ...any) {
		c.Fault(c.file, pos, fmt.Sprintf("batch at offset %d: ", b.BaseOffset())+fmt.Sprintf(format, args...))
	}
	sound := b.VerifyCRC() == nil
	if !sound {
		fault("CRC is %08x, the bytes do not have it", b.CRC())
	}
	if b.BaseOffset() < c.end {
		fault("offsets go back, expected %d or more", c.end)
	}
	if e := b.PartitionLeaderEpoch(); e < c.epoch {
		fault("leader epoch %d behind epoch %d", e, c.epoch)
	} else {
		c.epoch = e
	}
	c.end = max(c.end, b.NextOffset())
	if c.Deep && sound {
		if err := checkRecords(b); err != nil {
			fault("%v", err)
		}
	}
}

// checkRecords decompresses and counts. What EachRecord checks is not repeated.
func checkRecords(b record.Batch) error {
	last := int32(-1)
	err := eachRecord(b, maxInflated, func(r record.Record) error {
		if r.OffsetDelta <= last {
			return fmt.Errorf("offset delta %d behind %d", r.OffsetDelta, last)
		}
		last = r.OffsetDelta
		return nil
	})
	if err == nil && b.IsControl() && b.NumRecords() > 0 {
		_, _, err = b.Control()
	}
	return err
}
