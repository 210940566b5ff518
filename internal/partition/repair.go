package partition

import (
	"context"
	"errors"

	"github.com/lockstep-kafka/lockstep/segment"
)

// A partition whose log is damaged is offline with the *segment.DamageError as
// its reason: nothing is read from it and nothing written. Repair brings it back:
// internal/replica's from the leader, internal/mirror's from the source where this
// broker leads and nobody else can.

// Damaged takes the partition of a log offline that was found damaged; nil if
// this broker has none for it.
func (m *Manager) Damaged(id segment.LogID, d *segment.DamageError) *Partition {
	p := m.ByID(id.Topic, id.Partition)
	if p != nil {
		p.goOffline(d)
	}
	return p
}

// Repair makes the log whole with batches from fetch (see segment.Log.Repair)
// and takes the partition online again.
func (p *Partition) Repair(ctx context.Context, fetch segment.Fetch) (segment.Repaired, error) {
	if p.files == nil {
		return segment.Repaired{}, p.wrap(ErrStorage)
	}
	done, err := p.files.Repair(ctx, fetch)
	if err != nil {
		return done, p.storage(err)
	}
	p.goOnline()
	return done, nil
}

// goOnline ends the offline time of a partition whose log is whole again. A
// failed disk stays a reason of its own.
func (p *Partition) goOnline() {
	p.appendMu.Lock()
	next := *p.view.Load()
	var d *segment.DamageError
	if !errors.As(next.offline, &d) || p.files.Damage() != nil {
		p.appendMu.Unlock()
		return
	}
	next.offline = nil
	next.highWatermark = min(max(next.highWatermark, p.log.HighWatermark()), p.log.EndOffset())
	p.reportEndLocked(&next)
	p.log.SetHighWatermark(next.highWatermark)
	p.view.Store(&next)
	p.shared.setOffline(p, false)
	p.cutBarredLocked(&next) // it was given up when the log went
	p.appendMu.Unlock()
	p.wake()
	p.wakeFollowers()
}

// Damage is why the log is out of use that this partition has; nil while it is whole,
// or there is none.
func (p *Partition) Damage() *segment.DamageError {
	if p.files == nil {
		return nil
	}
	return p.files.Damage()
}

// Cut is what a truncation took away.
type Cut struct {
	Offsets int64
	Kept    string // file with the records that went, empty without one
}

// keep copies what a cut at end is going to remove. The lock is not held over
// it, since it may be a lot; whoever cuts has ended everything that appends.
func (p *Partition) keep(leaderEpoch int32, end int64) (string, error) {
	p.appendMu.Lock()
	err := p.mirrorCheckLocked(leaderEpoch)
	p.appendMu.Unlock()
	if err != nil {
		return "", p.wrap(err)
	}
	k, err := p.log.Keep(end)
	return k.Path, p.storage(err)
}
