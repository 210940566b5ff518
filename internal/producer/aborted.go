package producer

import "slices"

// Abort is an aborted transaction whole: the records of the producer in
// [First, Marker) are not to be seen by read-committed consumers.
type Abort struct {
	ProducerID    int64
	First, Marker int64
}

// Aborts lists every aborted transaction that is known, by markers.
func (t *Table) Aborts() []Abort {
	list := make([]Abort, len(t.aborted))
	for i, a := range t.aborted {
		list[i] = Abort{ProducerID: a.producer, First: a.first, Marker: a.marker}
	}
	return list
}

// ForgetAborted drops the aborted transactions with these markers. Compaction
// calls it once nothing of them is left but the marker, and before the marker
// goes: a consumer that is told of a transaction ignores its producer until
// it meets the marker, so an entry without one would hide what the producer
// wrote later. It reports whether there was one.
func (t *Table) ForgetAborted(markers map[int64]bool) bool {
	n := len(t.aborted)
	t.aborted = slices.DeleteFunc(t.aborted, func(a aborted) bool { return markers[a.marker] })
	return len(t.aborted) < n
}

// Has says whether the producer is known.
func (t *Table) Has(id int64) bool { return t.producers[id] != nil }

// EndOpen ends the open transaction of a producer as its marker did that compaction
// removes, in a table from before it. It reports whether one was open.
func (t *Table) EndOpen(id int64) bool {
	s := t.producers[id]
	if s == nil || s.txnFirst < 0 {
		return false
	}
	t.close(s)
	return true
}

// Drop forgets every producer, as the reset did that compaction removes, in a table
// from before it. It reports whether there was one.
func (t *Table) Drop() bool {
	n := len(t.producers)
	t.open, t.latest = t.open[:0], nil
	clear(t.producers)
	return n > 0
}
