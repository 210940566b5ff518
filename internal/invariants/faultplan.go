//go:build !release

package invariants

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultAction is what happens at a fault point.
type FaultAction string

// Crash ends the process as kill -9 does: nothing is closed, nothing flushed.
// Panic throws a FaultSentinel. Sleep stops the goroutine for FaultPlan.SleepFor.
const (
	FaultCrash FaultAction = "crash"
	FaultPanic FaultAction = "panic"
	FaultSleep FaultAction = "sleep"
)

// FaultExitCode is how a process ends at a fault point.
const FaultExitCode = 86

// FaultSentinel is what a fault point panics with, naming itself.
type FaultSentinel struct{ Name string }

// FaultRule is one line of a plan.
type FaultRule struct {
	Name        string // of the point; * and ? match as in file names
	Action      FaultAction
	Probability float64 // each time the point is reached
}

// FaultPlan says what happens at fault points, by a seed. SetFault(p.Hit)
// installs it. Safe for use by several goroutines.
type FaultPlan struct {
	Seed     uint64
	Rules    []FaultRule
	SleepFor time.Duration // default 10 ms

	mu   sync.Mutex
	rng  *rand.Rand
	hits map[string]int
	exit func(code int) // os.Exit, but in tests
}

// ParseFaultPlan reads
//
//	name:action:probability,… with seed=N among them for another seed than 1, and
//	sleep=DURATION for other sleeps than 10 ms
//
// as in "segment.truncate*:crash:0.01,segment.beforeSync:sleep:0.5,sleep=1s,seed=7".
func ParseFaultPlan(s string) (*FaultPlan, error) {
	p := &FaultPlan{Seed: 1}
	for _, part := range strings.Split(s, ",") {
		if seed, ok := strings.CutPrefix(part, "seed="); ok {
			n, err := strconv.ParseUint(seed, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("fault plan: seed %q: %w", seed, err)
			}
			p.Seed = n
			continue
		}
		if sleep, ok := strings.CutPrefix(part, "sleep="); ok {
			d, err := time.ParseDuration(sleep)
			if err != nil || d <= 0 {
				return nil, fmt.Errorf("fault plan: sleep %q is not a positive duration", sleep)
			}
			p.SleepFor = d
			continue
		}
		f := strings.Split(part, ":")
		if len(f) != 3 {
			return nil, fmt.Errorf("fault plan: %q is not name:action:probability", part)
		}
		chance, err := strconv.ParseFloat(f[2], 64)
		if err != nil || !(chance >= 0 && chance <= 1) {
			return nil, fmt.Errorf("fault plan: probability %q of %s is not in 0 to 1", f[2], f[0])
		}
		r := FaultRule{Name: f[0], Action: FaultAction(f[1]), Probability: chance}
		switch r.Action {
		case FaultCrash, FaultPanic, FaultSleep:
		default:
			return nil, fmt.Errorf("fault plan: action %q of %s is none of crash, panic, sleep", f[1], f[0])
		}
		if _, err := path.Match(r.Name, ""); err != nil {
			return nil, fmt.Errorf("fault plan: name %q: %w", r.Name, err)
		}
		p.Rules = append(p.Rules, r)
	}
	return p, nil
}

// Hit is what a fault point calls.
func (p *FaultPlan) Hit(name string) {
	switch p.decide(name) {
	case FaultCrash:
		fmt.Fprintf(os.Stderr, "fault point %s: the process ends here (seed %d)\n", name, p.Seed)
		exit := p.exit
		if exit == nil {
			exit = os.Exit
		}
		exit(FaultExitCode)
	case FaultPanic:
		panic(FaultSentinel{name})
	case FaultSleep:
		d := p.SleepFor
		if d == 0 {
			d = 10 * time.Millisecond
		}
		time.Sleep(d) // the fault itself: a slow disk
	}
}

// decide counts the hit and chooses; "" is nothing.
func (p *FaultPlan) decide(name string) FaultAction {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng == nil {
		p.rng, p.hits = rand.New(rand.NewPCG(p.Seed, 1)), map[string]int{}
	}
	p.hits[name]++
	for _, r := range p.Rules {
		if ok, _ := path.Match(r.Name, name); ok && p.rng.Float64() < r.Probability {
			return r.Action
		}
	}
	return ""
}

// Hits is how often each point was reached.
func (p *FaultPlan) Hits() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	hits := make(map[string]int, len(p.hits))
	for name, n := range p.hits {
		hits[name] = n
	}
	return hits
}
