package segment

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestRetain(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	// Six segments of one batch, with times 0, 100, 200, … s before now.
	fill := func(c Config) *Log {
		l := mustLog(t, mustOpen(t, testOptions(vfs.NewMem())), Config{SegmentBytes: 1})
		for i := range int64(6) {
			mustAppend(t, l, testBatch{base: 3 * i, n: 3, epoch: int32(i), ts: now.UnixMilli() - 500_000 + 100_000*i, value: 30}.build())
		}
		l.SetConfig(c)
		return l
	}
	one := fill(Config{}).Size() / 6
	for _, c := range []struct {
		name   string
		config Config
		hw     int64
		start  int64
	}{
		{"keep all", Config{RetentionMs: -1, RetentionBytes: -1}, 18, 0},
		{"by time", Config{RetentionMs: 250_000, RetentionBytes: -1}, 18, 9},
		{"by time, below the high watermark only", Config{RetentionMs: 250_000, RetentionBytes: -1}, 7, 6},
		{"by time, all", Config{RetentionMs: 0, RetentionBytes: -1}, 18, 15}, // the last is not older than now
		{"by size", Config{RetentionMs: -1, RetentionBytes: 2 * one}, 18, 12},
		{"by size, not the active one", Config{RetentionMs: -1, RetentionBytes: 0}, 18, 15},
	} {
		l := fill(c.config)
		n, err := l.Retain(now, c.hw)
		if err != nil || l.StartOffset() != c.start || n != int(c.start/3) || l.EndOffset() != 18 {
			t.Errorf("%s: start %d, %d deleted, %v; want %d", c.name, l.StartOffset(), n, err, c.start)
		}
	}
	l := fill(Config{RetentionMs: 10, RetentionBytes: -1})
	if _, err := l.Retain(now.Add(time.Hour), 18); err != nil || l.StartOffset() != 18 || l.Size() != 0 {
		t.Errorf("an expired active segment goes too: start %d, %v", l.StartOffset(), err)
	}
}

// A clock that jumps does not delete a log; one that goes on does.
func TestRetainClockJump(t *testing.T) {
	var c retainClock
	start := time.Now() // with a monotonic reading
	if c.jumped(start) || c.jumped(start.Add(time.Minute)) {
		t.Error("a clock that runs")
	}
	if !c.jumped(start.Add(time.Minute).Round(0).Add(-time.Hour)) {
		t.Error("an hour back")
	}
}

func TestStartOffset(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testOptions(fs))
	l := mustLog(t, s, Config{SegmentBytes: 600})
	appendN(t, l, 8, 1)
	if err := l.SetStartOffset(25); !errors.Is(err, ErrOutOfRange) {
		t.Fatalf("above the end: %v", err)
	}
	if err := l.SetStartOffset(14); err != nil {
		t.Fatal(err)
	}
	if err := l.SetStartOffset(3); err != nil || l.StartOffset() != 14 {
		t.Fatalf("never back: %d, %v", l.StartOffset(), err)
	}
	if got := fmt.Sprint(bases(l)); got != "[12 18]" {
		t.Fatal(got)
	}
	if _, err := l.Read(13, 100, 24, true); !errors.Is(err, ErrOutOfRange) {
		t.Fatalf("below the start: %v", err)
	}
	v, err := l.Read(14, 100, 24, true)
	if err != nil || v.Base != 12 {
		t.Fatalf("base %d, %v", v.Base, err)
	}
	v.Release()
	l = mustLog(t, mustOpen(t, testOptions(clone(fs))), Config{})
	if l.StartOffset() != 14 || l.EndOffset() != 24 {
		t.Fatalf("after a kill: [%d, %d)", l.StartOffset(), l.EndOffset())
	}
}
