package coordinator

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Write is a set of records that reach the log in one batch or not at all.
type Write struct {
	Records []record.Record // keys and values; a nil value is a tombstone
	Size    int             // of the records, at most
	// Done hears what became of it, on the shard's goroutine. Writes are told in
	// the order in which they were enqueued. It is not called if the shard ends
	// first.
	Done func(now time.Time, err error)
	// Append, if not nil, appends the records in the place of the shard's options:
	// the write has a batch of its own.
	Append func(records []record.Record, now time.Time, done func(error))
}

// RecordSize bounds the bytes of a record: beside key and value there are
// attributes and up to six varints, none longer than five bytes at these sizes.
func RecordSize(key, value []byte) int { return len(key) + len(value) + 31 }

// batch is what goes into the next append, and what the log has not acknowledged
// yet, oldest first. Acknowledgements take effect in that order, whatever order
// they come in.
type batch struct {
	writes []Write
	bytes  int
	sent   []*sentBatch
	// unsettled are the bytes of sent. Read when requests come.
	unsettled atomic.Int64
}

// maxUnsettledBytes bounds what waits for the log's acknowledgement, which takes
// long while a replica is slow. Every client has a request or two under way, so
// this is many clients.
const maxUnsettledBytes = 16 << 20

// sentBatch is one append without an answer so far.
type sentBatch struct {
	writes []Write
	bytes  int64
	ended  bool
	err    error
}

// Enqueue puts a write into the next batch.
func (s *Shard) Enqueue(w Write, now time.Time) {
	b := &s.batch
	if len(b.writes) > 0 && (w.Append != nil || b.bytes+w.Size > s.o.MaxWriteBytes) {
		s.Flush(now)
	}
	b.writes = append(b.writes, w)
	b.bytes += w.Size
	if w.Append != nil {
		s.Flush(now)
	}
}

// Flush appends what has collected as one batch.
func (s *Shard) Flush(now time.Time) {
	b := &s.batch
	if len(b.writes) == 0 {
		return
	}
	var recs []record.Record
	for _, w := range b.writes {
		for _, r := range w.Records {
			r.OffsetDelta = int32(len(recs))
			recs = append(recs, r)
		}
	}
	sent := &sentBatch{writes: b.writes, bytes: int64(b.bytes)}
	b.writes, b.bytes = nil, 0
	s.o.BeforeAppend()
	if own := sent.writes[0].Append; own != nil {
		s.send(sent, func(done func(error)) { own(recs, now, done) })
		return
	}
	s.send(sent, func(done func(error)) {
		s.o.Append(s.Partition, s.Epoch, record.Build(record.NoProducer(now.UnixMilli()), recs), done)
	})
}

// Send appends something else than records, behind what was enqueued before.
func (s *Shard) Send(now time.Time, write func(done func(error)), done func(now time.Time, err error)) {
	s.Flush(now)
	s.send(&sentBatch{writes: []Write{{Done: done}}}, write)
}

// send appends one batch; settle hears of it in its turn.
func (s *Shard) send(b *sentBatch, write func(done func(error))) {
	s.batch.sent = append(s.batch.sent, b)
	s.batch.unsettled.Add(b.bytes)
	write(func(err error) {
		_ = s.Post(func(now time.Time) { // refused: the shard has ended
			b.ended, b.err = true, err
			s.settle(now)
		})
	})
}

// settle tells the writes what became of them, in order. With one that is neither
// stored nor refused, what the machines know is worth nothing any more: the log
// may come to say something else. So it is when another leader writes.
func (s *Shard) settle(now time.Time) {
	for len(s.batch.sent) > 0 && s.batch.sent[0].ended {
		b := s.batch.sent[0]
		s.batch.sent[0] = nil
		s.batch.sent = s.batch.sent[1:]
		if b.err != nil {
			s.o.Refusals.Inc()
			s.Logger.Warn("coordinator's batch not stored", "writes", len(b.writes), "err", b.err)
		}
		if errors.Is(b.err, ErrUnsettled) || errors.Is(b.err, ErrNotCoordinator) {
			s.restart()
			return
		}
		s.batch.unsettled.Add(-b.bytes)
		for _, w := range b.writes {
			w.Done(now, b.err)
		}
	}
}
