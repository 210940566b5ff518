package segment

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// segmentsDir writes batches into segment files; a nil batch begins a new file.
func segmentsDir(t *testing.T, batches ...[]byte) string {
	t.Helper()
	dir := t.TempDir()
	var file []byte
	base := int64(0)
	flush := func() {
		if err := os.WriteFile(filepath.Join(dir, fileName(base)), file, 0o644); err != nil {
			t.Fatal(err)
		}
		file = nil
	}
	for i, b := range batches {
		if b == nil {
			flush()
			base = record.Batch(batches[i+1]).BaseOffset()
			continue
		}
		if i == 0 && len(b) > 0 {
			base = record.Batch(b).BaseOffset()
		}
		file = append(file, b...)
	}
	flush()
	return dir
}

func batchAt(base int64, n int) []byte {
	return testBatch{base: base, n: n, epoch: 3, value: 20}.build()
}

func compareDirs(t *testing.T, a, b string) (*Comparison, []string) {
	t.Helper()
	var found []string
	c, err := CompareDirs(a, b, func(d Difference) error {
		s := fmt.Sprintf("%s %d-%d %d/%d", d.Kind, d.From, d.To, d.BatchesA, d.BatchesB)
		if d.Where != "" {
			s += " " + d.Where
		}
		if d.Detail != "" {
			s += ": " + d.Detail
		}
		found = append(found, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, found
}

func TestCompareDirs(t *testing.T) {
	b0, b2, b4, b6, b8 := batchAt(0, 2), batchAt(2, 2), batchAt(4, 2), batchAt(6, 2), batchAt(8, 2)
	other := testBatch{base: 4, n: 2, epoch: 3, value: 21}.build()
	epoch := slices.Clone(b4)
	record.Batch(epoch).SetLeaderEpoch(4)
	wide := batchAt(4, 3)
	for _, tt := range []struct {
		name string
		a, b [][]byte
		want []string
		same bool // where both have offsets
	}{
		{"equal", [][]byte{b0, b2, b4}, [][]byte{b0, b2, b4}, nil, true},
		{"other segments", [][]byte{b0, nil, b2, b4}, [][]byte{b0, b2, nil, b4}, nil, true},
		{"retention", [][]byte{b0, b2, b4}, [][]byte{b4}, []string{"only-in-a 0-4 2/0 start"}, true},
		{"retention of the other", [][]byte{b4, b6}, [][]byte{b0, b2, b4, b6}, []string{"only-in-b 0-4 0/2 start"}, true},
		{"lag", [][]byte{b0, b2, b4}, [][]byte{b0}, []string{"only-in-a 2-6 2/0 end"}, true},
		{"both", [][]byte{b0, b2, b4}, [][]byte{b2, b4, b6}, []string{"only-in-a 0-2 1/0 start", "only-in-b 6-8 0/1 end"}, true},
		{"nothing in common", [][]byte{b0}, [][]byte{b6}, []string{"only-in-a 0-2 1/0 start", "only-in-b 6-8 0/1 end"}, true},
		{"an empty log", [][]byte{b0, b2}, [][]byte{{}}, []string{"only-in-a 0-4 2/0 end"}, true},
		{"a hole", [][]byte{b0, b2, b4, b6}, [][]byte{b0, b6}, []string{"only-in-a 2-6 2/0 hole"}, false},
		{"a hole in each", [][]byte{b0, b2, b6}, [][]byte{b0, b4, b6}, []string{"only-in-a 2-4 1/0 hole", "only-in-b 4-6 0/1 hole"}, false},
		{"other bytes", [][]byte{b2, b4, b6}, [][]byte{b2, other, b6}, []string{"differing 4-6 1/1: size 115 and 117"}, false},
		{"another epoch", [][]byte{b2, b4}, [][]byte{b2, epoch}, []string{"differing 4-6 1/1: leader epoch 3 and 4"}, false},
		{"a batch over two", [][]byte{b2, wide, b8}, [][]byte{b2, b4, b6, b8}, []string{"differing 4-8 1/2: last offset 6 and 5"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, found := compareDirs(t, segmentsDir(t, tt.a...), segmentsDir(t, tt.b...))
			if !slices.Equal(found, tt.want) {
				t.Errorf("found %q, want %q", found, tt.want)
			}
			if c.Same(true) != tt.same || c.Same(false) != (len(tt.want) == 0) {
				t.Errorf("same %v, with ends %v", c.Same(true), c.Same(false))
			}
		})
	}
}

// A file that cannot be read to its end is named, and the next file goes on.
func TestCompareDamaged(t *testing.T) {
	a := segmentsDir(t, batchAt(0, 2), batchAt(2, 2), nil, batchAt(4, 2))
	b := segmentsDir(t, batchAt(0, 2), batchAt(2, 2)[:70], nil, batchAt(4, 2))
	c, found := compareDirs(t, a, b)
	if len(found) != 2 || !strings.HasPrefix(found[0], "damaged 2-2 ") || found[1] != "only-in-a 2-4 1/0 hole" || c.Equal != 2 || c.Same(true) {
		t.Errorf("%q %+v", found, c)
	}
}

func TestCompareCompacted(t *testing.T) {
	whole := segmentsDir(t, batchAt(0, 2), batchAt(2, 2), batchAt(4, 2))
	for name, dir := range map[string]string{
		"between batches":  segmentsDir(t, batchAt(0, 2), batchAt(4, 2)),
		"between segments": segmentsDir(t, batchAt(0, 2), nil, batchAt(4, 2)),
		"inside a batch":   segmentsDir(t, batchAt(0, 2), testBatch{base: 2, n: 1, epoch: 3, gapLast: 1}.build(), batchAt(4, 2)),
		"an empty batch":   segmentsDir(t, batchAt(0, 2), record.EmptyOf(batchAt(2, 2)), batchAt(4, 2)),
	} {
		if c, _ := compareDirs(t, whole, dir); c.A.Compacted || !c.B.Compacted {
			t.Errorf("%s: compacted %v and %v", name, c.A.Compacted, c.B.Compacted)
		}
	}
}

// Partitions are found in our layout, in Kafka's, and given by themselves.
func TestFindLogs(t *testing.T) {
	id := LogID{Topic: [16]byte{1, 2, 3}, Partition: 7}
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const file = "/00000000000000000000.log"
	write("ours/logs/"+id.String()+file, "")
	write("ours/logs/"+id.String()+"-delete"+file, "")
	write("ours/meta.properties", "")
	write("kafka/some-topic-7"+file, "")
	write("kafka/some-topic-7/partition.metadata", "version: 0\ntopic_id: "+strings.TrimSuffix(id.String(), "-7"))
	write("kafka/old-3"+file, "")
	write("kafka/gone-1.4fe-delete"+file, "")
	write("bad/t-0"+file, "")
	write("bad/t-0/partition.metadata", "version: 0\ntopic_id: x\n")
	for _, tt := range []struct {
		dir  string
		want []FoundLog
	}{
		{"ours", []FoundLog{{Name: id.String(), ID: id.Topic, Partition: 7}}},
		{"ours/logs", []FoundLog{{Name: id.String(), ID: id.Topic, Partition: 7}}},
		{"kafka", []FoundLog{{Name: "old-3", Topic: "old", Partition: 3}, {Name: "some-topic-7", Topic: "some-topic", ID: id.Topic, Partition: 7}}},
		{"kafka/some-topic-7", []FoundLog{{Name: "some-topic-7", Topic: "some-topic", ID: id.Topic, Partition: 7}}},
	} {
		got, err := FindLogs(filepath.Join(root, tt.dir))
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if filepath.Base(got[i].Dir) != got[i].Name {
				t.Errorf("%s: directory %s", tt.dir, got[i].Dir)
			}
			got[i].Dir = ""
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v", tt.dir, got)
		}
	}
	if _, err := FindLogs(filepath.Join(root, "bad")); err == nil || !strings.Contains(err.Error(), `topic_id "x"`) {
		t.Errorf("%v", err)
	}
}

func TestChecker(t *testing.T) {
	crc := batchAt(2, 2)
	crc[len(crc)-1] ^= 1
	low := testBatch{base: 2, n: 2, epoch: 2}.build()
	swapped := record.Build(record.BuildHeader{BaseOffset: 2, LeaderEpoch: 3, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1},
		[]record.Record{{OffsetDelta: 1}, {OffsetDelta: 0}, {OffsetDelta: 2}})
	for _, tt := range []struct {
		name    string
		batches [][]byte
		want    []string
	}{
		{"sound", [][]byte{batchAt(0, 2), batchAt(2, 2), nil, batchAt(4, 2)}, nil},
		{"a hole", [][]byte{batchAt(0, 2), nil, batchAt(4, 2)}, nil},
		{"CRC", [][]byte{batchAt(0, 2), crc}, []string{"CRC is"}},
		{"offsets", [][]byte{batchAt(0, 3), batchAt(2, 2)}, []string{"offsets go back, expected 3 or more"}},
		{"segments", [][]byte{batchAt(0, 5), nil, batchAt(4, 2)}, []string{"segment begins at offset 4, what is before it ends at 5", "offsets go back"}},
		{"epochs", [][]byte{batchAt(0, 2), low}, []string{"leader epoch 2 behind epoch 3"}},
		{"epochs of two segments", [][]byte{batchAt(0, 2), nil, low}, []string{"leader epoch 2 behind epoch 3"}},
		{"records", [][]byte{batchAt(0, 2), swapped}, []string{"offset delta 0 behind 1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := segmentsDir(t, tt.batches...)
			var faults []string
			c := Checker{Deep: true, Fault: func(_ string, _ int64, reason string) { faults = append(faults, reason) }}
			files, err := filepath.Glob(filepath.Join(dir, "*.log"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				c.File(f)
				if err := Dump(f, func(pos int64, b record.Batch) error { c.Batch(pos, b); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if len(faults) != len(tt.want) {
				t.Fatalf("faults %q, want %q", faults, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(faults[i], want) {
					t.Errorf("fault %q, want %q", faults[i], want)
				}
			}
		})
	}
}
