package partition

import (
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The truncation barrier (spec O4). A mirror's gate waits for the replicas that are
// in sync. One that is away keeps what the others cut, and when it comes back equal
// epoch numbers on both clusters may hide it from the ordinary comparison: the
// epochs after a failover are above those that were mirrored, and the old source may
// have used the same ones. So the metadata remember who was left out, and where the
// others cut. Such a replica is barred: it neither follows nor leads before it has
// cut too, and noted next to its log that it has.

// noted is a log that remembers a barrier. One that cannot, as in a simulation,
// has it remembered by its partition.
type noted interface {
	Barrier() (int32, error)
	SetBarrier(number int32) error
}

// errBarred is why a barred replica neither follows nor leads.
var errBarred = fmt.Errorf("%w: it has first to cut what a mirror's replicas cut while it was away", ErrNotLeader)

// barrierPause is between two tries to cut.
const barrierPause = time.Second

// Barred says that this replica has first to cut what others cut while it was away.
func (p *Partition) Barred() bool { return p.view.Load().barred }

// barLocked bars next if the metadata want a cut that has not been made, and begins
// it.
func (p *Partition) barLocked(mp *metadata.Partition, next *view) {
	s := mp.StaleReplica(p.nodeID)
	if s == nil || p.log == nil || s.Barrier <= p.barrier || invariants.Planted("barrierIgnored") {
		return
	}
	if n, ok := p.log.(noted); ok && p.barrier == 0 {
		number, err := n.Barrier()
		if err != nil {
			p.shared.log.Warn("last truncation barrier cannot be read, it counts as none", "topic", p.key.Topic, "partition", p.key.Partition, "err", err)
		}
		if p.barrier = number; s.Barrier <= number {
			return
		}
	}
	next.barred = true
	p.bar = s
	p.cutBarredLocked(next)
}

// cutBarredLocked begins the cut that a barred replica waits for, unless it is under way,
// or the log cannot be used now.
func (p *Partition) cutBarredLocked(v *view) {
	if !v.barred || p.cutting || v.offline != nil {
		return
	}
	p.cutting = true
	p.shared.spawn(p.passBarriers)
}

// passBarriers cuts until there is no barrier that has not been passed. The cut may
// take a while: what goes is kept first.
func (p *Partition) passBarriers() {
	for {
		p.appendMu.Lock()
		s := p.bar
		p.appendMu.Unlock()
		err := p.passBarrier(s)
		if err == nil {
			p.appendMu.Lock()
			if p.bar == s {
				p.bar, p.cutting = nil, false
				next := *p.view.Load()
				next.barred = false
				p.view.Store(&next)
				p.appendMu.Unlock()
				p.wake()
				p.wakeFollowers()
				return
			}
			p.appendMu.Unlock()
			continue
		}
		p.appendMu.Lock()
		if v := p.view.Load(); v.gone || v.offline != nil {
			p.cutting = false // goOnline begins again
			p.appendMu.Unlock()
			return
		}
		p.appendMu.Unlock()
		p.shared.log.Warn("replica was away when a mirror was cut, and cannot cut what the others did", "topic", p.key.Topic, "partition", p.key.Partition, "offset", s.Offset, "err", err)
		timer := p.clock.NewTimer(barrierPause)
		select {
		case <-timer.C():
		case <-p.shared.ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (p *Partition) passBarrier(s *metadata.StaleReplica) error {
	if err := p.Ready(p.shared.ctx); err != nil { // not under the lock
		return err
	}
	// Nobody appends meanwhile: the replica is barred.
	start, end := p.log.StartOffset(), p.log.EndOffset()
	if end > s.Offset {
		kept, err := p.log.Keep(max(s.Offset, start))
		if err != nil {
			return err
		}
		p.appendMu.Lock()
		late := p.acks.takeAll() // of a life of the topic that is over, see metadata.Lives
		if s.Offset <= start {
			err = p.log.TruncateFully(s.Offset)
		} else {
			err = p.log.Truncate(s.Offset)
		}
		next := *p.view.Load()
		next.highWatermark = min(next.highWatermark, p.log.EndOffset())
		if p.tracker != nil {
			p.cutIn = next.leaderEpoch
			p.tracker.Lower(p.log.EndOffset())
			next.confirmed = p.tracker.Confirmed()
		}
		p.view.Store(&next)
		p.log.SetHighWatermark(next.highWatermark)
		p.appendMu.Unlock()
		p.finish(late, p.wrap(errBarred))
		if err != nil {
			return err
		}
		p.shared.log.Warn("replica was away when a mirror was cut, and cut what the others did", "topic", p.key.Topic, "partition", p.key.Partition,
			"offset", p.log.EndOffset(), "cut", end-p.log.EndOffset(), "kept", kept.Path)
	}
	if n, ok := p.log.(noted); ok {
		if err := n.SetBarrier(s.Barrier); err != nil {
			return err
		}
	}
	p.appendMu.Lock()
	p.barrier = s.Barrier
	p.appendMu.Unlock()
	return nil
}
