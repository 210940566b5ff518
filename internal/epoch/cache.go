package epoch

import (
	"slices"
	"sort"
)

// Entry says that the epoch's first batch begins at Start.
type Entry struct {
	Epoch int32
	Start int64
}

// Undefined is the answer for an epoch that cannot be placed: Kafka's
// UNDEFINED_EPOCH and UNDEFINED_EPOCH_OFFSET.
const Undefined = -1

// Cache maps leader epochs to the offsets at which they began. The zero value
// is an empty cache. Not safe for several goroutines.
//
// Invariant: epochs and starts both rise strictly over entries.
type Cache struct {
	entries []Entry
}

// New makes a cache of entries, which must be ascending in both fields; those
// that are not are dropped the way Assign would.
func New(entries []Entry) *Cache {
	c := &Cache{entries: make([]Entry, 0, len(entries))}
	for _, e := range entries {
		c.Assign(e.Epoch, e.Start)
	}
	return c
}

// Assign notes that a batch of the given epoch begins at start. An epoch that
// is already the newest changes nothing. Entries that contradict the new one
// go, as in Kafka: those with a start at or behind it, or a greater epoch. It
// reports whether anything changed.
func (c *Cache) Assign(epoch int32, start int64) bool {
	if epoch < 0 || start < 0 {
		return false
	}
	n := len(c.entries)
	if n > 0 {
		last := c.entries[n-1]
		if last.Epoch == epoch && last.Start <= start {
			return false
		}
		for n > 0 && (c.entries[n-1].Epoch >= epoch || c.entries[n-1].Start >= start) {
			n--
		}
	}
	c.entries = append(c.entries[:n], Entry{epoch, start})
	return true
}

// Latest is the newest epoch and where it began.
func (c *Cache) Latest() (Entry, bool) {
	if len(c.entries) == 0 {
		return Entry{}, false
	}
	return c.entries[len(c.entries)-1], true
}

// Earliest is the oldest epoch that is known.
func (c *Cache) Earliest() (Entry, bool) {
	if len(c.entries) == 0 {
		return Entry{}, false
	}
	return c.entries[0], true
}

// End answers OffsetForLeaderEpoch (KIP-101, KIP-279): the greatest epoch that
// is known and not above the one asked for, and the offset at which it ends.
//
//   - the newest epoch ends at the log end;
//   - an epoch above the newest is undefined (L3);
//   - an epoch below the oldest is answered with itself and the oldest start:
//     everything behind that point is of a later epoch.
func (c *Cache) End(epoch int32, logEnd int64) (int32, int64) {
	n := len(c.entries)
	if n == 0 || epoch < 0 || epoch > c.entries[n-1].Epoch {
		return Undefined, Undefined
	}
	if epoch == c.entries[n-1].Epoch {
		return epoch, logEnd
	}
	// The first entry above epoch exists, because the newest is.
	i := sort.Search(n, func(i int) bool { return c.entries[i].Epoch > epoch })
	if i == 0 {
		return epoch, c.entries[0].Start
	}
	return c.entries[i-1].Epoch, c.entries[i].Start
}

// At is the epoch in which offset was, or would have been, written.
func (c *Cache) At(offset int64) (int32, bool) {
	i := sort.Search(len(c.entries), func(i int) bool { return c.entries[i].Start > offset })
	if i == 0 {
		return Undefined, false
	}
	return c.entries[i-1].Epoch, true
}

// TruncateEnd drops every epoch that began at or behind end, the new log end.
func (c *Cache) TruncateEnd(end int64) {
	n := len(c.entries)
	for n > 0 && c.entries[n-1].Start >= end {
		n--
	}
	c.entries = c.entries[:n]
}

// TruncateStart drops the epochs that ended at or before start, the new log
// start, and moves the start of the one in which it lies, as Kafka does. An
// epoch that began at or behind start is left alone.
func (c *Cache) TruncateStart(start int64) {
	i := sort.Search(len(c.entries), func(i int) bool { return c.entries[i].Start > start })
	if i == 0 {
		return
	}
	c.entries = slices.Delete(c.entries, 0, i-1)
	c.entries[0].Start = max(c.entries[0].Start, start)
}

// Clear forgets everything.
func (c *Cache) Clear() { c.entries = c.entries[:0] }

// Len is the number of epochs known.
func (c *Cache) Len() int { return len(c.entries) }

// Entries is a copy, oldest first.
func (c *Cache) Entries() []Entry { return slices.Clone(c.entries) }
