package partition

import (
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/segment"
)

// HighWatermarkOffset asks DeleteRecords for everything below the high watermark.
const HighWatermarkOffset int64 = -1

// DeleteRecords moves the log start up to offset and answers where it is then.
// A start that is there already is no error. Where durability=fsync, the new
// start is on disk when it is answered: what a client was told is deleted does
// not come back.
func (p *Partition) DeleteRecords(offset int64) (start int64, err error) {
	p.appendMu.Lock()
	err = p.deleteLocked(offset)
	fsync := p.settings.fsync
	p.appendMu.Unlock()
	if err != nil {
		return -1, p.wrap(err)
	}
	if fsync {
		if err := p.log.SyncMarks(); err != nil {
			p.fail(err)
			return -1, p.storage(err)
		}
	}
	p.wake()          // consumers that wait below the new start
	p.wakeFollowers() // they follow it at once
	return p.log.StartOffset(), nil
}

// StartFollowed tells whether every follower in sync has its log begin at start or
// above, so that whoever leads next does too: what a client was told is deleted does
// not come back with another leader. It is an error where this broker does not lead.
func (p *Partition) StartFollowed(start int64) (bool, error) {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if err := p.view.Load().usable(); err != nil {
		return false, p.wrap(err)
	}
	return p.tracker == nil || p.tracker.LowestStart() >= start, nil
}

// AwaitStarts has waiters told of followers' new log starts until done is called.
func (p *Partition) AwaitStarts() (done func()) {
	p.startsAwaited.Add(1)
	return func() { p.startsAwaited.Add(-1) }
}

func (p *Partition) deleteLocked(offset int64) error {
	v := p.view.Load()
	if err := v.usable(); err != nil {
		return err
	}
	if v.attached {
		return ErrMirrored
	}
	if p.settings.compacted && !p.settings.deleted {
		return fmt.Errorf("%w: cleanup.policy is compact", ErrPolicy)
	}
	if offset == HighWatermarkOffset {
		offset = v.highWatermark
	}
	if offset < 0 || offset > v.highWatermark {
		return fmt.Errorf("%w: delete below %d, the high watermark is %d", ErrOutOfRange, offset, v.highWatermark)
	}
	if offset <= p.log.StartOffset() {
		return nil
	}
	err := p.log.SetStartOffset(offset)
	switch {
	case errors.Is(err, segment.ErrRebuilding):
		return p.notYet(err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrStorage, err)
	}
	return nil
}
