package sim

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// disk has the logs of one node; it outlives its processes.
type disk struct {
	w     *World
	node  *broker
	logs  map[segment.LogID]*memLog
	slow  time.Duration // what an fsync takes at most
	clean int64         // broker epoch of the last clean stop, -1
	keep  int           // batches that retention leaves
}

var _ partition.Disk = (*disk)(nil)

func (d *disk) Open(id segment.LogID) (partition.Log, error) {
	l := d.logs[id]
	if l == nil {
		l = &memLog{d: d, id: id, producers: producer.New()}
		d.logs[id] = l
	}
	return l, nil
}

func (d *disk) Has(id segment.LogID) bool { return d.logs[id] != nil }

func (d *disk) Remove(id segment.LogID) error {
	delete(d.logs, id)
	d.w.check.removed(d.node.id, id)
	return nil
}

// sorted are the logs, in an order that is the same each time.
func (d *disk) sorted() []*memLog {
	list := make([]*memLog, 0, len(d.logs))
	for _, l := range d.logs {
		list = append(list, l)
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i].id, list[j].id
		if c := bytes.Compare(a.Topic[:], b.Topic[:]); c != 0 {
			return c < 0
		}
		return a.Partition < b.Partition
	})
	return list
}

// lose is what the end of a process, or of its machine's power, does to logs: of what
// no fsync has confirmed all stays, none, or a part.
func (d *disk) lose(share func() float64) {
	for _, l := range d.sorted() {
		l.flushing, l.waiters = false, nil
		n := len(l.batches)
		for n > 0 && l.batches[n-1].end > l.durable {
			n--
		}
		stays := n + int(share()*float64(len(l.batches)-n)+0.5)
		if stays < len(l.batches) {
			end := l.batches[stays].base
			d.w.loop.note("tail lost", int64(d.node.id), int64(l.id.Partition), end, l.end)
			l.shorten(stays, end)
		}
		// The high watermark is written down with delay, and never above what is there.
		l.marked = min(l.marked, l.end)
		if d.w.loop.chance(0.5) {
			l.marked = min(l.hw, l.end)
		}
		l.marked = max(l.marked, l.start)
		l.hw = l.marked
		l.durable = l.end // recovery syncs what it found
	}
	d.w.check.killed(d.node.id)
}

// memBatch is one batch of a log.
type memBatch struct {
	base, end int64
	epoch     int32
	bytes     []byte
	sum       uint64
	// chain is a hash of everything in front of the batch and of itself, by which logs
	// are compared without reading them (GI-11).
	chain uint64
}

// memLog is a log in memory with what segment.Log promises. Of its bytes those below
// durable outlive the power.
type memLog struct {
	d  *disk
	id segment.LogID

	batches    []memBatch
	start, end int64
	durable    int64
	hw, marked int64
	epochs     epoch.Cache
	producers  *producer.Table
	cuts       int
	flushing   bool
	waiters    []func(error)
	barrier    int32
	soon       time.Duration // when the background syncs it
	// gone are batches in front of the log start. loose: the log is empty and knows no
	// epoch, because it was begun anew behind batches that it never had, or lost all that
	// lay behind its start, so that nothing here tells the chain.
	gone  []memBatch
	loose bool
}

var _ partition.Log = (*memLog)(nil)

func (l *memLog) Append(b []byte) (segment.Appended, error) {
	a := segment.Appended{First: -1, MaxTimestamp: -1, OffsetOfMaxTimestamp: -1}
	b = slices.Clone(b)
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			return a, err
		}
		b = rest
		if batch.BaseOffset() < l.end {
			return a, fmt.Errorf("append to %s: %w: batch at %d, log end is %d", l.id, segment.ErrOffsetOrder, batch.BaseOffset(), l.end)
		}
		if a.First < 0 {
			a.First = batch.BaseOffset()
		}
		l.include(batch)
		l.d.w.check.appended(l.d.node.id, l)
	}
	a.End = l.end
	l.producers.Replicated(l.hw)
	return a, nil
}

func (l *memLog) include(batch record.Batch) {
	h := fnv.New64a()
	_, _ = h.Write(batch)
	m := memBatch{base: batch.BaseOffset(), end: batch.NextOffset(), epoch: batch.PartitionLeaderEpoch(), bytes: batch, sum: h.Sum64()}
	m.chain = m.sum
	before := l.batches
	if len(before) == 0 {
		before = l.gone
	}
	if n := len(before); n > 0 {
		m.chain = before[n-1].chain*1099511628211 ^ m.sum
	}
	l.batches = append(l.batches, m)
	l.end = m.end
	l.epochs.Assign(m.epoch, m.base)
	l.producers.Apply(batch)
}

func (l *memLog) AppendReserved(b []byte) (segment.Appended, error) { return l.Append(b) }

// Flush syncs in the background: all who ask before one begins are answered by it.
func (l *memLog) Flush(done func(error)) {
	l.waiters = append(l.waiters, done)
	if !l.flushing {
		l.sync()
	}
}

func (l *memLog) sync() {
	l.flushing = true
	end, cuts, waiters := l.end, l.cuts, l.waiters
	l.waiters = nil
	w := l.d.w
	w.loop.after(w.loop.between(200*time.Microsecond, l.d.slow), &l.d.node.proc, func() {
		l.flushing = false
		if l.cuts == cuts {
			l.durable = max(l.durable, end)
			l.marked = min(l.hw, l.durable)
		} else if len(waiters) > 0 {
			// A cut came in between: this proves nothing about what came after it.
			l.waiters = append(waiters, l.waiters...)
			waiters = nil
		}
		if len(l.waiters) > 0 {
			l.sync()
		}
		for _, done := range waiters {
			done(nil)
		}
	})
}

func (l *memLog) Truncate(end int64) error {
	if end >= l.end {
		return nil
	}
	if end <= l.start {
		return l.TruncateFully(end)
	}
	n := len(l.batches)
	for n > 0 && l.batches[n-1].end > end {
		n--
	}
	if n == 0 {
		return l.TruncateFully(min(l.start, l.batches[0].base))
	}
	l.shorten(n, l.batches[n-1].end)
	l.d.w.check.truncated(l.d.node.id, l)
	return nil
}

// shorten keeps n batches, the log then ends at end.
func (l *memLog) shorten(n int, end int64) {
	l.batches = l.batches[:n:n]
	l.end = end
	l.start = min(l.start, end)
	l.cuts++
	l.durable, l.hw, l.marked = min(l.durable, end), min(l.hw, end), min(l.marked, end)
	l.epochs.TruncateEnd(end)
	l.loose = n == 0 && l.epochs.Len() == 0 && end > 0
	l.producers = producer.New()
	for _, b := range slices.Concat(l.gone, l.batches) {
		l.producers.Apply(record.Batch(b.bytes))
	}
	l.producers.Replicated(l.hw)
}

func (l *memLog) TruncateFully(start int64) error {
	l.batches, l.gone, l.loose = nil, nil, start > 0
	l.start, l.end, l.durable, l.hw, l.marked = start, start, start, start, start
	l.cuts++
	l.epochs.Clear()
	l.producers = producer.New()
	l.d.w.check.truncated(l.d.node.id, l)
	return nil
}

func (l *memLog) Keep(int64) (segment.Kept, error) { return segment.Kept{}, nil }

func (l *memLog) StartOffset() int64   { return l.start }
func (l *memLog) EndOffset() int64     { return l.end }
func (l *memLog) DurableEnd() int64    { return l.durable }
func (l *memLog) HighWatermark() int64 { return l.hw }

func (l *memLog) SetHighWatermark(hw int64) {
	l.hw = min(hw, l.end)
	l.d.w.check.mark(l.d.node.id, l.id)
}

func (l *memLog) SetStartOffset(start int64) error {
	if start <= l.start || start > l.end {
		return nil
	}
	l.start = start
	n := 0
	for n < len(l.batches) && l.batches[n].end <= start {
		n++
	}
	l.gone = append(l.gone, l.batches[:n]...)
	l.batches = slices.Clone(l.batches[n:])
	l.epochs.TruncateStart(start)
	l.d.w.check.begins(l)
	return nil
}

func (l *memLog) SyncMarks() error { return nil }

// Retain keeps as many batches as the disk's owner says; each broker for itself.
func (l *memLog) Retain(_ time.Time, highWatermark int64) (int, error) {
	n := 0
	for n < len(l.batches)-l.d.keep && l.batches[n].end <= min(highWatermark, l.durable) {
		n++
	}
	if n == 0 {
		return 0, nil
	}
	return n, l.SetStartOffset(l.batches[n-1].end)
}

func (l *memLog) SetConfig(segment.Config) {}

func (l *memLog) find(offset int64) int {
	return sort.Search(len(l.batches), func(i int) bool { return l.batches[i].end > offset })
}

func (l *memLog) Read(offset int64, maxBytes int, end int64, atLeastOne bool) (segment.View, error) {
	if offset < l.start || offset > l.end {
		return segment.View{}, fmt.Errorf("%w: %s has %d to %d, asked for %d", segment.ErrOutOfRange, l.id, l.start, l.end, offset)
	}
	end = min(end, l.end)
	from := l.find(offset)
	to, size := from, 0
	for to < len(l.batches) && l.batches[to].end <= end {
		if n := size + len(l.batches[to].bytes); n > maxBytes && !(to == from && atLeastOne) {
			break
		}
		size += len(l.batches[to].bytes)
		to++
	}
	if to == from {
		return segment.ViewOf(offset, offset, nil), nil
	}
	if to == from+1 {
		return segment.ViewOf(l.batches[from].base, l.batches[from].end, l.batches[from].bytes), nil
	}
	b := make([]byte, 0, size)
	for _, m := range l.batches[from:to] {
		b = append(b, m.bytes...)
	}
	return segment.ViewOf(l.batches[from].base, l.batches[to-1].end, b), nil
}

func (l *memLog) ReadCommitted(offset int64, maxBytes int, end int64, atLeastOne bool) (segment.View, []producer.AbortedTxn, error) {
	v, err := l.Read(offset, maxBytes, end, atLeastOne)
	return v, l.producers.AbortedIn(offset, v.End), err
}

func (l *memLog) EpochEnd(e int32) (int32, int64)    { return l.epochs.End(e, l.end) }
func (l *memLog) EpochAt(offset int64) (int32, bool) { return l.epochs.At(offset) }

func (l *memLog) LatestEpoch() (int32, bool) {
	e, ok := l.epochs.Latest()
	if !ok {
		return -1, false
	}
	return e.Epoch, true
}

func (l *memLog) OffsetForTime(int64) (int64, int64, int32, bool, error) {
	return -1, -1, -1, false, nil
}
func (l *memLog) MaxTimestamp() (int64, int64, int32, bool) { return -1, -1, -1, false }

func (l *memLog) CheckProducer(b record.Batch) (*producer.Dup, error) { return l.producers.Check(b) }

func (l *memLog) CheckProducerEpoch(id int64, e int16) error { return l.producers.CheckEpoch(id, e) }

func (l *memLog) CheckMarker(id int64, e int16, coordinatorEpoch int32, version int) error {
	return l.producers.CheckMarker(id, e, coordinatorEpoch, version)
}

func (l *memLog) InTransaction(id int64, e int16) (bool, error) {
	return l.producers.InTransaction(id, e), nil
}

func (l *memLog) LastStable(highWatermark int64) int64 {
	lso := min(highWatermark, l.end)
	if first, ok := l.producers.FirstUnstable(highWatermark); ok {
		lso = min(lso, max(first, l.start))
	}
	return lso
}

func (l *memLog) Producers() []producer.Producer { return l.producers.Producers() }

func (l *memLog) Epochs() []epoch.Entry { return l.epochs.Entries() }

func (l *memLog) OpenTxns() []producer.OpenTxn { return l.producers.Open() }

func (l *memLog) Ready() error               { return nil }
func (l *memLog) Wait(context.Context) error { return nil }
func (l *memLog) WhenReady(func(error))      {}
