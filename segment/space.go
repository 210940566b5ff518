package segment

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// space keeps records away from the end of the disk, so that metadata, marks,
// the index and deletions always have room (fault table, ENOSPC).
//
//	bytes free:  0 ------- 1/4 ----- 1/2 ---------- reserve ------ + slack ------ all
//	             |  the ballast  |    |  batches of  |  records, if  |  records
//	             |  is given up  |    |  our own     |  taken before |
//
// Appends of clients and mirrors stop when less than the reserve would stay
// free, and begin again when slack more than that is free. Batches of our own
// (group offsets, markers of a failover) may take half of the reserve.
//
// The disk is asked on the watcher's timer and when what it granted then is used
// up, never once per append.
type space struct {
	store   *Store
	ballast ballast

	// What may still be appended before the disk is asked again: records, and our
	// own batches while there is no room for records.
	records, own atomic.Int64

	closed atomic.Bool // no room for records; written under mu
	// probe lets one append through although closed: where a write was refused and
	// the disk says that it has room (a quota, say), only trying can tell.
	probe atomic.Bool

	last atomic.Pointer[room]

	scarce time.Time // until then the ballast is made only out of plenty

	mu struct {
		sync.Mutex      // held while the disk is asked and the ballast is made; above health only
		byWrite    bool // closed because a write was refused, not by what the disk says
	}

	refused *metrics.Counter
}

// room is what the disk said when it was asked last.
type room struct {
	known            bool // false: the file system does not tell
	free, total      int64
	reserve, ballast int64
}

// startTime is how long after a start on a full disk the ballast is not made
// again: the metadata store beside us allocates the next file of its log then,
// and for a moment gives the blocks of the present one back. Whoever takes them
// ends its start.
const startTime = 10 * time.Second

// unlimited is granted where the file system does not say how much room it has.
const unlimited = int64(1) << 62

func newSpace(s *Store) *space {
	p := &space{store: s, ballast: ballast{disk: s.disk, path: s.disk.PathJoin(s.o.Dir, ballastFile)}}
	p.refused = obs.Counter("lockstep_log_appends_refused_total", "dir", s.o.Dir)
	p.last.Store(&room{})
	p.records.Store(unlimited)
	p.own.Store(unlimited)
	return p
}

// open asks the disk for the first time. It comes before anything is written to
// the directory: on a full disk that needs the room that the ballast keeps.
func (p *space) open() {
	p.ballast.find()
	p.scarce = p.store.o.Clock.Now().Add(startTime)
	p.mu.Lock()
	if r := p.askLocked(); r.known && r.free < r.reserve {
		p.giveUpLocked(r)
	}
	p.mu.Unlock()
	p.look()
}

func (p *space) room() room { return *p.last.Load() }

// floor is what records leave free: the reserve, and the room of a ballast that
// was given up.
func (r room) floor() int64 { return r.reserve + max(ballastSize(r)-r.ballast, 0) }

func (r room) full() error {
	return fmt.Errorf("%w: %d bytes are free, %d are kept in reserve", ErrFull, r.free, r.floor())
}

// slack is how much more than the reserve must be free before records are taken
// again, so that a directory at its limit does not change its mind with each append.
func (r room) slack() int64 { return r.reserve / 8 }

// ballastMove is what to do with the ballast.
type ballastMove int8

const (
	keepBallast ballastMove = iota
	giveBallastUp
	makeBallast
)

// ballastMove: scarce says that it is made only out of plenty.
func (r room) ballastMove(scarce bool) ballastMove {
	size := ballastSize(r)
	switch {
	case !r.known:
	case r.free < r.reserve/4:
		// Somebody else is filling the disk. Metadata must not find its end.
		return giveBallastUp
	case r.ballast == size:
	case r.free+r.ballast >= r.reserve+r.slack()+size,
		// It comes before records do.
		r.free+r.ballast >= r.reserve/2+size && !scarce:
		return makeBallast
	}
	return keepBallast
}

// askRoom asks the disk.
func askRoom(d disk, o Options, ballast int64) room {
	r := room{ballast: ballast}
	if u, err := d.GetDiskUsage(o.Dir); err == nil && o.ReserveBytes >= 0 {
		r.known, r.free, r.total = true, int64(u.AvailBytes), int64(u.TotalBytes)
		if r.reserve = o.ReserveBytes; r.reserve == 0 {
			r.reserve = min(maxReserve, r.total/20)
		}
	}
	return r
}

// look asks the disk, gives the ballast up or makes it again, and opens or
// closes the directory for records.
func (p *space) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.askLocked()
	switch r.ballastMove(p.store.o.Clock.Now().Before(p.scarce)) {
	case giveBallastUp:
		r = p.giveUpLocked(r)
	case makeBallast:
		p.ballast.make(ballastSize(r))
		r = p.askLocked()
	}
	p.judgeLocked(r)
}

func (p *space) giveUpLocked(r room) room {
	if size := p.ballast.release(); size > 0 {
		p.store.o.Logger.Warn("disk is filling up: ballast given up for metadata and deletions", "dir", p.store.o.Dir, "bytes", size, "free_bytes", r.free)
	}
	return p.askLocked()
}

// askLocked renews what may be appended.
func (p *space) askLocked() room {
	r := askRoom(p.store.disk, p.store.o, p.ballast.size)
	if r.known {
		p.records.Store(max(r.free-r.floor(), 0))
		p.own.Store(max(min(r.free, r.reserve)-r.reserve/2, 0))
	} else {
		p.records.Store(unlimited)
		p.own.Store(unlimited)
	}
	p.last.Store(&r)
	return r
}

// judgeLocked opens or closes the directory by what the disk said.
func (p *space) judgeLocked(r room) {
	switch closed := p.closed.Load(); {
	case r.known && r.free < r.floor() && !closed:
		p.closeLocked(r.full())
	case !closed:
	case p.mu.byWrite:
		// The disk refused a write though it had room: try again, with one append.
		p.probe.Store(!r.known || r.free >= r.floor()+r.slack())
	case r.free >= r.floor()+r.slack():
		p.openLocked()
	}
}

func (p *space) closeLocked(err error) {
	p.closed.Store(true)
	p.probe.Store(false)
	p.store.health.full(err)
}

func (p *space) openLocked() {
	p.closed.Store(false)
	p.probe.Store(false)
	p.mu.byWrite = false
	p.store.health.full(nil)
}

// admit says whether n more bytes may be appended; with own, batches of our own.
func (p *space) admit(n int64, own bool) error {
	if !p.closed.Load() && p.records.Add(-n) >= 0 {
		return nil
	}
	if p.probe.CompareAndSwap(true, false) {
		return nil
	}
	if own && p.own.Add(-n) >= 0 {
		return nil
	}
	return p.admitSlowly(n, own)
}

// admitSlowly asks the disk, unless it is known to be full.
func (p *space) admitSlowly(n int64, own bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed.Load() {
		r := p.askLocked()
		if p.records.Add(-n) >= 0 {
			return nil
		}
		if r.free < r.floor()+r.slack() {
			p.closeLocked(r.full())
		}
		if own && p.own.Add(-n) >= 0 {
			return nil
		}
	}
	p.refused.Inc()
	return fmt.Errorf("%w: %s", ErrFull, p.store.o.Dir)
}

// spare says whether n bytes may be taken for what can wait: the file of a
// compaction or of a repair, a copy before a cut. It must not be what closes the
// directory for records, so it stops where the slack begins.
func (p *space) spare(n int64) error {
	if !p.closed.Load() && p.records.Add(-n) >= p.room().slack() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.askLocked()
	if left := p.records.Add(-n); left >= r.slack() && !p.closed.Load() {
		return nil
	}
	p.records.Add(n)
	err := fmt.Errorf("%w: %s: %d bytes are free, %d of them are for records and the reserve", ErrFull, p.store.o.Dir, r.free, r.floor()+r.slack())
	p.store.seldom("no room for a compaction, a repair or a copy, which waits", err)
	return err
}

// wrote hears how an append's writes ended, and says what its caller is told:
// after a write for which the disk had no room, ErrFull.
func (p *space) wrote(err error) error {
	if err == nil {
		if p.closed.Load() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.mu.byWrite {
				p.openLocked()
			}
		}
		return nil
	}
	if errors.Is(err, ErrFailed) || errors.Is(err, ErrClosed) {
		return err
	}
	if !isFull(err) {
		p.store.seldom("append failed and was undone, the log goes on", err)
		return err
	}
	err = fmt.Errorf("%w: %w", ErrFull, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused.Inc()
	p.mu.byWrite = true
	p.closeLocked(err)
	return err
}

// asFull makes ErrFull of a write for which the disk had no room.
func asFull(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// isFull says that an operation failed for want of room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
