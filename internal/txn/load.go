package txn

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// load replays the partition, again and again until it succeeds or the shard
// ends; then the shard takes requests.
func (s *shard) load() bool {
	for {
		began := s.o.Clock.Now()
		image, err := s.replay()
		if err == nil {
			s.serve(image)
			took := s.o.Clock.Now().Sub(began)
			s.c.loads.Update(took.Seconds())
			level := slog.LevelInfo
			if len(s.ids) == 0 {
				level = slog.LevelDebug // 50 of these at the first transaction of a cluster
			}
			s.logger.Log(s.ctx, level, "transactional ids loaded", "ids", len(s.ids), "seconds", took.Seconds())
			return true
		}
		if s.ctx.Err() != nil {
			return false
		}
		s.logger.Warn("transactional ids cannot be loaded yet", "err", err)
		again := s.o.Clock.NewTimer(loadRetry)
		select {
		case <-again.C():
		case <-s.ctx.Done():
			again.Stop()
			return false
		}
	}
}

// replay reads the log from start to end; of each id the last record counts.
func (s *shard) replay() (map[string]values, error) {
	image := map[string]values{}
	err := s.o.Load(s.ctx, s.partition, s.epoch, func(b record.Batch) error {
		if b.IsControl() || b.IsTransactional() {
			return nil // a client's: the coordinator writes none
		}
		err := b.Records(func(r record.Record) error {
			switch id, v, err := decode(r.Key, r.Value); {
			case err != nil:
				// Clients can produce to this topic. One bad record must not keep all
				// other ids from being served.
				s.logger.Warn("record of __transaction_state not understood, skipped",
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

// serve makes machines of what was replayed, opens the shard to requests, and
// goes on with the transactions whose end was decided. Every id is kept,
// MaxIDs or not: the bound refuses new ones only.
func (s *shard) serve(image map[string]values) {
	now := s.o.Clock.Now()
	s.ids = make(map[string]*slot, len(image))
	for id, v := range image {
		m := newMachine(id, s.o, s.epoch)
		m.values, m.logged = v, true
		s.ids[id] = &slot{m: m}
		s.c.census.counted(nil, &m.values)
	}
	s.c.count.Add(int64(len(s.ids)))
	s.every(s.o.TimeoutCheck, checkTimeout{})
	s.every(s.o.ExpiryCheck, checkExpiry{})
	for _, id := range slices.Sorted(maps.Keys(s.ids)) {
		s.step(s.ids[id], now, resume{})
	}
	s.flush(now)
	s.mu.Lock()
	s.mu.loading = false
	s.mu.Unlock()
}
