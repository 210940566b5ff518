package kafka

import (
	"hash/crc32"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// sentCheck sees, in test builds, that records which were gathered in memory
// are the same when they are written to the socket: a buffer that was given
// back too early shows as a panic at the writer, not as damage at some client
// (rule 13 of the reliability rules). In production it does nothing. Bytes that
// the kernel sends from a file pass through no buffer of ours.
type sentCheck struct {
	spans []sentSpan
}

// sentSpan is a run of record bytes in the buffer that is being gathered.
type sentSpan struct {
	from, to int
	sum      uint32
}

var sentTable = crc32.MakeTable(crc32.Castagnoli)

// gathered notes record bytes at buf[from:].
func (c *sentCheck) gathered(buf []byte, from int) {
	if testing.Testing() {
		c.spans = append(c.spans, sentSpan{from, len(buf), crc32.Checksum(buf[from:], sentTable)})
	}
}

// sending looks at everything noted, right before buf is written.
func (c *sentCheck) sending(buf []byte) {
	for _, s := range c.spans {
		ok := s.to <= len(buf) && crc32.Checksum(buf[s.from:s.to], sentTable) == s.sum
		_ = invariants.Check(ok, "records changed between gathering and sending: their buffer has another user")
	}
	c.spans = c.spans[:0]
}
