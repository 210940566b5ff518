package sim

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	seed  = flag.Uint64("sim.seed", 1, "first seed")
	seeds = flag.Int("sim.seeds", 20, "how many")
	steps = flag.Int("sim.steps", 5000, "events with faults, for each")
)

func TestSim(t *testing.T) {
	began := time.Now()
	total, faults, acked, read, cuts := 0, 0, 0, 0, 0
	for s := *seed; s < *seed+uint64(*seeds); s++ {
		r := Run(Options{Seed: s, Steps: *steps})
		total += r.Steps
		acked, read, cuts = acked+r.Acked, read+r.Read, cuts+r.Cuts
		n := 0
		for _, k := range r.Faults {
			n += k
		}
		faults += n
		if testing.Verbose() {
			fmt.Printf("seed %d: %d steps, %.1f s, %d faults, %d acknowledged, %d read, %d cuts, trace %016x\n", s, r.Steps, r.Elapsed.Seconds(), n, r.Acked, r.Read, r.Cuts, r.Hash)
		}
		if r.Err != nil {
			t.Fatalf("%s\n%v\n%srepeat: make sim SEED=%d STEPS=%d SEEDS=1", r.Story, r.Err, shrunk(r), s, *steps)
		}
	}
	fmt.Printf("simulated steps %d, seeds %d, faults %d, acknowledged %d, read %d, unclean cuts %d, violations 0; %.0f steps/s\n",
		total, *seeds, faults, acked, read, cuts, float64(total)/time.Since(began).Seconds())
}

// shrunk tries to make a failure smaller: without a kind of fault, and another, as long
// as something is still found.
func shrunk(r Result) string {
	o := Options{Seed: r.Seed, Steps: *steps}
	for range 2 {
		for _, k := range faultKinds {
			less := o
			less.Without = append(slices.Clone(o.Without), k)
			if !slices.Contains(o.Without, k) && Run(less).Err != nil {
				o = less
			}
		}
	}
	small := Run(o)
	if small.Err == nil || len(o.Without) == 0 {
		return ""
	}
	return fmt.Sprintf("without the faults %q: %v\n", o.Without, small.Err)
}

// The same seed is the same run, to the last event; another is another.
func TestReplay(t *testing.T) {
	seen := map[uint64]bool{}
	for s := range uint64(20) {
		a, b := Run(Options{Seed: 1000 + s, Steps: 2000}), Run(Options{Seed: 1000 + s, Steps: 2000})
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Errorf("seed %d: trace %016x after %d steps, then %016x after %d", 1000+s, a.Hash, a.Steps, b.Hash, b.Steps)
		}
		if a.Err != nil {
			t.Errorf("%v", a.Err)
		}
		if seen[a.Hash] {
			t.Errorf("seed %d has the trace of another", 1000+s)
		}
		seen[a.Hash] = true
	}
}

// Every kind of fault and every rule has its turn.
func TestCoverage(t *testing.T) {
	faults, rules := map[string]int{}, map[string]int{}
	for s := range uint64(12) {
		r := Run(Options{Seed: 2000 + s, Steps: 4000})
		if r.Err != nil {
			t.Fatalf("%s\n%v", r.Story, r.Err)
		}
		for k, n := range r.Faults {
			faults[k] += n
		}
		for k, n := range r.Looked {
			rules[k] += n
		}
	}
	for _, k := range faultKinds {
		if k != unclean && faults[k] == 0 {
			t.Errorf("no fault %q", k)
		}
	}
	for _, k := range []string{"GI-01", "GI-02", "GI-10", "GI-11", "GI-13", "GI-13 end", "GI-14", "GI-14 read", "GI-15", "GI-30", "GI-40", "ISR", "election", "log start"} {
		if rules[k] == 0 {
			t.Errorf("rule %s was never looked at", k)
		}
	}
	t.Logf("faults %v, rules %v", faults, rules)
}
