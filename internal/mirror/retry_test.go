package mirror

import (
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func TestRetryDelay(t *testing.T) {
	limits := retryLimits{initial: 100 * time.Millisecond, max: 300 * time.Second, attempts: 20}
	for _, test := range []struct {
		f      failure
		random float64
		want   time.Duration
		ok     bool
	}{
		{failure{attempt: 1}, 0.5, 200 * time.Millisecond, true},
		{failure{attempt: 1}, 0, 160 * time.Millisecond, true},
		{failure{attempt: 2}, 0.5, 400 * time.Millisecond, true},
		{failure{attempt: 11}, 0.5, 204800 * time.Millisecond, true},
		{failure{attempt: 12}, 0.5, 300 * time.Second, true},
		{failure{attempt: 19}, 0.5, 300 * time.Second, true},
		{failure{attempt: 20}, 0.5, 300 * time.Second, false},
		{failure{attempt: 20, message: prefixUnreachable + "x"}, 0.5, 300 * time.Second, true},
		{failure{attempt: nonRetryable, message: prefixUnreachable + "x"}, 0.5, 0, false},
	} {
		got, ok := limits.delay(test.f, test.random)
		if got.Round(time.Microsecond) != test.want || ok != test.ok {
			t.Errorf("delay(%+v, %v) = %v, %v, want %v, %v", test.f, test.random, got, ok, test.want, test.ok)
		}
	}
	limits.attempts = -1
	if _, ok := limits.delay(failure{attempt: 1}, 0); ok {
		t.Error("retry is switched off, but would happen")
	}
}

func TestFailureAgain(t *testing.T) {
	const mirroring, failed = metadata.StateMirroring, metadata.StateFailed
	f := failure{}.again("a", true, mirroring, 3)
	if f != (failure{"a", 1, mirroring}) {
		t.Errorf("first failure: %+v", f)
	}
	f = f.again("b", true, failed, 3)
	if f != (failure{"b", 2, mirroring}) {
		t.Errorf("second failure while FAILED keeps the state before: %+v", f)
	}
	f = f.again("c", true, mirroring, 3).again("d", true, mirroring, 3)
	if f.attempt != 3 {
		t.Errorf("attempts are capped: %+v", f)
	}
	f = f.again("e", false, mirroring, 3).again("f", true, failed, 3)
	if f.attempt != nonRetryable || f.message != "f" {
		t.Errorf("non-retryable stays non-retryable: %+v", f)
	}
}

func TestFailureTarget(t *testing.T) {
	for _, test := range []struct {
		f    failure
		want metadata.MirrorState
	}{
		{failure{previous: metadata.StateUnknown}, metadata.StatePreparing},
		{failure{previous: metadata.StateMirroring}, metadata.StateMirroring},
		{failure{previous: metadata.StateEpochFencing}, metadata.StateEpochFencing},
		{failure{previous: metadata.StateStopping}, metadata.StateStopping},
		{failure{previous: metadata.StatePaused}, metadata.StatePausing},
		{failure{previous: metadata.StateMirroring, message: prefixSourceLoss + "x"}, metadata.StatePreparing},
	} {
		if got := test.f.target(); got != test.want {
			t.Errorf("target(%+v) = %v, want %v", test.f, got, test.want)
		}
	}
}
