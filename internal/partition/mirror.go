package partition

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/pipeline"
)

// MirrorAppend writes batches of the source as they are: offsets, epochs,
// producer ids and CRCs stay the source's (D13). They must have been verified.
// leaderEpoch is the leader epoch in which the caller was started; a deposed
// leader and a partition that is no longer mirrored append nothing (S12, L19).
func (p *Partition) MirrorAppend(leaderEpoch int32, batches []byte) (end int64, err error) {
	p.appendMu.Lock()
	if err := p.mirrorCheckLocked(leaderEpoch); err != nil {
		p.appendMu.Unlock()
		return 0, p.wrap(err)
	}
	a, err := p.log.Append(batches)
	if err != nil {
		p.appendMu.Unlock()
		p.refused(err)
		return 0, fmt.Errorf("%s: %w: %w", p.key, ErrStorage, err)
	}
	finished := p.advanceLocked()
	// The stop may have been recorded, with which disks begin to count, when the fetcher
	// had this in its hands: nothing after it would bring it there.
	v := p.view.Load()
	toDisk := p.settings.fsync && !v.lazy
	p.appendMu.Unlock()
	if v.mirrorThrottled {
		p.shared.mirrorThrottle.Note(len(batches))
	}
	if toDisk {
		p.log.Flush(p.flushed)
	}
	p.wakeFollowers()
	p.finish(finished, nil)
	p.wake()
	return a.End, nil
}

// AdvanceLogStart moves the log start up to what the source still has, never
// beyond our own high watermark (W38).
func (p *Partition) AdvanceLogStart(leaderEpoch int32, start int64) error {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if err := p.mirrorCheckLocked(leaderEpoch); err != nil {
		return p.wrap(err)
	}
	start = min(start, p.view.Load().highWatermark)
	if start <= p.log.StartOffset() {
		return nil
	}
	return p.storage(p.startMoved(p.log.SetStartOffset(start)))
}

// Truncate cuts the log to end (exclusive) and tells how many offsets went. A
// batch that holds end goes whole. The high watermark falls with the log. What
// goes is kept first (reliability rule 11).
func (p *Partition) Truncate(leaderEpoch int32, end int64) (cut Cut, err error) {
	if err := p.Ready(context.Background()); err != nil { // not under the lock
		return cut, err
	}
	if cut.Kept, err = p.keep(leaderEpoch, end); err != nil {
		return cut, err
	}
	var refused []pendingAck
	defer func() { p.finish(refused, p.wrap(ErrReadOnly)) }() // not under the lock
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if err := p.mirrorCheckLocked(leaderEpoch); err != nil {
		return cut, p.wrap(err)
	}
	defer p.wakeFollowers()
	// What a client wrote before the mirror began, and waits for: its place may be the
	// source's soon, whose high watermark says nothing about it.
	refused = p.acks.takeAll()
	p.tracker.Distrust()
	before := p.log.EndOffset()
	if end >= before {
		return cut, nil
	}
	p.cutIn = leaderEpoch
	if end <= p.log.StartOffset() {
		err = p.log.TruncateFully(end)
	} else {
		err = p.log.Truncate(end)
	}
	p.lowerLocked()
	cut.Offsets = before - p.log.EndOffset()
	return cut, p.storage(err)
}

// CutIn says that this replica has cut its log as the leader of leaderEpoch: of what a
// follower got in that epoch nothing tells any more whether we have it.
func (p *Partition) CutIn(leaderEpoch int32) bool {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	return p.cutIn == leaderEpoch
}

// TruncateFully drops everything and lets the empty log begin at start: the
// source's retention ran ahead of us (W40). What goes is kept first.
func (p *Partition) TruncateFully(leaderEpoch int32, start int64) (cut Cut, err error) {
	if cut.Kept, err = p.keep(leaderEpoch, 0); err != nil {
		return cut, err
	}
	var refused []pendingAck
	defer func() { p.finish(refused, p.wrap(ErrReadOnly)) }() // not under the lock
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if err := p.mirrorCheckLocked(leaderEpoch); err != nil {
		return cut, p.wrap(err)
	}
	defer p.wakeFollowers()
	refused = p.acks.takeAll()
	p.cutIn = leaderEpoch
	cut.Offsets = p.log.EndOffset() - p.log.StartOffset()
	err = p.log.TruncateFully(start)
	if err == nil {
		p.tracker.Restart(start)
		next := *p.view.Load()
		next.highWatermark, next.confirmed = start, true
		p.reportEndLocked(&next)
		p.view.Store(&next)
		p.log.SetHighWatermark(next.highWatermark)
	}
	return cut, p.storage(err)
}

// The pipeline asks for these by type assertions, which a changed signature
// quietly fails: the mirror of a source whose log starts inside a batch once
// stayed FAILED because of it.
var (
	_ pipeline.Restarter       = (*Partition)(nil)
	_ interface{ Full() bool } = (*Partition)(nil)
)

// RestartEmpty lets a log without batches begin at start: the source's log start
// lies inside its first batch, and that batch is copied whole.
func (p *Partition) RestartEmpty(leaderEpoch int32, start int64) error {
	if i := p.Info(); i.LogEnd > i.LogStart {
		return p.wrap(fmt.Errorf("log has offsets %d to %d, it cannot begin at %d", i.LogStart, i.LogEnd, start))
	}
	_, err := p.TruncateFully(leaderEpoch, start)
	return err
}

// FlushThen makes everything in the log durable, and calls done after it.
func (p *Partition) FlushThen(done func(error)) {
	if p.log == nil {
		done(p.wrap(ErrStorage))
		return
	}
	p.log.Flush(done)
}

// Flush makes everything in the log durable.
func (p *Partition) Flush(ctx context.Context) error {
	done := make(chan error, 1)
	p.FlushThen(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Partition) mirrorCheckLocked(leaderEpoch int32) error {
	v := p.view.Load()
	if err := v.usable(); err != nil {
		return err
	}
	if leaderEpoch != v.leaderEpoch {
		return fmt.Errorf("%w: %d, partition has %d", ErrFencedEpoch, leaderEpoch, v.leaderEpoch)
	}
	if !v.attached {
		return fmt.Errorf("not a mirror partition, or already stopped: %w", ErrNotLeader)
	}
	return nil
}

func (p *Partition) lowerLocked() {
	end := p.log.EndOffset()
	p.tracker.Lower(end)
	next := *p.view.Load()
	next.highWatermark, next.confirmed = min(next.highWatermark, end), p.tracker.Confirmed()
	p.view.Store(&next)
	p.log.SetHighWatermark(next.highWatermark)
}

func (p *Partition) storage(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", p.key, ErrStorage, err)
}
