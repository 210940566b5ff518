package segment

import (
	"encoding/binary"
	"sort"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// transactions is what a round knows of producers: which transactions were
// aborted, which batches a rebuilt producer table could not do without, and, as
// the rewriting passes over the log, which transactions have left batches.
type transactions struct {
	aborts map[int64][]producer.Abort // by producer, in log order

	// last are the last batches, in the part that is compacted, of the producers
	// that the log's table knows.
	last map[int64]*lastBatches

	open      map[int64]bool // producers with a transactional batch since their last marker
	producers bool           // a batch with a producer id was passed since the last reset
}

type lastBatches struct {
	data, marker         int64 // last offsets, -1 without one
	dataFrom, markerFrom int64 // base of the segment in which sawBefore met them
	needMarker           bool  // the table says that there was one
}

// transactions begins a round that compacts the log up to end.
func (l *Log) transactions(end int64) transactions {
	t := transactions{aborts: map[int64][]producer.Abort{}, last: map[int64]*lastBatches{}, open: map[int64]bool{}}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, a := range l.mu.producers.Aborts() {
		t.aborts[a.ProducerID] = append(t.aborts[a.ProducerID], a)
	}
	for _, p := range l.mu.producers.Producers() {
		t.last[p.ProducerID] = &lastBatches{data: -1, marker: -1, dataFrom: -1, markerFrom: -1, needMarker: p.CoordinatorEpoch >= 0}
	}
	return t
}

// saw notes a batch of the dirty part, in log order.
func (t *transactions) saw(b record.Batch) {
	p := t.last[b.ProducerID()]
	switch {
	case p == nil:
	case b.IsControl():
		p.marker = b.LastOffset()
	default:
		p.data = b.LastOffset()
	}
}

// missing says that the dirty part did not show all last batches.
func (t *transactions) missing() bool {
	for _, p := range t.last {
		// Data is looked for also where the table's last sequence is gone: a marker
		// above what is compacted may have ended the epoch, and may be cut off again.
		if p.data < 0 || p.needMarker && p.marker < 0 {
			return true
		}
	}
	return false
}

// sawBefore notes a batch of the clean part. Segments come newest first, the
// batches of one in log order.
func (t *transactions) sawBefore(b record.Batch, segment int64) {
	p := t.last[b.ProducerID()]
	switch {
	case p == nil:
	case b.IsControl() && (p.marker < 0 || p.markerFrom == segment):
		p.marker, p.markerFrom = b.LastOffset(), segment
	case !b.IsControl() && (p.data < 0 || p.dataFrom == segment):
		p.data, p.dataFrom = b.LastOffset(), segment
	}
}

// lastOf says that the batch is the last with data of a known producer.
func (t *transactions) lastOf(b record.Batch) bool {
	p := t.last[b.ProducerID()]
	return p != nil && p.data == b.LastOffset()
}

// lastMarkerOf is lastOf for markers.
func (t *transactions) lastMarkerOf(b record.Batch) bool {
	p := t.last[b.ProducerID()]
	return p != nil && p.needMarker && p.marker == b.LastOffset()
}

// aborted is the aborted transaction to which the batch belongs, or nil.
func (t *transactions) aborted(b record.Batch) *producer.Abort {
	if !b.IsTransactional() {
		return nil
	}
	list := t.aborts[b.ProducerID()]
	i := sort.Search(len(list), func(i int) bool { return list[i].Marker > b.BaseOffset() })
	if i == len(list) || list[i].First > b.BaseOffset() {
		return nil
	}
	return &list[i]
}

// pass notes a data batch as the rewriting meets it, and returns its aborted
// transaction, if it is of one.
func (t *transactions) pass(b record.Batch) *producer.Abort {
	if !b.HasProducerID() {
		return nil
	}
	t.producers = true
	if b.IsTransactional() {
		t.open[b.ProducerID()] = true
	}
	return t.aborted(b)
}

// marker notes a marker and says whether batches of its transaction were
// passed: it stays as long as there are some, also empty ones, or they would
// look like an open transaction.
func (t *transactions) marker(b record.Batch) (needed bool) {
	needed = t.open[b.ProducerID()]
	delete(t.open, b.ProducerID())
	t.producers = true
	return needed
}

// reset notes a producer reset and says whether there is anything before it
// that only it keeps from coming back (L17).
func (t *transactions) reset() (needed bool) {
	needed = t.producers
	t.producers = false
	clear(t.open)
	return needed
}

// forgetAborted drops the entries of aborted transactions that have left
// nothing but their marker, from the table and from the snapshots in the index.
// It comes before a swap that removes such a marker: the swap makes what the
// index was told durable, so that no restart brings an entry back.
func (l *Log) forgetAborted(markers map[int64]bool) {
	l.wr.Lock() // no snapshot of the table as it was is on its way into the index
	l.mu.Lock()
	l.mu.producers.ForgetAborted(markers)
	l.forgets.Add(1)
	l.mu.Unlock()
	l.wr.Unlock()
	type snapshot struct{ key, value []byte }
	var changed []snapshot
	x := l.store.index
	x.each(l.id.key(kindProducer), func(key, value []byte) {
		_, n := binary.Varint(value) // the generation stays what it was
		t, err := producer.Decode(value[max(n, 0):])
		if err == nil && t.ForgetAborted(markers) {
			stamp := value[:n]
			changed = append(changed, snapshot{append([]byte(nil), key...), t.Encode(append([]byte(nil), stamp...))})
		}
	})
	if len(changed) == 0 {
		return
	}
	x.write(func(b *pebble.Batch) {
		for _, s := range changed {
			_ = b.Set(s.key, s.value, nil)
		}
	})
}
