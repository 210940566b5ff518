package partition

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/isr"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// The leader's side of replication: what a follower reads, and what its fetches
// tell. The follower's side is in follower.go.

// Replica is who fetches, and how far it is beside the offset it asks for.
type Replica struct {
	ID          int32
	BrokerEpoch int64 // -1: not told
	Durable     int64 // end of what it has on disk, -1: not told
	LogStart    int64 // -1: not told
}

// ReadReplica serves a follower, up to the end of the log. Asking for an offset it
// says that it has everything below, which may move the high watermark; it does
// not count before its history is known to be a part of ours.
func (p *Partition) ReadReplica(r ReadRequest, f Replica) (ReadResult, error) {
	v := p.view.Load()
	res := ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1, LeaderID: v.leaderID, LeaderEpoch: v.leaderEpoch}
	if err := v.usable(); err != nil {
		return res, p.wrap(err)
	}
	if err := v.checkEpoch(r.CurrentLeaderEpoch); err != nil {
		return res, p.wrap(err)
	}
	res.HighWatermark, res.LogStart = v.highWatermark, p.log.StartOffset()
	if err := p.log.Ready(); errors.Is(err, segment.ErrRebuilding) {
		return res, nil // it waits, as everything that needs the history
	} else if err != nil {
		return res, p.storage(err)
	}
	diverging, err := p.fetched(r, f)
	if err != nil {
		return res, p.wrap(err)
	}
	if diverging != nil {
		res.Diverging = diverging
		return res, nil
	}
	res.HighWatermark = p.view.Load().highWatermark
	end := p.log.EndOffset()
	if res.HeldBack = r.Offset < end && p.holdsBack(f.ID); res.HeldBack {
		return res, nil
	}
	if r.Offset >= end || r.MaxBytes <= 0 && !r.AtLeastOne {
		return res, nil
	}
	if res.View, err = p.log.Read(r.Offset, r.MaxBytes, end, r.AtLeastOne); err != nil {
		return res, p.readError(err)
	}
	if v.leaderThrottled {
		p.shared.leaderThrottle.Note(res.View.Len())
	}
	// What was read is of the leadership that the follower named. An ordinary batch
	// of a later one has an epoch that gives it away, a mirrored one has the source's
	// (spec 10.2).
	if now := p.view.Load(); now.leaderEpoch != v.leaderEpoch || !now.leader {
		res.View.Release()
		res.View = segment.View{}
		return res, p.wrap(fmt.Errorf("%w: %d ended while it was read", ErrFencedEpoch, v.leaderEpoch))
	}
	return res, nil
}

// outlived says that our log begins behind an epoch, and behind all before it. What a
// follower has then lies below our log start, and nobody can tell whether it ever was what
// lay there: it may end inside our first batch, which it could not append, or be shown to
// clients again should a power cut take back its log start. It begins anew.
func (p *Partition) outlived(e int32) bool {
	if last, ok := p.log.LatestEpoch(); ok && e >= last {
		return false
	}
	known := p.log.Epochs()
	return (len(known) == 0 || e < known[0].Epoch) && !invariants.Planted("unknownHistoryKept")
}

// fetched compares the follower's history with ours and counts what it has. Both
// happen under appendMu: a truncation in between would have it counted for records
// that are gone here and still there.
func (p *Partition) fetched(r ReadRequest, f Replica) (*sdk.EpochEnd, error) {
	p.appendMu.Lock()
	v := p.view.Load()
	if err := v.usable(); err != nil {
		p.appendMu.Unlock()
		return nil, err
	}
	if err := v.checkEpoch(r.CurrentLeaderEpoch); err != nil {
		p.appendMu.Unlock()
		return nil, err
	}
	if !slices.Contains(v.replicas, f.ID) {
		p.appendMu.Unlock()
		// One of us has old metadata; the follower asks again, as it does when it is
		// ahead of us.
		return nil, fmt.Errorf("%w: broker %d is not known to have a replica", ErrUnknownEpoch, f.ID)
	}
	if p.shared.staleBroker(f.ID, f.BrokerEpoch) {
		p.appendMu.Unlock()
		return nil, fmt.Errorf("%w: broker %d has registered again since its epoch %d", ErrNotLeader, f.ID, f.BrokerEpoch)
	}
	if r.LastFetchedEpoch >= 0 {
		epoch, end := p.epochEnd(r.LastFetchedEpoch)
		if epoch < 0 {
			p.appendMu.Unlock()
			return nil, fmt.Errorf("%w: no epoch at or below %d is known", ErrOutOfRange, r.LastFetchedEpoch)
		}
		if (epoch < r.LastFetchedEpoch || end < r.Offset) && !invariants.Planted("divergenceIgnored") {
			p.appendMu.Unlock()
			return &sdk.EpochEnd{Epoch: epoch, End: end}, nil
		}
		if p.outlived(r.LastFetchedEpoch) {
			p.appendMu.Unlock()
			return nil, fmt.Errorf("%w: the log begins behind epoch %d", ErrOutOfRange, r.LastFetchedEpoch)
		}
	}
	if start, end := p.log.StartOffset(), p.log.EndOffset(); r.Offset < start || r.Offset > end {
		p.appendMu.Unlock()
		return nil, fmt.Errorf("%w: %d is not in [%d, %d]", ErrOutOfRange, r.Offset, start, end)
	}
	old := v
	next := *old
	lowest := p.tracker.LowestStart()
	p.tracker.Fetched(isr.Fetch{Replica: f.ID, BrokerEpoch: f.BrokerEpoch, End: r.Offset, Durable: f.Durable, Start: f.LogStart}, p.clock.Now())
	p.takeWatermarkLocked(&next)
	finished := p.publishLocked(old, &next)
	moved := next.highWatermark != old.highWatermark
	followed := p.startsAwaited.Load() > 0 && p.tracker.LowestStart() > lowest
	p.expandLocked()
	watch := p.watch
	if r.CurrentLeaderEpoch != v.leaderEpoch {
		watch = nil // it does not say in which leadership it got what it has
	}
	p.appendMu.Unlock()

	if watch != nil {
		watch(f.ID, v.leaderEpoch, r.Offset)
	}
	p.finish(finished, nil)
	if moved {
		p.wake()
		p.tellFollowers()
	} else if followed {
		p.wake()
	}
	return nil, nil
}

// WatchFetches has fn called with each follower's fetch that counts, until it is
// nil again: a mirror's gate waits for them (spec 9.6.4). A fetch that waits for
// records then counts once more, as what it says still holds: it would not be
// repeated where nothing is new. fn must not block.
func (p *Partition) WatchFetches(fn func(replica, leaderEpoch int32, offset int64)) {
	p.appendMu.Lock()
	p.watch = fn
	p.appendMu.Unlock()
	if fn != nil {
		p.wakeFollowers()
	}
}

// Heard says that this replica leads, and that none of the ISR has more than it has.
func (p *Partition) Heard() bool {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	return p.tracker != nil && p.tracker.Heard()
}

// Replicas is what the leader knows of the replicas; nil where it does not lead.
func (p *Partition) Replicas() []isr.State {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if p.tracker == nil {
		return nil
	}
	return p.tracker.States()
}

// FollowQueue is one follower's session at this broker: which of its partitions
// have news. The cost of a partition without any is nothing.
type FollowQueue struct {
	C chan struct{} // one signal when there is something to read

	mu    sync.Mutex
	ready []*Follow
}

// NewFollowQueue makes an empty queue.
func NewFollowQueue() *FollowQueue { return &FollowQueue{C: make(chan struct{}, 1)} }

// Follow is one partition of a FollowQueue.
type Follow struct {
	Owner  any
	queue  *FollowQueue
	queued bool // guarded by queue.mu
}

// NewFollow makes a place for a partition of which the owner knows more.
func (q *FollowQueue) NewFollow(owner any) *Follow { return &Follow{Owner: owner, queue: q} }

// Add puts f into the queue without a signal.
func (q *FollowQueue) Add(f *Follow) { q.add(f, false) }

func (q *FollowQueue) add(f *Follow, wake bool) {
	q.mu.Lock()
	if !f.queued {
		f.queued = true
		q.ready = append(q.ready, f)
	}
	q.mu.Unlock()
	if wake {
		signal(q.C)
	}
}

// Take empties the queue into dst, in the order in which the news came.
func (q *FollowQueue) Take(dst []*Follow) []*Follow {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.ready {
		f.queued = false
	}
	dst = append(dst, q.ready...)
	clear(q.ready)
	q.ready = q.ready[:0]
	return dst
}

// Follow has f's queue told of every append, and of whatever else a follower has
// to hear of. The caller must read the partition once after it.
func (p *Partition) Follow(f *Follow) {
	p.waiters.Lock()
	defer p.waiters.Unlock()
	if !slices.Contains(p.waiters.follows, f) {
		p.waiters.follows = append(p.waiters.follows, f)
	}
}

// Unfollow is safe to call twice.
func (p *Partition) Unfollow(f *Follow) {
	p.waiters.Lock()
	defer p.waiters.Unlock()
	p.waiters.follows = slices.DeleteFunc(p.waiters.follows, func(o *Follow) bool { return o == f })
}

// wakeFollowers ends the waits of followers: there are records, or an error.
func (p *Partition) wakeFollowers() { p.markFollowers(true) }

// tellFollowers lets them learn the new high watermark with their next answer, or at
// once where consumers read from them.
func (p *Partition) tellFollowers() { p.markFollowers(p.shared.promptWatermark) }

func (p *Partition) markFollowers(wake bool) {
	p.waiters.Lock()
	for _, f := range p.waiters.follows {
		f.queue.add(f, wake)
	}
	p.waiters.Unlock()
}
