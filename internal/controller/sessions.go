package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// sessionOptions are the times of [sessions].
type sessionOptions struct {
	// Timeout is how long a broker may be silent. Shorter: sooner replaced; longer:
	// a broker that is starved of CPU keeps its leaderships. Default 3 s.
	Timeout time.Duration
	// AfterLoss is how long one may be silent whose connection broke: enough to
	// connect again. Default 500 ms.
	AfterLoss time.Duration
	// BalanceInterval is the time between two looks for leaders that should be
	// elsewhere; 0 never looks. BalancePercentage is the share of a broker's preferred
	// partitions that others may lead before they are given back.
	BalanceInterval   time.Duration
	BalancePercentage int
	Defaults          defaults
}

const (
	// watchInterval is the longest time between two ticks. A driver that comes later
	// was held up, and with it the heartbeats that it did not read.
	watchInterval = 250 * time.Millisecond
	// maxBalanced bounds the elections of one look for the balance, as in Kafka.
	maxBalanced = 1000
	// maxDrained bounds the partitions that one heartbeat moves away from a broker:
	// about 20 transactions.
	maxDrained = 2000
)

// sessions tells which brokers are alive, and what the active controller has to do
// of its own accord. It is a function of its inputs: it holds no clock, and the
// controller's goroutine drives it with heartbeats, broken connections and ticks,
// and carries out the commands that it answers. Time is monotonic; only what
// follows from it is ever written (D8).
type sessions struct {
	o       sessionOptions
	brokers map[int32]*session
	// last is when the driver was here.
	last time.Time
	// balance is when leaders are looked at next.
	balance time.Time
	// seen is the revision up to which leaderless partitions were looked through,
	// unheardSeen the brokers that were not heard of then.
	seen        int64
	unheardSeen int
	// waiting is the last revision in which a partition changed that has a LastKnownELR,
	// or replicas that wait until they may go, as of seen.
	waiting int64
	ends    map[partitionKey]map[int32]reportedEnd
	asked   map[partitionKey]question
}

// session is one unfenced broker's.
type session struct {
	epoch    int64
	deadline time.Time
	heard    bool // in this term
	// proven is the revision that this broker is known to be alive after. Where it is in
	// the ISR, those who came back, or were taken out of it, before need not be waited for,
	// and those who were to go before may go.
	proven int64
	// unusable is what the last heartbeat said of logs.
	unusable unusable
}

type partitionKey struct {
	topic metadata.TopicID
	index int32
}

// reportedEnd is how far the log of a replica reaches, in one registration.
type reportedEnd struct {
	brokerEpoch int64
	lastEpoch   int32
	end         int64
}

// loss is what is heard of a broker that is not connected any more.
type loss struct {
	broker int32
	// gone is the broker epoch of a process that certainly ended: after it had this one,
	// its machine refused connections in its name. 0: its connection broke, or it does
	// not answer.
	gone int64
}

// begin starts a term. Every unfenced broker gets a fresh session, since nobody knows
// when it was last heard of, but for those that were lost a moment ago.
func (s *sessions) begin(now time.Time, img *metadata.Image, lately []loss) {
	*s = sessions{
		o: s.o, brokers: make(map[int32]*session), last: now, balance: now.Add(s.o.BalanceInterval),
		seen: -1, ends: make(map[partitionKey]map[int32]reportedEnd), asked: make(map[partitionKey]question),
	}
	for _, b := range img.Brokers() {
		if b.Fenced {
			continue
		}
		s.brokers[b.ID] = &session{epoch: b.Epoch, deadline: now.Add(s.o.Timeout)}
	}
	for _, l := range lately {
		s.lose(now, l)
	}
}

// here notes that the driver is here. Time in which it was held up, by a slow store
// above all, is nobody's silence.
func (s *sessions) here(now time.Time) {
	if late := now.Sub(s.last) - watchInterval; late > watchInterval {
		for _, b := range s.brokers {
			b.deadline = b.deadline.Add(late)
		}
	}
	s.last = now
}

// unheard are brokers that are unfenced and have not been heard of in this term.
func (s *sessions) unheard(img *metadata.Image) []int32 {
	var ids []int32
	for _, b := range img.Brokers() {
		if b.Fenced {
			continue
		}
		if cur := s.brokers[b.ID]; cur == nil || cur.epoch != b.Epoch || !cur.heard {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// admit completes a registration with what only sessions know.
func (s *sessions) admit(now time.Time, img *metadata.Image, c registerBroker) registerBroker {
	s.here(now)
	cur := s.brokers[c.ID]
	c.Ended = c.Ended || cur != nil && !cur.deadline.After(now)
	c.Unheard = minus(s.unheard(img), []int32{c.ID})
	return c
}

// heartbeat prolongs a session and answers what follows from it. When that is carried
// out, heartbeatAnswer tells the broker how it stands.
func (s *sessions) heartbeat(now time.Time, img *metadata.Image, hb Heartbeat) ([]Command, error) {
	s.here(now)
	b, err := checkBrokerEpoch(img, BrokerEpoch{hb.Broker, hb.Epoch})
	if err != nil {
		return nil, err
	}
	if len(hb.Offline) > MaxOffline {
		return nil, fmt.Errorf("%w: heartbeat of broker %d names %d offline replicas, at most %d", ErrInvalidRequest, hb.Broker, len(hb.Offline), MaxOffline)
	}
	bad, err := newUnusable(hb.Unusable)
	if err != nil {
		return nil, fmt.Errorf("heartbeat of broker %d: %w", hb.Broker, err)
	}
	cur := s.brokers[hb.Broker]
	if cur == nil || cur.epoch != hb.Epoch {
		cur = &session{epoch: hb.Epoch}
		s.brokers[hb.Broker] = cur
	}
	cur.unusable = bad
	cur.deadline = now.Add(s.o.Timeout)
	news := !cur.heard
	cur.heard = true
	if last := max(lastRegistration(img), s.waiting); hb.Revision >= last && cur.proven < last {
		news, cur.proven = true, last
	}
	cmds, err := heartbeatCommands(img, s.o.Defaults, hb)
	if err == nil && len(cmds) == 0 && news && b.Eligible() {
		cmds = []Command{unfenceBroker{BrokerEpoch{hb.Broker, hb.Epoch}, hb.Revision, s.unheard(img), s.o.Defaults}}
	}
	if err == nil && len(hb.Offline) > 0 {
		if b.Fenced && len(hb.Offline) == MaxOffline {
			cmds = nil // it would be given to lead what it is about to name
		}
		resign := resignReplicas{BrokerEpoch{hb.Broker, hb.Epoch}, hb.Offline, minus(s.unheard(img), []int32{hb.Broker}), s.o.Defaults}
		cmds = append([]Command{resign}, cmds...)
	}
	return cmds, err
}

// lose shortens a session: a process that was killed says so by its connection. Where it
// is known to be gone nothing is waited for, unless that was an earlier process.
func (s *sessions) lose(now time.Time, l loss) {
	s.here(now)
	cur := s.brokers[l.broker]
	if cur == nil {
		return
	}
	soon := now.Add(s.o.AfterLoss)
	if l.gone != 0 && l.gone == cur.epoch {
		soon = now
	}
	if cur.deadline.After(soon) {
		cur.deadline = soon
	}
}

// nextDeadline is when tick wants to be called at the latest.
func (s *sessions) nextDeadline() time.Time {
	next := s.last.Add(watchInterval)
	for _, b := range s.brokers {
		if b.deadline.Before(next) {
			next = b.deadline
		}
	}
	return next
}

// tick answers what time, and changes of the image, ask for: brokers whose sessions
// ended are fenced, leaderless partitions get the leaders that they can have, and
// leaders go back to where they belong.
func (s *sessions) tick(now time.Time, img *metadata.Image) []Command {
	s.here(now)
	var ended []BrokerEpoch
	for _, id := range slices.Sorted(maps.Keys(s.brokers)) {
		cur, b := s.brokers[id], img.Broker(id)
		switch {
		case b == nil || b.Fenced && !cur.deadline.After(now) || b.Epoch > cur.epoch:
			delete(s.brokers, id)
		case !b.Fenced && !cur.deadline.After(now):
			ended = append(ended, BrokerEpoch{id, cur.epoch})
		}
	}
	// A transaction whose fate was unknown may take effect late, and let in a broker
	// whose session was given up meanwhile.
	for _, b := range img.Brokers() {
		if cur := s.brokers[b.ID]; !b.Fenced && (cur == nil || cur.epoch != b.Epoch) {
			s.brokers[b.ID] = &session{epoch: b.Epoch, deadline: now.Add(s.o.Timeout)}
		}
	}
	if len(ended) > 0 {
		return []Command{fenceBrokers{ended, s.o.Defaults}}
	}
	if cmds := s.offline(img); len(cmds) > 0 {
		return cmds
	}
	if s.o.BalanceInterval > 0 && !s.balance.After(now) {
		cmds := unbalanced(img, s.o.Defaults, s.o.BalancePercentage, s.unheard(img))
		s.balance = now.Add(s.o.BalanceInterval)
		if len(cmds) == maxBalanced {
			s.balance = now.Add(watchInterval)
		}
		return cmds
	}
	return nil
}

// offline looks through partitions without a leader, if the image is another one than
// at the last look: for clean elections that a controller before left undone, and for
// waits that have ended.
func (s *sessions) offline(img *metadata.Image) []Command {
	unheard := s.unheard(img)
	if img.Revision == s.seen && len(unheard) == s.unheardSeen {
		return nil
	}
	s.seen, s.unheardSeen, s.waiting = img.Revision, len(unheard), 0
	r := replicasOf(img, s.o.Defaults, unheard...)
	var cmds []Command
	clean := false
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if len(p.LastKnownELR) > 0 || joined(p) {
				s.waiting = max(s.waiting, p.Revision)
			}
			if p.Leader != metadata.NoLeader {
				continue
			}
			ch := r.change(t, p)
			ch.elect()
			clean = clean || ch.next.Leader != metadata.NoLeader
			if p.WaitsForEnds() {
				if c, ok := s.longest(img, t, p); ok {
					cmds = append(cmds, c)
				}
			}
		}
	}
	for k := range s.ends {
		if p := img.Partition(k.topic, k.index); p == nil || !p.WaitsForEnds() {
			delete(s.ends, k)
		}
	}
	if clean {
		cmds = append(cmds, electOffline{unheard, s.o.Defaults})
	}
	return cmds
}

// reportEnds takes the ends of logs that a partition waits for (rule 8); others are
// not kept. It answers the elections that this makes possible.
func (s *sessions) reportEnds(now time.Time, img *metadata.Image, b BrokerEpoch, ends []ReplicaEnd) ([]Command, error) {
	s.here(now)
	if _, err := checkBrokerEpoch(img, b); err != nil {
		return nil, err
	}
	var cmds []Command
	for _, e := range ends {
		t := img.TopicByID(e.Topic)
		p := t.Partition(e.Partition)
		if p == nil || !p.WaitsForEnds() || !slices.Contains(p.LastKnownELR, b.ID) {
			continue
		}
		k := partitionKey{e.Topic, e.Partition}
		if s.ends[k] == nil {
			s.ends[k] = make(map[int32]reportedEnd)
		}
		s.ends[k][b.ID] = reportedEnd{b.Epoch, e.LastEpoch, e.End}
		if c, ok := s.longest(img, t, p); ok {
			cmds = append(cmds, c)
		}
	}
	return cmds, nil
}

// longest is the election of the replica whose log reaches furthest, once everybody
// has told, in the registration that it has now.
func (s *sessions) longest(img *metadata.Image, t *metadata.Topic, p *metadata.Partition) (electLongest, bool) {
	ends := s.ends[partitionKey{t.ID, p.Index}]
	best := metadata.NoLeader
	for _, id := range p.LastKnownELR {
		b, e := img.Broker(id), ends[id]
		if b == nil || e.brokerEpoch != b.Epoch {
			return electLongest{}, false
		}
		if best == metadata.NoLeader || cmp.Or(cmp.Compare(e.lastEpoch, ends[best].lastEpoch), cmp.Compare(e.end, ends[best].end)) > 0 {
			best = id
		}
	}
	if !img.Broker(best).Eligible() {
		return electLongest{}, false
	}
	if cur := s.brokers[best]; cur != nil {
		cur.proven = 0 // what it told may be old
	}
	return electLongest{t.ID, p.Index, best, p.LastKnownELR, s.o.Defaults}, true
}

// question is one that the policy was asked.
type question struct {
	about string
	at    time.Time
}

// askAgain is when a question that got no leader is put again: the policy's program may
// not have answered, or may think otherwise by now.
const askAgain = 30 * time.Second

// unclean are the partitions for which the policy is to be asked whether a replica
// that may lack records shall lead. Each is asked about once, until something about
// it changes, or a while has passed.
func (s *sessions) unclean(img *metadata.Image) []uncleanChoice {
	asked := make(map[partitionKey]question)
	var open []uncleanChoice
	for _, u := range uncleanChoices(img, s.o.Defaults, s.unheard(img)) {
		k := partitionKey{u.Topic.ID, u.Partition.Index}
		if u.Live = minus(u.Live, s.unusable(img, u.Topic, u.Partition)); len(u.Live) == 0 {
			continue
		}
		q, about := s.asked[k], fmt.Sprint(u.Partition.PartitionEpoch, u.Live)
		if q.about != about || s.last.Sub(q.at) >= askAgain {
			q = question{about, s.last}
			open = append(open, u)
		}
		asked[k] = q
	}
	s.asked = asked
	return open
}

// unusable are the replicas of a partition whose brokers have said that they cannot use
// them.
func (s *sessions) unusable(img *metadata.Image, t *metadata.Topic, p *metadata.Partition) []int32 {
	var ids []int32
	for _, id := range p.Replicas {
		cur, b := s.brokers[id], img.Broker(id)
		if cur != nil && b != nil && cur.epoch == b.Epoch && cur.unusable.has(partitionKey{t.ID, p.Index}) {
			ids = append(ids, id)
		}
	}
	return ids
}

// knowing completes an unclean election with what only sessions know.
func (s *sessions) knowing(img *metadata.Image, c electUnclean) electUnclean {
	if t := img.TopicByID(c.Topic); t.Partition(c.Partition) != nil {
		c.Unusable = s.unusable(img, t, t.Partition(c.Partition))
	}
	return c
}

// heartbeatCommands is what a heartbeat asks for, by the image alone.
func heartbeatCommands(img *metadata.Image, def defaults, hb Heartbeat) ([]Command, error) {
	at := BrokerEpoch{hb.Broker, hb.Epoch}
	b, err := checkBrokerEpoch(img, at)
	switch {
	case err != nil:
		return nil, err
	case hb.WantFence && !b.Fenced:
		return []Command{fenceBrokers{[]BrokerEpoch{at}, def}}, nil
	case hb.WantFence:
	case hb.WantShutdown && !b.Fenced && !(b.ControlledShutdown && drained(img, b.ID)):
		return []Command{drainBroker{at, maxDrained, def}}, nil
	case hb.WantShutdown:
	case b.Fenced && hb.Revision >= b.Epoch:
		return []Command{unfenceBroker{BrokerEpoch: at, Revision: hb.Revision, Defaults: def}}, nil
	}
	return nil, nil
}

// heartbeatAnswer is how the broker stands by an image.
func heartbeatAnswer(img *metadata.Image, hb Heartbeat) HeartbeatResult {
	b := img.Broker(hb.Broker)
	if b == nil || b.Epoch != hb.Epoch {
		return HeartbeatResult{Fenced: true}
	}
	return HeartbeatResult{
		Fenced:         b.Fenced,
		CaughtUp:       hb.Revision >= b.Epoch,
		ShouldShutdown: (hb.WantShutdown || hb.WantFence) && (b.Fenced || b.ControlledShutdown && drained(img, b.ID)),
	}
}

// unbalanced answers the elections that give leaderships back to the brokers that
// come first in the replicas, where a broker leads too few of its own: more than
// percentage of a hundred are led by others.
func unbalanced(img *metadata.Image, def defaults, percentage int, unheard []int32) []Command {
	type count struct{ preferred, elsewhere int }
	counts := make(map[int32]*count)
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			c := counts[p.Replicas[0]]
			if c == nil {
				c = new(count)
				counts[p.Replicas[0]] = c
			}
			c.preferred++
			if p.Leader != p.Replicas[0] {
				c.elsewhere++
			}
		}
	}
	r := replicasOf(img, def, unheard...)
	var cmds []Command
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			first := p.Replicas[0]
			c := counts[first]
			if p.Leader == first || p.Leader == metadata.NoLeader || c.elsewhere*100 <= percentage*c.preferred ||
				!slices.Contains(p.ISR, first) || !r.eligible(first) {
				continue
			}
			if len(cmds) == maxBalanced {
				return cmds
			}
			cmds = append(cmds, electLeader{ElectLeader{Topic: t.Name, Partition: p.Index}, def})
		}
	}
	return cmds
}
