package segment

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// What a log knows of its batches does not depend on how many came in one append:
// index entries, epochs, times, the checksum of heads, producers. More of them than
// are summed up at once, and segments that end in between.
func TestBatchesTogetherAndApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := testOptions(vfs.NewMem())
		o.IndexInterval = rapid.SampledFrom([]int64{1, 300, 64 << 10}).Draw(t, "interval")
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		var logs [2]*Log
		for i := range logs {
			if logs[i], err = s.OpenLog(topicA, int32(i), Config{SegmentBytes: 1 << 30}); err != nil {
				t.Fatal(err)
			}
		}
		together, apart := logs[0], logs[1]
		end, epoch := int64(0), int32(0)
		for range rapid.IntRange(1, 4).Draw(t, "appends") {
			var piece []byte
			for range rapid.SampledFrom([]int{1, 2, 20, headSumBatches + 1, 2*headSumBatches + 3}).Draw(t, "batches") {
				epoch += int32(rapid.IntRange(0, 9).Draw(t, "epoch") / 9)
				b := testBatch{base: end, n: rapid.IntRange(1, 2).Draw(t, "n"), epoch: epoch, ts: int64(rapid.IntRange(0, 50).Draw(t, "time"))}
				if b.pid = int64(rapid.IntRange(0, 3).Draw(t, "pid")); b.pid > 0 {
					b.txn = rapid.Bool().Draw(t, "txn")
				}
				bytes := b.build()
				if rapid.IntRange(0, 9).Draw(t, "marker") == 0 {
					bytes = stamped(record.AbortMarker(b.pid, 0, 1, 5), end, epoch)
				}
				piece = append(piece, bytes...)
				if _, err := apart.Append(bytes); err != nil {
					t.Fatal(err)
				}
				end = record.Batch(bytes).NextOffset()
			}
			if _, err := together.Append(piece); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "roll") {
				for _, l := range logs {
					l.wr.Lock()
					_, err := l.roll()
					l.wr.Unlock()
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if got, want := knownOf(together), knownOf(apart); !reflect.DeepEqual(got, want) {
			t.Fatalf("together: %s\napart:    %s", got, want)
		}
	})
}

// knownOf is what a log has in memory of its batches.
func knownOf(l *Log) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	known := []string{
		fmt.Sprint(l.mu.start, l.mu.end, l.mu.size), fmt.Sprint(l.mu.epochs.Entries(), l.mu.written.Entries()),
		fmt.Sprintf("%x", l.mu.producers.Encode(nil)), fmt.Sprint(l.mu.tail, l.indexed),
	}
	for _, s := range l.mu.segments {
		known = append(known, fmt.Sprint(s.base, s.end, s.size, s.times))
	}
	return known
}
