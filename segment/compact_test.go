package segment

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

var allCodecs = []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLz4, record.CodecZstd}

// The newest record of each key stays, at its offset, with its time, epoch and
// headers, whatever the codec; the active segment is left alone.
func TestCompactKeepsNewest(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
			l := mustLog(t, s, compactConfig)
			appendKeyed(t, l,
				keyedBatch{epoch: 1, codec: codec, recs: []kv{{"a", "1", 10}, {"b", "1", 11}, {"c", "1", 12}}},
				keyedBatch{epoch: 1, codec: codec, recs: []kv{{"a", "2", 20}, {"", "no key", 25}}},
				keyedBatch{epoch: 1, codec: codec, recs: []kv{{"b", "2", 30}, {"a", "3", 31}}},
				keyedBatch{epoch: 1, codec: codec, recs: []kv{{"c", "4", 40}}}, // active
			)
			stats := mustCompact(t, l, 1000, CompactOptions{})
			want := "[2@1/-1 c=1 t12 5@1/-1 b=2 t30 6@1/-1 a=3 t31 7@1/-1 c=4 t40]"
			if got := fmt.Sprint(logRecords(t, l)); got != want {
				t.Fatalf("records %v\nwant    %v", got, want)
			}
			for _, f := range logRecords(t, l) {
				if f.header != f.key {
					t.Errorf("record %v has header %q", f, f.header)
				}
			}
			if stats.RecordsRead != 7 || stats.RecordsKept != 3 || stats.Keyless != 1 || stats.End != 7 || stats.MapKeys != 3 {
				t.Errorf("stats %+v", stats)
			}
			b := logBatches(t, l)[0]
			if b.BaseOffset() != 0 || b.LastOffset() != 2 || b.MaxTimestamp() != 12 || b.Codec() != codec {
				t.Errorf("first batch has offsets %d to %d, newest %d, %s", b.BaseOffset(), b.LastOffset(), b.MaxTimestamp(), b.Codec())
			}
			before := content(t, l, 0, 1<<20)
			mustCompact(t, l, 1000, CompactOptions{})
			if string(before) != string(content(t, l, 0, 1<<20)) {
				t.Error("compacting again changed bytes")
			}
		})
	}
}

// A log with more keys than fit is compacted in rounds, each of which goes on
// where the one before it stopped, also in the middle of a batch.
func TestCompactRounds(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	l := mustLog(t, s, compactConfig)
	for i := range 10 {
		var recs []kv
		for j := range 7 {
			recs = append(recs, kv{fmt.Sprint("k", j), fmt.Sprint(i), int64(i)})
		}
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: recs})
	}
	rounds := 0
	for {
		c := l.Cleanable(ms(1000), l.EndOffset())
		if !c.Due {
			break
		}
		stats := mustCompact(t, l, 1000, CompactOptions{Memory: 6 * slotSize})
		if stats.End <= c.From || stats.MapKeys > 4 {
			t.Fatalf("round from %d to %d with %d keys", c.From, stats.End, stats.MapKeys)
		}
		if (stats.RoundsLeft > 0) != (stats.End < c.End) {
			t.Fatalf("%d rounds left at %d of %d", stats.RoundsLeft, stats.End, c.End)
		}
		rounds++
	}
	if rounds < 10 {
		t.Errorf("only %d rounds", rounds)
	}
	got := logRecords(t, l)
	if len(got) != 14 || got[0].offset != 56 {
		t.Errorf("records %v", got)
	}
}

// A tombstone stays for delete.retention.ms behind the round that saw it first,
// and its batch keeps the times of its records (KIP-534).
func TestCompactTombstone(t *testing.T) {
	for _, codec := range allCodecs {
		s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
		l := mustLog(t, s, compactConfig)
		appendKeyed(t, l,
			keyedBatch{epoch: 1, recs: []kv{{"a", "1", 10}}},
			keyedBatch{epoch: 1, codec: codec, recs: []kv{{"a", "", 20}, {"b", "1", 21}}},
			keyedBatch{epoch: 1, recs: []kv{{"c", "4", 40}}},
		)
		mustCompact(t, l, 5000, CompactOptions{})
		with, without := "[1@1/-1 a= t20 2@1/-1 b=1 t21 3@1/-1 c=4 t40]", "[2@1/-1 b=1 t21 3@1/-1 c=4 t40]"
		if got := fmt.Sprint(logRecords(t, l)); got != with {
			t.Fatalf("records %v", got)
		}
		if b := logBatches(t, l)[1]; !b.HasDeleteHorizon() || b.BaseTimestamp() != 6000 || b.MaxTimestamp() != 21 {
			t.Fatalf("horizon %v at %d, newest %d", b.HasDeleteHorizon(), b.BaseTimestamp(), b.MaxTimestamp())
		}
		mustCompact(t, l, 5999, CompactOptions{})
		if got := fmt.Sprint(logRecords(t, l)); got != with {
			t.Fatalf("a tick before its horizon: %v", got)
		}
		if stats := mustCompact(t, l, 6000, CompactOptions{}); stats.Tombstones != 1 {
			t.Errorf("stats %+v", stats)
		}
		if got := fmt.Sprint(logRecords(t, l)); got != without {
			t.Fatalf("behind its horizon: %v", got)
		}
	}
}

// Nothing happens without cleanup.policy=compact, and a round that is told to
// stop leaves the log as it was.
func TestCompactRefusals(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	c := compactConfig
	c.Compact = false
	l := mustLog(t, s, c)
	for range 3 {
		appendKeyed(t, l, keyedBatch{epoch: 1, recs: []kv{{"a", "1", 10}}})
	}
	if _, err := l.Compact(context.Background(), ms(0), 3, CompactOptions{}); err == nil {
		t.Fatal("compacted")
	}
	if l.Cleanable(ms(0), 3).Due {
		t.Fatal("due")
	}
	l.SetConfig(compactConfig)
	ctx, cancel := context.WithCancel(context.Background())
	before := content(t, l, 0, 1<<20)
	_, err := l.Compact(ctx, ms(0), 3, CompactOptions{Throttle: func(ctx context.Context, n int) error { cancel(); return ctx.Err() }})
	if err == nil || string(before) != string(content(t, l, 0, 1<<20)) {
		t.Fatalf("cancelled: %v", err)
	}
	if stats := mustCompact(t, l, 0, CompactOptions{}); stats.RecordsKept != 1 {
		t.Fatalf("stats %+v", stats)
	}
}
