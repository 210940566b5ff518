package verify

import (
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Result is the verdict on one partition.
type Result string

// Equal is the only good one.
const (
	Equal   Result = "equal"
	Differs Result = "DIFFERS" // at Report.Offset
	Missing Result = "missing" // one side does not have the partition
	Failed  Result = "error"   // it could not be read
)

// Range is a range of offsets; End is exclusive.
type Range struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// PartitionReport is what was found about one partition.
type PartitionReport struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`

	Source   Range `json:"source"`   // log start and high watermark there
	Mirror   Range `json:"mirror"`   // and here
	Compared Range `json:"compared"` // what both have
	// Verified is the offset up to which, from Compared.Start on, both are equal; -1 if
	// nothing has been compared yet.
	Verified int64 `json:"verified"`
	// Skipped are offsets that one side deleted before they were compared, while the
	// comparison went on. CRC32C is - then, or when it has gone on at all.
	Skipped int64 `json:"skipped,omitempty"`

	Batches int64  `json:"batches"`
	Bytes   int64  `json:"bytes"`
	CRC32C  string `json:"crc32c"` // of the compared batches, concatenated

	Result Result `json:"result"`
	Offset int64  `json:"offset"` // of the first difference; -1 if there is none
	Detail string `json:"detail,omitempty"`
	// The headers of the batches at the first difference.
	SourceBatch string `json:"sourceBatch,omitempty"`
	MirrorBatch string `json:"mirrorBatch,omitempty"`
}

// Behind is the number of offsets that the mirror does not have yet.
func (p *PartitionReport) Behind() int64 { return max(0, p.Source.End-p.Mirror.End) }

// Report is the outcome of a run, sorted by topic and partition.
type Report struct {
	Partitions []PartitionReport
}

// OK tells whether every partition is equal over the range that both sides have.
func (r *Report) OK() bool {
	for i := range r.Partitions {
		if r.Partitions[i].Result != Equal {
			return false
		}
	}
	return true
}

// Unverified is the number of offsets that both sides have and that are not compared yet.
func (p *PartitionReport) Unverified() int64 {
	return max(0, min(p.Source.End, p.Mirror.End)-max(p.Verified, p.Source.Start, p.Mirror.Start))
}

// Complete tells whether, beyond OK, no partition of the mirror is behind.
func (r *Report) Complete() bool {
	for i := range r.Partitions {
		if r.Partitions[i].Behind() > 0 {
			return false
		}
	}
	return r.OK()
}

// Print writes one line per partition, the details of what is wrong, and a sum.
func (r *Report) Print(w io.Writer) error {
	const row = "%-40s %-9v %-14v %-14v %-8v %-10v %-14v %-8s %s\n"
	out := &printer{w: w}
	out.printf(row, "TOPIC", "PARTITION", "FROM", "TO", "BEHIND", "BATCHES", "BYTES", "CRC32C", "RESULT")
	var bytes, batches int64
	counts := map[Result]int{}
	for i := range r.Partitions {
		p := &r.Partitions[i]
		result := string(p.Result)
		if p.Result == Differs {
			result = fmt.Sprintf("%s at offset %d", p.Result, p.Offset)
		}
		out.printf(row, p.Topic, p.Partition, p.Compared.Start, p.Compared.End, p.Behind(), p.Batches, p.Bytes, p.CRC32C, result)
		if p.Detail != "" {
			out.printf("    %s\n", p.Detail)
		}
		if p.SourceBatch != "" || p.MirrorBatch != "" {
			out.printf("    source: %s\n    mirror: %s\n", p.SourceBatch, p.MirrorBatch)
		}
		bytes, batches = bytes+p.Bytes, batches+p.Batches
		counts[p.Result]++
	}
	out.printf("%d partitions: %d equal, %d differ, %d missing, %d could not be read; %d batches, %d bytes compared\n",
		len(r.Partitions), counts[Equal], counts[Differs], counts[Missing], counts[Failed], batches, bytes)
	return out.err
}

// printer keeps the first error of a series of writes.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// describe prints a batch header in one line.
func describe(b record.Batch) string {
	if b == nil {
		return "(no batch)"
	}
	kind := "data"
	switch {
	case b.IsControl():
		kind = "control"
	case b.IsTransactional():
		kind = "transactional"
	}
	return fmt.Sprintf("offsets %d-%d, %d bytes, leader epoch %d, crc %08x, %s %s, %d records, producer %d epoch %d sequence %d, timestamps %d-%d",
		b.BaseOffset(), b.LastOffset(), len(b), b.PartitionLeaderEpoch(), b.CRC(), kind, b.Codec(), b.NumRecords(),
		b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.BaseTimestamp(), b.MaxTimestamp())
}
