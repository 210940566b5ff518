package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// decideRegisterBroker lets a started process take its broker's place. It begins
// fenced, so whatever it led passes on, or waits for it. The broker's record comes
// last: a registration cut short is not taken for one that was finished.
func decideRegisterBroker(img *metadata.Image, c registerBroker) ([]Change, error) {
	if c.ID < 0 {
		return nil, fmt.Errorf("%w: broker id %d", ErrInvalidRequest, c.ID)
	}
	if c.Restored != img.Restored {
		return nil, fmt.Errorf("%w: broker %d: restart it", ErrOtherMetadata, c.ID)
	}
	b := &metadata.Broker{
		ID: c.ID, Incarnation: c.Incarnation, Epoch: img.Revision + 1, Rack: c.Rack, Endpoints: slices.Clone(c.Endpoints),
		Durability: c.Durability, Fenced: true,
	}
	clean := false
	if old := img.Broker(c.ID); old != nil {
		switch {
		case old.Incarnation == c.Incarnation:
			return nil, nil
		case !old.Fenced && !c.Ended:
			return nil, fmt.Errorf("%w: broker %d is alive; a process that took its place is let in when its session has ended", ErrDuplicateBroker, c.ID)
		}
		b.Epoch = max(b.Epoch, old.Epoch+1)
		clean = c.PreviousEpoch == old.Epoch
	}
	r := replicasOf(img, c.Defaults, append(slices.Clone(c.Unheard), c.ID)...)
	var changes []Change
	for t := range img.AllTopics() {
		keeps := clean || r.durable(t, b)
		for _, p := range t.Partitions {
			if !slices.Contains(p.Replicas, c.ID) {
				continue
			}
			ch := r.change(t, p)
			if !keeps {
				ch.tailLost(c.ID)
			}
			if p.Leader != metadata.NoLeader {
				ch.leave(c.ID)
			}
			if p.Leader == c.ID {
				ch.elect()
			}
			changes = ch.put(changes)
		}
	}
	return append(changes, putBroker{b}), nil
}

// tailLost is about a replica that came back from an unclean stop and may lack
// records which it had confirmed (rule 8).
//
// It goes out of ISR and ELR, and counts as one of those that had every record once;
// when only such are left, the longest log leads. That somebody of the ISR seems to be
// there is no reason to forget it: that one may be gone too, and nobody know yet. Who
// is the only one leads at once, and so does the first one in a mirror that the source
// has the records of.
func (c *change) tailLost(id int32) {
	n := &c.next
	member := slices.Contains(n.ISR, id)
	if !member && !slices.Contains(n.ELR, id) || invariants.Planted("uncleanRestartStaysInISR") {
		return
	}
	if !slices.ContainsFunc(n.ISR, c.eligible) {
		if c.t.Sourced(c.old) && member {
			return
		}
		if len(minus(union(n.ISR, n.ELR, n.LastKnownELR), []int32{id})) == 0 {
			return
		}
	}
	n.LastKnownELR = union(n.LastKnownELR, []int32{id})
	c.lost = []int32{id}
	n.ISR, n.ELR = minus(n.ISR, c.lost), minus(n.ELR, c.lost)
}

// alive is about a member of the ISR that is known to have been there after those of
// LastKnownELR came back. They need not be waited for any more, unless the ISR is too
// small for the high watermark to move: until it is large enough, one of them may
// have what its members lose.
func (c *change) alive() {
	if len(c.next.ISR) >= c.minISR(c.t, &c.next) {
		c.next.LastKnownELR = nil
	}
}

// decideUnregisterBroker forgets a broker that is gone. Replicas keep its id, until a
// reassignment moves them or a broker of that id comes back, but nothing waits for it
// any more: where others are known that had every record once, they compare their logs
// without it. The last one who is known stays: nobody else has what it has.
func decideUnregisterBroker(img *metadata.Image, c unregisterBroker) ([]Change, error) {
	switch b := img.Broker(c.ID); {
	case b == nil:
		return nil, fmt.Errorf("%w: %d is not registered", ErrUnknownBroker, c.ID)
	case !b.Fenced:
		return nil, fmt.Errorf("%w: broker %d is alive; stop it first", ErrInvalidRequest, c.ID)
	}
	r := replicasOf(img, c.Defaults)
	var changes []Change
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			ch := r.change(t, p)
			ch.forget(c.ID)
			changes = ch.put(changes)
		}
	}
	return append(changes, deleteBroker{c.ID}), nil
}

// forget takes a replica out of those that had every record, if others of them stay.
func (c *change) forget(id int32) {
	n := &c.next
	known := union(n.ISR, n.ELR, n.LastKnownELR)
	if !slices.Contains(known, id) || len(known) == 1 {
		return
	}
	c.lost = []int32{id}
	n.ISR, n.ELR, n.LastKnownELR = minus(n.ISR, c.lost), minus(n.ELR, c.lost), minus(n.LastKnownELR, c.lost)
	if n.Leader == metadata.NoLeader {
		c.elect()
	}
}

// checkBrokerEpoch wants the broker as it is registered now.
func checkBrokerEpoch(img *metadata.Image, b BrokerEpoch) (*metadata.Broker, error) {
	cur := img.Broker(b.ID)
	switch {
	case cur == nil:
		return nil, fmt.Errorf("%w: %d is not registered", ErrUnknownBroker, b.ID)
	case cur.Epoch != b.Epoch:
		return nil, fmt.Errorf("%w: broker %d is registered with epoch %d, not %d", ErrStaleBrokerEpoch, b.ID, cur.Epoch, b.Epoch)
	}
	return cur, nil
}

// decideFenceBrokers takes brokers out whose sessions have ended, all of them at once:
// those that vanish together were together in their ISRs. Their records come last,
// so that a fencing cut short is begun anew by the next controller.
func decideFenceBrokers(img *metadata.Image, c fenceBrokers) ([]Change, error) {
	var ids []int32
	for _, b := range c.Brokers {
		// A broker that has registered anew since is another one.
		if cur := img.Broker(b.ID); cur != nil && cur.Epoch == b.Epoch && !cur.Fenced {
			ids = append(ids, b.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	r := replicasOf(img, c.Defaults, ids...)
	var changes []Change
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			gone := func(id int32) bool { return slices.Contains(ids, id) }
			if p.Leader == metadata.NoLeader || !gone(p.Leader) && !slices.ContainsFunc(p.ISR, gone) {
				continue
			}
			ch := r.change(t, p)
			ch.leave(ids...)
			ch.elect()
			changes = ch.put(changes)
		}
	}
	for _, id := range ids {
		next := *img.Broker(id)
		next.Fenced = true
		changes = append(changes, putBroker{&next})
	}
	return changes, nil
}

// decideUnfenceBroker lets a broker in that has caught up, and gives it what nobody
// else can lead. Asked about a broker that is in already, it does what an
// interrupted one left undone, and what waits for a word of it.
func decideUnfenceBroker(img *metadata.Image, c unfenceBroker) ([]Change, error) {
	cur, err := checkBrokerEpoch(img, c.BrokerEpoch)
	if err != nil {
		return nil, fmt.Errorf("unfence: %w", err)
	}
	var changes []Change
	if cur.Fenced {
		next := *cur
		next.Fenced, next.ControlledShutdown = false, false
		changes = append(changes, putBroker{&next})
	}
	later := c.Revision >= lastRegistration(img)
	r := replicasOf(img, c.Defaults, c.Unheard...)
	others := r.eligible
	r.eligible = func(id int32) bool { return id == c.ID && (cur.Fenced || !cur.ControlledShutdown) || others(id) }
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if !slices.Contains(p.Replicas, c.ID) || p.Leader != metadata.NoLeader && len(p.LastKnownELR) == 0 && !joined(p) {
				continue
			}
			ch := r.change(t, p)
			if p.Leader == metadata.NoLeader {
				ch.elect()
			}
			if later && c.Revision >= p.Revision && slices.Contains(ch.next.ISR, c.ID) {
				ch.alive()
				ch.there = c.ID
				ch.completeReassignment()
			}
			changes = ch.put(changes)
		}
	}
	return changes, nil
}

// lastRegistration is the revision of an image up to which brokers came back: who has
// seen it is alive since.
func lastRegistration(img *metadata.Image) int64 {
	last := int64(0)
	for _, b := range img.Brokers() {
		last = max(last, b.Epoch)
	}
	return last
}

// decideElectOffline elects what can be elected cleanly, for a controller that takes
// over what another one left half done.
func decideElectOffline(img *metadata.Image, c electOffline) ([]Change, error) {
	r := replicasOf(img, c.Defaults, c.Unheard...)
	var changes []Change
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if p.Leader == metadata.NoLeader {
				ch := r.change(t, p)
				ch.elect()
				changes = ch.put(changes)
			}
		}
	}
	return changes, nil
}

// decideDrainBroker moves leaderships away from a broker that wants to stop, a batch
// at a time, and takes it out of ISRs so that nobody waits for it when it is gone.
// What nobody else of the ISR can lead it keeps until then.
func decideDrainBroker(img *metadata.Image, c drainBroker) ([]Change, error) {
	cur, err := checkBrokerEpoch(img, c.BrokerEpoch)
	if err != nil {
		return nil, fmt.Errorf("controlled shutdown: %w", err)
	}
	if cur.Fenced {
		return nil, nil
	}
	var changes []Change
	if !cur.ControlledShutdown {
		next := *cur
		next.ControlledShutdown = true
		changes = append(changes, putBroker{&next})
	}
	r := replicasOf(img, c.Defaults, c.ID)
	n := 0
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if n >= c.Max {
				return changes, nil
			}
			if !movable(r.eligible, p, c.ID) {
				continue
			}
			ch := r.change(t, p)
			ch.leave(c.ID)
			ch.elect()
			changes = ch.put(changes)
			n++
		}
	}
	return changes, nil
}

// movable reports whether a broker can be taken out of a partition's ISR without harm:
// somebody else of it leads, or can.
func movable(eligible func(int32) bool, p *metadata.Partition, id int32) bool {
	return p.Leader != metadata.NoLeader && slices.Contains(p.ISR, id) && slices.ContainsFunc(p.ISR, eligible)
}

// drained reports whether nothing is left that could be moved from a broker.
func drained(img *metadata.Image, id int32) bool {
	r := replicasOf(img, defaults{}, id)
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if movable(r.eligible, p, id) {
				return false
			}
		}
	}
	return true
}
