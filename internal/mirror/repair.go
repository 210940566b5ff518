package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// A mirror's log that is damaged is repaired from the source, whose bytes are
// ours: the damaged range, and nothing else, is fetched once more. Whatever
// wants to work with the log repairs it first, so that the states need no new
// one: MIRRORING ends in FAILED with the damage as its text, the retry repairs,
// and MIRRORING goes on. A stop does not: it never asks the source for anything
// (9.14), and waits for the operator.

// Damaged tells that the log of a partition was found damaged and is out of use.
func (m *Manager) Damaged(topic string, partition int32, err error) {
	m.post(nameKey{topic, partition}, ended{pipeline.End{
		Reason: pipeline.Local, Epoch: -1, Diverging: sdk.Undefined, NewLeader: -1, NewLeaderEpoch: -1, Err: err,
	}})
}

// heal repairs p after its log was found damaged.
func (t *task) heal(p *partition.Partition, d *segment.DamageError) error {
	if t.action == actStop {
		return d
	}
	log := t.log()
	log.Info("damaged range is asked of the source", "file", d.File, "offset", d.Offset)
	done, err := t.healFrom(p, false)
	if err != nil && !errors.Is(err, source.ErrGone) && !errors.Is(err, segment.ErrNotWhole) {
		done, err = t.healFrom(p, true) // another broker may lead there by now
	}
	if err != nil {
		log.Warn("damaged range was not repaired from the source", "file", d.File, "offset", d.Offset, "err", err)
		return fmt.Errorf("%w; not repaired from the source: %w", d, err)
	}
	for _, r := range done.Ranges {
		log.Info("damaged range was repaired from the source", "file", r.File, "position", r.Position, "from", r.From, "to", r.To, "quarantine", done.Quarantine)
	}
	t.r.m.metrics.repaired.Add(len(done.Ranges))
	return nil
}

func (t *task) healFrom(p *partition.Partition, fresh bool) (segment.Repaired, error) {
	loc, res := t.source(fresh)
	if res.err != nil {
		return segment.Repaired{}, res.err
	}
	cluster, err := t.peer.source()
	if err != nil {
		return segment.Repaired{}, err
	}
	return p.Repair(t.ctx, func(ctx context.Context, from, to int64) ([]byte, int64, error) {
		ctx, cancel := t.r.m.sched.within(ctx, t.peer.timeout())
		defer cancel()
		return cluster.Range(ctx, loc.broker, loc.key, loc.epoch, from, to)
	})
}
