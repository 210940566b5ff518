package txn

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// values is what the log says of one transactional id.
type values struct {
	state State
	// producerID and epoch are those of the current producer; -1 for an id that
	// was just made. previousID is the producer id before the current one, nextID
	// the one that the producer uses from its next transaction on, because the
	// epochs of producerID are used up: only while deciding, else -1.
	producerID, previousID, nextID int64
	epoch                          int16
	// lastEpoch is the epoch before an initialization that named it (KIP-360), so
	// that it can be asked again; -1: none. It is not stored, as in Kafka: after a
	// change of coordinator such a retry fails.
	lastEpoch int16
	timeout   time.Duration
	version   int // the transaction version that the producer works by
	// partitions are in the transaction; while deciding, those without a marker.
	partitions map[TopicPartition]struct{}
	started    time.Time // of the transaction; zero: none
	updated    time.Time
}

// machine is one transactional id. It decides by step alone: time and new
// producer ids come in with the inputs, answers and writes go out as effects,
// and nothing waits. What it knows is what the log acknowledged: a decision
// takes effect, and is answered, when its record is stored.
type machine struct {
	id string
	o  *Options
	// coordinatorEpoch goes into markers.
	coordinatorEpoch int32

	// owner is who the id counts to; the shard's. See owners.
	owner string

	values

	// writing: a transition is on its way to the log. Until its end, every other
	// change answers ErrConcurrent, or is held.
	writing bool
	// marking: markers are being written.
	marking bool
	// retryAt is when markers, or the record behind them, are tried again; zero:
	// nothing is to be tried. backoff doubles with each failure.
	retryAt time.Time
	backoff time.Duration
	// given up: a later coordinator has been met.
	fenced bool

	// held are adds that wait for the end of a transition, at most MaxHeld.
	held []held

	logged bool // the log has a record of this id
	dead   bool // its tombstone is stored: to be dropped

	wake time.Time // the first deadline; zero: none
}

func newMachine(id string, o *Options, coordinatorEpoch int32) *machine {
	return &machine{id: id, o: o, coordinatorEpoch: coordinatorEpoch, values: values{
		producerID: -1, previousID: -1, nextID: -1, epoch: -1, lastEpoch: -1,
	}}
}

// step is the whole life of a transactional id.
func (m *machine) step(now time.Time, in any, fx *effects) error {
	switch in := in.(type) {
	case initInput:
		m.onInit(now, in, fx)
	case addInput:
		m.onAdd(now, []addInput{in}, fx)
	case verifyInput:
		fx.reply(in.to, m.onVerify(in))
	case endInput:
		m.onEnd(now, in, fx)
	case stored:
		m.onStored(now, in, fx)
	case marked:
		m.onMarked(now, in, fx)
	case resume:
		if m.state.deciding() {
			m.mark(now, fx)
		}
	case tick:
		m.onTick(now, fx)
	case checkTimeout:
		if m.state == Ongoing && !m.writing && now.Sub(m.started) > m.timeout {
			m.o.Logger.Info("transaction timed out, aborting it", "transactional_id", m.id, "producer_id", m.producerID,
				"timeout", m.timeout, "partitions", len(m.partitions))
			m.fence(now, 0, fx)
		}
	case checkExpiry:
		m.onExpiry(now, fx)
	}
	m.arm()
	return m.check()
}

// check holds the invariants that span fields.
func (m *machine) check() error {
	return invariants.Check(
		(!m.marking || m.state.deciding()) &&
			(m.state != Empty || len(m.partitions) == 0) &&
			(m.nextID < 0 || m.state.deciding()) &&
			(m.state != Ongoing && !m.state.deciding() || !m.started.IsZero()) &&
			m.state != PrepareEpochFence && m.state != Dead,
		"transactional id %q: %s, producer %d epoch %d next %d, %d partitions, marking %v, started %v",
		m.id, m.state, m.producerID, m.epoch, m.nextID, len(m.partitions), m.marking, m.started)
}

// forgettable tells whether the id need not be kept: nothing of it is in the
// log, and nobody waits.
func (m *machine) forgettable() bool {
	return m.dead || !m.logged && !m.writing && len(m.held) == 0
}

// exhausted: a producer never gets the last epoch, so that there is one left to
// fence it.
func exhausted(epoch int16) bool { return epoch >= math.MaxInt16-1 }

// begin sends a transition to the log. answer is what the tickets get when it
// is stored.
func (m *machine) begin(now time.Time, by event, v values, answer any, fx *effects, to ...ticket) error {
	state, ok := next(m.state, by)
	if !ok || m.writing {
		return fmt.Errorf("%w: %s while %s", ErrInvalidState, by, m.state)
	}
	if state == PrepareEpochFence { // passed through, see transitions
		state, _ = next(state, abort)
	}
	v.state = state
	if by != expire {
		v.updated = now
	}
	w := write{entry: tombstone(m.id), done: pending{by: by, next: v, to: to, answer: answer}}
	if state != Dead {
		w.entry = v.entry(m.id)
	}
	if w.size() > m.o.MaxWriteBytes {
		return fmt.Errorf("%w: %d > %d bytes", ErrTooLarge, w.size(), m.o.MaxWriteBytes)
	}
	if invariants.Planted("decisionAnsweredBeforeStored") {
		for _, one := range to {
			fx.reply(one, answer)
		}
		w.done.to = nil
	}
	m.writing = true
	fx.writes = append(fx.writes, w)
	return nil
}

// onStored ends a transition.
func (m *machine) onStored(now time.Time, in stored, fx *effects) {
	m.writing = false
	if in.err != nil {
		for _, to := range in.of.to {
			fx.reply(to, failed(in.of.answer, in.err))
		}
		if in.of.by == complete {
			m.later(now)
		}
		m.release(now, fx)
		return
	}
	if in.of.next.state == Dead {
		m.dead = true
		m.release(now, fx)
		return
	}
	m.values, m.logged, m.backoff = in.of.next, true, 0
	for _, to := range in.of.to {
		fx.reply(to, in.of.answer)
	}
	if m.state.deciding() {
		m.mark(now, fx)
	}
	m.release(now, fx)
}

// failed is the answer to a question whose record the log refused.
func failed(answer any, err error) any {
	switch answer.(type) {
	case initResult:
		return initResult{Producer{-1, -1}, err}
	case endResult:
		return endResult{Producer{-1, -1}, err}
	}
	return err
}

// release tries again what was held, once nothing is in its way.
func (m *machine) release(now time.Time, fx *effects) {
	if len(m.held) == 0 || !m.dead && (m.writing || m.state.deciding()) {
		return
	}
	waiting := m.held
	m.held = nil
	ins := make([]addInput, len(waiting))
	for i, h := range waiting {
		ins[i] = h.in
	}
	m.onAdd(now, ins, fx)
}

// onTick ends what has run out of time.
func (m *machine) onTick(now time.Time, fx *effects) {
	m.held = slices.DeleteFunc(m.held, func(h held) bool {
		if h.until.After(now) {
			return false
		}
		fx.reply(h.in.to, error(ErrConcurrent))
		return true
	})
	if !m.retryAt.IsZero() && !m.retryAt.After(now) {
		m.retryAt = time.Time{}
		m.mark(now, fx)
	}
}

// arm finds the first deadline.
func (m *machine) arm() {
	m.wake = m.retryAt
	for _, h := range m.held { // in order of their deadlines
		if m.wake.IsZero() || h.until.Before(m.wake) {
			m.wake = h.until
		}
		break
	}
}

// onExpiry forgets an id that nobody used for IDExpiration.
func (m *machine) onExpiry(now time.Time, fx *effects) {
	if _, ok := next(m.state, expire); !ok || m.writing || !m.logged || now.Sub(m.updated) < m.o.IDExpiration {
		return
	}
	m.o.Logger.Info("transactional id expired", "transactional_id", m.id, "unused_since", m.updated)
	_ = m.begin(now, expire, m.values, nil, fx) // allowed, as was just asked
}

// mark asks for the markers that are missing; when none is, the transaction is
// complete.
func (m *machine) mark(now time.Time, fx *effects) {
	if m.marking || m.writing || m.fenced {
		return
	}
	if len(m.partitions) == 0 {
		m.complete(now, fx)
		return
	}
	m.marking = true
	fx.mark = &mark{
		marker: Marker{
			ProducerID: m.producerID, ProducerEpoch: m.epoch, Commit: m.state == PrepareCommit,
			CoordinatorEpoch: m.coordinatorEpoch, Version: m.version,
		},
		partitions: sorted(m.partitions),
	}
}

func (m *machine) onMarked(now time.Time, in marked, fx *effects) {
	m.marking = false
	var first error
	left := maps.Clone(m.partitions) // the pending record of a transition may share the map
	for i, tp := range in.partitions {
		switch err := in.errs[i]; {
		case err == nil:
			delete(left, tp)
		case errors.Is(err, ErrPartitionGone), errors.Is(err, ErrMarkerOutdated):
			m.o.Logger.Warn("partition left out of a transaction's end", "transactional_id", m.id,
				"topic", tp.Topic, "partition", tp.Partition, "err", err)
			delete(left, tp)
		case errors.Is(err, ErrCoordinatorFenced):
			// Our resignation is on its way; until then nothing else is done.
			m.fenced = true
			m.o.Logger.Warn("transaction left to a later coordinator", "transactional_id", m.id,
				"topic", tp.Topic, "partition", tp.Partition, "err", err)
		case first == nil:
			first = fmt.Errorf("%s-%d: %w", tp.Topic, tp.Partition, err)
		}
	}
	m.partitions = left
	if first != nil {
		m.later(now)
		m.o.Logger.Info("transaction markers are tried again", "transactional_id", m.id, "partitions", len(left),
			"in", m.retryAt.Sub(now), "err", first)
		return
	}
	m.mark(now, fx)
}

// later arms the next try.
func (m *machine) later(now time.Time) {
	m.backoff = min(max(2*m.backoff, m.o.RetryInitial), m.o.RetryMax)
	m.retryAt = now.Add(m.backoff)
}

func (m *machine) complete(now time.Time, fx *effects) {
	v := m.values
	v.partitions = nil
	if v.nextID >= 0 { // the epochs were used up: from here with the new producer id
		v.previousID, v.producerID, v.nextID = v.producerID, v.nextID, -1
		v.lastEpoch, v.epoch = v.epoch, 0
	}
	if err := m.begin(now, complete, v, nil, fx); err != nil {
		m.later(now)
	}
}

func sorted(partitions map[TopicPartition]struct{}) []TopicPartition {
	return slices.SortedFunc(maps.Keys(partitions), compare)
}

func compare(a, b TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
