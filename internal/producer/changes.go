package producer

import (
	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Changes is what batches say of producers, gathered in log order without a
// table: the one that has readers is then locked for a step per producer, not
// per batch. Batches of one producer come in runs, and of a run only the last
// Window are remembered. Applied, it does what Table.Apply does for each batch in turn.
//
// The zero value is empty. Reset keeps the memory, 24 bytes per batch and some 60
// per step.
type Changes struct {
	steps   []step
	batches []batch // of all steps, in order
}

// step is a run of batches of one producer id and epoch, or one control batch.
type step struct {
	id       int64
	epoch    int16
	lastTime int64 // greatest timestamp of the last batch

	txnFirst int64 // run: first offset of its first transactional batch, -1 without one
	end      int   // run: its batches with a sequence end here in Changes.batches

	control    bool
	kind       record.ControlType
	coordEpoch int32
	base, last int64 // control: its offsets
}

// Reset empties it.
func (c *Changes) Reset() { c.steps, c.batches = c.steps[:0], c.batches[:0] }

// Add takes in the next batch, whose head is h. It keeps nothing of the bytes.
func (c *Changes) Add(b record.Batch, h *record.Head) {
	if h.IsControl() {
		c.steps = append(c.steps, controlStep(b, h))
		return
	}
	if h.ProducerID < 0 {
		return
	}
	n := len(c.steps)
	if n == 0 || !c.steps[n-1].goesOn(h) {
		c.steps = append(c.steps, runOf(h, len(c.batches)))
		n++
	}
	s := &c.steps[n-1]
	s.lastTime = h.MaxTimestamp
	if s.txnFirst < 0 && h.IsTransactional() {
		s.txnFirst = firstOf(h)
	}
	if h.BaseSequence >= 0 {
		c.batches = append(c.batches, batchOf(h))
		s.end++
	}
}

// goesOn says that the next batch is of the same run.
func (s *step) goesOn(h *record.Head) bool {
	return s.id == h.ProducerID && s.epoch == h.ProducerEpoch && !s.control
}

// runOf begins a run.
func runOf(h *record.Head, from int) step {
	return step{id: h.ProducerID, epoch: h.ProducerEpoch, txnFirst: -1, end: from}
}

func controlStep(b record.Batch, h *record.Head) step {
	s := step{id: h.ProducerID, epoch: h.ProducerEpoch, lastTime: h.MaxTimestamp, control: true, base: h.BaseOffset, last: h.LastOffset()}
	var err error
	if s.kind, s.coordEpoch, err = b.Control(); err != nil {
		s.kind = unreadable
	}
	return s
}

// unreadable is no type of control batch: not a marker that anybody could read;
// consumers skip it too.
const unreadable record.ControlType = -1

// firstOf is where a transaction begins with its first batch.
func firstOf(h *record.Head) int64 {
	if invariants.Planted("lsoOneBatchHigh") {
		return h.LastOffset() + 1
	}
	return h.BaseOffset
}

func batchOf(h *record.Head) batch {
	return batch{lastSeq: h.LastSequence(), delta: h.LastOffsetDelta, lastOffset: h.LastOffset(), timestamp: h.MaxTimestamp}
}

// ApplyAll takes over what c gathered.
func (t *Table) ApplyAll(c *Changes) {
	from := 0
	for i := range c.steps {
		s := &c.steps[i]
		if s.control {
			t.applyControl(s)
			continue
		}
		t.applyRun(s, c.batches[from:s.end])
		from = s.end
	}
}

// Apply takes over what an appended batch says. It allocates only for a
// producer id that is new, and for an aborted transaction.
func (t *Table) Apply(b record.Batch) {
	var h record.Head
	h.Of(b)
	if h.IsControl() {
		s := controlStep(b, &h)
		t.applyControl(&s)
		return
	}
	if h.ProducerID < 0 {
		return
	}
	s := runOf(&h, 0)
	s.lastTime = h.MaxTimestamp
	if h.IsTransactional() {
		s.txnFirst = firstOf(&h)
	}
	var one [1]batch
	if h.BaseSequence >= 0 {
		one[0], s.end = batchOf(&h), 1
	}
	t.applyRun(&s, one[:s.end])
}

func (t *Table) applyRun(r *step, batches []batch) {
	t.touched = true
	s := t.state(r.id, r.epoch)
	if r.epoch != s.epoch {
		// A lower epoch can only come by replication or from a mirror's source, and
		// then it is that log's truth (L9).
		s.epoch, s.n = r.epoch, 0
	}
	for _, b := range batches[max(len(batches)-Window, 0):] {
		s.push(b)
	}
	s.lastTime = r.lastTime
	if r.txnFirst >= 0 && s.txnFirst < 0 {
		s.txnFirst = r.txnFirst
		t.open = append(t.open, s)
	}
}

func (t *Table) applyControl(c *step) {
	t.touched = true
	switch {
	case c.kind == record.MirrorPIDReset && !invariants.Planted("pidResetIgnored"):
		t.reset(c.base)
	case c.kind.IsMarker() && c.id >= 0:
		t.end(c)
	}
}

// end closes the transaction of the marker's producer.
func (t *Table) end(m *step) {
	s := t.state(m.id, m.epoch)
	if m.epoch != s.epoch {
		// A fencing marker carries the next epoch (KIP-98, KIP-890): the next data
		// batch of that epoch begins at sequence 0.
		s.epoch, s.n = m.epoch, 0
	}
	s.coordEp = m.coordEpoch
	s.lastTime = max(s.lastTime, m.lastTime)
	if s.txnFirst < 0 {
		return // empty transaction: nothing was written here
	}
	first := s.txnFirst
	t.close(s)
	t.decided = append(t.decided, span{first, m.last})
	if m.kind == record.Abort {
		stable := m.last + 1
		if open, ok := t.FirstUndecided(); ok {
			stable = open
		}
		t.aborted = append(t.aborted, aborted{s.id, first, m.last, stable})
	}
}
