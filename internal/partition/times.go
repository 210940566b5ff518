package partition

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// timeBounds are a topic's for the times of clients' records.
type timeBounds struct {
	// logAppendTime: the broker's time counts, whatever clients say.
	logAppendTime bool
	// How far a record may be behind and ahead of the broker's clock.
	beforeMaxMs, afterMaxMs int64
}

func (l timeBounds) check(now int64, t record.Times) error {
	if l.logAppendTime || t.Oldest > t.Newest {
		return nil
	}
	for _, ts := range [...]int64{t.Oldest, t.Newest} {
		// Unsigned, because a client may send ±2^62: no difference overflows.
		behind, ahead := uint64(now)-uint64(ts), uint64(ts)-uint64(now)
		if ts < now && behind > uint64(l.beforeMaxMs) || ts > now && ahead > uint64(l.afterMaxMs) {
			return fmt.Errorf("%w: %d ms, now %d ms", ErrTimestamp, ts, now)
		}
	}
	return nil
}
