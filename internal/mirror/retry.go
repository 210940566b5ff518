package mirror

import (
	"math"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// failure is why a partition is FAILED, and how often it was tried (S13).
type failure struct {
	message  string
	attempt  int16                // nonRetryable, 0 for no failure, else the number of failures in a row
	previous metadata.MirrorState // the last state that is not FAILED
}

// nonRetryable is the attempt of a failure that only an operator can end (S18).
const nonRetryable int16 = -1

// Classes of failures that the rules below must recognise after a restart,
// when only the text is left. The text begins with the prefix.
const (
	// A source that cannot be reached is tried for ever (S16).
	prefixUnreachable = "source unreachable: "
	// A partition that the source does not have waits for the source to grow (W16).
	prefixSurplus = "no counterpart on the source: "
	// Records that the source lost: recover and start go through PREPARING (S20).
	prefixSourceLoss = "source lost records: "
)

func (f failure) unreachable() bool { return strings.HasPrefix(f.message, prefixUnreachable) }
func (f failure) surplus() bool     { return strings.HasPrefix(f.message, prefixSurplus) }
func (f failure) sourceLoss() bool  { return strings.HasPrefix(f.message, prefixSourceLoss) }

// again is the failure info after one more failure (S13): the attempt grows up
// to maxAttempts, and a non-retryable failure stays one.
func (f failure) again(message string, retryable bool, from metadata.MirrorState, maxAttempts int) failure {
	next := failure{message: message, attempt: nonRetryable, previous: f.previous}
	if from != metadata.StateFailed {
		next.previous = from
	}
	if retryable && f.attempt != nonRetryable {
		next.attempt = int16(min(int(f.attempt)+1, max(maxAttempts, 1)))
	}
	return next
}

// target is where a retry goes (S17): back to where it failed. A partition
// whose records the source lost must prepare again.
func (f failure) target() metadata.MirrorState {
	if f.sourceLoss() || f.surplus() {
		return metadata.StatePreparing
	}
	m := metadata.MirrorPartition{State: metadata.StateFailed, PreviousState: f.previous}
	return m.RetryTarget()
}

// retryLimits are the mirror.failed.retry.* options.
type retryLimits struct {
	initial, max time.Duration
	attempts     int // below zero: no automatic retry
}

// delay is how long to wait before the failure is retried; ok is false when it
// is not (S15, S16). random is in [0, 1).
func (l retryLimits) delay(f failure, random float64) (d time.Duration, ok bool) {
	if f.attempt == nonRetryable || l.attempts < 0 {
		return 0, false
	}
	if int(f.attempt) >= l.attempts {
		// An outage of an hour must not need manual work on every partition.
		return l.max, f.unreachable()
	}
	backoff := float64(l.initial) * math.Pow(2, float64(f.attempt)) * (0.8 + 0.4*random)
	if backoff > float64(l.max) {
		return l.max, true
	}
	return time.Duration(backoff), true
}
