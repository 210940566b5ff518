package producer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Window is the number of last batches of a producer that are remembered, and
// so the number of requests an idempotent producer may have in flight (KIP-98:
// max.in.flight.requests.per.connection <= 5).
const Window = 5

// MaxProducers bounds the producers of one log, some 250 bytes each: any client
// may bring producer ids of its own, and each would be kept for a day.
const MaxProducers = 20_000

// What Check refuses. All wrapped with the producer id, epoch and sequences.
var (
	// ErrOutOfOrderSequence: the batch does not follow the last one of its producer.
	ErrOutOfOrderSequence = errors.New("producer: out of order sequence")
	// ErrFencedEpoch: a newer instance of this producer has written already.
	ErrFencedEpoch = errors.New("producer: fenced epoch")
	// ErrInvalidTxnState: a plain batch in the middle of its producer's transaction.
	ErrInvalidTxnState = errors.New("producer: invalid transaction state")
	// ErrInvalidSequence: a producer id without a sequence, or the reverse.
	ErrInvalidSequence = errors.New("producer: invalid sequence")
)

// Dup is where a batch that came twice lies already.
type Dup struct {
	BaseOffset int64
	LastOffset int64
	Timestamp  int64 // greatest timestamp of the stored batch
}

// OpenTxn is a transaction without a marker so far.
type OpenTxn struct {
	ProducerID       int64
	Epoch            int16
	First            int64 // offset of its first batch
	CoordinatorEpoch int32 // of the producer's last marker in this log, or -1
}

// AbortedTxn is what a read-committed consumer has to know to skip a
// transaction's records: its producer, and where the transaction began.
type AbortedTxn struct {
	ProducerID  int64
	FirstOffset int64
}

// Table is the producer state of one log. Make it with New. Not safe for
// several goroutines.
type Table struct {
	producers map[int64]*state

	// open holds the producers with an open transaction, in the order in which
	// the transactions began, which is the order of their first offsets.
	open []*state

	// decided holds the transactions that have their marker but whose marker may
	// still be above the high watermark. Until it is below, a read-committed
	// consumer must not pass their first offset: the marker could be lost.
	// Ordered by marker offset. Replicated shortens it.
	decided []span

	// aborted holds every aborted transaction of the log, ordered by marker.
	aborted []aborted

	// latest is the producer of the last batch, which mostly has the next one too:
	// it spares the look into the map. nil, or one of producers.
	latest *state

	// touched says that a batch ever changed the table. A table can be empty and
	// touched: after a reset, or when everything expired.
	touched bool
}

// state is what one producer id has written.
type state struct {
	id       int64
	epoch    int16
	coordEp  int32 // epoch of the coordinator that wrote the last marker, -1 if none
	lastTime int64 // greatest timestamp of its last batch, for expiry
	txnFirst int64 // first offset of the open transaction, -1 if none

	// batches[:n] are the last batches, oldest first, all of this epoch.
	n       int
	batches [Window]batch
}

type batch struct {
	lastSeq    int32
	delta      int32 // last minus base offset
	lastOffset int64
	timestamp  int64
}

type span struct{ first, marker int64 }

type aborted struct {
	producer int64
	first    int64
	marker   int64
	// stable is the first undecided offset when the marker was written. All
	// transactions with a later marker begin at or behind it, which bounds a
	// search.
	stable int64
}

// New makes an empty table.
func New() *Table { return &Table{producers: make(map[int64]*state)} }

// Check says whether a client may append b now: (nil, nil) yes, a *Dup if the
// same batch is in the log already, or an error. Batches without a producer id
// pass. The rules are Kafka's; a producer that the table does not know may
// start at any sequence, because retention may have removed its history.
func (t *Table) Check(b record.Batch) (*Dup, error) {
	if !b.HasProducerID() {
		if b.IsTransactional() {
			return nil, fmt.Errorf("%w: transactional batch without a producer id", ErrInvalidTxnState)
		}
		return nil, nil
	}
	id, epoch, first, last := b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LastSequence()
	if epoch < 0 || first < 0 {
		return nil, fmt.Errorf("%w: producer %d epoch %d base sequence %d", ErrInvalidSequence, id, epoch, first)
	}
	s := t.producers[id]
	if s == nil {
		return nil, nil
	}
	if dup := s.duplicate(epoch, first, last); dup != nil {
		return dup, nil
	}
	if epoch < s.epoch {
		return nil, fmt.Errorf("%w: producer %d wrote with epoch %d, current is %d", ErrFencedEpoch, id, epoch, s.epoch)
	}
	if epoch > s.epoch {
		if first != 0 {
			return nil, fmt.Errorf("%w: producer %d begins epoch %d with sequence %d, not 0", ErrOutOfOrderSequence, id, epoch, first)
		}
	} else if want := s.nextSequence(); first != want {
		return nil, fmt.Errorf("%w: producer %d epoch %d sent sequence %d, expected %d", ErrOutOfOrderSequence, id, epoch, first, want)
	}
	if s.txnFirst >= 0 && !b.IsTransactional() {
		return nil, fmt.Errorf("%w: producer %d has a transaction open since offset %d and sent a batch outside it", ErrInvalidTxnState, id, s.txnFirst)
	}
	return nil, nil
}

func (s *state) nextSequence() int32 {
	if s.n == 0 {
		return 0
	}
	last := s.batches[s.n-1].lastSeq
	if last == math.MaxInt32 {
		return 0
	}
	return last + 1
}

func (s *state) duplicate(epoch int16, first, last int32) *Dup {
	if epoch != s.epoch {
		return nil
	}
	for _, b := range s.batches[:s.n] {
		if b.lastSeq == last && b.firstSeq() == first {
			return &Dup{BaseOffset: b.lastOffset - int64(b.delta), LastOffset: b.lastOffset, Timestamp: b.timestamp}
		}
	}
	return nil
}

// firstSeq undoes record.AddSequence over the wrap from 2^31-1 to 0.
func (b batch) firstSeq() int32 {
	if b.lastSeq >= b.delta {
		return b.lastSeq - b.delta
	}
	return math.MaxInt32 - (b.delta - b.lastSeq) + 1
}

func (s *state) push(b batch) {
	if s.n == Window || s.n == Window-1 && invariants.Planted("windowOfFour") {
		copy(s.batches[:], s.batches[1:])
		s.n--
	}
	s.batches[s.n] = b
	s.n++
}

func (t *Table) state(id int64, epoch int16) *state {
	if t.latest != nil && t.latest.id == id {
		return t.latest
	}
	s := t.producers[id]
	if s == nil {
		if len(t.producers) >= MaxProducers {
			t.evict()
		}
		s = &state{id: id, epoch: epoch, coordEp: -1, lastTime: -1, txnFirst: -1}
		t.producers[id] = s
	}
	t.latest = s
	return s
}

// evict forgets an eighth of the producers, of those without an open
// transaction: the ones that wrote longest ago, by offset, which clients cannot
// choose as they can timestamps. Who is forgotten and comes again may start at
// any sequence, as after an expiry.
func (t *Table) evict() {
	idle := make([]*state, 0, len(t.producers))
	for _, s := range t.producers {
		if s.txnFirst < 0 {
			idle = append(idle, s)
		}
	}
	sort.Slice(idle, func(i, j int) bool {
		if a, b := idle[i].lastOffset(), idle[j].lastOffset(); a != b {
			return a < b
		}
		return idle[i].id < idle[j].id
	})
	for _, s := range idle[:min(len(idle), MaxProducers/8)] {
		delete(t.producers, s.id)
	}
	t.latest = nil
}

// lastOffset is that of the last batch known; -1 where a marker came last.
func (s *state) lastOffset() int64 {
	if s.n == 0 {
		return -1
	}
	return s.batches[s.n-1].lastOffset
}

func (t *Table) close(s *state) {
	s.txnFirst = -1
	if i := slices.Index(t.open, s); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
}

// reset drops every producer entry (L15). A stop writes markers for all open
// transactions first (9.14); should one still be open, as in a log that lost
// its marker to compaction, it is over too: nobody can end it any more. It
// counts as undecided up to the reset, and as aborted for readers.
func (t *Table) reset(offset int64) {
	for _, s := range t.open {
		t.decided = append(t.decided, span{s.txnFirst, offset})
	}
	for i, s := range t.open {
		stable := offset + 1
		if i+1 < len(t.open) {
			stable = t.open[i+1].txnFirst
		}
		t.aborted = append(t.aborted, aborted{s.id, s.txnFirst, offset, stable})
	}
	t.open = t.open[:0]
	t.latest = nil
	clear(t.producers)
}

// FirstUndecided is the first offset of the oldest open transaction.
func (t *Table) FirstUndecided() (offset int64, ok bool) {
	if len(t.open) == 0 {
		return 0, false
	}
	return t.open[0].txnFirst, true
}

// FirstUnstable is the offset that read-committed consumers must not pass
// while the high watermark stands where it does: the first offset of the
// oldest transaction that is open, or whose marker is not below it.
func (t *Table) FirstUnstable(highWatermark int64) (offset int64, ok bool) {
	offset, ok = t.FirstUndecided()
	for i := len(t.decided) - 1; i >= 0 && t.decided[i].marker >= highWatermark; i-- {
		if first := t.decided[i].first; !ok || first < offset {
			offset, ok = first, true
		}
	}
	return offset, ok
}

// Replicated forgets decided transactions whose marker is below the high
// watermark.
func (t *Table) Replicated(highWatermark int64) {
	n := 0
	for n < len(t.decided) && t.decided[n].marker < highWatermark {
		n++
	}
	if n > 0 {
		t.decided = slices.Delete(t.decided, 0, n)
	}
}

// Open lists the open transactions, oldest first.
func (t *Table) Open() []OpenTxn {
	txns := make([]OpenTxn, 0, len(t.open))
	for _, s := range t.open {
		txns = append(txns, OpenTxn{ProducerID: s.id, Epoch: s.epoch, First: s.txnFirst, CoordinatorEpoch: s.coordEp})
	}
	return txns
}

// AbortedIn lists the aborted transactions that have records in [from, to),
// ordered by their markers. A nil answer means none.
func (t *Table) AbortedIn(from, to int64) []AbortedTxn {
	i := sort.Search(len(t.aborted), func(i int) bool { return t.aborted[i].marker >= from })
	var found []AbortedTxn
	for _, a := range t.aborted[i:] {
		if a.first < to {
			found = append(found, AbortedTxn{ProducerID: a.producer, FirstOffset: a.first})
		}
		if a.stable >= to {
			break // everything decided later begins at or behind stable
		}
	}
	return found
}

// TruncateStart follows the log start: aborted and decided transactions that
// ended below it go. Producer entries stay, as in Kafka, so that a duplicate
// is recognised although its batch is gone.
func (t *Table) TruncateStart(start int64) {
	i := sort.Search(len(t.aborted), func(i int) bool { return t.aborted[i].marker >= start })
	if i > 0 {
		t.aborted = slices.Delete(t.aborted, 0, i)
	}
	t.Replicated(start)
}

// Expire drops producers whose last batch is older than the given time in
// milliseconds (producer.id.expiration.ms); one with an open transaction never
// goes (L10). It returns how many went.
func (t *Table) Expire(before int64) int {
	n := 0
	for id, s := range t.producers {
		if s.txnFirst < 0 && s.lastTime < before {
			delete(t.producers, id)
			n++
		}
	}
	t.latest = nil
	return n
}

// Len is the number of producers known.
func (t *Table) Len() int { return len(t.producers) }

// Producer is what the table knows of one producer id, for DescribeProducers
// and for tests.
type Producer struct {
	ProducerID       int64
	Epoch            int16
	LastSequence     int32 // -1 if nothing was written in this epoch
	LastTimestamp    int64
	CoordinatorEpoch int32
	TxnFirst         int64 // -1 if no transaction is open
}

// Producers lists the known producers by id.
func (t *Table) Producers() []Producer {
	list := make([]Producer, 0, len(t.producers))
	for _, s := range t.producers {
		p := Producer{ProducerID: s.id, Epoch: s.epoch, LastSequence: -1, LastTimestamp: s.lastTime, CoordinatorEpoch: s.coordEp, TxnFirst: s.txnFirst}
		if s.n > 0 {
			p.LastSequence = s.batches[s.n-1].lastSeq
		}
		list = append(list, p)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ProducerID < list[j].ProducerID })
	return list
}

// Untouched says that no batch ever left anything here, so that the table of
// any beginning of the log is empty too.
func (t *Table) Untouched() bool { return !t.touched }
