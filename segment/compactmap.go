package segment

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// offsetMap remembers the newest offset of each key in the part of a log that
// is compacted for the first time. It is one allocation that never grows, to be
// given back by free: open
// addressing over slots of 24 bytes, a fingerprint of 128 bits and an offset.
// 128 MiB hold five million keys.
//
// Two keys with one fingerprint would lose a record. With n keys the odds are
// about n²/2^129: 1.5·10^-25 for 10 million keys. The fingerprint is SHA-256 over
// a random secret and the key, so that nobody can prepare two keys that meet,
// nor keys that crowd one place of the table.
type offsetMap struct {
	slots  []uint64 // high, low, offset + 1; an offset of 0 is a free slot
	n, max int
	buf    []byte // the secret, then the key
	free   func()
}

const (
	slotSize   = 24
	secretSize = 16

	// mapLoad is how full the table gets. At nine tenths a key that is not there
	// is looked for in 50 neighbouring slots on average, one that is in 6.
	mapLoad = 0.9
)

// newOffsetMap makes a map of at most memory bytes, and less if no more than
// the given number of keys can come.
func newOffsetMap(memory, keys int64) *offsetMap {
	slots := min(memory/slotSize, int64(float64(keys)/mapLoad)+2)
	slots = max(slots, 2) // a round makes progress with one key already
	m := &offsetMap{buf: make([]byte, secretSize, 256)}
	m.slots, m.free = allocSlots(3 * int(slots))
	m.max = max(int(float64(slots)*mapLoad), 1)
	_, _ = rand.Read(m.buf) // never fails (crypto/rand)
	return m
}

func (m *offsetMap) fingerprint(key []byte) (high, low uint64) {
	m.buf = append(m.buf[:secretSize], key...)
	sum := sha256.Sum256(m.buf)
	return binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])
}

// find returns the position of the key's slot, or of the free one where it
// belongs.
func (m *offsetMap) find(high, low uint64) int {
	i, _ := bits.Mul64(high, uint64(len(m.slots)/3))
	for at := int(i) * 3; ; {
		s := m.slots[at : at+3 : at+3]
		if s[2] == 0 || s[0] == high && s[1] == low {
			return at
		}
		if at += 3; at == len(m.slots) {
			at = 0
		}
	}
}

// put notes that the key's newest record is at offset, unless a newer one is
// known. It answers false if the map is full and does not have the key.
func (m *offsetMap) put(key []byte, offset int64) bool {
	high, low := m.fingerprint(key)
	s := m.slots[m.find(high, low):]
	if s[2] == 0 {
		if m.n >= m.max {
			return false
		}
		m.n++
		s[0], s[1] = high, low
	}
	s[2] = max(s[2], uint64(offset)+1)
	return true
}

// newest is the offset of the key's newest record, -1 if the map has none.
func (m *offsetMap) newest(key []byte) int64 {
	if m.n == 0 {
		return -1
	}
	high, low := m.fingerprint(key)
	return int64(m.slots[m.find(high, low)+2]) - 1
}

// utilisation is how full the map is, 1 when it takes no more.
func (m *offsetMap) utilisation() float64 { return float64(m.n) / float64(m.max) }
