package sim

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// begin is a play of which some steps have happened: see run.
func begin(t *testing.T, seed uint64, steps string, configs ...string) *play {
	t.Helper()
	p := newPlay(t, seed, configs...)
	p.run(steps)
	return p
}

// run plays steps, one after the other, each to its end. They are separated by commas,
// and are a cluster, what happens there, and with what:
//
//	a writes 3, b follows, b stops, a elects, a writes 2, link cut
func (p *play) run(steps string) {
	p.t.Helper()
	for step := range strings.SplitSeq(steps, ",") {
		f := strings.Fields(step)
		if len(f) < 2 {
			p.fatal("step %q: no cluster and verb", step)
		}
		arg := ""
		if len(f) == 3 {
			arg = f[2]
		}
		do := verbs[f[1]]
		if do == nil || len(f) > 3 {
			p.fatal("step %q: there is no such verb, or too much behind it", step)
		}
		do(p, map[string]*World{"a": p.a, "b": p.b, "link": nil}[f[0]], arg)
	}
}

// verbs are what can happen in a step.
var verbs = map[string]func(p *play, w *World, arg string){
	// n records are written, one batch each: committed, or only in the leader's log.
	"writes":  func(p *play, w *World, n string) { p.write(w, p.number(n)) },
	"appends": func(p *play, w *World, n string) { p.append(w, p.number(n)) },

	// Operators' commands: until they are recorded, or have come to their end.
	"starts":  func(p *play, w *World, _ string) { p.want(w, "start", metadata.DesiredMirroring) },
	"follows": func(p *play, w *World, _ string) { p.follows(w) },
	"pauses": func(p *play, w *World, _ string) {
		p.want(w, "pause", metadata.DesiredPaused)
		p.reaches(w, metadata.StatePaused)
	},
	"resumes": func(p *play, w *World, _ string) { p.want(w, "resume", metadata.DesiredMirroring) },
	"stops":   func(p *play, w *World, _ string) { p.stop(w) },
	"recovers": func(p *play, w *World, _ string) {
		p.do(w, "recover", func() bool { return p.state(w) != metadata.StateFailed })
	},

	// A broker misses what is written from here on, leaves the ISR, and is back.
	"leaves": func(p *play, w *World, id string) { p.behind(w, int32(p.number(id))) },
	"heals":  func(p *play, w *World, _ string) { p.back(w) },
	"elects": func(p *play, w *World, _ string) { p.elect(w) },
	"trusts": func(p *play, w *World, id string) { p.uncleanly(w, int32(p.number(id))) }, // whatever it has
	"dies":   func(p *play, w *World, _ string) { p.dies(w) },
	"rises":  func(p *play, w *World, _ string) { p.whole(w) },

	// What is waited for.
	"reaches": func(p *play, w *World, state string) {
		i := slices.IndexFunc(playStates, func(s metadata.MirrorState) bool { return s.String() == state })
		if i < 0 {
			p.fatal("there is no state %s", state)
		}
		p.reaches(w, playStates[i])
	},
	"catches": func(p *play, w *World, _ string) { p.caughtUp(w) }, // "catches up"

	"cut":    func(p *play, _ *World, _ string) { p.linked(false) },
	"healed": func(p *play, _ *World, _ string) { p.linked(true) },
	"idles": func(p *play, _ *World, d string) { // for so many seconds
		p.pass(time.Duration(p.number(d))*time.Second, nil, "")
	},
}

var playStates = []metadata.MirrorState{
	metadata.StatePreparing, metadata.StateEpochFencing, metadata.StateULERecovery, metadata.StateMirroring, metadata.StatePausing,
	metadata.StatePaused, metadata.StateStopping, metadata.StateStopped, metadata.StateFailed,
}

func (p *play) number(s string) int {
	p.t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		p.fatal("%q is not a number", s)
	}
	return n
}
