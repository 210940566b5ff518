package segment

import (
	"errors"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// crowd has more logs wait for a sync than there are workers, all of which are kept until
// then, and answers the errors of all and how often all were synced together.
func crowd(t *testing.T, fs vfs.FS, whole func(f *flusher, names []string) error, more ...func(*flusher)) (logs []*Log, errs []error, wholes int) {
	t.Helper()
	o := testOptions(fs)
	started, release := make(chan struct{}, flushers), make(chan struct{})
	var held atomic.Int32
	o.wrap = func(f dataFile) dataFile { return heldFile{f, started, release, &held} }
	s := mustOpen(t, o)
	for _, change := range more {
		change(s.flusher)
	}
	var calls atomic.Int32
	real := s.flusher.whole
	s.flusher.whole = func(names []string) error {
		calls.Add(1)
		if err := whole(s.flusher, names); err != nil {
			return err
		}
		return real(names)
	}
	const n = flushers + 4*togetherFrom
	errs = make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		l, err := s.OpenLog(topicA, int32(i), Config{})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 2, 1)
		logs = append(logs, l)
	}
	for i, l := range logs {
		wg.Add(1)
		l.Flush(func(err error) { errs[i] = err; wg.Done() })
		if i < flushers {
			<-started
		}
	}
	close(release)
	wg.Wait()
	return logs, errs, int(calls.Load())
}

// heldFile is a file of which the first syncs, as many as there are workers, wait.
type heldFile struct {
	dataFile
	started chan<- struct{}
	release <-chan struct{}
	held    *atomic.Int32
}

func (f heldFile) SyncData() error {
	if f.held.Add(1) <= flushers {
		f.started <- struct{}{}
		<-f.release
		time.Sleep(time.Millisecond) // what a sync of one log takes, against which one of all is weighed: any time that is measurable
	}
	return f.dataFile.SyncData()
}

// Logs that wait in a crowd are synced together, and each of them is durable then.
func TestCrowdsShareASync(t *testing.T) {
	var named atomic.Int32
	logs, errs, wholes := crowd(t, vfs.NewMem(), func(_ *flusher, names []string) error {
		for _, n := range names {
			if filepath.Ext(n) == ".log" {
				named.Add(1)
			}
		}
		return nil
	})
	for i, l := range logs {
		if errs[i] != nil || l.DurableEnd() != l.EndOffset() {
			t.Fatalf("log %d: durable to %d of %d, %v", i, l.DurableEnd(), l.EndOffset(), errs[i])
		}
	}
	if wholes == 0 || int(named.Load()) < togetherFrom {
		t.Errorf("%d syncs of all, of %d files", wholes, named.Load())
	}
}

// One sync of all is under way at a time: who comes meanwhile goes together into the next.
func TestCrowdsTakeTurns(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewMem()))
	f := s.flusher
	real := f.whole
	begun, release := make(chan int, 100), make(chan struct{})
	f.whole = func(names []string) error {
		begun <- len(names)
		<-release
		return real(names)
	}
	f.mu.took.one = time.Second // so that a crowd shares at once
	var logs []*Log
	for i := range 2 * togetherFrom {
		l, err := s.OpenLog(topicA, int32(i), Config{})
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, l, 2, 1)
		logs = append(logs, l)
	}
	var wg sync.WaitGroup
	ask := func(logs []*Log) (left chan struct{}) {
		f.mu.Lock() // so that they are a crowd when a worker looks
		defer f.mu.Unlock()
		for _, l := range logs {
			wg.Add(1)
			l.flushes.waiting, l.flushes.taken = append(l.flushes.waiting, func(err error) {
				if err != nil {
					t.Error(err)
				}
				wg.Done()
			}), true
			f.mu.ready = append(f.mu.ready, l)
		}
		f.mu.workers++
		f.workers.Add(1)
		left = make(chan struct{})
		go func() { f.work(); close(left) }()
		return left
	}
	ask(logs[:togetherFrom])
	<-begun
	select {
	case <-ask(logs[togetherFrom:]): // it leaves them to the first
	case <-begun:
		t.Error("a second one began beside the first")
	}
	close(release)
	wg.Wait()
	if n := len(begun); n != 1 {
		t.Errorf("the second half took %d syncs of all", n)
	}
}

// What a sync of all answers with is not believed of any log: each is synced alone then,
// and only those whose own sync fails are not durable, and end the store.
func TestCrowdAfterAnError(t *testing.T) {
	logs, errs, wholes := crowd(t, vfs.NewMem(), func(*flusher, []string) error { return errors.New("of somebody else's file") })
	for i, l := range logs {
		if errs[i] != nil || l.DurableEnd() != l.EndOffset() {
			t.Fatalf("log %d: durable to %d of %d, %v", i, l.DurableEnd(), l.EndOffset(), errs[i])
		}
	}
	if wholes == 0 {
		t.Error("nothing was synced together")
	}

	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && filepath.Ext(op.Path) == ".log" {
			return errors.New("input/output error")
		}
		return nil
	}))
	logs, errs, _ = crowd(t, fs, func(*flusher, []string) error { broken.Store(true); return nil })
	failed := 0
	for i, l := range logs {
		switch durable := l.DurableEnd() == l.EndOffset(); {
		case errs[i] == nil && !durable:
			t.Errorf("log %d is answered, and durable to %d of %d", i, l.DurableEnd(), l.EndOffset())
		case errors.Is(errs[i], ErrFailed):
			failed++
		case errs[i] != nil:
			t.Errorf("log %d: %v", i, errs[i])
		}
	}
	if failed == 0 || logs[0].store.Health().State != Failed {
		t.Errorf("%d of %d flushes failed, %v", failed, len(logs), logs[0].store.Health())
	}
}

// A file system that takes longer for all than the logs take alone is left alone, and tried
// again after a while.
func TestTogetherIsWeighed(t *testing.T) {
	w := weights{one: 4 * time.Millisecond, whole: time.Second}
	if w.together(100, 0) {
		t.Error("a second for what takes 50 ms")
	}
	for i := 0; !w.together(100, 0); i++ {
		if i == 200 {
			t.Fatal("it is never tried again")
		}
	}
	// What others have unwritten is written with it: worth it for many logs, not for few.
	w = weights{one: 4 * time.Millisecond, whole: 20 * time.Millisecond}
	if w.together(100, 64<<20) {
		t.Error("64 MiB are written for what takes 50 ms")
	}
	if !w.together(3000, 64<<20) {
		t.Error("64 MiB are too much for what takes a second and a half")
	}
	if w.whole != 20*time.Millisecond {
		t.Errorf("what others wrote counts for ever: %v", w.whole)
	}
}

// Where much is unwritten, of anybody, nobody is made to wait for all of it.
func TestCrowdBesideOthersWrites(t *testing.T) {
	var looks atomic.Int32
	logs, errs, wholes := crowd(t, vfs.NewMem(), func(f *flusher, _ []string) error { return nil }, func(f *flusher) {
		f.dirty = func() int64 { looks.Add(1); return togetherDirty + 1 }
	})
	if n := looks.Load(); n != 1 { // the clock of the test stands
		t.Errorf("looked %d times", n)
	}
	for i, l := range logs {
		if errs[i] != nil || l.DurableEnd() != l.EndOffset() {
			t.Fatalf("log %d: durable to %d of %d, %v", i, l.DurableEnd(), l.EndOffset(), errs[i])
		}
	}
	if wholes != 0 {
		t.Errorf("%d syncs of all", wholes)
	}
	if n := unwritten(); n < 0 || n == math.MaxInt64 {
		t.Errorf("%d bytes are unwritten on this machine", n)
	}
}

// On a disk of this machine, where it has a sync of all: what it answers for is durable by
// the files' own account.
func TestCrowdOnARealDisk(t *testing.T) {
	s := mustOpen(t, diskOptions(t))
	if s.flusher.wholeFD == nil {
		t.Skip("this file system is not known to keep fsync's promise so: there is nothing to try (see wholeFS)")
	}
	s.flusher.store.o.together, s.flusher.dirty = 1, nil
	flushEach(t, s, 50, 10)
}
