package group

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

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
			if len(s.groups) == 0 {
				level = slog.LevelDebug // 50 of these at the first group of a cluster
			}
			s.logger.Log(s.ctx, level, "groups loaded", "groups", len(s.groups), "seconds", took.Seconds())
			return true
		}
		if s.ctx.Err() != nil {
			return false
		}
		s.logger.Warn("groups cannot be loaded yet", "err", err)
		again := s.o.Clock.NewTimer(loadRetry)
		select {
		case <-again.C():
		case <-s.ctx.Done():
			again.Stop()
			return false
		}
	}
}

// replayed is what the log says of one group.
type replayed struct {
	members *kmsg.GroupMetadataValue // nil: no record, or a tombstone
	offsets map[TopicPartition]committed
}

// replay reads the log from start to end; of each key the last record counts.
func (s *shard) replay() (map[string]*replayed, error) {
	image := map[string]*replayed{}
	err := s.o.Load(s.ctx, s.partition, s.epoch, func(b record.Batch) error {
		// Control batches hold no groups. Offsets inside transactions are not
		// written by this version, and without their markers say nothing.
		if b.IsControl() || b.IsTransactional() {
			return nil
		}
		err := b.Records(func(r record.Record) error {
			d, err := decode(r.Key, r.Value)
			switch {
			case errors.Is(err, errForeignRecord):
				return nil
			case err != nil:
				// Clients can produce to this topic. One bad record must not
				// keep all other groups from being served.
				s.logger.Warn("record of __consumer_offsets not understood, skipped",
					"offset", b.BaseOffset()+int64(r.OffsetDelta), "err", err)
				return nil
			}
			d.apply(image)
			return nil
		})
		if err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		return nil
	})
	return image, err
}

func (d *decoded) apply(image map[string]*replayed) {
	g := image[d.group]
	if g == nil {
		g = &replayed{offsets: map[TopicPartition]committed{}}
		image[d.group] = g
	}
	switch {
	case d.isGroup:
		g.members = d.members
	case d.offset == nil:
		delete(g.offsets, d.tp)
	default:
		g.offsets[d.tp] = *d.offset
	}
	if g.members == nil && len(g.offsets) == 0 {
		delete(image, d.group)
	}
}

// serve makes machines of what was replayed and opens the shard to requests.
func (s *shard) serve(image map[string]*replayed) {
	now := s.o.Clock.Now()
	s.groups = make(map[string]*slot, len(image))
	for id, g := range image {
		m := newMachine(id, s.o, now)
		m.offsets = g.offsets
		if g.members != nil {
			m.restore(now, g.members)
		}
		sl := &slot{m: m}
		s.groups[id] = sl
		s.rearm(sl, now)
	}
	s.c.count.Add(int64(len(s.groups)))
	s.sweeper = s.o.Clock.AfterFunc(s.o.OffsetsRetentionCheck, func() {
		_ = s.post(false, func(now time.Time) { s.sweep(now) }) // refused: the shard has ended
	})
	s.mu.Lock()
	s.mu.loading = false
	s.mu.Unlock()
}
