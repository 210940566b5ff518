package coordinator

import (
	"math"
	"unicode/utf16"
)

// PartitionFor is the partition of the internal topic that holds a name: the
// absolute value of the name's Java hash, modulo the number of partitions.
func PartitionFor(name string, partitions int32) int32 {
	var h int32
	for _, unit := range utf16.Encode([]rune(name)) {
		h = 31*h + int32(unit)
	}
	if h == math.MinInt32 {
		h = 0 // as Kafka does, because it has no absolute value
	} else if h < 0 {
		h = -h
	}
	return h % partitions
}
