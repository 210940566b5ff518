package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// dumpLog runs the command on a directory that holds one log with two batches
// and a marker, after edit had its way with the bytes.
func dumpLog(t *testing.T, edit func([]byte) []byte, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	h := record.NoProducer(1_700_000_000_000)
	plain := record.Build(h, []record.Record{{Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: "h", Value: []byte("x")}}}, {OffsetDelta: 1}})
	marker := record.AbortMarker(7, 1, 3, 1_700_000_000_000)
	record.Batch(marker).SetBaseOffset(2)
	reset := record.PIDReset("source-id", 1_700_000_000_000)
	record.Batch(reset).SetBaseOffset(3)
	b := append(append(plain, marker...), reset...)
	if edit != nil {
		b = edit(b)
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "some-topic-0")
	if err := os.Mkdir(log, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(log, "00000000000000000000.log"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	c := newDumpLogCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetArgs(append(args, dir))
	err = c.Execute()
	return strings.ReplaceAll(out.String(), dir, "DIR"), strings.ReplaceAll(errs.String(), dir, "DIR"), err
}

// MIR-387: the tool shows offsets, epoch, checksum, producer and kind of each batch, the
// reset record of a mirror among them.
func TestDumpLog(t *testing.T) {
	out, _, err := dumpLog(t, nil, "--verify", "--records")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"@0 offsets 0-1 records 2 epoch 0",
		`| offset 0 2023-11-14T22:13:20.000Z key "k" value "v" headers map[h:x]`,
		"key null value null",
		"producer 7/1 sequence -1 transactional control ABORT coordinatorEpoch=3",
		`control MIRROR_PID_RESET sourceCluster="source-id"`,
		"DIR/some-topic-0/00000000000000000000.log: offsets 0 to 4, 3 batches, 4 records",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestDumpLogJSON(t *testing.T) {
	out, _, err := dumpLog(t, nil, "--json", "--verify")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want one per batch:\n%s", len(lines), out)
	}
	var b struct {
		BaseOffset int64
		CRCValid   bool
		Control    string
	}
	if err := json.Unmarshal([]byte(lines[1]), &b); err != nil || b.BaseOffset != 2 || !b.CRCValid || !strings.HasPrefix(b.Control, "ABORT") {
		t.Fatalf("%+v, %v from %s", b, err, lines[1])
	}
}

// A wrong byte and a torn end are named with their place, and the exit code
// tells of them.
func TestDumpLogDamage(t *testing.T) {
	_, errs, err := dumpLog(t, func(b []byte) []byte { b[record.HeaderSize+5] ^= 1; return b }, "--verify", "--quiet")
	if err == nil || !strings.Contains(errs, "00000000000000000000.log at 0: batch at offset 0: CRC is") {
		t.Fatalf("err %v, stderr %q", err, errs)
	}
	_, errs, err = dumpLog(t, func(b []byte) []byte { return b[:len(b)-3] })
	if err == nil || !strings.Contains(errs, "no batch here, expected offset 3") {
		t.Fatalf("err %v, stderr %q", err, errs)
	}
}
