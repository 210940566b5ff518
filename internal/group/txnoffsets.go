package group

import (
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// Offsets in transactions (KIP-98, KIP-447). They are stored like others, in a
// batch of their producer, and count for nothing until its marker is in the same
// log: a commit makes them the group's, an abort drops them. Meanwhile the
// partition is unstable: a consumer that starts there would read what another
// has read already, if the transaction commits.
//
// Where plain commits and transactions meet, what lies last in the log wins,
// not what was decided last: so it is after a reload and a compaction too.

// transaction is the producer in whose name a write is made.
type transaction struct {
	producerID int64
	epoch      int16
	verify     verification
}

// txnCommitInput stores offsets in a transaction.
type txnCommitInput struct {
	to  ticket
	req *TxnCommitRequest
}

// endTxnInput: the log has the marker of a producer's transaction.
type endTxnInput struct {
	producerID int64
	commit     bool
}

// pendingTxnCommit: offsets in a transaction on their way to the log.
type pendingTxnCommit struct {
	pendingCommit
	producerID int64
}

// onTxnCommit stores offsets that a transaction will decide.
func (m *machine) onTxnCommit(now time.Time, in txnCommitInput, fx *effects) {
	r := in.req
	if err := m.mayCommitInTxn(r); err != nil {
		fx.reply(in.to, commitResult{err: err})
		return
	}
	p := pendingTxnCommit{pendingCommit{to: in.to, errs: make([]error, len(r.Offsets))}, r.ProducerID}
	var records []entry
	for i := range r.Offsets {
		o := &r.Offsets[i]
		tp := TopicPartition{o.Topic, o.Partition}
		if err := m.roomFor(tp, o.Metadata); err != nil {
			p.errs[i] = err
			continue
		}
		c := committed{offset: o.Offset, leaderEpoch: o.LeaderEpoch, metadata: o.Metadata, at: now, order: m.nextOrder()}
		p.keys, p.positions, p.index = append(p.keys, tp), append(p.positions, c), append(p.index, i)
		records = append(records, offsetEntry(m.id, tp, &c))
	}
	if len(records) == 0 {
		fx.reply(in.to, commitResult{errs: p.errs})
		return
	}
	// Unstable from here on, not only when the log has them: whoever asks in
	// between would be told an offset that this transaction may replace.
	for _, tp := range p.keys {
		m.undecided[tp]++
	}
	fx.writes = append(fx.writes, write{records: records, done: p, txn: &transaction{r.ProducerID, r.ProducerEpoch, r.verification()}})
}

// mayCommitInTxn fences a commit in a transaction (KIP-447). Clients that are
// older than that say nothing of a member; and the group's state does not
// matter, because the member goes on in its transaction until it ends.
func (m *machine) mayCommitInTxn(r *TxnCommitRequest) error {
	switch {
	case m.state == Dead:
		return ErrNotAvailable
	case r.Generation < 0 && (m.state == Empty || r.MemberID == "" && r.InstanceID == ""):
		return nil
	}
	if m.consumer != nil {
		return m.consumer.mayCommitInTxn(r, m.topics.image)
	}
	_, err := m.current(r.MemberID, r.InstanceID, r.Generation)
	return err
}

func (m *machine) onTxnCommitStored(of pendingTxnCommit, err error, fx *effects) {
	for i, tp := range of.keys {
		if err != nil {
			of.errs[of.index[i]] = err
			m.decided(tp)
			continue
		}
		if invariants.Planted("pendingOffsetVisible") {
			m.offsets[tp] = of.positions[i]
		}
		m.holdBack(of.producerID, tp, of.positions[i])
	}
	fx.reply(of.to, commitResult{errs: of.errs})
}

// holdBack keeps an offset until its transaction ends; it counts in undecided
// already. Of one transaction the last offset of a partition counts.
func (m *machine) holdBack(producerID int64, tp TopicPartition, c committed) {
	txn := m.txns[producerID]
	if txn == nil {
		txn = map[TopicPartition]committed{}
		m.txns[producerID] = txn
	}
	if _, again := txn[tp]; again {
		m.decided(tp)
	}
	txn[tp] = c
}

// decided ends one reason for a partition to be unstable.
func (m *machine) decided(tp TopicPartition) {
	if m.undecided[tp]--; m.undecided[tp] <= 0 {
		delete(m.undecided, tp)
	}
}

func (m *machine) onEndTxn(in endTxnInput) {
	for tp, c := range m.txns[in.producerID] {
		m.decided(tp)
		if old, ok := m.offsets[tp]; in.commit && (!ok || old.order < c.order) {
			m.offsets[tp] = c
		}
	}
	delete(m.txns, in.producerID)
}

// dropPending forgets offsets of open transactions, whose tombstones lie behind
// them in the log.
func (m *machine) dropPending(tp TopicPartition) {
	for id, txn := range m.txns {
		if _, ok := txn[tp]; !ok {
			continue
		}
		delete(txn, tp)
		m.decided(tp)
		if len(txn) == 0 {
			delete(m.txns, id)
		}
	}
}

// pendingKeys are the partitions with offsets of open transactions, and those on
// their way to the log.
func (m *machine) pendingKeys() []TopicPartition {
	return slices.SortedFunc(maps.Keys(m.undecided), compareTopicPartitions)
}

// stable is the committed offset of a partition that no transaction may replace.
func (m *machine) stable(tp TopicPartition) Offset {
	if m.undecided[tp] > 0 {
		return Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: -1, LeaderEpoch: -1, Unstable: true}
	}
	if c, ok := m.offsets[tp]; ok {
		return c.public(tp)
	}
	return Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: -1, LeaderEpoch: -1}
}

// nextOrder numbers the records of the group's offsets as they will lie in the log.
func (m *machine) nextOrder() int64 {
	m.order++
	return m.order
}
