package segment

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// What the end of a mirror's run leaves in a log holds after every restart, with what the
// index knows and without: MIR-235, nobody from in front of the reset is known, and a
// producer with such an id begins at sequence 0. MIR-236, who began behind it is known,
// and what it sends again is. MIR-240, aborted transactions are told as before.
func TestResetAfterRestarts(t *testing.T) {
	from := func(pid int64, seq int32, txn bool) []byte {
		return record.Build(record.BuildHeader{ProducerID: pid, BaseSequence: seq, Transactional: txn, BaseTimestamp: 1000}, []record.Record{{Value: []byte("v")}})
	}
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("without the index %v", without), func(t *testing.T) {
			fs := vfs.NewMem()
			o := testOptions(fs)
			s := mustOpen(t, o)
			l := mustLog(t, s, Config{})
			put := func(b []byte, epoch int32) { mustAppend(t, l, stamped(b, l.EndOffset(), epoch)) }
			put(from(9, 40, true), 1)                    // 0: open when the run ends
			put(from(7, 12, false), 1)                   // 1
			put(record.AbortMarker(9, 0, 1, 2000), 16)   // 2
			put(record.PIDReset("the-source", 2000), 16) // 3
			put(from(8, 0, false), 16)                   // 4
			put(from(8, 1, false), 16)                   // 5
			put(from(7, 0, false), 16)                   // 6: an id of the source's, drawn here
			l.SetHighWatermark(l.EndOffset())
			for range 3 {
				mustFlush(t, l)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if without {
					if err := fs.RemoveAll("data/" + indexDir); err != nil {
						t.Fatal(err)
					}
				}
				s = mustOpen(t, o)
				l = mustLog(t, s, Config{})
				if err := l.Wait(context.Background()); err != nil {
					t.Fatal(err)
				}
				known := map[int64]bool{}
				for _, p := range l.Producers() {
					known[p.ProducerID] = true
				}
				if len(known) != 2 || !known[7] || !known[8] {
					t.Errorf("known are %v", known)
				}
				if dup, err := l.CheckProducer(record.Batch(from(9, 0, false))); dup != nil || err != nil {
					t.Errorf("producer 9 at sequence 0: %v, %v", dup, err)
				}
				if dup, err := l.CheckProducer(record.Batch(from(8, 1, false))); dup == nil || err != nil {
					t.Errorf("what producer 8 sends again: %v, %v", dup, err)
				}
				if dup, err := l.CheckProducer(record.Batch(from(7, 1, false))); dup != nil || err != nil {
					t.Errorf("producer 7 goes on: %v, %v", dup, err)
				}
				if a := l.Aborted(0, l.EndOffset()); len(a) != 1 || a[0].ProducerID != 9 || a[0].FirstOffset != 0 {
					t.Errorf("aborted: %+v", a)
				}
				if got := l.LastStable(l.EndOffset()); got != 7 || len(l.OpenTxns()) > 0 {
					t.Errorf("last stable offset %d, open %v", got, l.OpenTxns())
				}
			}
			_ = s.Close()
		})
	}
}
