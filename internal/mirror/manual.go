package mirror

import (
	"iter"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Manual is a Manager without goroutines, for the simulation. What a Manager runs
// beside its loop (actions, refreshes, batches of calls) are coroutines here: one
// runs at a time, in the order in which they were begun, up to where it has to wait.
// Workers are driven by hand.
type Manual struct {
	m        *Manager
	routines []*routine
	running  *routine
}

// ManualHooks are the world of a Manual.
type ManualHooks struct {
	// Fetcher is told of each new worker.
	Fetcher func(*Fetcher)
}

// Fetcher is the connection of one mirror to one broker of its source.
type Fetcher struct {
	*pipeline.Manual
	Mirror string
	Source Source
	Broker sdk.BrokerAddr
}

// routine is one coroutine. It waits for ready, nil: to begin.
type routine struct {
	resume func() (ready func() bool, more bool)
	end    func()
	yield  func(ready func() bool) bool
	ready  func() bool
}

// unwound ends a coroutine whose process is gone.
type unwound struct{}

// NewManual makes a manager that has seen no metadata.
func NewManual(o Options, h ManualHooks) (*Manual, error) {
	d := &Manual{}
	m, err := newManager(o, &scheduler{spawn: d.Go, park: d.Park})
	if err != nil {
		return nil, err
	}
	m.newWorker = func(p *peer, key workerKey, o pipeline.WorkerOptions) *pipeline.Worker {
		w := pipeline.NewManual(o)
		h.Fetcher(&Fetcher{w, p.name, key.cluster, key.broker})
		return w.Worker
	}
	d.m = m
	return d, nil
}

// Manager is the manager that this one drives.
func (d *Manual) Manager() *Manager { return d.m }

// Apply shows the manager an image; Handle is due.
func (d *Manual) Apply(next *metadata.Image) {
	d.m.inbox.Lock()
	d.m.inbox.image = next
	d.m.inbox.Unlock()
}

// Doing names the action that runs for a partition; empty if none does.
func (d *Manual) Doing(topic metadata.TopicID, index int32) string {
	if r := d.m.replicas[partitionID{topic, index}]; r != nil && r.task != nil {
		return r.task.action.String()
	}
	return ""
}

// Owner is the broker that does a mirror's own work, as this one's metadata say.
func (d *Manual) Owner(mirror string) int32 { return owner(d.m.o.Controller.Image(), mirror) }

// Go begins fn, at the next Handle.
func (d *Manual) Go(fn func()) {
	r := &routine{}
	r.resume, r.end = iter.Pull(func(yield func(func() bool) bool) {
		defer func() {
			if e := recover(); e != nil && e != any(unwound{}) {
				panic(e)
			}
		}()
		r.yield = yield
		fn()
	})
	d.routines = append(d.routines, r)
}

// Park lets others run until ready. Only what Go began may call it.
func (d *Manual) Park(ready func() bool) {
	r := d.running
	for !ready() {
		if !r.yield(ready) {
			panic(unwound{})
		}
	}
}

// Handle does what is to be done now: items of the inbox, and what waited for
// something that is there.
func (d *Manual) Handle() {
	for again := true; again; {
		again = d.inbox()
		for i := 0; i < len(d.routines); i++ {
			r := d.routines[i]
			if r.ready != nil && !r.ready() {
				continue
			}
			again = true
			d.running = r
			ready, more := r.resume()
			d.running = nil
			if r.ready = ready; !more {
				d.routines = append(d.routines[:i:i], d.routines[i+1:]...)
				i--
			}
		}
	}
}

// inbox takes what is in the inbox, if anything is.
func (d *Manual) inbox() bool {
	d.m.inbox.Lock()
	any := len(d.m.inbox.items) > 0 || d.m.inbox.image != nil
	d.m.inbox.Unlock()
	if any {
		d.m.handle()
	}
	return any
}

// End is the end of the process: nothing is done any more.
func (d *Manual) End() {
	d.m.cancel()
	for _, r := range d.routines {
		r.end()
	}
	d.routines = nil
}
