package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// TestRepair runs the scripts in testdata/repair. Commands:
//
//	write partition=P batches=N        a log with N batches of two records each, in segments of two batches
//	flip partition=P file=BASE at=POS  change one byte of a segment file
//	cut partition=P file=BASE to=SIZE  shorten it
//	remove partition=P file=BASE       remove it; without file the log's directory
//	repair [ARGUMENTS]                 lockstep repair --dir DIR ARGUMENTS; LOG-P in them is the log's name
//	read partition=P                   what the log holds when it is opened, batch by batch
//	locked [ARGUMENTS]                 repair while a server has the directory
func TestRepair(t *testing.T) {
	datadriven.Walk(t, "testdata/repair", func(t *testing.T, path string) {
		s := repairScript{t: t, dir: t.TempDir()}
		datadriven.RunTest(t, path, s.run)
	})
}

type repairScript struct {
	t   *testing.T
	dir string
}

var repairTopic = [16]byte{15: 1}

func (s *repairScript) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	var partition, file, at int
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "partition":
			a.Scan(t, 0, &partition)
		case "file":
			a.Scan(t, 0, &file)
		case "at", "to", "batches":
			a.Scan(t, 0, &at)
		}
	}
	log := filepath.Join(s.dir, "logs", segment.LogID{Topic: repairTopic, Partition: int32(partition)}.String())
	path := filepath.Join(log, fmt.Sprintf("%020d.log", file))
	switch d.Cmd {
	case "write":
		s.open(partition, func(l *segment.Log) error { return writeBatches(l, at) })
	case "flip":
		b, err := os.ReadFile(path)
		s.must(err)
		b[at] ^= 0x20
		s.must(os.WriteFile(path, b, 0o644))
	case "cut":
		s.must(os.Truncate(path, int64(at)))
	case "remove":
		if !d.HasArg("file") {
			path = log
		}
		s.must(os.RemoveAll(path))
	case "repair":
		return s.repair(d)
	case "locked":
		var out string
		s.open(9, func(*segment.Log) error { out = s.repair(d); return nil })
		return out
	case "read":
		var out strings.Builder
		s.open(partition, func(l *segment.Log) error { return readBatches(&out, l) })
		return out.String()
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return "ok\n"
}

func (s *repairScript) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *repairScript) open(partition int, fn func(*segment.Log) error) {
	s.t.Helper()
	store, err := segment.Open(segment.Options{Dir: s.dir})
	s.must(err)
	defer func() { s.must(store.Close()) }()
	l, err := store.OpenLog(repairTopic, int32(partition), segment.Config{SegmentBytes: 200, RetentionMs: -1, RetentionBytes: -1})
	s.must(err)
	s.must(fn(l))
}

func writeBatches(l *segment.Log, n int) error {
	for range n {
		h := record.NoProducer(1_700_000_000_000)
		h.BaseOffset, h.LeaderEpoch = l.EndOffset(), 3
		if _, err := l.Append(record.Build(h, []record.Record{{Value: []byte("v")}, {OffsetDelta: 1, Value: []byte("w")}})); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	l.Flush(func(err error) { done <- err })
	return <-done
}

func readBatches(out *strings.Builder, l *segment.Log) error {
	fmt.Fprintf(out, "start %d end %d\n", l.StartOffset(), l.EndOffset())
	for offset := l.StartOffset(); offset < l.EndOffset(); {
		v, err := l.Read(offset, 1, l.EndOffset(), true)
		if err != nil {
			return err
		}
		b := make([]byte, v.Len())
		_, err = v.ReadAt(b, 0)
		v.Release()
		if err != nil || len(b) == 0 {
			return fmt.Errorf("read at %d: %d bytes, %w", offset, len(b), err)
		}
		batch := record.Batch(b)
		if err := batch.VerifyCRC(); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d-%d epoch %d records %d\n", batch.BaseOffset(), batch.LastOffset(), batch.PartitionLeaderEpoch(), batch.NumRecords())
		offset = batch.NextOffset()
	}
	return nil
}

var (
	keptTime = regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`)
	logName  = regexp.MustCompile(`LOG-(\d)`)
)

func (s *repairScript) repair(d *datadriven.TestData) string {
	topic := strings.TrimSuffix(segment.LogID{Topic: repairTopic}.String(), "0")
	args := []string{"--dir", s.dir}
	for _, a := range d.CmdArgs {
		args = append(args, logName.ReplaceAllString(a.String(), topic+"$1"))
	}
	c := newRepairCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(s.t.Context())
	code := exitDone
	if err != nil {
		code = exitFailed
		if errors.As(err, new(usageError)) {
			code = exitUsage
		}
		fmt.Fprintf(&out, "Error: %v\n", err)
	}
	fmt.Fprintf(&out, "exit %d\n", code)
	text := strings.NewReplacer(s.dir, "DIR", topic, "LOG-").Replace(out.String())
	return keptTime.ReplaceAllString(text, "TIME")
}
