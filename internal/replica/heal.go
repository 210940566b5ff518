package replica

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/segment"
)

const (
	// healBackoff is the pause after a repair that failed, and doubles up to
	// maxHealBackoff: the damaged files are read anew for each try.
	healBackoff    = 500 * time.Millisecond
	maxHealBackoff = time.Minute
	// healTimeout bounds one answer of the leader.
	healTimeout = 30 * time.Second
)

// Damaged tells that the log of a partition was found damaged and is out of use. It
// must not be followed on: what comes next would be behind a hole, and the leader
// count us as one who has everything.
func (m *Manager) Damaged(topic metadata.TopicID, index int32) {
	m.post(func() {
		if f := m.mu.followers[partitionID{topic, index}]; f != nil && f.pipeline != nil {
			f.detach()
			f.failures = 0
			f.place()
		}
	})
}

// heal repairs a damaged log with bytes from the leader, and then follows. What is
// fetched is checked like everything that a repair takes: CRC, offsets that fill the
// hole, leader epochs that fit between the neighbours and are those that the log
// remembers. A range that the leader has otherwise, or not at all, is of records that
// were never committed and go when we follow; the log stays out of use until an
// operator gives them up (lockstep repair --accept-loss).
func (f *follower) heal(p *partition.Partition) {
	m, leader, epoch, generation := f.m, f.leader, f.epoch, f.generation
	d, log := p.Damage(), f.log()
	if d == nil || m.o.Ask == nil {
		f.retry()
		return
	}
	if f.failures == 0 {
		log.Info("damaged range is asked of the leader", "file", d.File, "offset", d.Offset)
	}
	ctx, stop := context.WithCancel(m.ctx)
	f.stopHealing = stop
	m.spawn(func() {
		defer stop()
		select {
		case m.cuts <- struct{}{}:
		case <-ctx.Done():
			return
		}
		done, err := p.Repair(ctx, func(ctx context.Context, from, to int64) ([]byte, int64, error) {
			ctx, cancel := context.WithTimeout(ctx, healTimeout)
			defer cancel()
			ask := func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) { return m.o.Ask(ctx, leader, req) }
			return source.ReplicaRange(ctx, ask, p.Key(), epoch, from, to)
		})
		<-m.cuts
		for _, r := range done.Ranges {
			log.Info("damaged range was repaired from the leader", "file", r.File, "position", r.Position, "from", r.From, "to", r.To, "quarantine", done.Quarantine)
		}
		if ctx.Err() != nil {
			return
		}
		m.post(func() {
			if f.generation != generation || f.pipeline != nil {
				return
			}
			f.stopHealing = nil
			f.healed(d, err)
		})
	})
}

// healed goes on after a repair.
func (f *follower) healed(d *segment.DamageError, err error) {
	if err == nil {
		f.failures = 0
		f.place()
		return
	}
	pause := min(maxHealBackoff, healBackoff<<min(f.failures, 10))
	// Said at once, and then each time that the pause has grown to its end.
	if f.failures == 0 || pause == maxHealBackoff {
		hint := "it is tried again"
		if errors.Is(err, segment.ErrNotWhole) || errors.Is(err, source.ErrGone) {
			hint = "the leader does not have these records, so they were not committed: stop this broker and accept the loss with lockstep repair"
		}
		f.log().Warn("damaged range was not repaired from the leader", "file", d.File, "offset", d.Offset, "err", err, "hint", hint)
	}
	f.failures++
	f.after(pause, f.place)
}
