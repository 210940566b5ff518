package perf

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// A record's value begins with a stamp: a magic number and the planned time in
// nanoseconds since 1970. The rest is noise.
const (
	stampMagic = 0x4c535046 // "LSPF"
	stampBytes = 12
)

// noise is the pool that values are cut from: long enough that a codec with a
// window of some MiB does not find one value in another.
const noiseBytes = 8 << 20

// payload makes values of a fixed size.
type payload struct {
	noise []byte
	rand  *rand.Rand
	size  int
}

// newPayload makes noise of which the given share (0 to 1) is random and the rest
// the same byte over and over.
func newPayload(size int, random float64, seed uint64) *payload {
	p := &payload{noise: make([]byte, noiseBytes), rand: rand.New(rand.NewPCG(seed, 0)), size: size}
	const run = 64 // bytes; each run is random first and even then
	cut := int(random * run)
	for i := 0; i < len(p.noise); i += 8 {
		v := p.rand.Uint64()
		for k := range 8 {
			if (i+k)%run < cut {
				p.noise[i+k] = byte(v >> (8 * k))
			}
		}
	}
	return p
}

// value makes the next value with its stamp.
func (p *payload) value(due time.Time) []byte {
	v := make([]byte, p.size)
	copy(v, p.noise[p.rand.IntN(len(p.noise)-p.size+1):])
	binary.BigEndian.PutUint32(v, stampMagic)
	binary.BigEndian.PutUint64(v[4:], uint64(due.UnixNano()))
	return v
}

// stamp reads the planned time of a value that Produce made.
func stamp(v []byte) (time.Time, bool) {
	if len(v) < stampBytes || binary.BigEndian.Uint32(v) != stampMagic {
		return time.Time{}, false
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(v[4:]))), true
}
