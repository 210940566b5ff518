package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// twoClusters lays out a directory of Kafka's and one of ours with the same
// topic, of which ours lacks the last batch, and one of each that has no
// counterpart.
func twoClusters(t *testing.T) (kafka, ours, topic string) {
	t.Helper()
	id := segment.LogID{Topic: [16]byte{9, 9}}
	batch := func(base int64) []byte {
		b := record.Build(record.NoProducer(0), []record.Record{{Value: []byte("v")}})
		record.Batch(b).SetBaseOffset(base)
		return b
	}
	root := t.TempDir()
	write := func(dir, file string, b []byte) {
		t.Helper()
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const file = "00000000000000000000.log"
	topic = strings.TrimSuffix(id.String(), "-0")
	write("kafka/orders-0", file, append(batch(0), batch(1)...))
	write("kafka/orders-0", "partition.metadata", []byte("version: 0\ntopic_id: "+topic))
	write("kafka/plain-0", file, batch(0))
	write("ours/logs/"+id.String(), file, batch(0))
	write("ours/logs/"+segment.LogID{Topic: [16]byte{8}}.String(), file, batch(0))
	return filepath.Join(root, "kafka"), filepath.Join(root, "ours"), topic
}

func compareLogs(args ...string) (string, error) {
	c := newDumpLogCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(append([]string{"--compare"}, args...))
	err := c.Execute()
	return out.String(), err
}

func TestCompare(t *testing.T) {
	kafka, ours, topic := twoClusters(t)
	other := segment.LogID{Topic: [16]byte{8}}.String()
	out, err := compareLogs(kafka, ours)
	if err == nil || err.Error() != "3 of 3 partitions are different" {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"orders-0: only-in-a offsets 1 to 2 (behind the other's end), 1 batches; " + kafka + "/orders-0/00000000000000000000.log at 69\n",
		"orders-0: different, 1 batches equal (69 bytes); A has offsets 0 to 2 in 2 batches, B has offsets 0 to 1 in 1 batches\n",
		"plain-0: missing-in-b, " + kafka + "/plain-0\n",
		other + ": missing-in-a, ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}

	out, err = compareLogs("--common", "--pair", "plain-0="+other, kafka, ours)
	if err != nil || !strings.Contains(out, "plain-0: equal, 1 batches") || !strings.Contains(out, "orders-0: equal, 1 batches") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = compareLogs(filepath.Join(kafka, "plain-0"), filepath.Join(ours, "logs", topic+"-0")); err != nil || !strings.HasPrefix(out, "plain-0: equal") {
		t.Errorf("two partitions: %v\n%s", err, out)
	}

	for _, args := range [][]string{{"--pair", "x-0=" + other, kafka, ours}, {"--pair", "x", kafka, ours}, {kafka}} {
		if _, err := compareLogs(args...); !isUsage(err) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func isUsage(err error) bool { _, ok := err.(usageError); return ok }

// --json prints a line for each difference and then one for the partition.
func TestCompareJSON(t *testing.T) {
	kafka, ours, _ := twoClusters(t)
	out, err := compareLogs("--json", kafka, ours)
	if err == nil {
		t.Error("exit code 0")
	}
	var lines []struct {
		Partition, Kind, Where, Result string
		From, To, Equal                int64
		A                              struct{ File string }
	}
	d := json.NewDecoder(strings.NewReader(out))
	for d.More() {
		lines = append(lines, struct {
			Partition, Kind, Where, Result string
			From, To, Equal                int64
			A                              struct{ File string }
		}{})
		if err := d.Decode(&lines[len(lines)-1]); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) != 4 {
		t.Fatalf("%s", out)
	}
	if l := lines[0]; l.Partition != "orders-0" || l.Kind != "only-in-a" || l.Where != "end" || l.From != 1 || l.To != 2 || l.A.File == "" {
		t.Errorf("%+v", l)
	}
	if l := lines[1]; l.Partition != "orders-0" || l.Result != "different" || l.Equal != 1 {
		t.Errorf("%+v", l)
	}
}
