package segment

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// variant is how one of the runs is set up: none of it may show in an answer.
type variant struct {
	segment, interval, memory int64
	tail, files               int
	restarts                  uint64 // seed of where it is stopped and killed
}

func (v variant) String() string {
	return fmt.Sprintf("segments of %d, an entry per %d, tail %d, %d open files, restarts %d", v.segment, v.interval, v.tail, v.files, v.restarts)
}

// TestMetamorphic does the same random operations under several options, each
// stopped and killed at places of its own, and wants the same answers from all
// (H8). Time-based deletion is left out: what goes with it depends on where
// segments end.
func TestMetamorphic(t *testing.T) {
	for seed := range uint64(3) {
		var want *answers
		var first variant
		for i, v := range []variant{
			{1 << 20, 64 << 10, 8 << 20, 1024, 64, 0},
			{1, 1, 1 << 20, 2, 8, 1},
			{700, 300, 1 << 20, 4, 8, 2},
			{2500, 1000, 2 << 20, 1024, 16, 3},
		} {
			got := metamorph(t, seed, v)
			if got.err != nil {
				t.Fatalf("seed %d, %s: %v", seed, v, got.err)
			}
			if i == 0 {
				want, first = got, v
				continue
			}
			if diff := want.difference(got); diff != "" {
				t.Fatalf("seed %d: %s differs from %s: %s", seed, v, first, diff)
			}
		}
	}
}

// metamorph does the operations of a seed.
func metamorph(t *testing.T, seed uint64, v variant) *answers {
	ops, at := newRng(seed), newRng(1000*v.restarts+seed)
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	o.IndexInterval, o.tail, o.MaxOpenFiles, o.IndexMemory = v.interval, v.tail, v.files, v.memory
	c := Config{SegmentBytes: v.segment, RetentionMs: -1, RetentionBytes: -1}
	s := mustOpen(t, o)
	l := mustLog(t, s, c)
	hw, ts, epoch := int64(0), int64(10_000), int32(1)
	seq := map[int64]int32{}
	for range 60 {
		end := l.EndOffset()
		switch k := ops.IntN(12); {
		case k < 8:
			ts += ops.Int64N(40) - 10
			epoch += int32(ops.IntN(8) / 7)
			b := testBatch{base: end + ops.Int64N(2)*ops.Int64N(3), n: 1 + ops.IntN(4), epoch: epoch, ts: ts, value: ops.IntN(200)}
			if pid := ops.Int64N(4); pid > 0 {
				b.pid, b.txn, b.seq = pid, pid > 1, seq[pid]
				seq[pid] += int32(b.n)
			}
			mustAppend(t, l, b.build())
		case k == 8:
			if open := l.OpenTxns(); len(open) > 0 {
				kind := record.ControlType(ops.IntN(2))
				mustAppend(t, l, stamped(record.Marker(kind, open[0].ProducerID, open[0].Epoch, 1, ts), end, epoch))
			}
		case k == 9 && end > hw:
			hw += ops.Int64N(end - hw + 1)
		case k == 10 && end > hw+1:
			cut := end - ops.Int64N(end-hw)
			if err := l.Truncate(cut); err != nil {
				t.Fatal(err)
			}
			clear(seq)
			for _, p := range l.Producers() { // sequences go on where the cut left them
				if p.LastSequence >= 0 {
					seq[p.ProducerID] = record.AddSequence(p.LastSequence, 1)
				}
			}
			hw = min(hw, l.EndOffset())
		}
		l.SetHighWatermark(hw)
		switch at.IntN(12) {
		case 0:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, o)
			l = mustLog(t, s, c)
		case 1: // killed: what was written is there, what the index had in memory is not
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
			_ = s.Close()
			o.FS = fs
			s = mustOpen(t, o)
			l = mustLog(t, s, c)
			l.SetHighWatermark(hw)
		case 2:
			mustFlush(t, l)
		case 3:
			s.flusher.checkpoint()
		case 4:
			if _, err := l.Retain(time.UnixMilli(ts), hw); err != nil {
				t.Fatal(err)
			}
		}
	}
	return ask(l, hw)
}
