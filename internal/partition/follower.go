package partition

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Follower is a partition as a follower's fetcher sees it: its batches come from
// the leader as they are. Each call names the leader epoch that the fetcher was
// started for; once the metadata have another one, or make this broker the leader,
// nothing more is written.
type Follower struct {
	p *Partition
	// asked and done are called around each fsync of a batch for which the leader
	// waits. done is on a goroutine of the store.
	asked, done func()
}

var (
	_ pipeline.Target          = (*Follower)(nil)
	_ pipeline.Follower        = (*Follower)(nil)
	_ pipeline.Restarter       = (*Follower)(nil)
	_ interface{ Full() bool } = (*Follower)(nil)
	_ interface{ Held() bool } = (*Follower)(nil)
)

// WaitsForDisk says that the leader waits for what this replica has on its disk.
func (p *Partition) WaitsForDisk() bool {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	return p.settings.fsync && !p.view.Load().lazy
}

// Follower makes a target for a fetcher.
func (p *Partition) Follower(asked, done func()) *Follower {
	return &Follower{p: p, asked: asked, done: done}
}

// LogEnd implements pipeline.Target.
func (f *Follower) LogEnd() (end int64, lastEpoch int32) { return f.p.LogEnd() }

// HighWatermark implements pipeline.Target.
func (f *Follower) HighWatermark() int64 { return f.p.HighWatermark() }

// Full implements what a pipeline asks of a Target before it fetches.
func (f *Follower) Full() bool { return f.p.Full() }

// Ends implements pipeline.Follower.
func (f *Follower) Ends() (start, durable int64) {
	return f.p.log.StartOffset(), f.p.log.DurableEnd()
}

// Held implements what a pipeline asks of a Target before it fetches.
func (f *Follower) Held() bool {
	return f.p.view.Load().followerThrottled && f.p.shared.followerThrottle.Exceeded()
}

// MirrorAppend writes batches of the leader, which have been verified. With
// durability=fsync they are on their way to the disk when it returns.
func (f *Follower) MirrorAppend(leaderEpoch int32, batches []byte) (end int64, err error) {
	p := f.p
	p.appendMu.Lock()
	v, err := p.followingLocked(leaderEpoch)
	if err != nil {
		p.appendMu.Unlock()
		return 0, p.wrap(err)
	}
	a, err := p.log.Append(batches)
	toDisk := p.settings.fsync && !v.lazy
	p.appendMu.Unlock()
	if err != nil {
		p.refused(err)
		return 0, fmt.Errorf("%s: %w: %w", p.key, ErrStorage, err)
	}
	if v.followerThrottled {
		p.shared.followerThrottle.Note(len(batches))
	}
	if toDisk {
		f.asked()
		p.log.Flush(func(err error) {
			// We may lead by now, and our high watermark waits for our disk: nobody
			// else tells it of this.
			p.flushed(err)
			f.done()
		})
	}
	return a.End, nil
}

// followingLocked says whether this broker follows in the given leader epoch.
func (p *Partition) followingLocked(leaderEpoch int32) (*view, error) {
	v := p.view.Load()
	switch {
	case v.gone:
		return v, ErrUnknown
	case v.offline != nil:
		return v, fmt.Errorf("%w: %w", ErrStorage, v.offline)
	case v.barred:
		return v, errBarred
	case v.leader || leaderEpoch != v.leaderEpoch:
		return v, fmt.Errorf("%w: a follower's fetch of epoch %d, partition has %d", ErrFencedEpoch, leaderEpoch, v.leaderEpoch)
	}
	return v, nil
}

// FollowHighWatermark implements pipeline.Follower. It never falls here: what was
// committed stays so, even if a new leader does not know it yet.
func (f *Follower) FollowHighWatermark(leaderEpoch int32, highWatermark int64) {
	p := f.p
	if min(highWatermark, p.log.EndOffset()) <= p.view.Load().highWatermark {
		return
	}
	p.appendMu.Lock()
	v, err := p.followingLocked(leaderEpoch)
	hw := min(highWatermark, p.log.EndOffset())
	if err != nil || hw <= v.highWatermark {
		p.appendMu.Unlock()
		return
	}
	next := *v
	next.highWatermark = hw
	p.view.Store(&next)
	p.log.SetHighWatermark(hw)
	p.appendMu.Unlock()
	p.wake()
}

// AdvanceLogStart follows the leader's log start, at most up to the high watermark.
// Where durability=fsync it is on disk when it returns, and before it is told: the
// leader answers DeleteRecords by it.
func (f *Follower) AdvanceLogStart(leaderEpoch int32, start int64) error {
	p := f.p
	p.appendMu.Lock()
	v, err := p.followingLocked(leaderEpoch)
	if err != nil {
		p.appendMu.Unlock()
		return p.wrap(err)
	}
	moved := false
	if start = min(start, v.highWatermark); start > p.log.StartOffset() {
		err = p.startMoved(p.log.SetStartOffset(start))
		moved = err == nil && p.settings.fsync && !v.attached
	}
	p.appendMu.Unlock()
	if moved {
		if err = p.log.SyncMarks(); err != nil {
			p.fail(err)
		}
	}
	return p.storage(err)
}

// Truncate cuts the log to where its history and the leader's part: the leader
// answered that the newest of its epochs which are not above our last one ends at
// diverging. What this takes from below our high watermark is kept first: an
// unclean election takes committed records away.
func (f *Follower) Truncate(leaderEpoch int32, diverging sdk.EpochEnd) (Cut, error) {
	if err := f.p.Ready(context.Background()); err != nil { // not under the lock
		return Cut{}, err
	}
	epoch, end := f.p.log.EpochEnd(diverging.Epoch)
	switch {
	case epoch < 0:
		end = f.p.log.StartOffset()
	case epoch == diverging.Epoch:
		end = min(end, diverging.End)
	}
	if invariants.Planted("truncateToHW") { // as before KIP-101
		end = f.p.HighWatermark()
	}
	return f.cut(leaderEpoch, end, false)
}

// Restart empties the log and lets it begin at start, where the leader's does.
func (f *Follower) Restart(leaderEpoch int32, start int64) (Cut, error) {
	return f.cut(leaderEpoch, start, true)
}

// RestartEmpty implements pipeline.Restarter.
func (f *Follower) RestartEmpty(leaderEpoch int32, start int64) error {
	if i := f.p.Info(); i.LogEnd > i.LogStart {
		return f.p.wrap(fmt.Errorf("log has offsets %d to %d, it cannot begin at %d", i.LogStart, i.LogEnd, start))
	}
	_, err := f.Restart(leaderEpoch, start)
	return err
}

// cut removes what is above end or, with all, everything, the log then beginning
// at end.
func (f *Follower) cut(leaderEpoch int32, end int64, all bool) (cut Cut, err error) {
	p := f.p
	p.appendMu.Lock()
	v, err := p.followingLocked(leaderEpoch)
	start, before := p.log.StartOffset(), p.log.EndOffset()
	p.appendMu.Unlock()
	if err != nil {
		return cut, p.wrap(err)
	}
	stays := end
	if all {
		stays = start
		if end >= before {
			stays = before // the leader's retention has passed us: nothing of it is lost by this
		}
	}
	if stays < min(v.highWatermark, before) {
		k, err := p.log.Keep(stays)
		if err != nil {
			return cut, p.storage(err)
		}
		cut.Kept = k.Path
	}
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if v, err = p.followingLocked(leaderEpoch); err != nil {
		return cut, p.wrap(err)
	}
	defer p.wake()
	next := *v
	switch {
	case all || end <= p.log.StartOffset():
		cut.Offsets = before - start
		err = p.log.TruncateFully(end)
		next.highWatermark = p.log.EndOffset()
	default:
		err = p.log.Truncate(end)
		cut.Offsets = before - p.log.EndOffset()
		next.highWatermark = min(next.highWatermark, p.log.EndOffset())
	}
	if err == nil {
		p.view.Store(&next)
		p.log.SetHighWatermark(next.highWatermark)
	}
	return cut, p.storage(err)
}
