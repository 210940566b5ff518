package segment

import (
	"math"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// control decides about a marker or a producer reset.
func (w *groupWriter) control(b record.Batch) (record.Batch, error) {
	kind, _, err := b.Control()
	switch {
	case b.NumRecords() == 0:
		return nil, nil // emptied by a cleaner before us
	case err != nil:
		return w.keep(b), nil
	}
	kept, err := w.ending(b, kind)
	w.oldest.met(b, kind, kept != nil)
	return kept, err
}

// ending is control for one that can be read.
func (w *groupWriter) ending(b record.Batch, kind record.ControlType) (record.Batch, error) {
	switch {
	case kind == record.MirrorPIDReset:
		if w.txns.reset() {
			return w.keep(b), nil
		}
	case kind.IsMarker() && b.HasProducerID():
		if w.txns.marker(b) {
			return w.keep(b), nil
		}
	default:
		return w.keep(b), nil
	}
	if w.over == nil {
		w.over = make(map[int64]bool)
	}
	w.over[b.LastOffset()] = true
	switch {
	case w.txns.lastMarkerOf(b):
		return w.keep(b), nil // it holds the coordinator's epoch, and perhaps the producer's
	case !b.HasDeleteHorizon():
		return w.stamp(b)
	case b.BaseTimestamp() > w.now:
		return w.keep(b), nil
	}
	w.stats.Markers++
	w.gone = b.NextOffset()
	return nil, nil
}

func (w *groupWriter) keep(b record.Batch) record.Batch {
	w.stats.RecordsKept += int64(b.NumRecords())
	return b
}

// horizon is when what is stamped now may go.
func (w *groupWriter) horizon() int64 {
	if h := w.now + w.config.DeleteRetentionMs; h >= w.now {
		return h
	}
	return math.MaxInt64
}

// stamp gives a batch its delete horizon and keeps its records.
func (w *groupWriter) stamp(b record.Batch) (record.Batch, error) {
	w.filter.keep = w.filter.keep[:0]
	for range b.NumRecords() {
		w.filter.keep = append(w.filter.keep, true)
	}
	w.stats.RecordsKept += int64(b.NumRecords())
	plain, err := w.filter.records(b)
	if err != nil {
		return b, nil
	}
	return w.rebuild(b, plain, true)
}
