package sim

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// office is one controller process: it stands for the office, and while it holds it,
// decides what comes, one batch at a time, writes it, and answers when its own image
// shows it, as controller.Controller does.
type office struct {
	w    *World
	id   int32
	proc proc

	m       *controller.Manual
	img     *metadata.Image
	watch   *watch
	elected int64 // 0: not in office
	chain   int64
	busy    bool
	queue   []request
	waiting []waiting
	alive   time.Duration // when the lease was last confirmed
}

// officesFrom is the node in front of the first office.
const officesFrom int32 = 100

type request struct {
	call  any // nil: what time asks for
	reply func(any)
}

type waiting struct {
	revision int64
	fn       func()
}

// answer is what comes of a request.
type answer struct {
	outcomes  []controller.Outcome
	img       *metadata.Image
	err       error
	elsewhere bool // this is not the active controller
}

func (o *office) start() {
	w := o.w
	o.proc.up = true
	o.proc.gen++
	o.proc.pausedUntil = 0
	o.img, o.elected, o.busy, o.queue, o.waiting = nil, 0, false, nil, nil
	o.m = controller.NewManual(controller.ManualOptions{
		Session: sessionTimeout, AfterLoss: 500 * time.Millisecond, MinISR: 1,
		BalanceInterval: w.o.balance, BalancePercentage: 10, ReplicationFactor: 3,
	})
	o.watch = w.store.follow(&o.proc, func(_, next *metadata.Image) {
		o.img = next
		kept := o.waiting[:0]
		var due []func()
		for _, x := range o.waiting {
			if next.Revision >= x.revision {
				due = append(due, x.fn)
			} else {
				kept = append(kept, x)
			}
		}
		o.waiting = kept
		for _, fn := range due {
			fn()
		}
	})
	o.stand()
	o.tick()
}

func (o *office) shows(revision int64, fn func()) {
	if o.img != nil && o.img.Revision >= revision {
		fn()
		return
	}
	o.waiting = append(o.waiting, waiting{revision, fn})
}

// stand tries to get the office, and keeps its lease.
func (o *office) stand() {
	w := o.w
	next := 200*time.Millisecond + w.loop.between(0, 200*time.Millisecond)
	w.loop.after(next, &o.proc, o.stand)
	if o.elected == 0 {
		w.net.call(&o.proc, &w.store.proc, time.Second, func(reply func(any)) {
			reply(w.store.campaign(o))
		}, func(v any, err error) {
			if rev, _ := v.(int64); err == nil && rev != 0 && o.elected == 0 {
				o.alive = w.loop.now
				o.elected, o.busy = rev, true
				o.take(true)
			}
		})
		return
	}
	if w.loop.now-o.alive > leaseTTL {
		o.lose()
		return
	}
	elected, asked := o.elected, w.loop.now
	w.net.call(&o.proc, &w.store.proc, time.Second, func(reply func(any)) { reply(w.store.keepAlive(elected)) }, func(v any, err error) {
		if err != nil || o.elected != elected {
			return
		}
		if v.(bool) {
			o.alive = asked
		} else {
			o.lose()
		}
	})
}

// take reads where the chain stands, and goes on when the image shows that.
func (o *office) take(begin bool) {
	w, elected := o.w, o.elected
	type state struct{ chain, revision int64 }
	w.net.call(&o.proc, &w.store.proc, time.Second, func(reply func(any)) {
		reply(state{w.store.chain, w.store.revision()})
	}, func(v any, err error) {
		if o.elected != elected {
			return
		}
		if err != nil {
			o.w.loop.after(50*time.Millisecond, &o.proc, func() {
				if o.elected == elected {
					o.take(begin)
				}
			})
			return
		}
		at := v.(state)
		o.chain = at.chain
		o.shows(at.revision, func() {
			if o.elected != elected {
				return
			}
			if begin {
				o.m.Begin(w.loop.time(), o.img, w.deadBrokers())
			}
			o.busy = false
			if orphans := w.store.builder.Orphans(); begin && len(orphans) > 0 {
				o.busy = true
				o.write(w.transactions([][]controller.Change{orphans}), nil, 0, func(error) { o.busy = false; o.run() })
				return
			}
			o.run()
		})
	})
}

// lose ends the term.
func (o *office) lose() {
	o.elected, o.busy = 0, false
	queue := o.queue
	o.queue = nil
	for _, r := range queue {
		if r.reply != nil {
			r.reply(answer{elsewhere: true})
		}
	}
}

func (o *office) tick() {
	o.w.loop.after(100*time.Millisecond, &o.proc, o.tick)
	if o.elected == 0 {
		return
	}
	for _, r := range o.queue {
		if r.call == nil {
			return
		}
	}
	o.queue = append(o.queue, request{})
	o.run()
}

// ask is a request that arrives.
func (o *office) ask(call any, reply func(any)) {
	if o.elected == 0 {
		reply(answer{elsewhere: true})
		return
	}
	if len(o.queue) > 200 {
		return // it times out
	}
	o.queue = append(o.queue, request{call, reply})
	o.run()
}

// run carries out what waits.
func (o *office) run() {
	w := o.w
	if o.busy || o.elected == 0 || len(o.queue) == 0 {
		return
	}
	n := min(len(o.queue), 1+w.loop.rng.IntN(8))
	batch := o.queue[:n:n]
	o.queue = o.queue[n:]
	now := w.loop.time()
	plan := o.m.Plan(o.img)
	answers := make([]answer, n)
	var commands [][]controller.Change
	var cuts []controller.Cut
	var heard []int32 // known to what is decided after this batch, not to what was in front
	for i, r := range batch {
		a := &answers[i]
		if r.call == nil {
			a.outcomes = plan.Tick(now)
			if len(a.outcomes) == 0 {
				a.outcomes = plan.Unclean()
			}
		} else {
			if a.outcomes, a.err = plan.Call(now, r.call); a.err == nil {
				if hb, ok := r.call.(controller.Heartbeat); ok {
					heard = append(heard, hb.Broker)
				}
			}
		}
		for _, it := range a.outcomes {
			commands = append(commands, it.Changes)
			if it.Cut != nil && len(it.Changes) > 0 {
				cuts = append(cuts, *it.Cut)
			}
		}
	}
	o.busy = true
	elected := o.elected
	o.write(w.transactions(commands), cuts, 0, func(err error) {
		for _, id := range heard {
			w.heard[id] = elected
		}
		for i, r := range batch {
			if r.reply == nil {
				continue
			}
			if answers[i].img = o.img; err != nil {
				answers[i] = answer{err: err}
			}
			r.reply(answers[i])
		}
		if err == nil {
			o.busy = false
			o.run()
		} else if o.elected != 0 {
			o.take(false)
		}
	})
}

// write commits transactions in order, and tells when the image shows them.
func (o *office) write(txns [][]controller.Change, cuts []controller.Cut, revision int64, done func(error)) {
	w, elected := o.w, o.elected
	if len(txns) == 0 {
		o.shows(revision, func() {
			if o.elected == elected {
				done(nil)
			}
		})
		return
	}
	t := txn{elected, o.chain, txns[0], cuts}
	w.net.call(&o.proc, &w.store.proc, time.Second, func(reply func(any)) { reply(w.store.commit(t)) }, func(v any, err error) {
		if o.elected != elected {
			return
		}
		if err != nil {
			done(err)
			return
		}
		r := v.(txnResult)
		switch {
		case r.deposed:
			o.lose()
			done(controller.ErrNotController)
		case !r.ok:
			done(errChain)
		default:
			o.chain = r.chain
			o.write(txns[1:], cuts, r.revision, done)
		}
	})
}

func (w *World) transactions(commands [][]controller.Change) [][]controller.Change {
	txns, err := controller.Transactions(commands, w.o.txnOps)
	if err != nil {
		w.check.fail("STORE", "changes that cannot be stored: %v", err)
	}
	return txns
}
