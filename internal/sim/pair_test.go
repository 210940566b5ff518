package sim

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

var (
	pairSeeds = flag.Int("mirrorsim.seeds", 12, "seeds of two clusters")
	pairSteps = flag.Int("mirrorsim.steps", 6000, "events with faults, for each")
	noFaults  = flag.Bool("mirrorsim.nofaults", false, "operators only")
	goOn      = flag.Bool("mirrorsim.goon", false, "go on after a violation, and tell no stories")
)

// Two clusters, mirrors in both directions, faults on both sides and on the link.
func TestMirrors(t *testing.T) {
	began := time.Now()
	total, faults, acked, read, cuts, runs, bad := 0, 0, 0, 0, 0, 0, 0
	moves, does, looked := map[move]int{}, map[string]int{}, map[string]int{}
	for s := *seed; s < *seed+uint64(*pairSeeds); s++ {
		o := PairOptions{Options: Options{Seed: s, Steps: *pairSteps}, NoFaults: *noFaults}
		r := RunPair(o)
		total += r.Steps
		acked, read, cuts, runs = acked+r.Acked, read+r.Read, cuts+r.Cuts, runs+r.Runs
		n := 0
		for _, k := range r.Faults {
			n += k
		}
		for _, k := range slices.Concat(linkFaults, ambushes, []string{ambushDeletion, provoked}) {
			n += r.Does[k]
		}
		faults += n
		for k, n := range r.Moves {
			moves[k] += n
		}
		for k, n := range r.Does {
			does[k] += n
		}
		for k, n := range r.Looked {
			looked[k] += n
		}
		if testing.Verbose() {
			fmt.Printf("seed %d: %d steps, %.1f s, %d faults, %d acknowledged, %d read, %d cuts, %d runs stopped, trace %016x\n", s, r.Steps, r.Elapsed.Seconds(), n, r.Acked, r.Read, r.Cuts, r.Runs, r.Hash)
		}
		switch {
		case r.Err != nil && *goOn:
			bad++
			t.Errorf("%v", r.Err)
		case r.Err != nil:
			t.Fatalf("%s\n%v\nrepeat: make mirrorsim SEED=%d STEPS=%d SEEDS=1", r.Story, r.Err, s, *pairSteps)
		}
	}
	fmt.Printf("simulated steps of two clusters %d, seeds %d, faults %d, acknowledged %d, read %d, cuts %d, mirror runs stopped %d, violations %d; %.0f steps/s\n",
		total, *pairSeeds, faults, acked, read, cuts, runs, bad, float64(total)/time.Since(began).Seconds())
	fmt.Printf("operators and link: %s\nrules looked at: %s\n%s", counted(does), counted(looked), coverage(moves))
}

func counted(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

// seldom is why a transition may not be seen in many seeds.
var seldom = map[move]string{
	{metadata.StateUnknown, metadata.StateFailed}:       "the source has to refuse the partition before its PREPARING is stored, with no controller there for so long",
	{metadata.StateEpochFencing, metadata.StateFailed}:  "the one call of the state has to fail, and takes 2 ms",
	{metadata.StateFailed, metadata.StateEpochFencing}:  "as EPOCH_FENCING → FAILED, which it needs, and no operator in between",
	{metadata.StatePausing, metadata.StateStopping}:     "PAUSING lasts some ms",
	{metadata.StateULERecovery, metadata.StatePausing}:  "unclean elections of a source that a mirror lives to see are few",
	{metadata.StateULERecovery, metadata.StateStopping}: "likewise",
	{metadata.StateULERecovery, metadata.StateFailed}:   "likewise",
	{metadata.StateFailed, metadata.StateULERecovery}:   "likewise",
}

// coverage is the table of transitions (8.2): how often each was seen.
func coverage(moves map[move]int) string {
	states := []metadata.MirrorState{
		metadata.StateUnknown, metadata.StatePreparing, metadata.StateEpochFencing, metadata.StateULERecovery, metadata.StateMirroring,
		metadata.StatePausing, metadata.StatePaused, metadata.StateStopping, metadata.StateStopped, metadata.StateFailed,
	}
	var b strings.Builder
	var never []string
	seen, all := 0, 0
	for _, to := range states {
		var line []string
		for _, from := range states {
			n := moves[move{from, to}]
			if !legal(from, to) {
				continue
			}
			if all++; n == 0 {
				never = append(never, strings.TrimSuffix(fmt.Sprintf("%s → %s (%s)", from, to, seldom[move{from, to}]), " ()"))
				continue
			}
			seen++
			line = append(line, fmt.Sprintf("%s %d", from, n))
		}
		if len(line) > 0 {
			fmt.Fprintf(&b, "  → %-13s from %s\n", to, strings.Join(line, ", "))
		}
	}
	slices.SortFunc(never, func(a, b string) int { return cmp.Compare(a, b) })
	return fmt.Sprintf("transitions %d of %d\n%snever: %s\n", seen, all, b.String(), strings.Join(never, ", "))
}

// The same seed is the same run of two clusters, to the last event.
func TestMirrorsReplay(t *testing.T) {
	for s := range uint64(8) {
		o := PairOptions{Options: Options{Seed: 3000 + s, Steps: 5000}}
		a, b := RunPair(o), RunPair(o)
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Errorf("seed %d: trace %016x after %d steps, then %016x after %d", o.Seed, a.Hash, a.Steps, b.Hash, b.Steps)
		}
		if a.Err != nil {
			t.Errorf("%v", a.Err)
		}
	}
}
