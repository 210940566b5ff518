package record

import "math"

// NoTimestamp is that of a record without a time of its own.
const NoTimestamp int64 = -1

// Times are the oldest and the newest timestamp of some records; those without one
// are left out.
type Times struct{ Oldest, Newest int64 }

// NoTimes are those of no record.
func NoTimes() Times { return Times{math.MaxInt64, math.MinInt64} }

// Note takes one more into account.
func (t *Times) Note(timestamp int64) {
	if timestamp != NoTimestamp {
		t.Oldest, t.Newest = min(t.Oldest, timestamp), max(t.Newest, timestamp)
	}
}

// HeaderTimes are what the batch's header says: the time of the first record and
// the newest one. Older ones among the others do not show.
func (b Batch) HeaderTimes() Times {
	t := NoTimes()
	t.Note(b.BaseTimestamp())
	t.Note(b.MaxTimestamp())
	return t
}
