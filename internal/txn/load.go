package txn

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Replay is coordinator.Driver.Replay.
func (s *shard) Replay(ctx context.Context) (func(now time.Time) int, error) {
	image, err := s.replay(ctx)
	return func(now time.Time) int { return s.serve(now, image) }, err
}

// replay reads the log from start to end; of each id the last record counts.
func (s *shard) replay(ctx context.Context) (map[string]values, error) {
	image := map[string]values{}
	err := s.o.Load(ctx, s.Partition, s.Epoch, func(b record.Batch) error {
		if b.IsControl() || b.IsTransactional() {
			return nil // a client's: the coordinator writes none
		}
		err := b.Records(func(r record.Record) error {
			switch id, v, err := decode(r.Key, r.Value); {
			case err != nil:
				// Clients can produce to this topic. One bad record must not keep all
				// other ids from being served.
				s.Logger.Warn("record of __transaction_state not understood, skipped",
					"offset", b.BaseOffset()+int64(r.OffsetDelta), "err", err)
			case v == nil:
				delete(image, id)
			default:
				image[id] = *v
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		return nil
	})
	return image, err
}

// serve makes machines of what was replayed, and goes on with the transactions
// whose end was decided. Every id is kept, MaxIDs or not: the bound refuses new
// ones only.
func (s *shard) serve(now time.Time, image map[string]values) int {
	for id, v := range image {
		m := newMachine(id, s.o, s.Epoch)
		m.values, m.logged = v, true
		s.ids.Add(id, m)
		s.c.census.counted(nil, &m.values)
	}
	s.c.count.Add(int64(s.ids.Len()))
	s.every(s.o.TimeoutCheck, checkTimeout{})
	s.every(s.o.ExpiryCheck, checkExpiry{})
	for sl := range s.ids.Sorted() {
		s.step(sl, now, resume{})
	}
	return s.ids.Len()
}
