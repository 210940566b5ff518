//go:build !release

package invariants

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseFaultPlan(t *testing.T) {
	p, err := ParseFaultPlan("segment.truncate*:crash:0.5,seed=7,segment.beforeSync:sleep:1,sleep=3ms")
	if err != nil || p.Seed != 7 || len(p.Rules) != 2 || p.Rules[0] != (FaultRule{"segment.truncate*", FaultCrash, 0.5}) {
		t.Fatalf("%+v, %v", p, err)
	}
	for s, want := range map[string]string{
		"":                  "name:action:probability",
		"a:crash":           "name:action:probability",
		"a:explode:1":       "explode",
		"a:crash:2":         "probability",
		"a:crash:x":         "probability",
		"a:crash:NaN":       "probability",
		"a:crash:1,seed=-1": "seed",
		"a:sleep:1,sleep=0": "sleep",
		"[:crash:1":         "name",
	} {
		if _, err := ParseFaultPlan(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", s, err, want)
		}
	}
}

// The same seed does the same, another one something else; points that no rule
// names are counted only.
func TestFaultPlanSeed(t *testing.T) {
	run := func(seed uint64) (crashes []int) {
		p := &FaultPlan{Seed: seed, Rules: []FaultRule{{"a.*", FaultCrash, 0.2}}}
		n := 0
		p.exit = func(code int) {
			if code != FaultExitCode {
				t.Errorf("exit code %d", code)
			}
			crashes = append(crashes, n)
		}
		defer SetFault(p.Hit)()
		for ; n < 100; n++ {
			Fault("a.point")
			Fault("b.point")
		}
		if h := p.Hits(); h["a.point"] != 100 || h["b.point"] != 100 {
			t.Errorf("hits %v", h)
		}
		return crashes
	}
	one := run(1)
	if !slices.Equal(one, run(1)) || slices.Equal(one, run(2)) || len(one) < 5 || len(one) > 50 {
		t.Fatalf("seed 1 crashes at %v", one)
	}
}

func TestFaultPlanActions(t *testing.T) {
	p := &FaultPlan{Rules: []FaultRule{{"panic", FaultPanic, 1}, {"sleep", FaultSleep, 1}, {"never", FaultCrash, 0}}, SleepFor: time.Microsecond}
	func() {
		defer func() {
			if r := recover(); r != (FaultSentinel{"panic"}) {
				t.Errorf("recovered %v", r)
			}
		}()
		p.Hit("panic")
	}()
	p.Hit("sleep")
	p.Hit("never")
	Fault("no hook is set any more")
}

func TestCheck(t *testing.T) {
	if err := Check(true, "never"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if e, ok := recover().(*Error); !ok || e.Error() != "broken invariant: 1 is not 2" {
			t.Errorf("recovered %v", e)
		}
	}()
	_ = Check(false, "%d is not %d", 1, 2)
}

func TestPoison(t *testing.T) {
	b := []byte("secret")
	Poison(b)
	if strings.Contains(string(b), "s") {
		t.Fatalf("%q", b)
	}
}

func TestNothingIsPlanted(t *testing.T) {
	t.Setenv("LOCKSTEP_PLANT", "")
	if Planted("answerBeforeFsync") {
		t.Fatal("a planted bug without asking for it")
	}
}
