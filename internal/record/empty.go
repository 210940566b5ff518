package record

import (
	"encoding/binary"
	"math"
)

// EmptyOf makes a batch without records from the header of b: same offsets,
// epoch, timestamps and producer. Compaction leaves one behind where a batch
// lost all its records but its place in the log, or what it says of its
// producer, is still needed, as Kafka's does. Consumers step over it.
func EmptyOf(b Batch) []byte {
	e := append([]byte(nil), b[:HeaderSize]...)
	binary.BigEndian.PutUint32(e[posLength:], HeaderSize-prefixSize)
	binary.BigEndian.PutUint16(e[posAttributes:], uint16(b.Attributes()&^attrCodec))
	binary.BigEndian.PutUint32(e[posNumRecords:], 0)
	Batch(e).seal()
	return e
}

// Hole makes batches without records that stand for the offsets [from, to), as
// few as their 32 bits of offset delta allow. They belong to no producer and
// have no time.
func Hole(from, to int64, leaderEpoch int32) []byte {
	var all []byte
	for from < to {
		last := min(to-1, from+math.MaxInt32)
		h := NoProducer(-1)
		h.BaseOffset, h.LeaderEpoch = from, leaderEpoch
		b := Build(h, nil)
		binary.BigEndian.PutUint32(b[posLastOffsetDelta:], uint32(last-from))
		Batch(b).seal()
		all, from = append(all, b...), last+1
	}
	return all
}
