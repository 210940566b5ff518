package segment

import (
	"sync"
	"testing"
	"time"
)

// More logs than descriptors are written to before anybody flushes. Each unsynced
// file is kept open, so appends had to fail once the process had no more.
func TestManyUnsyncedLogs(t *testing.T) {
	o := diskOptions(t)
	o.MaxOpenFiles, o.FlushInterval = 8, -1
	s := mustOpen(t, o)
	var logs []*Log
	for p := range int32(60) {
		logs = append(logs, mustLogOf(t, s, p))
	}
	for round := range 3 {
		for _, l := range logs {
			appendN(t, l, 2, 1)
			if n := s.files.open(); n > 2*8+1 {
				t.Fatalf("round %d: %d files open", round, n)
			}
		}
	}
	for _, l := range logs {
		mustFlush(t, l)
		if got := len(split(t, content(t, l, 0, 1<<20))); got != 6 {
			t.Fatalf("%d batches", got)
		}
	}
}

// Such an append meets the flusher at the same log. Both had counted the same new
// names as synced, and the log was never clean again.
func TestAppendMeetsTheFlusher(t *testing.T) {
	s := mustOpen(t, diskOptions(t))
	l := mustLogOf(t, s, 0)
	entered, second := make(chan struct{}, 2), make(chan error, 1)
	var once sync.Once
	s.files.disk.wrap = func(f dataFile) dataFile {
		return meetingFile{f, func() {
			entered <- struct{}{}
			once.Do(func() {
				<-entered
				go func() { second <- l.sync() }()
				select {
				case <-entered: // it is here as well, with the same names
				case <-time.After(100 * time.Millisecond): // it waits, as it should
				}
			})
		}}
	}
	appendN(t, l, 1, 1)
	s.files.drop(l.active(), false) // so that the file is opened with the wrapper
	mustFlush(t, l)
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if l.mu.names != 0 {
		t.Errorf("%d new names are left", l.mu.names)
	}
}

type meetingFile struct {
	dataFile
	meet func()
}

func (f meetingFile) SyncData() error {
	f.meet()
	return f.dataFile.SyncData()
}

func mustLogOf(t *testing.T, s *Store, p int32) *Log {
	t.Helper()
	l, err := s.OpenLog(topicA, p, Config{SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
