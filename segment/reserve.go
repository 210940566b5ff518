package segment

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// Reserve keeps a ballast in a directory that is no log directory: that of the
// metadata, whose store ends the process with the first commit that finds no room. The
// rules are those of a log directory's ballast (see space); nothing is closed to anybody,
// since nobody here can wait.
//
// It has a goroutine, which Close ends. The file stays, as that of a store does.
type Reserve struct {
	o       Options
	disk    disk
	ballast ballast   // of the goroutine
	scarce  time.Time // until then the ballast is made only out of plenty

	last atomic.Pointer[room]
	stop chan struct{}
	done sync.WaitGroup
}

// KeepReserve begins with a look at the disk, before anything else is written to the
// directory: on a full disk that needs the room that the ballast has. Dir, FS, Clock,
// Logger and ReserveBytes of the options count.
func KeepReserve(o Options) *Reserve {
	o.EnsureDefaults()
	r := &Reserve{o: o, disk: newDisk(o.FS), stop: make(chan struct{})}
	r.ballast = ballast{disk: r.disk, path: r.disk.PathJoin(o.Dir, ballastFile)}
	r.ballast.find()
	r.scarce = o.Clock.Now().Add(startTime)
	if now := r.ask(); now.known && now.free < now.reserve {
		r.giveUp(now)
	}
	r.look()
	for name, of := range reserveGauges {
		obs.Gauge(name, func() float64 { return float64(of(*r.last.Load())) }, "dir", o.Dir)
	}
	r.done.Add(1)
	go r.run()
	return r
}

// reserveGauges are metrics that a log directory has too.
var reserveGauges = map[string]func(room) int64{
	"lockstep_log_dir_free_bytes":    func(r room) int64 { return r.free },
	"lockstep_log_dir_reserve_bytes": func(r room) int64 { return r.reserve },
	"lockstep_log_dir_ballast_bytes": func(r room) int64 { return r.ballast },
}

func (r *Reserve) run() {
	defer r.done.Done()
	timer := r.o.Clock.NewTimer(lookInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			r.look()
			timer.Reset(lookInterval)
		case <-r.stop:
			return
		}
	}
}

// Close ends the watching.
func (r *Reserve) Close() {
	close(r.stop)
	r.done.Wait()
	for name := range reserveGauges {
		obs.Unregister(name, "dir", r.o.Dir)
	}
}

// look asks the disk, and gives the ballast up or makes it again.
func (r *Reserve) look() {
	now := r.ask()
	switch now.ballastMove(r.o.Clock.Now().Before(r.scarce)) {
	case giveBallastUp:
		r.giveUp(now)
	case makeBallast:
		r.ballast.make(ballastSize(now))
		r.ask()
	}
}

func (r *Reserve) giveUp(now room) {
	if size := r.ballast.release(); size > 0 {
		r.o.Logger.Warn("disk of the metadata is filling up: ballast given up for them", "dir", r.o.Dir, "bytes", size, "free_bytes", now.free)
	}
	r.ask()
}

func (r *Reserve) ask() room {
	now := askRoom(r.disk, r.o, r.ballast.size)
	r.last.Store(&now)
	return now
}
