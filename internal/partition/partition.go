package partition

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/isr"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Partition is one replica of one partition on this broker.
type Partition struct {
	key    sdk.PartitionKey
	nodeID int32
	clock  clock.Clock
	log    Log          // nil while offline from the start
	files  *segment.Log // log, where it is one of files
	dir    *logDir      // where the log is; nil if that is not known
	shared *shared      // of the manager
	// applied is what the newest image that was followed says of it; of Manager.Apply alone.
	applied *metadata.Partition

	// appendMu serialises everything that changes the log or the role: appends,
	// truncations, leader epochs. It is held across the write to the page cache
	// and never across an fsync, the network or a callback.
	appendMu sync.Mutex
	acks     ackQueue      // guarded by appendMu
	tracker  *isr.Tracker  // guarded by appendMu
	settings topicSettings // guarded by appendMu
	// partitionEpoch counts the changes of the ISR that the metadata have told.
	partitionEpoch int32 // guarded by appendMu
	// watch hears of followers' fetches, see WatchFetches; guarded by appendMu.
	watch func(replica, leaderEpoch int32, offset int64)
	// barrier is the last truncation barrier that is known to be behind the log, and
	// bar the one that is being passed; guarded by appendMu.
	barrier int32
	bar     *metadata.StaleReplica
	cutting bool // a goroutine is cutting for it
	// cutIn is the leader epoch in which this replica cut its log last as the leader, -1
	// if it has not since it was opened; guarded by appendMu.
	cutIn int32
	// startsAwaited counts those who wait for followers to delete what was deleted here.
	startsAwaited atomic.Int32
	// verifying are the transactions about which the coordinator is being asked.
	verifying verifications // guarded by appendMu

	// view is what readers see; replaced as a whole, under appendMu.
	view atomic.Pointer[view]

	waiters struct {
		sync.Mutex
		set     map[*Waiter]struct{}
		follows []*Follow // replica fetches
	}
}

// view is the published state of a partition: what a request must know without
// waiting for an append that is under way.
//
// Invariant: highWatermark <= the log's end.
type view struct {
	leaderID      int32
	leaderEpoch   int32
	leader        bool         // this broker leads
	attached      bool         // belongs to a mirror and is not STOPPED: client writes are refused (L18)
	lazy          bool         // attached, and its run has not ended: the source has what is not on disks yet (D11)
	compacted     bool         // the log is compacted
	compression   *compression // nil: batches stay as clients compress them
	highWatermark int64
	offline       error // why the log cannot be used; nil if it can
	gone          bool  // topic deleted or broker closing
	// leaderThrottled: others that are not in sync get from here what the throttle
	// lets through; followerThrottled: this replica is not in sync and takes no more;
	// mirrorThrottled: neither does it from a mirror's source.
	leaderThrottled, followerThrottled, mirrorThrottled bool
	barred                                              bool // a truncation barrier is not behind it: it neither follows nor leads

	replicas []int32
	// confirmed: of a leader, the ISR has everything that the log had when its
	// leadership began. Until then it cannot tell where the committed part ends.
	confirmed bool
	lease     func() bool // false: this broker may have been deposed; nil: it cannot be
}

// topicSettings are the topic configs that the write path needs, resolved once
// per metadata change.
type topicSettings struct {
	maxMessageBytes                                     int
	minInSync                                           int
	times                                               timeBounds
	compacted                                           bool // cleanup.policy has compact in it: records need keys
	deleted                                             bool // cleanup.policy has delete in it
	compression                                         *compression
	leaderThrottled, followerThrottled, mirrorThrottled throttledReplicas
	fsync                                               bool // durability=fsync: the high watermark and acks=all wait for the disk (D11)
}

// Info is a snapshot for metadata answers, metrics and the mirror manager.
type Info struct {
	Leader        bool
	LeaderID      int32
	LeaderEpoch   int32
	LogStart      int64
	HighWatermark int64
	LastStable    int64
	LogEnd        int64
	ReadOnly      bool
	Offline       error
}

func newPartition(key sdk.PartitionKey, nodeID int32, c clock.Clock, log Log, openErr error, s *shared) *Partition {
	p := &Partition{key: key, nodeID: nodeID, clock: c, log: log, shared: s, cutIn: -1}
	p.files, _ = log.(*segment.Log)
	v := &view{leaderID: -1, leaderEpoch: -1, offline: openErr, lease: s.lease}
	if log != nil {
		v.highWatermark = min(log.HighWatermark(), log.EndOffset())
	}
	p.view.Store(v)
	if openErr != nil {
		s.setOffline(p, true)
	}
	return p
}

// Full says that its log directory takes no records for want of room.
func (p *Partition) Full() bool {
	return p.files != nil && p.files.Store().Health().State == segment.Full
}

// Key names the partition.
func (p *Partition) Key() sdk.PartitionKey { return p.key }

// Log is the partition's log; nil while it is offline from the start. Callers
// outside this package only read from it.
func (p *Partition) Log() *segment.Log { return p.files }

// ReadLog is the same log for those who only ask it: also where it is none of files,
// as in the simulation. Nil while the partition is offline from the start.
func (p *Partition) ReadLog() Log { return p.log }

// Opened tells whether there is a log.
func (p *Partition) Opened() bool { return p.log != nil }

// HistoryKnown tells whether all is known about a log that was opened; see Ready.
func (p *Partition) HistoryKnown() bool { return p.log.Ready() == nil }

// Info takes a snapshot.
func (p *Partition) Info() Info {
	v := p.view.Load()
	i := Info{
		Leader: v.leader, LeaderID: v.leaderID, LeaderEpoch: v.leaderEpoch,
		HighWatermark: v.highWatermark, ReadOnly: v.attached, Offline: v.offline,
	}
	if p.log != nil {
		i.LogStart, i.LogEnd = p.log.StartOffset(), p.log.EndOffset()
		i.LastStable = p.log.LastStable(v.highWatermark)
	}
	return i
}

// HighWatermark is the exclusive end of what the ISR has.
func (p *Partition) HighWatermark() int64 { return p.view.Load().highWatermark }

// LogEnd is where the next batch goes, and the leader epoch of the last one
// (-1 for an empty log): the position of a mirror, which has no other (D15).
func (p *Partition) LogEnd() (end int64, lastEpoch int32) {
	if p.log == nil {
		return 0, -1
	}
	end = p.log.EndOffset()
	if e, ok := p.log.LatestEpoch(); ok {
		return end, e
	}
	return end, -1
}

// stops reports whether a mirror's run ends, or has ended: also where the next start has
// been asked for, which begins after that only.
func stops(s metadata.MirrorState) bool {
	return s == metadata.StateStopping || s == metadata.StateStopped
}

// update applies the metadata image's idea of this partition.
func (p *Partition) update(t *metadata.Topic, mp *metadata.Partition, settings topicSettings) {
	p.appendMu.Lock()
	old := p.view.Load()
	next := *old
	next.leaderID, next.leaderEpoch = mp.Leader, mp.LeaderEpoch
	next.leader = mp.Leader == p.nodeID
	next.replicas = mp.Replicas
	next.attached = t.ReadOnly(mp)
	next.lazy = next.attached && t.Attachment().Desired != metadata.DesiredStopped && !stops(t.MirrorState(mp))
	next.compacted = settings.compacted
	next.compression = settings.compression
	next.leaderThrottled = settings.leaderThrottled.has(mp.Index, p.nodeID)
	next.mirrorThrottled = settings.mirrorThrottled.has(mp.Index, p.nodeID)
	next.followerThrottled = settings.followerThrottled.has(mp.Index, p.nodeID) && !slices.Contains(mp.ISR, p.nodeID)
	// From now on the leader waits for what is on disks, and what is in the log may have
	// been written when it did not, as soon as a mirror is to end above all: nothing but
	// this would bring that there before something is appended.
	toDisk := settings.fsync && !next.lazy && (old.lazy || !p.settings.fsync)
	p.settings = settings

	var failed []pendingAck
	var stale error
	in := isr.Settings{Replicas: mp.Replicas, ISR: mp.ISR, MinISR: settings.minInSync, Durable: settings.fsync && !next.lazy}
	switch {
	case p.log == nil:
	case next.leader && (!old.leader || p.tracker == nil):
		p.tracker = isr.New(p.nodeID, in, next.highWatermark, p.log.EndOffset(), p.clock.Now())
		p.reportEndLocked(&next)
	case next.leader:
		// Writes that wait across a raised epoch stay valid: the leader and
		// its log are the same. Only a change of leader ends them.
		countISR(len(p.tracker.ISR()), len(mp.ISR))
		p.tracker.Configure(in, p.clock.Now())
		if old.leaderEpoch != next.leaderEpoch && !invariants.Planted("returnedReplicaTrusted") {
			p.tracker.Forget() // with the epoch a replica may have gone, and come back empty, unseen
		}
		if old.leaderEpoch != next.leaderEpoch || p.partitionEpoch != mp.PartitionEpoch {
			p.tracker.Settle() // after what came of it is known: it counts until then
		}
		p.reportEndLocked(&next)
		if p.tracker.BelowMinISR() {
			failed, stale = p.acks.takeTimed(), p.wrap(ErrNotEnoughReplicasAfter)
		}
	default:
		failed, stale = p.acks.takeAll(), p.wrap(ErrNotLeader)
		p.tracker = nil
		p.verifying.breakAll()
		next.confirmed = false
	}
	p.partitionEpoch = mp.PartitionEpoch
	p.barLocked(mp, &next)
	p.shared.lead(p, next.leader && len(mp.Replicas) > 1)
	if p.log != nil {
		p.log.SetHighWatermark(next.highWatermark)
	}
	p.view.Store(&next)
	done := p.acks.take(next.highWatermark)
	p.appendMu.Unlock()

	p.finish(done, nil)
	p.finish(failed, stale)
	if toDisk && p.log != nil && next.offline == nil && p.log.DurableEnd() < p.log.EndOffset() {
		p.log.Flush(p.flushed)
	}
	p.wake()
	p.wakeFollowers()
}

// reportEndLocked tells the tracker how far this replica is and moves the high
// watermark in v. Mirrored data counts when it is in the log, because the
// source still has it (D11); a client's data under durability=fsync counts
// when it is on disk, so that nobody reads what a power cut takes back.
func (p *Partition) reportEndLocked(v *view) {
	if p.tracker == nil {
		return
	}
	durable := p.log.DurableEnd()
	end := p.log.EndOffset()
	if invariants.Planted("ackBeforeFsync") {
		durable = end
	}
	p.tracker.Local(end, durable)
	p.takeWatermarkLocked(v)
}

// takeWatermarkLocked brings what the tracker knows into v.
func (p *Partition) takeWatermarkLocked(v *view) {
	v.highWatermark = max(v.highWatermark, p.tracker.HighWatermark())
	v.confirmed = p.tracker.Confirmed()
}

// advance publishes how far this replica is now, and returns the writes whose
// acknowledgement that reaches.
func (p *Partition) advanceLocked() []pendingAck {
	old := p.view.Load()
	next := *old
	p.reportEndLocked(&next)
	return p.publishLocked(old, &next)
}

// publishLocked publishes a high watermark that may have moved, and returns the
// writes whose acknowledgement that reaches.
func (p *Partition) publishLocked(old, next *view) []pendingAck {
	if next.highWatermark == old.highWatermark && next.confirmed == old.confirmed {
		return nil
	}
	p.view.Store(next)
	p.log.SetHighWatermark(next.highWatermark)
	if p.shared.promptWatermark && next.highWatermark != old.highWatermark {
		p.tellFollowers() // our own disk may have been the last one that it waited for
	}
	return p.acks.take(next.highWatermark)
}

// close ends the partition: its topic was deleted or the broker stops.
func (p *Partition) close() {
	p.appendMu.Lock()
	next := *p.view.Load()
	next.gone, next.leader = true, false
	p.view.Store(&next)
	failed := p.acks.takeAll()
	p.shared.lead(p, false)
	p.shared.setOffline(p, false)
	p.appendMu.Unlock()
	p.finish(failed, p.wrap(ErrClosed))
	p.wake()
	p.wakeFollowers()
}

// fail takes the partition offline after its disk failed, and with it those
// that are on the same disk.
func (p *Partition) fail(err error) {
	if p.dir != nil {
		p.dir.checkFailed()
	}
	p.goOffline(err)
}

func (p *Partition) goOffline(err error) {
	p.appendMu.Lock()
	p.setOfflineLocked(err)
	failed := p.acks.takeAll()
	p.appendMu.Unlock()
	p.finish(failed, fmt.Errorf("%s: %w: %w", p.key, ErrStorage, err))
	p.wake()
	p.wakeFollowers()
}

func (p *Partition) setOfflineLocked(err error) {
	if next := *p.view.Load(); next.offline == nil && !next.gone {
		next.offline = err
		p.view.Store(&next)
		p.shared.setOffline(p, true)
	}
}

func (p *Partition) wrap(err error) error { return fmt.Errorf("%s: %w", p.key, err) }

// usable answers why a leader's request cannot be served, or nil.
func (v *view) usable() error {
	switch {
	case v.gone:
		return ErrUnknown
	case v.offline != nil:
		return fmt.Errorf("%w: %w", ErrStorage, v.offline)
	case !v.leader:
		return ErrNotLeader
	case v.barred:
		return errBarred
	case v.lease != nil && !v.lease() && !invariants.Planted("leaseIgnored"):
		return fmt.Errorf("%w: its session with the controller may have ended", ErrNotLeader)
	}
	return nil
}

// readable answers why a consumer's fetch cannot be served, or nil. A follower serves
// what it knows to be committed, also while nobody leads.
func (v *view) readable(anyReplica bool) error {
	switch {
	case !anyReplica || v.leader || v.gone || v.offline != nil:
		return v.usable()
	case v.barred:
		return errBarred
	}
	return nil
}

// checkEpoch compares the leader epoch that a client believes in with ours
// (KIP-320); -1 skips the check.
func (v *view) checkEpoch(current int32) error {
	switch {
	case current < 0 || current == v.leaderEpoch:
		return nil
	case current < v.leaderEpoch:
		return fmt.Errorf("%w: %d < %d", ErrFencedEpoch, current, v.leaderEpoch)
	}
	return fmt.Errorf("%w: %d > %d", ErrUnknownEpoch, current, v.leaderEpoch)
}

func settingsOf(get func(string) string) topicSettings {
	number := func(name string, otherwise int64) int64 {
		n, err := strconv.ParseInt(get(name), 10, 64)
		if err != nil {
			return otherwise // the controller validated it; a gap in the table means the default
		}
		return n
	}
	const never = int64(1<<63 - 1)
	compacted, deleted := cleanupPolicy(get)
	maxMessageBytes := int(number("max.message.bytes", 1048588))
	times := timeBounds{
		logAppendTime: get("message.timestamp.type") == "LogAppendTime",
		beforeMaxMs:   number("message.timestamp.before.max.ms", never),
		afterMaxMs:    number("message.timestamp.after.max.ms", 3600000),
	}
	return topicSettings{
		compression: compressionOf(get, maxMessageBytes, times),
		compacted:   compacted, deleted: deleted,
		maxMessageBytes: maxMessageBytes,
		minInSync:       int(number("min.insync.replicas", 1)),
		times:           times,
		fsync:           get("durability") != "replicated",

		leaderThrottled:   parseThrottledReplicas(get(metadata.LeaderThrottledReplicasConfig)),
		followerThrottled: parseThrottledReplicas(get(metadata.FollowerThrottledReplicasConfig)),
		mirrorThrottled:   parseThrottledReplicas(get(metadata.MirrorThrottledReplicasConfig)),
	}
}
