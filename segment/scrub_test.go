package segment

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// pauses is a clock that hands the timers which are asked of it to the test.
type pauses struct {
	*clock.Manual
	on    atomic.Bool
	asked chan pause
}

type pause struct {
	clock.Timer
	d     time.Duration
	fired chan time.Time
}

func (p pause) C() <-chan time.Time { return p.fired }
func (p pause) Stop() bool          { return true }

func (p *pauses) NewTimer(d time.Duration) clock.Timer {
	if !p.on.Load() {
		return p.Manual.NewTimer(d)
	}
	t := pause{d: d, fired: make(chan time.Time, 1)}
	p.asked <- t
	return t
}

// passEnds is a log of events that tells of the end of a pass.
type passEnds chan struct{}

func (p passEnds) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("all logs were read and checked")) {
		p <- struct{}{}
	}
	return len(b), nil
}

// The scrubber reads small pieces and waits after each as long as its rate
// demands. A pass that a stop interrupts goes on where it was, not before the
// logs are open, reads nothing twice but the segment that it was in, and the
// next pass comes when it is due.
func TestScrubRateAndResume(t *testing.T) {
	const rate = 64 << 10
	fs := vfs.NewMem()
	ends := make(passEnds, 1)
	o := testOptions(fs)
	c := &pauses{Manual: o.Clock.(*clock.Manual), asked: make(chan pause)}
	o.Clock, o.ScrubBytesPerSecond, o.ScrubInterval = c, rate, time.Hour
	o.Logger = slog.New(slog.NewTextHandler(ends, nil))
	config := Config{SegmentBytes: 20 << 10, RetentionMs: -1, RetentionBytes: -1}
	open := func() (*Store, []*Log) {
		c.on.Store(false)
		s := mustOpen(t, o)
		for c.Timers() < 4 { // of the flusher, the watcher, and two of the scrubber
			runtime.Gosched()
		}
		c.Advance(scrubDelay - time.Second) // others' logs may take long
		var logs []*Log
		for p := range int32(2) {
			l, err := s.OpenLog(topicA, p, config)
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
		}
		return s, logs
	}
	s, logs := open()
	total := int64(0)
	for _, l := range logs {
		appendN(t, l, 300, 1)
		mustFlush(t, l)
		total += l.Size()
	}
	read := func(most int64) (n int64) {
		t.Helper()
		for n < most {
			select {
			case p := <-c.asked:
				piece := int64(math.Round(p.d.Seconds() * rate))
				if piece > max(rate/scrubPieces, alignment) || piece <= 0 {
					t.Fatalf("a piece of %d bytes at a rate of %d", piece, rate)
				}
				n += piece
				p.fired <- time.Time{}
			case <-ends:
				return n
			}
		}
		return n
	}
	c.on.Store(true)
	c.Manual.Advance(time.Second)
	first := read(total / 2)
	<-c.asked // it waits, and the stop does not
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.LastScrub() != (time.Time{}) {
		t.Fatalf("half a pass counts as one: %v, %d of %d", s.LastScrub(), first, total)
	}
	halfway := logs[0].ScrubbedTo()
	if halfway == 0 {
		t.Fatal("nothing is noted of half a pass")
	}

	s, logs = open()
	c.on.Store(true)
	c.Manual.Advance(time.Second)
	second := read(math.MaxInt64)
	if again := first + second - total; again < 0 || again > 20<<10+2*max(rate/scrubPieces, alignment) {
		t.Errorf("%d and %d bytes were read of %d", first, second, total)
	}
	for _, l := range logs {
		if l.ScrubbedTo() != l.EndOffset() {
			t.Errorf("%s was read to %d of %d", l.ID(), l.ScrubbedTo(), l.EndOffset())
		}
	}
	if s.LastScrub().IsZero() {
		t.Error("the pass is not noted")
	}
	c.Manual.Advance(time.Hour - 3*scrubDelay)
	select {
	case <-c.asked:
		t.Error("the next pass came early")
	default:
	}
	c.Manual.Advance(3 * scrubDelay)
	if n := read(math.MaxInt64); n != total {
		t.Errorf("the next pass read %d bytes of %d", n, total)
	}
}

// badSector is a file of which the disk cannot read what lies behind a position.
type badSector struct {
	dataFile
	from *atomic.Int64 // -1: it can
}

func (f badSector) ReadAt(p []byte, at int64) (int, error) {
	from := f.from.Load()
	if from < 0 || at+int64(len(p)) <= from {
		return f.dataFile.ReadAt(p, at)
	}
	n := max(from-at, 0)
	if n > 0 {
		if m, err := f.dataFile.ReadAt(p[:n], at); err != nil {
			return m, err
		}
	}
	return int(n), syscall.EIO
}

// A disk that cannot read tells nothing about the bytes: the scrubber names the
// place and leaves the log in use; a repair, and the command that accepts a
// loss, change nothing. When the disk reads again, all is as it was.
func TestUnreadableIsNotDamage(t *testing.T) {
	for _, from := range []int64{0, 300, 1000} {
		t.Run(fmt.Sprint(from), func(t *testing.T) {
			w := newRepairWorld(t)
			var said events
			var sector atomic.Int64
			sector.Store(-1)
			w.o.Logger = slog.New(slog.NewTextHandler(&said, nil))
			w.o.wrap = func(f dataFile) dataFile { return badSector{f, &sector} }
			w.reopen()
			l, neighbour := w.log(0), w.log(1)
			sector.Store(from)
			w.s.scrubber.pass()
			if len(w.told) != 0 || l.Damage() != nil || neighbour.Damage() != nil {
				t.Fatalf("called damaged: %v", w.told)
			}
			want := fmt.Sprintf("file=%s", l.Segments()[0].Path)
			if n := said.count(want); n != 1 || said.count("input/output error") == 0 {
				t.Errorf("%d events with %s: %v", n, want, said.said)
			}
			sector.Store(-1)
			if got := content(t, l, 0, 1<<20); !bytes.Equal(got, w.golden) {
				t.Error("the log is not in use")
			}

			w.o.Clock.(*clock.Manual).Advance(time.Second) // another pass
			path := w.hurt(l.Segments(), 2, hurts[0])
			w.s.scrubber.pass()
			if len(w.told) != 1 {
				t.Fatalf("told of %v", w.told)
			}
			before := w.file(path)
			sector.Store(from)
			if _, err := l.Repair(t.Context(), w.fetch); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
				t.Errorf("repair: %v", err)
			}
			if got := w.file(path); !bytes.Equal(got, before) || len(w.s.quarantine.list()) != 0 || l.Damage() == nil {
				t.Error("the repair changed something")
			}
			sector.Store(-1)
			done, err := l.Repair(t.Context(), w.fetch)
			if err != nil || len(done.Ranges) != 1 || !bytes.Equal(content(t, l, 0, 1<<20), w.golden) {
				t.Errorf("repair of a disk that reads: %+v, %v", done, err)
			}
			if strings.Contains(fmt.Sprint(done.Ranges), "input/output") {
				t.Errorf("the bad sector was among the damages: %v", done.Ranges)
			}
		})
	}
}

// A follower that came back was cut to its leader's history while the scrubber went
// by: between the moment at which nobody reads any more what goes and that at which
// the file is shorter, it saw a file with more bytes than were written, called the
// log damaged, and the replica served and fetched nothing from then on.
func TestScrubDuringCut(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewMem()))
	l := mustLog(t, s, Config{SegmentBytes: 1 << 20, RetentionMs: -1, RetentionBytes: -1})
	appendN(t, l, 10, 1)
	mustFlush(t, l)
	looked := make(chan struct{})
	defer invariants.SetFault(func(at string) {
		if at != "segment.truncatePublished" {
			return
		}
		go func() {
			defer close(looked)
			c := s.scrubber
			c.scrub(l)
			l.mu.RLock()
			seg := l.mu.segments[0]
			l.mu.RUnlock()
			c.suspect(seg)
			c.lookAtSuspects()
		}()
		select {
		case <-looked:
		case <-time.After(50 * time.Millisecond): // it waits for the cut, as it should
		}
	})()
	if err := l.Truncate(15); err != nil {
		t.Fatal(err)
	}
	<-looked
	if d := l.damaged.Load(); d != nil {
		t.Errorf("the cut was taken for damage: %v", d)
	}
	appendN(t, l, 1, 2)
}
