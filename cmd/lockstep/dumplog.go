package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

func newDumpLogCommand() *cobra.Command {
	d, cmp, compare := dumper{}, comparer{}, false
	c := &cobra.Command{
		Use:   "dump-log PATH…",
		Short: "Print, check or compare the record batches in segment files",
		Long: `Print the record batches in segment files, one line per batch.

A PATH is a .log file or a directory, which is searched for .log files in all
its depth. Files are only read: a running server's, a stopped one's, and those
of Apache Kafka, which have the same layout.

With --verify all is checked that the recovery of a log checks: every CRC, that
offsets rise within a file and from file to file of a directory, that leader
epochs do not fall, and with --records that the records inside can be read and
are as many as the batch says. The command exits with 1 if anything is wrong;
what is wrong is printed and the other files are still looked at.

With --compare two directories are compared, each one partition or a log
directory of Lockstep or of Apache Kafka. Partitions belong together by topic
id, which Kafka keeps in partition.metadata, or by name, or as --pair says. How
batches are spread over files does not matter. The command exits with 1 if
anything is different; --common leaves out what only one side has before the
other begins (retention) or behind its end (lag).`,
		Example: `  lockstep dump-log lockstep-data/logs
  lockstep dump-log --verify --quiet lockstep-data/logs
  lockstep dump-log --records --json lockstep-data/logs/*-0/*.log
  lockstep dump-log --compare --common kafka-logs lockstep-data
  lockstep dump-log --compare --pair orders-0=i3BqC1VqTbKbGsVYkIS8hQ-0 kafka-logs lockstep-data`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("dump-log: name at least one file or directory")}
			}
			if compare && len(args) != 2 {
				return usageError{fmt.Errorf("dump-log --compare: name two directories, not %d", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if compare {
				cmp.json, cmp.out = d.json, c.OutOrStdout()
				return cmp.run(args[0], args[1])
			}
			d.out, d.errs = c.OutOrStdout(), c.ErrOrStderr()
			return d.run(args)
		},
	}
	f := c.Flags()
	f.BoolVar(&d.json, "json", false, "print one JSON object per batch, or per difference and partition")
	f.BoolVar(&d.verify, "verify", false, "check all that recovery checks")
	f.BoolVar(&d.records, "records", false, "print the records too, decompressed")
	f.BoolVar(&compare, "compare", false, "compare two directories batch by batch")
	f.BoolVar(&cmp.common, "common", false, "with --compare: only where both have offsets")
	f.StringArrayVar(&cmp.pairs, "pair", nil, "with --compare: A=B, names of directories that belong together; may be repeated")
	f.BoolVar(&d.quiet, "quiet", false, "print the summary of each file only")
	return c
}

// dumper is one run of dump-log.
type dumper struct {
	json, verify, records, quiet bool

	out    io.Writer
	errs   io.Writer
	check  segment.Checker
	faults int
}

// dumpedBatch is a batch as --json prints it. Field names stay.
type dumpedBatch struct {
	File          string         `json:"file"`
	Position      int64          `json:"position"`
	Size          int            `json:"size"`
	BaseOffset    int64          `json:"baseOffset"`
	LastOffset    int64          `json:"lastOffset"`
	Records       int32          `json:"records"`
	LeaderEpoch   int32          `json:"leaderEpoch"`
	CRC           string         `json:"crc"`
	CRCValid      *bool          `json:"crcValid,omitempty"`
	Codec         string         `json:"codec"`
	TimestampType string         `json:"timestampType"`
	MaxTimestamp  int64          `json:"maxTimestamp"`
	ProducerID    int64          `json:"producerId"`
	ProducerEpoch int16          `json:"producerEpoch"`
	BaseSequence  int32          `json:"baseSequence"`
	Transactional bool           `json:"transactional"`
	Control       string         `json:"control,omitempty"`
	RecordList    []dumpedRecord `json:"recordList,omitempty"`
}

type dumpedRecord struct {
	Offset    int64             `json:"offset"`
	Timestamp int64             `json:"timestamp"`
	Key       *string           `json:"key"`
	Value     *string           `json:"value"`
	Headers   map[string]string `json:"headers,omitempty"`
}

func (d *dumper) run(args []string) error {
	var files []string
	for _, arg := range args {
		found, err := segmentFiles(arg)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return fmt.Errorf("no .log file in %v", args)
	}
	d.check.Deep = d.records
	d.check.Fault = func(file string, pos int64, reason string) { d.fault(file, pos, "%s", reason) }
	for _, path := range files {
		if err := d.file(path); err != nil {
			return err
		}
	}
	if d.faults > 0 {
		return fmt.Errorf("%d faults in %d files", d.faults, len(files))
	}
	return nil
}

// segmentFiles lists the file itself, or the segment files below a directory in
// the order of their names, which is the order of offsets within a log.
func segmentFiles(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if _, ok := segment.IsSegmentFile(e.Name()); ok {
				files = append(files, p)
			}
		}
		return err
	})
	sort.Strings(files)
	return files, err
}

// file prints one file. What is wrong with its bytes is counted and printed;
// only trouble with reading or printing is returned.
func (d *dumper) file(path string) error {
	if !d.json && !d.quiet {
		if _, err := fmt.Fprintf(d.out, "%s\n", path); err != nil {
			return err
		}
	}
	var batches, bytes, records int64
	first, end := int64(-1), int64(0)
	if base, named := segment.IsSegmentFile(filepath.Base(path)); named {
		end = base
	}
	if d.verify {
		d.check.File(path)
	}
	err := segment.Dump(path, func(pos int64, b record.Batch) error {
		if d.verify {
			d.check.Batch(pos, b)
		}
		if first < 0 {
			first = b.BaseOffset()
		}
		batches, bytes, records, end = batches+1, bytes+int64(len(b)), records+int64(b.NumRecords()), b.NextOffset()
		if d.quiet {
			return nil
		}
		return d.batch(path, pos, b)
	})
	var damage *segment.DamageError
	switch {
	case errors.As(err, &damage):
		// The end of a running server's file may be half-written.
		d.fault(path, damage.At, "no batch here, expected offset %d: %v", damage.Offset, damage.Err)
	case err != nil:
		return err
	}
	if d.json {
		return nil
	}
	if first < 0 {
		first = end
	}
	_, err = fmt.Fprintf(d.out, "%s: offsets %d to %d, %d batches, %d records, %d bytes\n", path, first, end, batches, records, bytes)
	return err
}

func (d *dumper) fault(path string, pos int64, format string, args ...any) {
	d.faults++
	fmt.Fprintf(d.errs, "%s at %d: %s\n", path, pos, fmt.Sprintf(format, args...))
}

func (d *dumper) batch(path string, pos int64, b record.Batch) error {
	x := dumpedBatch{
		File: path, Position: pos, Size: len(b), BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Records: b.NumRecords(),
		LeaderEpoch: b.PartitionLeaderEpoch(), CRC: fmt.Sprintf("%08x", b.CRC()), Codec: b.Codec().String(),
		TimestampType: b.TimestampType().String(), MaxTimestamp: b.MaxTimestamp(),
		ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence(), Transactional: b.IsTransactional(),
	}
	if d.verify {
		valid := b.VerifyCRC() == nil
		x.CRCValid = &valid
	}
	if b.IsControl() {
		x.Control = controlName(b)
	}
	if d.records {
		x.RecordList = dumpRecords(b)
	}
	if d.json {
		return json.NewEncoder(d.out).Encode(x)
	}
	return d.line(x)
}

func controlName(b record.Batch) string {
	t, epoch, err := b.Control()
	switch {
	case err != nil:
		return "unreadable"
	case t.IsMarker():
		return fmt.Sprintf("%s coordinatorEpoch=%d", t, epoch)
	case t == record.MirrorPIDReset:
		return fmt.Sprintf("%s sourceCluster=%q", t, b.PIDResetClusterID())
	}
	return t.String()
}

func (d *dumper) line(x dumpedBatch) error {
	s := fmt.Sprintf("  @%d offsets %d-%d records %d epoch %d size %d crc %s codec %s %s %s",
		x.Position, x.BaseOffset, x.LastOffset, x.Records, x.LeaderEpoch, x.Size, x.CRC, x.Codec, x.TimestampType, dumpTime(x.MaxTimestamp))
	if x.CRCValid != nil && !*x.CRCValid {
		s += " CRC-WRONG"
	}
	if x.ProducerID >= 0 {
		s += fmt.Sprintf(" producer %d/%d sequence %d", x.ProducerID, x.ProducerEpoch, x.BaseSequence)
	}
	if x.Transactional {
		s += " transactional"
	}
	if x.Control != "" {
		s += " control " + x.Control
	}
	if _, err := fmt.Fprintln(d.out, s); err != nil {
		return err
	}
	for _, r := range x.RecordList {
		if _, err := fmt.Fprintf(d.out, "    | offset %d %s key %s value %s headers %v\n", r.Offset, dumpTime(r.Timestamp), dumpedText(r.Key), dumpedText(r.Value), r.Headers); err != nil {
			return err
		}
	}
	return nil
}

func dumpTime(ms int64) string {
	if ms < 0 {
		return "no-time"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

func dumpedText(s *string) string {
	if s == nil {
		return "null"
	}
	return fmt.Sprintf("%q", *s)
}

// dumpRecords lists a batch's records; those behind something unreadable are
// left out, which --verify reports.
func dumpRecords(b record.Batch) []dumpedRecord {
	var list []dumpedRecord
	_ = segment.EachRecord(b, math.MaxInt, func(r record.Record) error {
		x := dumpedRecord{Offset: b.BaseOffset() + int64(r.OffsetDelta), Timestamp: b.BaseTimestamp() + r.TimestampDelta, Key: text(r.Key), Value: text(r.Value)}
		if b.TimestampType() == record.LogAppendTime {
			x.Timestamp = b.MaxTimestamp()
		}
		for _, h := range r.Headers {
			if x.Headers == nil {
				x.Headers = make(map[string]string)
			}
			x.Headers[h.Key] = string(h.Value)
		}
		list = append(list, x)
		return nil
	})
	return list
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
