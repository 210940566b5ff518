package segment

import (
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// fsync is asked once. After an error nothing is confirmed any more, on no log
// of the store, though a second fsync would succeed.
func TestSyncError(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && filepath.Ext(op.Path) == ".log" {
			return errors.New("input/output error")
		}
		return nil
	}))
	s := mustOpen(t, testOptions(fs))
	l := mustLog(t, s, Config{})
	other, err := s.OpenLog(topicA, 1, Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, l, 1, 1)
	appendN(t, other, 1, 1)
	mustFlush(t, l)
	appendN(t, l, 1, 1)
	broken.Store(true)
	if err := flush(l); !errors.Is(err, ErrFailed) {
		t.Fatalf("flush: %v", err)
	}
	broken.Store(false)
	if err := flush(l); !errors.Is(err, ErrFailed) {
		t.Fatalf("a later flush proves nothing: %v", err)
	}
	if err := flush(other); !errors.Is(err, ErrFailed) {
		t.Fatalf("another log of the same directory: %v", err)
	}
	if _, err := l.Append(testBatch{base: 6, n: 1, epoch: 1}.build()); !errors.Is(err, ErrFailed) {
		t.Fatalf("append: %v", err)
	}
	if l.DurableEnd() != 3 || s.Health().State != Failed {
		t.Errorf("durable end %d, %v", l.DurableEnd(), s.Health())
	}
	if got := len(split(t, content(t, l, 0, 1000))); got != 2 {
		t.Errorf("reading goes on: %d batches", got)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
}

// All who wait are answered, each exactly once.
func TestGroupCommit(t *testing.T) {
	flushEach(t, mustOpen(t, diskOptions(t)), 4, 25)
}

// flushEach appends to logs, and asks for a flush of each append; all are answered when
// it returns.
func flushEach(t *testing.T, s *Store, logs int32, appends int) {
	t.Helper()
	var wg sync.WaitGroup
	for p := range logs {
		l, err := s.OpenLog(topicA, p, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range appends {
			appendN(t, l, 1, 1)
			end := l.EndOffset()
			wg.Add(1)
			l.Flush(func(err error) {
				if err != nil || l.DurableEnd() < end {
					t.Errorf("flush of %d: durable end %d, %v", end, l.DurableEnd(), err)
				}
				wg.Done()
			})
		}
	}
	wg.Wait()
}

// slowFile is a file whose syncs wait, each for a word on go, and say so on syncing.
type slowFile struct {
	dataFile
	syncing chan struct{}
	goOn    chan struct{}
}

func (f slowFile) SyncData() error {
	f.syncing <- struct{}{}
	<-f.goOn
	return f.dataFile.SyncData()
}

// A log whose sync takes long keeps nobody waiting who waits for another one, and
// all who come to it meanwhile are answered by one sync more.
func TestFlushesOfLogsAreIndependent(t *testing.T) {
	o := testOptions(vfs.NewMem())
	s := mustOpen(t, o)
	quick := mustLog(t, s, Config{})
	appendN(t, quick, 1, 1)
	mustFlush(t, quick)
	slow := slowFile{syncing: make(chan struct{}, 10), goOn: make(chan struct{})}
	s.disk.wrap = func(f dataFile) dataFile { slow.dataFile = f; return slow }
	stuck, err := s.OpenLog(topicA, 1, Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, stuck, 1, 1)
	answers := make(chan error, 20)
	stuck.Flush(func(err error) { answers <- err })
	<-slow.syncing
	for range 10 {
		appendN(t, stuck, 1, 1)
		stuck.Flush(func(err error) { answers <- err })
	}
	for range 3 {
		appendN(t, quick, 1, 1)
		mustFlush(t, quick) // would hang behind the other one
	}
	if len(answers) > 0 {
		t.Fatal("answered before its sync has ended")
	}
	slow.goOn <- struct{}{}
	if err := <-answers; err != nil {
		t.Fatal(err)
	}
	<-slow.syncing
	slow.goOn <- struct{}{}
	for range 10 {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if len(slow.syncing) > 0 || stuck.DurableEnd() != stuck.EndOffset() {
		t.Fatalf("%d syncs more; durable %d of %d", len(slow.syncing), stuck.DurableEnd(), stuck.EndOffset())
	}
	s.disk.wrap = nil
}

// The timer makes durable what nobody asked for, and notes it.
func TestBackgroundFlush(t *testing.T) {
	o := testOptions(vfs.NewMem())
	c := o.Clock.(*clock.Manual)
	s := mustOpen(t, o)
	l := mustLog(t, s, Config{})
	appendN(t, l, 1, 1)
	s.flusher.background()
	if l.DurableEnd() != 3 {
		t.Fatalf("durable end %d", l.DurableEnd())
	}
	l.SetHighWatermark(2)
	s.flusher.checkpoint()
	if m, _ := s.marks.get(l.id); m.durable != 3 || m.hw != 2 {
		t.Fatalf("%+v", m)
	}
	c.Advance(time.Hour)
}
