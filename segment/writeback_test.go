package segment

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// toldFile notes what it is told to begin writing.
type toldFile struct {
	dataFile
	told *toldRanges
}

type toldRanges struct {
	sync.Mutex
	ends    int64 // of what was told, when each range began where the last one ended
	broken  bool
	longest int64
}

func (f toldFile) startWriteback(at, n int64) {
	f.told.Lock()
	defer f.told.Unlock()
	f.told.broken = f.told.broken || at != f.told.ends || n <= 0 || (at+n)%writePiece != 0
	f.told.ends, f.told.longest = at+n, max(f.told.longest, n)
}

// The bytes of a segment go to the disk in order and once, long before a flush asks
// for them, but for the append under way and the piece that it goes on in.
func TestWritebackFollowsAppends(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flush bool // each append
		never bool // no flush on a timer
		told  bool
	}{
		{"unflushed", false, false, true},
		{"each append flushed", true, false, false},
		{"never flushed", false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told toldRanges
				o := testOptions(vfs.NewMem())
				o.wrap = func(f dataFile) dataFile { return toldFile{f, &told} }
				if tt.never {
					o.FlushInterval = -1
				}
				s := mustOpen(t, o)
				l := mustLog(t, s, Config{})
				var before int64
				for range 40 {
					before = l.Size()
					mustAppend(t, l, testBatch{base: l.EndOffset(), n: 3, value: 70_000}.build())
					if tt.flush {
						mustFlush(t, l)
					}
					synctest.Wait() // the goroutine has done what it was told
				}
				told.Lock()
				defer told.Unlock()
				if told.broken {
					t.Error("what was told does not follow on what was told before, or ends inside a piece")
				}
				if !tt.told && told.ends > 0 {
					t.Errorf("told to write up to %d", told.ends)
				}
				if tt.told && (told.ends > before || told.ends < before-writebackStep || told.longest > 2*writebackStep) {
					t.Errorf("told to write up to %d, at most %d at a time, of %d", told.ends, told.longest, before)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
