package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// TestVerifyFollowPrints: a line per round, and what has changed since the one before.
func TestVerifyFollowPrints(t *testing.T) {
	for _, name := range []string{metricRounds, metricNoRounds, metricCompared, metricSkipped} {
		obs.Unregister(name) // of a run of this test before
	}
	var out bytes.Buffer
	f := verifyFollow{out: &out, seen: map[string]verify.PartitionReport{}, metrics: newVerifyMetrics()}
	p := func(partition int32, result verify.Result, verified, total int64) verify.PartitionReport {
		r := verify.PartitionReport{Topic: "orders", Partition: partition, Result: result, Verified: verified, Bytes: total, Offset: -1}
		r.Source, r.Mirror = verify.Range{End: 10}, verify.Range{End: 9}
		if result == verify.Differs {
			r.Offset, r.SourceBatch, r.MirrorBatch = verified, "S", "M"
		}
		return r
	}
	for i, round := range []struct {
		partitions []verify.PartitionReport
		want       []string
	}{
		{[]verify.PartitionReport{p(0, verify.Equal, 5, 50), p(1, verify.Equal, 9, 90)}, []string{"2 equal, 0 differ, 0 missing, 0 could not be read; 140 bytes compared, 4 offsets to go"}},
		{[]verify.PartitionReport{p(0, verify.Differs, 7, 70), p(1, verify.Equal, 9, 90)}, []string{"orders-0: DIFFERS at offset 7", "source: S", "mirror: M", "1 equal, 1 differ", "20 bytes"}},
		{[]verify.PartitionReport{p(0, verify.Differs, 7, 70)}, []string{"0 equal, 1 differ"}},
		{[]verify.PartitionReport{p(0, verify.Differs, 7, 70)}, nil}, // nothing new
		{[]verify.PartitionReport{p(0, verify.Equal, 9, 10)}, []string{"orders-0: equal again, verified up to offset 9", "10 bytes"}},
	} {
		out.Reset()
		r := &verify.Report{Partitions: round.partitions}
		f.metrics.round(r, nil)
		if err := f.print(r); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		for _, want := range round.want {
			if !strings.Contains(text, want) {
				t.Errorf("round %d: %q is not in\n%s", i, want, text)
			}
		}
		if lines := strings.Count(text, "\n"); lines > len(round.want) {
			t.Errorf("round %d: %d lines\n%s", i, lines, text)
		}
	}
	var written bytes.Buffer
	obs.Write(&written)
	for _, want := range []string{`lockstep_verify_offset{topic="orders",partition="0"} 9`, `lockstep_verify_differs{topic="orders",partition="0"} 0`,
		"lockstep_verify_compared_bytes_total 170", "lockstep_verify_rounds_total 5", "lockstep_verify_round_errors_total 0"} {
		if !strings.Contains(written.String(), want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(written.String(), `partition="1"`) {
		t.Error("a partition that is gone has metrics")
	}
	out.Reset()
	for range 2 { // said once
		if err := f.printFailure(errors.New("source is away")); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "not compared: source is away") {
		t.Error(text)
	}
}
