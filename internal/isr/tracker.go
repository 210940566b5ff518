// Package isr knows who is in sync, and therefore where the high watermark
// stands. It is a pure function of what the replicas reported: no clock, disk
// or network; the partition that owns a Tracker calls it under its own lock.
package isr

import "slices"

// Tracker is the leader's view of its replicas in one leader epoch.
//
// Invariant: the high watermark never falls, except by Lower (a truncation),
// and never passes the end of a member of the ISR.
type Tracker struct {
	isr           []int32
	ends          map[int32]int64 // replica → end offset that counts for the high watermark
	highWatermark int64
}

// NewTracker begins a leader epoch. highWatermark is what this replica knew
// before; the members' ends are unknown until they report, so it stands still
// until every one of them has.
func NewTracker(isr []int32, highWatermark int64) *Tracker {
	return &Tracker{isr: slices.Clone(isr), ends: make(map[int32]int64, len(isr)), highWatermark: highWatermark}
}

// HighWatermark is the exclusive end of what every ISR member has.
func (t *Tracker) HighWatermark() int64 { return t.highWatermark }

// ISR is the current membership. The caller must not change the slice.
func (t *Tracker) ISR() []int32 { return t.isr }

// Update records that a replica's log (or, with durability by fsync, its
// fsynced part) now ends at end, and tells whether the high watermark moved.
func (t *Tracker) Update(replica int32, end int64) (highWatermark int64, moved bool) {
	t.ends[replica] = end
	return t.advance()
}

// SetISR changes the membership; a smaller ISR may move the high watermark.
func (t *Tracker) SetISR(isr []int32) (highWatermark int64, moved bool) {
	t.isr = slices.Clone(isr)
	return t.advance()
}

// Lower follows a truncation of the log to end.
func (t *Tracker) Lower(end int64) {
	t.highWatermark = min(t.highWatermark, end)
	for id, e := range t.ends {
		t.ends[id] = min(e, end)
	}
}

// Restart follows a log that was emptied and begins anew at start, which may
// lie above everything it held (W40).
func (t *Tracker) Restart(start int64) {
	t.highWatermark = start
	clear(t.ends)
}

func (t *Tracker) advance() (int64, bool) {
	if len(t.isr) == 0 {
		return t.highWatermark, false
	}
	low := int64(-1)
	for _, id := range t.isr {
		end, known := t.ends[id]
		if !known {
			return t.highWatermark, false
		}
		if low < 0 || end < low {
			low = end
		}
	}
	if low <= t.highWatermark {
		return t.highWatermark, false
	}
	t.highWatermark = low
	return low, true
}
