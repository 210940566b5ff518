package segment

import (
	"errors"
	"io/fs"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// Where very many logs wait to be synced, as at a failover of thousands of partitions, a
// sync of the whole file system is a fraction of the work of syncing each: the journal is
// committed once, and the disk flushed once. It writes what others have unwritten on that
// file system too, so it is weighed against the other way by what either took of late, and
// by how much there is to write. One is under way at a time: who comes meanwhile goes
// together into the next.
//
// It is done where fsync's promise is known to be kept by it (see wholeFS): data, sizes and
// names, and errors told. After an error each log is synced alone, and only what that
// says counts.

// togetherFrom is the least number of logs that are synced together.
const togetherFrom = 32

const (
	// togetherDirty is the most that may be unwritten on the whole machine: a sync of a
	// file system writes what is on it of anybody's, and keeps all waiting who share it.
	togetherDirty = 512 << 20
	// writeRate is what a disk is taken to write of that in a second: rather too little.
	writeRate = 200 << 20
	// lookEvery is how old what is known of it may be.
	lookEvery = 50 * time.Millisecond
)

// toWrite is how long it takes to write so many bytes.
func toWrite(bytes int64) time.Duration {
	return time.Duration(float64(bytes) / writeRate * float64(time.Second))
}

// weights are what syncs took of late; zero is not known yet.
type weights struct {
	one   time.Duration // of one log, among the others that are synced beside it
	whole time.Duration // of the file system, but for what of others was to be written
}

// together tells whether so many logs are sooner synced by one sync of all, with so many
// bytes unwritten.
func (w *weights) together(logs int, unwritten int64) bool {
	alone := time.Duration(logs) * w.one / flushers
	if alone >= w.whole+toWrite(unwritten) {
		return true
	}
	if alone >= w.whole {
		return false // it is what others write
	}
	w.whole -= w.whole / 16 // try again some day: what made it slow may be gone
	return false
}

// recent moves what is known of a duration towards the newest one.
func recent(known *time.Duration, took time.Duration) {
	if *known == 0 {
		*known = took
		return
	}
	*known += (took - *known) / 4
}

// syncTogether syncs logs by one sync of all, and answers for each, and how long that
// sync took. Those that have still to be synced are named as alone.
func (f *flusher) syncTogether(logs []*Log) (errs []error, alone []bool, took time.Duration) {
	errs, alone = make([]error, len(logs)), make([]bool, len(logs))
	type held struct {
		i int
		u *pending
	}
	var all []held
	for i, l := range logs {
		if !l.syncing.TryLock() { // somebody syncs it just now, and would keep all the others waiting
			alone[i] = true
			continue
		}
		if errs[i] = l.usable(); errs[i] == nil {
			if u := l.unsynced(); u.any() {
				all = append(all, held{i, u})
				continue
			}
		}
		l.syncing.Unlock()
	}
	if len(all) == 0 {
		return errs, alone, 0
	}
	var names []string
	if !f.store.disk.real {
		for _, h := range all {
			names = append(names, h.u.names(logs[h.i])...)
		}
	}
	clk := f.store.o.Clock
	began := clk.Now()
	invariants.Fault("segment.beforeSync")
	var err error
	if !invariants.Planted("answerBeforeFsync") {
		err = f.whole(names)
	}
	invariants.Fault("segment.afterSync")
	took = clk.Now().Sub(began)
	flushSeconds.Update(took.Seconds())
	for _, h := range all {
		l := logs[h.i]
		alone[h.i] = err != nil || l.synced(h.u)
		l.syncing.Unlock()
	}
	return errs, alone, took
}

// names are the files and directories of what is unsynced.
func (u *pending) names(l *Log) []string {
	d := l.store.disk
	var names []string
	if u.newDir && !invariants.Planted("noDirectoryFsync") {
		names = append(names, d.PathDir(l.dir))
	}
	if u.dirNames > 0 && !invariants.Planted("noDirectoryFsync") {
		names = append(names, l.dir)
	}
	for _, p := range u.parts {
		names = append(names, p.seg.path())
	}
	return names
}

// syncNamed stands in for a sync of everything where the file system is not the real one:
// it syncs what it has to, and nothing that somebody might lean on unknowingly.
func (d disk) syncNamed(names []string) error {
	var errs []error
	for _, name := range names {
		f, err := d.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile: nothing of it has to be kept
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
