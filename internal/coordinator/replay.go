package coordinator

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// replayRead is one read of a replay. The high watermark is that of the read
// itself: asked for afterwards, it might have passed what the read could not see.
type replayRead struct {
	at            int64
	buf           []byte // reused from read to read
	next          int64  // where to go on
	highWatermark int64
}

func (r *replayRead) run(p *partition.Partition, leaderEpoch int32, fn func(record.Batch) error) error {
	r.next = r.at
	res, err := p.Read(partition.ReadRequest{
		Offset: r.at, MaxBytes: loadBytes, AtLeastOne: true,
		Isolation: partition.ReadUncommitted, CurrentLeaderEpoch: leaderEpoch, LastFetchedEpoch: -1,
	})
	if err != nil {
		return err
	}
	r.highWatermark = res.HighWatermark
	n := res.View.Len()
	if n == 0 {
		return nil
	}
	defer res.View.Release()
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	r.buf = r.buf[:n]
	if _, err := res.View.ReadAt(r.buf, 0); err != nil {
		return fmt.Errorf("%s at %d: %w", p.Key(), r.at, err)
	}
	for rest := r.buf; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			return fmt.Errorf("%s at %d: %w", p.Key(), r.next, err)
		}
		if b.NextOffset() <= r.next { // the read begins with the batch that holds the offset
			continue
		}
		if err := b.VerifyCRC(); err != nil {
			return fmt.Errorf("%s: %w", p.Key(), err)
		}
		if err := fn(b); err != nil {
			return err
		}
		r.next = b.NextOffset()
	}
	return nil
}
