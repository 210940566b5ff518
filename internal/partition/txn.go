package partition

import (
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// AnyEpoch in the place of a leader epoch: the one that the partition has.
const AnyEpoch int32 = -1

// EpochBump is the transaction version from which on a marker has the producer's
// next epoch (KIP-890).
const EpochBump = producer.EpochBump

// Marker ends a transaction in one partition.
type Marker struct {
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool // else abort
	// CoordinatorEpoch fences coordinators that were replaced: it is the leader
	// epoch of their partition of __transaction_state.
	CoordinatorEpoch int32
	// Version is the transaction's version; see EpochBump.
	Version int
}

// AppendMarker ends a producer's transaction. done is called once, when the
// high watermark has passed the marker and it is on this replica's disk, whatever
// durability says: the coordinator forgets the partition then, and nobody else
// would ever end the transaction if the marker were lost. After a power cut of all
// replicas the longest log leads (rule 8), which is one that has it.
//
// A marker that comes twice is appended twice, which changes nothing. It breaks the
// verifications of the transaction it ends.
func (p *Partition) AppendMarker(leaderEpoch int32, m Marker, done func(error)) {
	p.appendMu.Lock()
	v := p.view.Load()
	err := v.usable()
	if err == nil {
		err = v.checkEpoch(leaderEpoch)
	}
	if err == nil && v.attached {
		err = ErrReadOnly
	}
	if err == nil {
		err = p.enoughInSyncLocked(v)
	}
	if err == nil {
		err = p.log.CheckMarker(m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, m.Version)
	}
	if err != nil {
		p.appendMu.Unlock()
		done(p.wrap(err))
		return
	}
	kind := record.Abort
	if m.Commit {
		kind = record.Commit
	}
	b := record.Batch(record.Marker(kind, m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, p.clock.Now().UnixMilli()))
	b.SetBaseOffset(p.log.EndOffset())
	b.SetLeaderEpoch(v.leaderEpoch)
	p.verifying.endedBy(m)
	if invariants.Planted("markerAcknowledgedBeforeAppend") {
		done(nil)
		done = func(error) {}
	}
	log, onDisk := p.log, p.settings.fsync || invariants.Planted("markerInMemory")
	answer := func(err error) {
		if err != nil {
			err = p.wrap(err)
		}
		done(err)
	}
	p.appendLocked(b, -1, true, time.Time{}, func(_ int64, err error) {
		if err != nil || onDisk { // the high watermark waits for the disk itself
			answer(err)
			return
		}
		log.Flush(func(err error) { // of several markers in their order
			if err != nil {
				p.refused(err)
				err = fmt.Errorf("%w: %w: %w", ErrMayCommit, ErrStorage, err)
			}
			answer(err)
		})
	})
}

// AppendOffsets is AppendInternal for offsets that a group commits in a
// producer's transaction: its epoch is checked, and, with verify, that the
// transaction is under way.
func (p *Partition) AppendOffsets(leaderEpoch int32, batch []byte, verify bool, guard *Verification, done func(end int64, err error)) {
	b := record.Batch(batch)
	p.appendMu.Lock()
	v := p.view.Load()
	err := v.usable()
	if err == nil {
		err = v.checkEpoch(leaderEpoch)
	}
	if err == nil {
		err = p.enoughInSyncLocked(v)
	}
	if err == nil {
		err = p.log.CheckProducerEpoch(b.ProducerID(), b.ProducerEpoch())
	}
	if err == nil && verify {
		err = p.verifiedLocked(b, guard)
	}
	if err != nil {
		p.appendMu.Unlock()
		done(0, p.wrap(err))
		return
	}
	b.SetBaseOffset(p.log.EndOffset())
	b.SetLeaderEpoch(v.leaderEpoch)
	p.appendLocked(b, -1, true, time.Time{}, done)
}

// Verification is the time between the question to the coordinator whether a
// transaction is under way and the append that follows. A marker in between
// breaks it: the append would begin what the marker was to end.
//
// Without the bookkeeping of verifications a batch could be checked, its
// transaction end, and the batch be appended behind the marker.
type Verification struct {
	of     vouched
	users  int  // between BeginVerification and EndVerification
	broken bool // a marker came, or the leadership went
}

// vouched is what a verification is about: since EpochBump one transaction.
type vouched struct {
	producer int64
	epoch    int16
}

// verifications are those under way, guarded by appendMu. There are no more than
// requests in flight.
type verifications map[vouched]*Verification

// endedBy breaks the verifications of the transaction that a marker ends, and of
// older ones. Since EpochBump the marker has the epoch of the producer's next
// transaction, whose first batch may be waiting for just this marker.
func (v verifications) endedBy(m Marker) {
	for of := range v {
		if of.producer == m.ProducerID && (of.epoch < m.ProducerEpoch || of.epoch == m.ProducerEpoch && m.Version < EpochBump) {
			v.breakOf(of)
		}
	}
}

// breakOf ends what a verification is worth.
func (v verifications) breakOf(of vouched) {
	if g := v[of]; g != nil {
		g.broken = true
		delete(v, of)
	}
}

func (v verifications) breakAll() {
	for of := range v {
		v.breakOf(of)
	}
}

// BeginVerification says whether the coordinator must be asked before a
// transactional batch of this producer is appended: nil, no. Otherwise the
// answer goes with the append, and to EndVerification after it.
func (p *Partition) BeginVerification(id int64, epoch int16) (*Verification, error) {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if err := p.view.Load().usable(); err != nil {
		return nil, p.wrap(err)
	}
	open, err := p.log.InTransaction(id, epoch)
	if err != nil {
		return nil, p.wrap(err)
	}
	if open {
		return nil, nil
	}
	of := vouched{id, epoch}
	g := p.verifying[of]
	if g == nil {
		g = &Verification{of: of}
		if p.verifying == nil {
			p.verifying = verifications{}
		}
		p.verifying[of] = g
	}
	g.users++
	return g, nil
}

// EndVerification forgets one; nil is none.
func (p *Partition) EndVerification(g *Verification) {
	if g == nil {
		return
	}
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	if g.users--; g.users == 0 && !g.broken {
		// Broken too: an append that comes later all the same, because whoever
		// asked for it waits no more, would not be seen by a marker.
		p.verifying.breakOf(g.of)
	}
}

// verifiedLocked refuses a batch that would begin a transaction which nobody
// has vouched for.
func (p *Partition) verifiedLocked(b record.Batch, guard *Verification) error {
	open, err := p.log.InTransaction(b.ProducerID(), b.ProducerEpoch())
	switch {
	case err != nil:
		return err
	case open:
		return nil
	case guard == nil || guard.of != vouched{b.ProducerID(), b.ProducerEpoch()}:
		return fmt.Errorf("%w: producer %d epoch %d", ErrUnverified, b.ProducerID(), b.ProducerEpoch())
	case guard.broken:
		return fmt.Errorf("%w: the transaction of producer %d epoch %d ended meanwhile", ErrUnverified, b.ProducerID(), b.ProducerEpoch())
	}
	return nil
}

// Producers lists the producers that the log knows.
func (p *Partition) Producers() ([]producer.Producer, error) {
	if err := p.view.Load().usable(); err != nil {
		return nil, p.wrap(err)
	}
	if err := p.log.Ready(); err != nil {
		return nil, p.wrap(err)
	}
	return p.log.Producers(), nil
}
