package segment

import (
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/producer"
)

type producerTxn = producer.OpenTxn

// appends fills all logs, with flushes in between and something unflushed
// at the end.
func appends(n int) func(r *crashRun) {
	return func(r *crashRun) {
		for range n {
			g := r.anyLog()
			r.append(g)
			switch r.rng.IntN(5) {
			case 0, 1:
				r.flush(g)
			case 2:
				r.watermark(g)
			case 3:
				if r.rng.IntN(3) == 0 {
					r.checkpoint()
				}
			}
		}
	}
}

func each(fn func(r *crashRun, g *crashLog)) func(r *crashRun) {
	return func(r *crashRun) { fn(r, r.anyLog()) }
}

// crashWorkloads are short, one for each kind of operation.
var crashWorkloads = slices.Concat(basicWorkloads, compactWorkloads, repairWorkloads)

var basicWorkloads = []crashWorkload{
	{name: "open", run: func(r *crashRun) { appends(3)(r); r.flush(r.logs[0]) }},
	{name: "append", prepare: appends(4), run: appends(6)},
	{name: "roll", prepare: appends(8), run: func(r *crashRun) {
		g := r.logs[0]
		for n := len(g.l.Segments()); len(g.l.Segments()) < n+3; {
			r.append(g)
		}
		r.flush(g)
	}},
	{name: "flush", prepare: appends(8), run: each(func(r *crashRun, g *crashLog) { r.flush(g); r.append(g); r.flush(g) })},
	{name: "truncate", prepare: appends(12), run: each(func(r *crashRun, g *crashLog) {
		r.truncate(g, g.state.end-1-r.rng.Int64N(max(1, g.state.end-g.state.start-1)))
		r.append(g)
		r.flush(g)
		r.truncate(g, g.state.end-1)
		r.append(g)
	})},
	{name: "truncate-fully", prepare: appends(10), run: each(func(r *crashRun, g *crashLog) {
		r.truncateFully(g, g.state.end-min(g.state.end, 3))
		r.append(g)
		r.flush(g)
		r.truncateFully(g, g.state.end+10)
		r.append(g)
	})},
	{name: "start", prepare: appends(10), run: each(func(r *crashRun, g *crashLog) {
		r.setStart(g, g.state.start+r.rng.Int64N(g.state.end-g.state.start))
		r.append(g)
		r.setStart(g, g.state.end)
		r.append(g)
	})},
	{name: "retain", prepare: appends(12), run: each(func(r *crashRun, g *crashLog) { r.retain(g); r.append(g); r.flush(g); r.retain(g) })},
	{name: "checkpoint", prepare: appends(10), run: func(r *crashRun) { r.checkpoint(); r.append(r.logs[0]); r.checkpoint() }},
	{name: "watermark", prepare: appends(8), run: each(func(r *crashRun, g *crashLog) { // marks get to the disk before the records
		for range 3 {
			r.append(g)
			r.watermark(g)
			r.checkpoint()
		}
	})},
	{name: "replace", prepare: appends(14), run: each(func(r *crashRun, g *crashLog) {
		r.replace(g)
		r.append(g)
		r.replace(g)
		r.truncate(g, g.state.end-r.rng.Int64N(g.state.end-g.state.start))
	})},
	{name: "stop", prepare: appends(8), run: func(r *crashRun) { r.stop(); r.append(r.logs[0]); r.stop() }},
	{name: "recover", prepare: appends(12), run: func(r *crashRun) { r.crash(loseHalf, false); r.append(r.logs[0]); r.crash(loseAll, false) }},
	{name: "recover-kill", prepare: appends(12), run: func(r *crashRun) { r.crash(loseNone, false); r.append(r.logs[0]); r.crash(loseNone, false) }},
	{name: "rebuild", prepare: appends(12), run: func(r *crashRun) { r.crash(loseHalf, true) }},
	{name: "delete", logs: 2, prepare: appends(10), run: each(func(r *crashRun, g *crashLog) { r.remove(g); r.append(g); r.flush(g) })},
	{name: "logs", logs: 4, prepare: appends(16), run: func(r *crashRun) {
		appends(6)(r)
		r.truncate(r.logs[1], r.logs[1].state.end/2)
		r.retain(r.logs[2])
		r.checkpoint()
	}},
}

// crashRandom does everything in any order.
var crashRandom = crashWorkload{name: "random", logs: 2, run: func(r *crashRun) {
	for range 50 {
		g := r.anyLog()
		length := g.state.end - g.state.start
		switch k := r.rng.IntN(24); {
		case k < 10:
			r.append(g)
		case k < 13:
			r.flush(g)
		case k < 14:
			r.watermark(g)
		case k < 16 && length > 0:
			r.truncate(g, g.state.end-r.rng.Int64N(min(length, 30)+1))
		case k == 16 && r.rng.IntN(2) == 0:
			r.truncateFully(g, r.rng.Int64N(g.state.end+10))
		case k == 17 && length > 0:
			r.setStart(g, g.state.start+r.rng.Int64N(length+1))
		case k == 18:
			r.checkpoint()
		case k == 19:
			r.stop()
		case k == 20:
			r.replace(g)
		case k == 21:
			r.retain(g)
		case k == 22 && r.rng.IntN(3) == 0:
			r.remove(g)
		case k == 23:
			r.crash(loss(r.rng.IntN(3)), r.rng.IntN(3) == 0)
		}
	}
}}
