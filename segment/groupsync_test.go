package segment

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestGroupSync: a sync answers those who asked before it began, and nobody else; its
// error is theirs alone.
func TestGroupSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g groupSync
		var calls int
		turns := make(chan error)
		sync := func() error { calls++; return <-turns }
		ask := func(n int) <-chan error {
			answers := make(chan error, n)
			for range n {
				go func() { answers <- g.do(sync) }()
			}
			synctest.Wait()
			return answers
		}
		first := ask(1)
		during := ask(50)
		failed := errors.New("failed")
		turns <- failed
		synctest.Wait()
		if err := <-first; !errors.Is(err, failed) || len(during) != 0 || calls != 2 {
			t.Fatalf("the first one: %v; %d who asked during it are answered, in %d calls", err, len(during), calls)
		}
		late := ask(1)
		turns <- nil
		for range 50 {
			if err := <-during; err != nil {
				t.Error(err)
			}
		}
		turns <- failed
		if err := <-late; !errors.Is(err, failed) || calls != 3 {
			t.Errorf("the last one: %v, in %d calls", err, calls)
		}
	})
}

// listings counts how often directories are read.
type listings struct {
	vfs.FS
	n atomic.Int64
}

func (l *listings) List(dir string) ([]string, error) {
	l.n.Add(1)
	return l.FS.List(dir)
}

// TestManyAreKept cuts many logs at once, as a failback does. For each one that was kept
// all that was kept before used to be listed, under a lock: three thousand took a minute.
func TestManyAreKept(t *testing.T) {
	fs := &listings{FS: vfs.NewMem()}
	s := mustOpen(t, testOptions(fs))
	const logs = 200
	open := make([]*Log, logs)
	for i := range open {
		open[i] = mustLogOf(t, s, int32(i))
		appendN(t, open[i], 4, 0)
	}
	before := fs.n.Load()
	var wg sync.WaitGroup
	for _, l := range open {
		wg.Go(func() {
			k, err := l.Keep(6)
			if err == nil {
				err = l.Truncate(6)
			}
			if err != nil || k.From != 6 || k.To != 12 || l.EndOffset() != 6 {
				t.Errorf("%s: kept %+v, ends at %d: %v", l.id, k, l.EndOffset(), err)
			}
		})
	}
	wg.Wait()
	if n := fs.n.Load() - before; n > 3*logs {
		t.Errorf("%d directories were read for %d logs", n, logs)
	}
	if kept := s.quarantine.list(); len(kept) != logs {
		t.Errorf("%d are kept", len(kept))
	}
}
