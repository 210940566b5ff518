package mirror

import (
	"hash/fnv"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Some work is done once per mirror, whichever brokers lead its partitions: topic
// configs, group offsets, growth, discovery. Its owner is told by the metadata
// alone, so that all brokers name the same one, the mirrors are spread over them,
// and those of a broker that dies go on elsewhere while the others stay. While
// images differ for a moment two brokers may own a mirror: everything that an owner
// does can be done twice.

// owner is the broker that does a mirror's own work; -1 if nobody is alive. It is
// the one that ranks highest for the name.
func owner(img *metadata.Image, mirror string) int32 {
	best, rank := int32(-1), uint64(0)
	for _, b := range img.Brokers() {
		if !b.Eligible() {
			continue
		}
		h := fnv.New64a()
		h.Write([]byte{byte(b.ID >> 24), byte(b.ID >> 16), byte(b.ID >> 8), byte(b.ID)})
		h.Write([]byte(mirror))
		// FNV moves what comes first too little for close ids to differ in order.
		if r := mix(h.Sum64()); best < 0 || r > rank {
			best, rank = b.ID, r
		}
	}
	return best
}

func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// owns reports whether this broker does the work that is done once per mirror.
func (m *Manager) owns(img *metadata.Image, mirror string) bool {
	return owner(img, mirror) == m.o.NodeID
}
