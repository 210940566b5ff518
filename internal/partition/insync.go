package partition

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/quota"
)

// ISRMember is one member of a proposed ISR, with the epoch of the broker's
// registration as its fetches told it, -1 if they did not (KIP-903).
type ISRMember struct {
	ID    int32
	Epoch int64
}

// ISRChange is an ISR that a leader proposes. The controller takes it only if
// neither the leader epoch nor the partition epoch has moved since.
type ISRChange struct {
	Topic                       metadata.TopicID
	Partition                   int32
	LeaderEpoch, PartitionEpoch int32
	ISR                         []ISRMember
}

// ISRResult is the controller's answer to one change: the partition epoch as it
// is now, or why nothing changed.
type ISRResult struct {
	PartitionEpoch int32
	Err            error
}

// ErrISRRefused: the controller will not have this ISR, and says so for certain.
// After any other error it may have taken it.
var ErrISRRefused = errors.New("the controller refuses the ISR")

const (
	// isrPatience bounds one call to the controller.
	isrPatience = 10 * time.Second
	// isrBackoff is between a call that failed and the next try.
	isrBackoff = 500 * time.Millisecond
	// ackCheck is how exactly the timeouts of producers are kept.
	ackCheck = 250 * time.Millisecond
)

var (
	isrShrinks = obs.Counter("lockstep_isr_shrinks_total")
	isrExpands = obs.Counter("lockstep_isr_expands_total")
)

func countISR(before, after int) {
	switch {
	case after < before:
		isrShrinks.Inc()
	case after > before:
		isrExpands.Inc()
	}
}

// shared is what the partitions of a broker have in common as leaders of others:
// who leads with followers, and which acknowledgements run out of time. Its locks
// are leaves.
type shared struct {
	lease func() bool
	clock clock.Clock
	log   *slog.Logger
	alter func(context.Context, []ISRChange) []ISRResult // nil: the ISR never changes
	lag   time.Duration
	// promptWatermark ends the wait of followers when the high watermark moves.
	promptWatermark bool
	// leaderThrottle and followerThrottle are what replicas may be given and may take
	// that topics list as throttled (KIP-73), mirrorThrottle what leaders may take from the
	// sources of mirrors.
	leaderThrottle, followerThrottle, mirrorThrottle *quota.Throttle
	image                                            atomic.Pointer[metadata.Image]

	mu struct {
		sync.Mutex
		led  map[*Partition]struct{} // led here, with replicas elsewhere
		late map[*Partition]struct{} // acknowledgements wait with a deadline
		// offline are those whose logs cannot be used.
		offline map[*Partition]struct{}
		queue   []isrProposal
		// due are proposals to be sent again after the backoff.
		due []isrProposal
	}
	offline  func()        // a partition went offline
	wakeISR  chan struct{} // capacity 1
	checkISR chan struct{} // capacity 1: look at everything now
	wakeAcks chan struct{} // capacity 1
	ctx      context.Context
	cancel   context.CancelFunc
	done     sync.WaitGroup
	// spawn runs what may wait for the disk beside its caller.
	spawn func(work func())
}

type isrProposal struct {
	p      *Partition
	change ISRChange
}

func newShared(o *Options) *shared {
	s := &shared{
		lease: o.Lease, clock: o.Clock, log: o.Logger, alter: o.AlterISR, lag: o.ReplicaLag, promptWatermark: o.PromptWatermark,
		leaderThrottle: quota.NewThrottle(o.Clock), followerThrottle: quota.NewThrottle(o.Clock), mirrorThrottle: quota.NewThrottle(o.Clock),
		wakeISR: make(chan struct{}, 1), checkISR: make(chan struct{}, 1), wakeAcks: make(chan struct{}, 1),
	}
	s.mu.led, s.mu.late, s.mu.offline = make(map[*Partition]struct{}), make(map[*Partition]struct{}), make(map[*Partition]struct{})
	if s.offline = o.Offline; s.offline == nil {
		s.offline = func() {}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.spawn = func(work func()) { s.done.Go(work) }
	return s
}

// start begins to look after the partitions; without it, somebody else does.
func (s *shared) start() {
	s.done.Add(1)
	go s.expireLate()
	if s.alter != nil {
		s.done.Add(1)
		go s.keepInSync()
	}
}

func (s *shared) close() {
	s.cancel()
	s.done.Wait()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// lead notes whether p has followers to look after.
func (s *shared) lead(p *Partition, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if yes {
		s.mu.led[p] = struct{}{}
	} else {
		delete(s.mu.led, p)
	}
}

func (s *shared) ledHere() []*Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Partition, 0, len(s.mu.led))
	for p := range s.mu.led {
		out = append(out, p)
	}
	return inOrder(out)
}

// setOffline notes whether p's log cannot be used.
func (s *shared) setOffline(p *Partition, yes bool) {
	s.mu.Lock()
	_, was := s.mu.offline[p]
	if yes {
		s.mu.offline[p] = struct{}{}
	} else {
		delete(s.mu.offline, p)
	}
	s.mu.Unlock()
	if yes && !was {
		s.offline()
	}
}

// Offline lists the partitions whose logs cannot be used: damaged, or in a log directory
// that is lost.
func (m *Manager) Offline() []*Partition {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	out := make([]*Partition, 0, len(m.shared.mu.offline))
	for p := range m.shared.mu.offline {
		out = append(out, p)
	}
	return inOrder(out)
}

// inOrder sorts partitions by their keys: what is done about many of them has the
// same order whenever it is done again.
func inOrder(list []*Partition) []*Partition {
	slices.SortFunc(list, func(a, b *Partition) int {
		return cmp.Or(metadata.TopicID(a.key.TopicID).Compare(metadata.TopicID(b.key.TopicID)), cmp.Compare(a.key.Partition, b.key.Partition))
	})
	return list
}

// expire notes that an acknowledgement of p waits with a deadline.
func (s *shared) expire(p *Partition) {
	s.mu.Lock()
	_, known := s.mu.late[p]
	s.mu.late[p] = struct{}{}
	s.mu.Unlock()
	if !known {
		signal(s.wakeAcks)
	}
}

// expireLate answers writes that wait too long. It sleeps while none waits.
func (s *shared) expireLate() {
	defer s.done.Done()
	for {
		select {
		case <-s.wakeAcks:
		case <-s.ctx.Done():
			return
		}
		for waiting := true; waiting; {
			timer := s.clock.NewTimer(ackCheck)
			select {
			case <-timer.C():
			case <-s.ctx.Done():
				timer.Stop()
				return
			}
			waiting = s.expireOnce()
		}
	}
}

func (s *shared) expireOnce() (waiting bool) {
	s.mu.Lock()
	list := make([]*Partition, 0, len(s.mu.late))
	for p := range s.mu.late {
		list = append(list, p)
	}
	clear(s.mu.late) // those with more come back below
	s.mu.Unlock()
	now := s.clock.Now()
	for _, p := range inOrder(list) {
		if p.expireAcks(now) {
			waiting = true
			s.mu.Lock()
			s.mu.late[p] = struct{}{}
			s.mu.Unlock()
		}
	}
	return waiting
}

// expireAcks answers the writes that have waited too long, and tells whether any
// are left.
func (p *Partition) expireAcks(now time.Time) (more bool) {
	p.appendMu.Lock()
	late := p.acks.takeLate(now)
	more = len(p.acks.q) > 0
	p.appendMu.Unlock()
	p.finish(late, p.wrap(ErrTimedOut))
	return more
}

// mayJoin says whether a broker may be in an ISR: alive, about to stay, and the
// same that fetched (KIP-841, KIP-903).
func (s *shared) mayJoin(id int32, brokerEpoch int64) bool {
	img := s.image.Load()
	if img == nil {
		return false
	}
	b := img.Broker(id)
	return b.Eligible() && (brokerEpoch < 0 || b.Epoch == brokerEpoch)
}

// staleBroker says whether a fetch is of a registration that another has replaced.
func (s *shared) staleBroker(id int32, brokerEpoch int64) bool {
	img := s.image.Load()
	if img == nil || brokerEpoch < 0 {
		return false
	}
	b := img.Broker(id)
	return b != nil && b.Epoch > brokerEpoch
}

// applied hears of each image before the partitions do.
func (s *shared) applied(prev, next *metadata.Image) {
	s.image.Store(next)
	if s.alter == nil || prev == nil {
		return
	}
	for _, b := range next.Brokers() {
		if prev.Broker(b.ID) != b { // images share what did not change
			signal(s.checkISR) // somebody may have become able to join
			return
		}
	}
}

// propose queues a change.
func (s *shared) propose(i isrProposal) {
	s.mu.Lock()
	s.mu.queue = append(s.mu.queue, i)
	s.mu.Unlock()
	signal(s.wakeISR)
}

// keepInSync sends proposals to the controller, all that wait with one call, and
// looks for followers that have fallen behind.
func (s *shared) keepInSync() {
	defer s.done.Done()
	check := s.clock.NewTimer(s.lag / 2)
	defer check.Stop()
	retry := s.clock.NewTimer(isrBackoff)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-s.wakeISR:
			if s.send() {
				retry.Reset(isrBackoff)
			}
		case <-s.checkISR:
			s.join()
		case <-check.C():
			s.check()
			check.Reset(s.lag / 2)
		case <-retry.C():
			s.retry()
		case <-s.ctx.Done():
			return
		}
	}
}

// join proposes those who have become able to be in ISRs.
func (s *shared) join() {
	for _, p := range s.ledHere() {
		p.joinInSync()
	}
}

// check looks for followers that have fallen behind.
func (s *shared) check() {
	now := s.clock.Now()
	for _, p := range s.ledHere() {
		p.checkInSync(now, s.lag)
	}
}

// retry puts proposals back into the queue that nobody knows the fate of.
func (s *shared) retry() {
	s.mu.Lock()
	due := s.mu.due
	s.mu.due = nil
	s.mu.Unlock()
	for _, i := range due {
		i.p.proposeAgain(i)
	}
}

// send asks the controller once for everything that waits. again says that some
// of it has to be tried again.
func (s *shared) send() (again bool) {
	queue, changes := s.take()
	if len(queue) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(s.ctx, isrPatience)
	defer cancel()
	return s.settle(queue, s.alter(ctx, changes))
}

// take empties the queue.
func (s *shared) take() ([]isrProposal, []ISRChange) {
	s.mu.Lock()
	queue := s.mu.queue
	s.mu.queue = nil
	s.mu.Unlock()
	changes := make([]ISRChange, len(queue))
	for i := range queue {
		changes[i] = queue[i].change
	}
	return queue, changes
}

// settle hears the answers to what was taken.
func (s *shared) settle(queue []isrProposal, results []ISRResult) (again bool) {
	for i, proposal := range queue {
		res := ISRResult{Err: errors.New("the controller did not answer")}
		if i < len(results) {
			res = results[i]
		}
		if proposal.p.answered(proposal.change, res) {
			again = true
			s.mu.Lock()
			s.mu.due = append(s.mu.due, proposal)
			s.mu.Unlock()
		}
	}
	return again
}

// joinInSync proposes those who have caught up and are not in the ISR.
func (p *Partition) joinInSync() {
	p.appendMu.Lock()
	p.expandLocked()
	p.appendMu.Unlock()
}

func (p *Partition) expandLocked() {
	if p.shared.alter == nil || p.tracker == nil || !p.tracker.MayExpand() {
		return
	}
	if isr := p.tracker.Expand(p.shared.mayJoin); isr != nil {
		p.proposeLocked(isr)
	}
}

// checkInSync proposes an ISR without those who lag behind.
func (p *Partition) checkInSync(now time.Time, lag time.Duration) {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	v := p.view.Load()
	if p.tracker == nil || v.usable() != nil {
		return
	}
	if isr := p.tracker.Shrink(now, lag); isr != nil {
		p.shared.log.Info("followers lag behind and leave the ISR", "topic", p.key.Topic, "partition", p.key.Partition,
			"isr", p.tracker.ISR(), "proposed", isr, "epoch", v.leaderEpoch)
		p.proposeLocked(isr)
		return
	}
	p.expandLocked()
}

func (p *Partition) proposeLocked(isr []int32) {
	v := p.view.Load()
	p.tracker.Propose(isr)
	change := ISRChange{
		Topic: p.key.TopicID, Partition: p.key.Partition, LeaderEpoch: v.leaderEpoch, PartitionEpoch: p.partitionEpoch,
		ISR: make([]ISRMember, len(isr)),
	}
	for i, id := range isr {
		change.ISR[i] = ISRMember{ID: id, Epoch: -1}
		if id != p.nodeID {
			change.ISR[i].Epoch = p.tracker.BrokerEpoch(id)
		}
	}
	p.shared.propose(isrProposal{p, change})
}

// current says whether a proposal is still the one that is in flight.
func (p *Partition) currentLocked(c *ISRChange) bool {
	v := p.view.Load()
	return p.tracker != nil && v.leader && p.tracker.Proposed() != nil && v.leaderEpoch == c.LeaderEpoch && p.partitionEpoch == c.PartitionEpoch
}

// answered hears the controller's answer, and tells whether to ask again. What it
// took is in force when the metadata show it.
func (p *Partition) answered(c ISRChange, res ISRResult) (again bool) {
	p.appendMu.Lock()
	if !p.currentLocked(&c) {
		p.appendMu.Unlock()
		return false
	}
	var finished []pendingAck
	switch {
	case res.Err == nil && res.PartitionEpoch > c.PartitionEpoch:
	case res.Err == nil || errors.Is(res.Err, ErrISRRefused):
		// Nothing was changed. Who may not join yet is proposed again when the
		// brokers' metadata change, or with the next fetch.
		old := p.view.Load()
		next := *old
		p.tracker.Settle()
		p.takeWatermarkLocked(&next)
		finished = p.publishLocked(old, &next)
	default:
		again = true
	}
	p.appendMu.Unlock()
	if res.Err != nil {
		p.shared.log.Warn("change of the ISR was not taken", "topic", p.key.Topic, "partition", p.key.Partition, "err", res.Err)
	}
	if len(finished) > 0 {
		p.finish(finished, nil)
		p.wake()
	}
	return again
}

// proposeAgain sends a proposal once more if it is still the one in flight. The
// controller refuses it should it have taken it the first time.
func (p *Partition) proposeAgain(i isrProposal) {
	p.appendMu.Lock()
	current := p.currentLocked(&i.change)
	p.appendMu.Unlock()
	if current {
		p.shared.propose(i)
	}
}

// Shortfalls counts the partitions led here that have fewer members in the ISR
// than replicas, and those that have so few that nothing is committed.
func (m *Manager) Shortfalls() (underReplicated, belowMinISR int) {
	for _, p := range m.shared.ledHere() {
		p.appendMu.Lock()
		if t := p.tracker; t != nil {
			if len(t.ISR()) < t.Replicas() {
				underReplicated++
			}
			if t.BelowMinISR() {
				belowMinISR++
			}
		}
		p.appendMu.Unlock()
	}
	return underReplicated, belowMinISR
}
